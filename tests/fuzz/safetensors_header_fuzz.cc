// Any bytes as a safetensors file: an error, or tensors that cover the data
// once, each with the bytes that its shape and type take.

#include <cstddef>
#include <cstdint>

#include "common/check.h"
#include "model/safetensors_file.h"
#include "model/tensor_names.h"

using namespace trunkline::model;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = ParseSafetensorsHeader(
      absl::string_view(reinterpret_cast<const char*>(data), size),
      static_cast<int64_t>(size), "fuzz");
  if (!header.ok()) return 0;
  int64_t next = header->data_offset;
  for (const StoredTensor& tensor : header->tensors) {
    TL_CHECK_EQ(tensor.offset, next) << tensor.name;
    TL_CHECK_GE(tensor.bytes, 0) << tensor.name;
    next += tensor.bytes;
    for (const bool wrapped : {false, true}) {
      const CanonicalName name = CanonicalTensorName(tensor.name, wrapped);
      (void)StackedExpertsName(name.name);
    }
  }
  TL_CHECK_EQ(next, static_cast<int64_t>(size));
  return 0;
}
