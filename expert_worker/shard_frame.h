#pragma once

// The messages by which one expert worker takes an expert's weights from
// another (docs/wire_format.md): a request for some rows of one matrix, the
// rows, or a refusal. They travel over the connections that dispatch frames
// use. Pure: bytes to values and back. Every field is checked before use.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "expert_worker/expert_key.h"
#include "model/expert_manifest.h"

namespace trunkline::expert {

inline constexpr uint32_t kShardMagic = 0x534b5254;  // "TRKS"
inline constexpr uint16_t kShardWireVersion = 1;
inline constexpr size_t kShardHeaderBytes = 128;
// Of one answer's rows; a single longer row is sent whole.
inline constexpr size_t kShardChunkBytes = size_t{1} << 20;
inline constexpr size_t kShardMessageMax = 1024;
inline constexpr uint32_t kShardDimensionMax = 1u << 20;

// Of all parts of an expert, in order: the same for every way to hold it in
// memory.
using model::ExpertDigest;

// What an expert consists of. Quantised weights will have their scales as
// parts of their own, so that they never travel apart. The numbers are part of
// the wire format.
enum class ShardPart : uint8_t { kUp = 0, kDown = 1 };
inline constexpr uint32_t kShardParts = 2;

enum class ShardFrameKind : uint8_t { kRequest = 1, kRows = 2, kRefusal = 3 };

enum class ShardRefusalCode : uint16_t {
  kNone = 0,
  kMalformed = 1,
  kWrongCluster = 2,
  kNotHeld = 3,  // the expert is not loaded here
  kBusy = 4,     // as many bytes as allowed are on their way
};
absl::string_view ShardRefusalName(ShardRefusalCode code);

struct ShardHeader {
  ShardFrameKind kind = ShardFrameKind::kRequest;
  uint64_t cluster_id = 0;
  uint64_t request = 0;  // the asker's number, repeated by the answer
  ExpertKey key;
  ShardPart part = ShardPart::kUp;
  uint32_t first_row = 0;
  uint32_t row_count = 0;
  // Rows: what the whole part is. Zero in requests and refusals.
  DType dtype = DType::kF32;
  uint32_t rows = 0, columns = 0, parts = 0;
  ExpertDigest digest{};
  ShardRefusalCode refusal = ShardRefusalCode::kNone;
};

struct ShardFrame {
  ShardHeader header;
  // Rows: row_count rows of `columns` elements, without gaps. Points into the
  // frame.
  std::span<const std::byte> rows;
  std::string message;  // refusals
};

// Whether the bytes claim to be such a message.
bool IsShardFrame(std::span<const std::byte> bytes);
// INVALID_ARGUMENT names the field.
absl::StatusOr<ShardFrame> DecodeShardFrame(std::span<const std::byte> bytes);

size_t ShardFrameBytes(size_t payload_bytes);
// Writes the header; returns where the payload goes. `frame` is
// ShardFrameBytes(payload) long. Fill the payload, then seal.
std::span<std::byte> BeginShardFrame(const ShardHeader& header,
                                     std::span<std::byte> frame);
void SealShardFrame(std::span<std::byte> frame);  // puts the checksum in

}  // namespace trunkline::expert
