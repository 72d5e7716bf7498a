#include "transport/ucx/message_assembler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace trunkline::transport::ucx {

absl::StatusOr<std::shared_ptr<MessageAssembler::Assembly>>
MessageAssembler::Open(const ChunkHeader& header, int64_t unread_bytes) {
  // A sender goes at most kWindowMessages ahead of the oldest message that it
  // knows to be there. It may know a little before us, hence the factor.
  if (header.sequence < next_sequence_ ||
      header.sequence - next_sequence_ >= 2 * kWindowMessages) {
    return absl::InvalidArgumentError(absl::StrCat("message number ",
                                                   header.sequence, " where ",
                                                   next_sequence_, " is due"));
  }
  if (header.message_bytes > static_cast<uint64_t>(message_bytes_max_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("message of ", header.message_bytes,
                     " bytes is above the receiver's message_bytes_max (",
                     message_bytes_max_, ")"));
  }
  const auto bytes = static_cast<int64_t>(header.message_bytes);
  if (unread_bytes + assembling_bytes_ + bytes > queue_bytes_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(unread_bytes + assembling_bytes_,
                     " bytes of the peer wait to be read; ", bytes,
                     " more are above the receiver's queue_bytes_max (",
                     queue_bytes_max_, ")"));
  }
  auto assembly = std::make_shared<Assembly>();
  assembly->message = {pool_->Take(header.message_bytes), header.message_bytes};
  assembly->sequence = header.sequence;
  assembly->missing_bytes = header.message_bytes;
  // An empty message is one empty chunk.
  assembly->missing_chunks = std::max<size_t>(
      1, (header.message_bytes + kChunkBytes - 1) / kChunkBytes);
  assembly->begun.resize(assembly->missing_chunks);
  assembling_bytes_ += bytes;
  open_.emplace(header.sequence, assembly);
  return assembly;
}

absl::StatusOr<MessageAssembler::Target> MessageAssembler::Begin(
    const ChunkHeader& header, size_t payload_bytes, int64_t unread_bytes) {
  std::shared_ptr<Assembly> assembly;
  if (const auto it = open_.find(header.sequence); it != open_.end()) {
    assembly = it->second;
  } else {
    TL_ASSIGN_OR_RETURN(assembly, Open(header, unread_bytes));
  }
  const uint64_t total = assembly->message.size;
  if (header.message_bytes != total) {
    return absl::InvalidArgumentError(
        absl::StrCat("message ", header.sequence, " had ", total,
                     " bytes, now ", header.message_bytes));
  }
  const bool fits =
      header.offset % kChunkBytes == 0 &&
      (header.offset < total || total == 0) && header.offset <= total &&
      payload_bytes == std::min<uint64_t>(kChunkBytes, total - header.offset);
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("chunk of ", payload_bytes,
                                                   " bytes at ", header.offset,
                                                   " in a message of ", total));
  }
  std::vector<bool>::reference begun =
      assembly->begun[header.offset / kChunkBytes];
  if (begun) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a second chunk at ", header.offset, " of message ", header.sequence));
  }
  begun = true;
  std::byte* const bytes =
      total == 0 ? nullptr : assembly->message.data() + header.offset;
  return Target{std::move(assembly), bytes};
}

void MessageAssembler::Finish(Assembly* assembly, size_t payload_bytes) {
  TL_CHECK_GT(assembly->missing_chunks, 0u);
  TL_CHECK_GE(assembly->missing_bytes, payload_bytes);
  assembly->missing_bytes -= payload_bytes;
  --assembly->missing_chunks;
}

bool MessageAssembler::TakeNext(Message* message) {
  const auto it = open_.find(next_sequence_);
  if (it == open_.end() || it->second->missing_chunks > 0) return false;
  *message = std::move(it->second->message);
  assembling_bytes_ -= static_cast<int64_t>(message->size);
  open_.erase(it);
  ++next_sequence_;
  return true;
}

}  // namespace trunkline::transport::ucx
