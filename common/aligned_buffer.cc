#include "common/aligned_buffer.h"

#include <cstdlib>
#include <cstring>

#include "common/check.h"
#include "common/huge_region.h"

namespace trunkline {

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes >= kHugePageBytes) {
    data_ = AllocateHuge(bytes);
    return;
  }
  data_ = static_cast<std::byte*>(std::aligned_alloc(
      kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
  TL_CHECK(data_ != nullptr) << "out of memory for " << bytes << " bytes";
  std::memset(data_, 0, bytes);
}

AlignedBuffer::~AlignedBuffer() {
  if (size_ >= kHugePageBytes) {
    FreeHuge(data_, size_);
  } else {
    std::free(data_);
  }
}

}  // namespace trunkline
