#include "common/aligned_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "common/check.h"

namespace trunkline {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Bytes to map: up to the end of the last huge page, unless that wastes more
// than a part in 64 of the buffer. A huge page is in memory as a whole, and a
// model has thousands of buffers; a mapping that ends earlier has small pages
// at its end.
size_t MappedBytes(size_t bytes) {
  const size_t huge = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (huge - bytes <= bytes / 64) return huge;
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes >= kHugePage) {
    mapped_ = MappedBytes(bytes);
    // One huge page more, so that an aligned start can be cut out of the
    // mapping.
    const size_t reserve = mapped_ + kHugePage;
    void* raw = mmap(nullptr, reserve, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TL_CHECK(raw != MAP_FAILED)
        << "out of address space for " << bytes << " bytes";
    auto* begin = static_cast<std::byte*>(raw);
    auto* aligned = reinterpret_cast<std::byte*>(
        (reinterpret_cast<uintptr_t>(begin) + kHugePage - 1) / kHugePage *
        kHugePage);
    if (aligned != begin) munmap(begin, static_cast<size_t>(aligned - begin));
    std::byte* end = begin + reserve;
    if (aligned + mapped_ != end)
      munmap(aligned + mapped_, static_cast<size_t>(end - (aligned + mapped_)));
    // Advice only: without huge pages it is slower, not wrong.
    madvise(aligned, mapped_, MADV_HUGEPAGE);
    data_ = aligned;
    return;
  }
  data_ = static_cast<std::byte*>(std::aligned_alloc(
      kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
  TL_CHECK(data_ != nullptr) << "out of memory for " << bytes << " bytes";
  std::memset(data_, 0, bytes);
}

AlignedBuffer::~AlignedBuffer() {
  if (mapped_ != 0) {
    munmap(data_, mapped_);
  } else {
    std::free(data_);
  }
}

}  // namespace trunkline
