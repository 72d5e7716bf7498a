#pragma once

// Puts the chunks of one connection together again. UCX delivers large and
// small active messages by different protocols, so chunks may finish in any
// order; messages come out whole and in the order of their sequence numbers.
// Every field of a header is checked before it is used: a peer that breaks the
// rules costs its own connection.
// Not thread-safe. Allocates from the pool, otherwise pure.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/buffer_pool.h"
#include "transport/transport.h"
#include "transport/ucx/wire.h"

namespace trunkline::transport::ucx {

class MessageAssembler {
 public:
  // A message whose bytes are not all there yet. Shared with the receives that
  // write into it: UCX may outlive the connection.
  struct Assembly {
    Message message;
    uint64_t sequence = 0;
    size_t missing_bytes = 0;
    size_t missing_chunks = 0;
    std::vector<bool> begun;  // by chunk
  };
  struct Target {
    std::shared_ptr<Assembly> assembly;
    std::byte* bytes;
  };

  MessageAssembler(BufferPool* pool, int64_t message_bytes_max,
                   int64_t queue_bytes_max)
      : pool_(pool),
        message_bytes_max_(message_bytes_max),
        queue_bytes_max_(queue_bytes_max) {}

  // Where the chunk's payload belongs. `unread_bytes`: what the connection has
  // delivered and nobody has polled yet; it counts against the same limit.
  absl::StatusOr<Target> Begin(const ChunkHeader& header, size_t payload_bytes,
                               int64_t unread_bytes);
  // The payload of a chunk is in its place.
  void Finish(Assembly* assembly, size_t payload_bytes);
  // The next message in order, when it is whole.
  bool TakeNext(Message* message);

  int64_t assembling_bytes() const { return assembling_bytes_; }

 private:
  absl::StatusOr<std::shared_ptr<Assembly>> Open(const ChunkHeader& header,
                                                 int64_t unread_bytes);

  BufferPool* const pool_;
  const int64_t message_bytes_max_;
  const int64_t queue_bytes_max_;
  uint64_t next_sequence_ = 0;
  int64_t assembling_bytes_ = 0;
  // By sequence; all lie in [next_sequence_, next_sequence_ + window).
  std::map<uint64_t, std::shared_ptr<Assembly>> open_;
};

}  // namespace trunkline::transport::ucx
