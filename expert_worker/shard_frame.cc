#include "expert_worker/shard_frame.h"

#include <xxhash.h>

#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace trunkline::expert {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the wire format is little endian; this host is not");

// Offsets of the header's fields; what is not named is zero.
constexpr size_t kAtMagic = 0, kAtWireVersion = 4, kAtKind = 6, kAtDType = 7,
                 kAtClusterId = 8, kAtRequest = 16, kAtLayer = 24,
                 kAtExpert = 28, kAtPart = 32, kAtFirstRow = 36,
                 kAtRowCount = 40, kAtRows = 44, kAtColumns = 48, kAtParts = 52,
                 kAtRefusal = 56, kAtDigest = 64, kAtPayloadBytes = 80,
                 kAtChecksum = 88;

template <typename T>
T Load(std::span<const std::byte> frame, size_t offset) {
  T value;
  std::memcpy(&value, frame.data() + offset, sizeof(value));
  return value;
}

template <typename T>
void Store(std::span<std::byte> frame, size_t offset, T value) {
  std::memcpy(frame.data() + offset, &value, sizeof(value));
}

absl::Status Bad(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("shard frame: ", field, " ", why));
}

// The checksum covers the frame with its own field zero.
uint64_t ChecksumOf(std::span<const std::byte> frame) {
  std::array<std::byte, kShardHeaderBytes> header;
  std::memcpy(header.data(), frame.data(), header.size());
  Store<uint64_t>(header, kAtChecksum, 0);
  const uint64_t seed = XXH3_64bits(header.data(), header.size());
  return XXH3_64bits_withSeed(frame.data() + kShardHeaderBytes,
                              frame.size() - kShardHeaderBytes, seed);
}

absl::Status CheckRows(const ShardHeader& header, size_t payload_bytes) {
  if (header.rows == 0 || header.rows > kShardDimensionMax) {
    return Bad("rows", absl::StrCat("is ", header.rows));
  }
  if (header.columns == 0 || header.columns > kShardDimensionMax) {
    return Bad("columns", absl::StrCat("is ", header.columns));
  }
  if (header.parts == 0) return Bad("parts", "is 0");
  if (header.row_count == 0 || header.row_count > header.rows ||
      header.first_row > header.rows - header.row_count) {
    return Bad("rows", absl::StrCat(header.first_row, "..+", header.row_count,
                                    " lie outside of ", header.rows));
  }
  const size_t want = size_t{header.row_count} * header.columns *
                      static_cast<size_t>(DTypeBytes(header.dtype));
  if (payload_bytes != want) {
    return Bad("payload_bytes",
               absl::StrCat("is ", payload_bytes, ", the rows take ", want));
  }
  return absl::OkStatus();
}

bool KnownDType(uint8_t dtype) {
  return dtype >= static_cast<uint8_t>(DType::kF32) &&
         dtype <= static_cast<uint8_t>(DType::kBF16);
}

// What only this kind of frame has.
absl::Status ReadKind(std::span<const std::byte> bytes, ShardFrame* frame) {
  ShardHeader& header = frame->header;
  const std::span<const std::byte> payload = bytes.subspan(kShardHeaderBytes);
  if (header.kind == ShardFrameKind::kRequest) {
    if (!payload.empty()) return Bad("payload_bytes", "is not 0");
    return header.row_count > 0 ? absl::OkStatus() : Bad("row_count", "is 0");
  }
  if (header.kind == ShardFrameKind::kRefusal) {
    header.refusal =
        static_cast<ShardRefusalCode>(Load<uint16_t>(bytes, kAtRefusal));
    if (header.refusal == ShardRefusalCode::kNone)
      return Bad("refusal", "is 0");
    if (payload.size() > kShardMessageMax) return Bad("message", "is too long");
    frame->message.assign(reinterpret_cast<const char*>(payload.data()),
                          payload.size());
    return absl::OkStatus();
  }
  const uint8_t dtype = Load<uint8_t>(bytes, kAtDType);
  if (!KnownDType(dtype)) return Bad("dtype", absl::StrCat("is ", int{dtype}));
  header.dtype = static_cast<DType>(dtype);
  header.rows = Load<uint32_t>(bytes, kAtRows);
  header.columns = Load<uint32_t>(bytes, kAtColumns);
  header.parts = Load<uint32_t>(bytes, kAtParts);
  std::memcpy(header.digest.data(), bytes.data() + kAtDigest,
              header.digest.size());
  frame->rows = payload;
  return CheckRows(header, payload.size());
}

// Bytes that have no meaning in this kind of frame are zero, so that a later
// version can give them one.
absl::Status CheckRest(const ShardHeader& header,
                       std::span<const std::byte> bytes) {
  std::array<std::byte, kShardHeaderBytes> again;
  BeginShardFrame(header, again);
  Store(again, kAtPayloadBytes, Load<uint64_t>(bytes, kAtPayloadBytes));
  Store(again, kAtChecksum, Load<uint64_t>(bytes, kAtChecksum));
  if (std::memcmp(again.data(), bytes.data(), again.size()) == 0) {
    return absl::OkStatus();
  }
  return Bad("reserved bytes", "are not zero");
}

}  // namespace

