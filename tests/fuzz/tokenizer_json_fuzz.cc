// Any bytes as a tokenizer.json: an error, or a tokenizer that gives back the
// text it was given.

#include <cstddef>
#include <cstdint>

#include "common/check.h"
#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer = trunkline::model::Tokenizer::Parse(
      absl::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!tokenizer.ok()) return 0;
  for (const char* text :
       {"", "In the beginning 12", "\xc3\xa9\n\t<s> </s>a"}) {
    const auto ids = (*tokenizer)->Encode(text, {false, true});
    if (!ids.ok()) continue;  // a pattern that needs too many steps
    TL_CHECK((*tokenizer)->Decode(*ids, false).ok());
    for (const int32_t id : *ids) {
      TL_CHECK((*tokenizer)->TokenBytes(id).ok()) << id;
    }
  }
  return 0;
}
