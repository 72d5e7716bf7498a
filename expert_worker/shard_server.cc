#include "expert_worker/shard_server.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace trunkline::expert {
namespace {

ShardServer::Answer Refuse(ShardHeader header, ShardRefusalCode code,
                           const std::string& why,
                           transport::Transport& transport) {
  header.kind = ShardFrameKind::kRefusal;
  header.refusal = code;
  const std::string text = why.substr(0, kShardMessageMax);
  ShardServer::Answer answer;
  answer.refused = true;
  answer.message = transport.Allocate(ShardFrameBytes(text.size()));
  const std::span<std::byte> frame(answer.message.data(), answer.message.size);
  const std::span<std::byte> payload = BeginShardFrame(header, frame);
  std::memcpy(payload.data(), text.data(), text.size());
  SealShardFrame(frame);
  return answer;
}

}  // namespace

std::optional<ShardServer::Answer> ShardServer::Handle(
    std::span<const std::byte> request, transport::Transport& transport) const {
  const absl::StatusOr<ShardFrame> frame = DecodeShardFrame(request);
  if (!frame.ok()) {
    return Refuse({}, ShardRefusalCode::kMalformed,
                  std::string(frame.status().message()), transport);
  }
  ShardHeader header = frame->header;
  if (header.kind != ShardFrameKind::kRequest) return std::nullopt;
  if (header.cluster_id != cluster_id_) {
    return Refuse(header, ShardRefusalCode::kWrongCluster,
                  absl::StrCat("the request is of cluster ", header.cluster_id),
                  transport);
  }
  const std::optional<Held> held = find_(header.key);
  if (!held.has_value()) {
    return Refuse(header, ShardRefusalCode::kNotHeld,
                  absl::StrCat("layer ", header.key.layer.value, " expert ",
                               header.key.expert.value, " is not loaded here"),
                  transport);
  }
  const kernels::PackedMatrix& matrix =
      header.part == ShardPart::kUp ? held->weights->up : held->weights->down;
  const int64_t row_bytes = matrix.k() * DTypeBytes(matrix.dtype());
  const int64_t rows_most =
      std::max<int64_t>(1, static_cast<int64_t>(kShardChunkBytes) / row_bytes);
  if (header.first_row >= matrix.n() || header.row_count > rows_most ||
      header.first_row + int64_t{header.row_count} > matrix.n()) {
    return Refuse(
        header, ShardRefusalCode::kMalformed,
        absl::StrCat("rows ", header.first_row, "..+", header.row_count, " of ",
                     matrix.n(), ", at most ", rows_most, " at a time"),
        transport);
  }
  const size_t bytes = static_cast<size_t>(header.row_count * row_bytes);
  if (bytes_under_way_ + bytes > bytes_under_way_max_) {
    return Refuse(header, ShardRefusalCode::kBusy,
                  absl::StrCat(bytes_under_way_, " bytes are on their way"),
                  transport);
  }
  header.kind = ShardFrameKind::kRows;
  header.dtype = matrix.dtype();
  header.rows = static_cast<uint32_t>(matrix.n());
  header.columns = static_cast<uint32_t>(matrix.k());
  header.parts = kShardParts;
  header.digest = held->digest;
  Answer answer;
  answer.rows_bytes = bytes;
  answer.message = transport.Allocate(ShardFrameBytes(bytes));
  const std::span<std::byte> out(answer.message.data(), answer.message.size);
  matrix.Unpack(header.first_row, header.row_count,
                BeginShardFrame(header, out).data());
  SealShardFrame(out);
  return answer;
}

}  // namespace trunkline::expert