absl::string_view ShardRefusalName(ShardRefusalCode code) {
  switch (code) {
    case ShardRefusalCode::kNone:
      return "none";
    case ShardRefusalCode::kMalformed:
      return "malformed request";
    case ShardRefusalCode::kWrongCluster:
      return "wrong cluster";
    case ShardRefusalCode::kNotHeld:
      return "not held";
    case ShardRefusalCode::kBusy:
      return "busy";
  }
  return "unknown refusal";
}

bool IsShardFrame(std::span<const std::byte> bytes) {
  return bytes.size() >= sizeof(uint32_t) &&
         Load<uint32_t>(bytes, kAtMagic) == kShardMagic;
}

absl::StatusOr<ShardFrame> DecodeShardFrame(std::span<const std::byte> bytes) {
  if (bytes.size() < kShardHeaderBytes || !IsShardFrame(bytes)) {
    return Bad("header",
               absl::StrCat("is missing in ", bytes.size(), " bytes"));
  }
  if (const auto version = Load<uint16_t>(bytes, kAtWireVersion);
      version != kShardWireVersion) {
    return Bad("wire_version",
               absl::StrCat("is ", version, ", known is ", kShardWireVersion));
  }
  const size_t payload_bytes = bytes.size() - kShardHeaderBytes;
  if (Load<uint64_t>(bytes, kAtPayloadBytes) != payload_bytes) {
    return Bad("payload_bytes",
               absl::StrCat("is ", Load<uint64_t>(bytes, kAtPayloadBytes), ", ",
                            payload_bytes, " are there"));
  }
  if (Load<uint64_t>(bytes, kAtChecksum) != ChecksumOf(bytes)) {
    return Bad("checksum", "does not fit the bytes");
  }
  ShardFrame frame;
  ShardHeader& header = frame.header;
  const uint8_t kind = Load<uint8_t>(bytes, kAtKind);
  if (kind < static_cast<uint8_t>(ShardFrameKind::kRequest) ||
      kind > static_cast<uint8_t>(ShardFrameKind::kRefusal)) {
    return Bad("kind", absl::StrCat("is ", int{kind}));
  }
  header.kind = static_cast<ShardFrameKind>(kind);
  header.cluster_id = Load<uint64_t>(bytes, kAtClusterId);
  header.request = Load<uint64_t>(bytes, kAtRequest);
  header.key = {LayerIndex(Load<uint32_t>(bytes, kAtLayer)),
                ExpertId(Load<uint32_t>(bytes, kAtExpert))};
  const uint32_t part = Load<uint32_t>(bytes, kAtPart);
  if (part >= kShardParts) return Bad("part", absl::StrCat("is ", part));
  header.part = static_cast<ShardPart>(part);
  header.first_row = Load<uint32_t>(bytes, kAtFirstRow);
  header.row_count = Load<uint32_t>(bytes, kAtRowCount);
  absl::Status status = ReadKind(bytes, &frame);
  if (status.ok()) status = CheckRest(header, bytes);
  if (!status.ok()) return status;
  return frame;
}

size_t ShardFrameBytes(size_t payload_bytes) {
  return kShardHeaderBytes + payload_bytes;
}

std::span<std::byte> BeginShardFrame(const ShardHeader& header,
                                     std::span<std::byte> frame) {
  TL_CHECK_GE(frame.size(), kShardHeaderBytes);
  std::memset(frame.data(), 0, kShardHeaderBytes);
  Store(frame, kAtMagic, kShardMagic);
  Store(frame, kAtWireVersion, kShardWireVersion);
  Store(frame, kAtKind, static_cast<uint8_t>(header.kind));
  Store(frame, kAtClusterId, header.cluster_id);
  Store(frame, kAtRequest, header.request);
  Store(frame, kAtLayer, header.key.layer.value);
  Store(frame, kAtExpert, header.key.expert.value);
  Store(frame, kAtPart, static_cast<uint32_t>(header.part));
  Store(frame, kAtFirstRow, header.first_row);
  Store(frame, kAtRowCount, header.row_count);
  if (header.kind == ShardFrameKind::kRows) {
    Store(frame, kAtDType, static_cast<uint8_t>(header.dtype));
    Store(frame, kAtRows, header.rows);
    Store(frame, kAtColumns, header.columns);
    Store(frame, kAtParts, header.parts);
    std::memcpy(frame.data() + kAtDigest, header.digest.data(),
                header.digest.size());
  }
  Store(frame, kAtRefusal, static_cast<uint16_t>(header.refusal));
  Store(frame, kAtPayloadBytes, uint64_t{frame.size() - kShardHeaderBytes});
  return frame.subspan(kShardHeaderBytes);
}

void SealShardFrame(std::span<std::byte> frame) {
  Store(frame, kAtChecksum, ChecksumOf(frame));
}

}  // namespace trunkline::expert
