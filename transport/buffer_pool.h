#pragma once

// Message memory that is used again. New memory is zeroed and, when large,
// mapped; a message of the step path should pay for neither.
//
// Sizes are rounded up to a class (four classes per doubling, so at most a
// fifth is wasted). The pool keeps at most bytes_max of freed memory over all
// classes and gives the rest back to the system; memory in use is not counted,
// the queues that hold it are bounded by themselves.
// Thread-safe.

#include <cstdint>
#include <mutex>
#include <vector>

#include "common/aligned_buffer.h"

namespace trunkline::transport {

class BufferPool {
 public:
  explicit BufferPool(int64_t bytes_max);

  // At least `size` bytes, undefined. Zero bytes: an empty buffer.
  AlignedBuffer Take(size_t size);
  // Takes any buffer, also one that the pool did not make.
  void Give(AlignedBuffer buffer);

  // Raises the limit, never lowers it: for a pool with several owners.
  void Allow(int64_t bytes_max);

  int64_t kept_bytes() const;

 private:
  mutable std::mutex mutex_;
  int64_t bytes_max_;                             // mutex_
  std::vector<std::vector<AlignedBuffer>> free_;  // by class; mutex_
  int64_t kept_bytes_ = 0;                        // mutex_
};

// The classes, for tests: sizes grow with the index, ClassOf(ClassBytes(i)) ==
// i.
size_t ClassBytes(size_t index);
size_t ClassOf(size_t size);  // the smallest class that holds `size` (> 0)

}  // namespace trunkline::transport
