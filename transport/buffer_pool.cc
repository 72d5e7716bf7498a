#include "transport/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace trunkline::transport {
namespace {

constexpr size_t kSmallestBytes = 256;
constexpr size_t kSmallestLog2 = 8;
constexpr size_t kClasses = 4 * 40;  // up to 2^48 bytes

}  // namespace

size_t ClassBytes(size_t index) {
  const size_t base = kSmallestBytes << (index / 4);
  return base + base / 4 * (index % 4);
}

size_t ClassOf(size_t size) {
  if (size <= kSmallestBytes) return 0;
  const size_t log2 = static_cast<size_t>(std::bit_width(size) - 1);
  const size_t base = size_t{1} << log2;
  const size_t quarter = base / 4;
  // size lies in [base, 2 base); quarters are counted up.
  return (log2 - kSmallestLog2) * 4 + (size - base + quarter - 1) / quarter;
}

BufferPool::BufferPool(int64_t bytes_max)
    : bytes_max_(bytes_max), free_(kClasses) {}

AlignedBuffer BufferPool::Take(size_t size) {
  if (size == 0) return AlignedBuffer();
  const size_t index = ClassOf(size);
  {
    std::lock_guard lock(mutex_);
    if (index < kClasses && !free_[index].empty()) {
      AlignedBuffer buffer = std::move(free_[index].back());
      free_[index].pop_back();
      kept_bytes_ -= static_cast<int64_t>(buffer.size());
      return buffer;
    }
  }
  return AlignedBuffer(ClassBytes(index));
}

void BufferPool::Give(AlignedBuffer buffer) {
  if (buffer.size() < kSmallestBytes) return;
  // Foreign memory may lie between two classes: it serves the lower one.
  size_t index = ClassOf(buffer.size());
  if (ClassBytes(index) > buffer.size()) --index;
  if (index >= kClasses) return;
  const auto bytes = static_cast<int64_t>(buffer.size());
  std::lock_guard lock(mutex_);
  if (kept_bytes_ + bytes > bytes_max_) return;
  kept_bytes_ += bytes;
  free_[index].push_back(std::move(buffer));
}

void BufferPool::Allow(int64_t bytes_max) {
  std::lock_guard lock(mutex_);
  bytes_max_ = std::max(bytes_max_, bytes_max);
}

int64_t BufferPool::kept_bytes() const {
  std::lock_guard lock(mutex_);
  return kept_bytes_;
}

}  // namespace trunkline::transport
