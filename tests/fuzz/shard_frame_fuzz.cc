// Whatever a peer sends as a shard frame is refused or consistent in itself.
// The checksum would stop nearly every input, so it is put right first.

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/check.h"
#include "expert_worker/shard_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trunkline::expert;
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  if (size >= kShardHeaderBytes) SealShardFrame(bytes);
  const auto frame = DecodeShardFrame(bytes);
  if (!frame.ok()) {
    TL_CHECK(!frame.status().message().empty());
    return 0;
  }
  const ShardHeader& header = frame->header;
  if (header.kind == ShardFrameKind::kRows) {
    TL_CHECK_EQ(frame->rows.size(),
                size_t{header.row_count} * header.columns *
                    static_cast<size_t>(trunkline::DTypeBytes(header.dtype)));
    TL_CHECK_LE(uint64_t{header.first_row} + header.row_count,
                uint64_t{header.rows});
  }
  std::vector<std::byte> again(size);
  const std::span<std::byte> payload = BeginShardFrame(header, again);
  std::memcpy(payload.data(), bytes.data() + kShardHeaderBytes, payload.size());
  SealShardFrame(again);
  TL_CHECK(DecodeShardFrame(again).ok());
  return 0;
}
