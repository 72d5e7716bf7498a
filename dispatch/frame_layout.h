#pragma once

// Where each part of a frame lies. One table for the writer, the reader and the
// sizes (docs/wire_format.md shows the same numbers).

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"
#include "dispatch/expert_frame.h"

namespace trunkline::dispatch {

// Byte offsets of the header's fields, little endian.
namespace header_offset {
inline constexpr size_t kMagic = 0;              // u32
inline constexpr size_t kWireVersion = 4;        // u16
inline constexpr size_t kKind = 6;               // u8
inline constexpr size_t kRowDType = 7;           // u8
inline constexpr size_t kClusterId = 8;          // u64
inline constexpr size_t kTrunkRank = 16;         // u32
inline constexpr size_t kWorkerRank = 20;        // u32
inline constexpr size_t kEpoch = 24;             // u64
inline constexpr size_t kPlacementVersion = 32;  // u64
inline constexpr size_t kStepId = 40;            // u64
inline constexpr size_t kLayer = 48;             // u32
inline constexpr size_t kMicroBatch = 52;        // u16
inline constexpr size_t kAttempt = 54;           // u16
inline constexpr size_t kRowCount = 56;          // u32
inline constexpr size_t kRouteCount = 60;        // u32
inline constexpr size_t kRowWidth = 64;          // u32
inline constexpr size_t kRefusal = 68;           // u16
inline constexpr size_t kFlags = 70;             // u16
inline constexpr size_t kPayloadBytes = 72;      // u64
inline constexpr size_t kChecksum = 80;          // u64
inline constexpr size_t kQueueNs = 88;           // u64
inline constexpr size_t kComputeNs = 96;         // u64
inline constexpr size_t kReserved = 104;         // 24 bytes, zero
}  // namespace header_offset

inline constexpr uint16_t kFlagGated = 1;
inline constexpr uint16_t kFlagsKnown = kFlagGated;

constexpr size_t AlignUp(size_t n) {
  return (n + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

// A section: where it starts, how many bytes of it carry values, and where the
// next one starts. Between the two is zero padding.
struct FrameSection {
  size_t begin = 0;
  size_t used = 0;
  size_t end() const { return AlignUp(begin + used); }
};

struct FrameLayout {
  FrameSection token_id;   // u32 a route
  FrameSection slot;       // u16 a route
  FrameSection expert_id;  // u32 a route
  FrameSection row_index;  // u32 a route; dispatch frames
  FrameSection gate;       // f32 a route; dispatch frames
  FrameSection rows;       // row_count rows, row_stride apart
  size_t row_stride = 0;
  size_t row_bytes = 0;  // of a row's stride, the part that carries values
};

FrameLayout LayoutOf(FrameKind kind, uint32_t row_count, uint32_t route_count,
                     uint32_t row_width, DType dtype);

}  // namespace trunkline::dispatch
