#pragma once

// The wire format of the data plane (docs/wire_format.md): one fixed
// little-endian header, then structure-of-arrays metadata, then rows, each part
// on a 64-byte boundary. Pure: bytes to values and back. Every field is checked
// before use; a bad frame is an error that names the field, never a crash.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "common/ids.h"

namespace trunkline::dispatch {

inline constexpr uint32_t kFrameMagic = 0x4e4b5254;  // "TRKN"
inline constexpr uint16_t kWireVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 128;
inline constexpr size_t kFrameAlignment = 64;

// Bounds of the format, so that no size computed from a header can overflow.
inline constexpr uint32_t kFrameRowsMax = 1u << 24;   // and routes
inline constexpr uint32_t kFrameWidthMax = 1u << 20;  // elements of a row
inline constexpr size_t kRefusalMessageMax = 1024;    // longer ones are cut

enum class FrameKind : uint8_t {
  kDispatch = 1,  // trunk -> expert worker: rows and routes
  kAnswer = 2,    // expert worker -> trunk: one row per route
  kRefusal = 3,   // expert worker -> trunk: nothing was executed, and why
};

// Why a worker executed nothing. The numbers are part of the wire format.
enum class RefusalCode : uint16_t {
  kNone = 0,
  kMalformed = 1,  // the frame broke the format or its own sums
  kWrongCluster = 2,
  kWrongWorker = 3,  // addressed to another worker rank
  kUnknownVersion =
      4,          // this worker does not serve that placement version: re-plan
  kNotOwner = 5,  // a route names an expert that this worker does not hold in
                  // that version
  kWrongShape = 6,  // row width or dtype differs from the layer's
  kOverloaded = 7,
  kDraining = 8,
  kInternal = 9,
};
absl::string_view RefusalName(RefusalCode code);

struct FrameHeader {
  FrameKind kind = FrameKind::kDispatch;
  DType row_dtype = DType::kF32;
  bool gated =
      false;  // answers: rows are gate * output in f32; else ungated outputs
  uint64_t cluster_id = 0;
  uint32_t trunk_rank = 0;   // WorkerId of the trunk
  uint32_t worker_rank = 0;  // WorkerId of the expert worker
  uint64_t epoch = 0;        // the coordinator's, as the trunk knows it
  uint64_t placement_version = 0;
  uint64_t step_id = 0;
  uint32_t layer = 0;
  uint16_t micro_batch = 0;
  uint16_t attempt = 0;  // 0 first, then one more each time routes of this
                         // layer are sent again
  uint32_t row_count = 0;
  uint32_t route_count = 0;
  uint32_t row_width = 0;      // elements
  uint64_t payload_bytes = 0;  // everything after the header
  uint64_t checksum = 0;       // XXH3-64 of the frame with this field zero
  RefusalCode refusal = RefusalCode::kNone;
  uint64_t queue_ns = 0;    // answers: the worker's own clock, receipt to start
  uint64_t compute_ns = 0;  // answers: start to end
};

// Views point into the frame's bytes, which outlive them.
struct DispatchFrameView {
  FrameHeader header;
  std::span<const uint32_t> token_id;   // [routes]
  std::span<const uint16_t> slot;       // [routes] selected_slot
  std::span<const uint32_t> expert_id;  // [routes], non-decreasing
  std::span<const uint32_t> row_index;  // [routes] into rows
  std::span<const float> gate;          // [routes]
  std::span<const std::byte> rows;  // row_count rows, row_stride bytes apart
  size_t row_stride = 0;            // row_width * dtype bytes rounded up to 64
};
struct AnswerFrameView {
  FrameHeader header;  // row_count == route_count
  std::span<const uint32_t> token_id;
  std::span<const uint16_t> slot;
  std::span<const uint32_t> expert_id;
  std::span<const std::byte> rows;  // row i belongs to route i
  size_t row_stride = 0;
};
struct RefusalFrameView {
  FrameHeader header;
  std::string message;
};

size_t RowStride(uint32_t row_width, DType dtype);
size_t DispatchFrameBytes(uint32_t rows, uint32_t routes, uint32_t row_width,
                          DType dtype);
size_t AnswerFrameBytes(uint32_t routes, uint32_t row_width, DType dtype);
size_t RefusalFrameBytes(size_t message_bytes);

// Where to write. `frame` is DispatchFrameBytes(...) long, 64-byte aligned.
// Fill the arrays and rows, then Seal.
struct DispatchFrameWriter {
  std::span<uint32_t> token_id;
  std::span<uint16_t> slot;
  std::span<uint32_t> expert_id;
  std::span<uint32_t> row_index;
  std::span<float> gate;
  std::byte* rows = nullptr;
  size_t row_stride = 0;
};
struct AnswerFrameWriter {
  std::span<uint32_t> token_id;
  std::span<uint16_t> slot;
  std::span<uint32_t> expert_id;
  std::byte* rows = nullptr;
  size_t row_stride = 0;
};
// Write the header (kind and payload_bytes are set here; an answer's row_count
// becomes its route_count, a refusal has neither) and return the places of the
// rest; padding is zeroed. `frame` is exactly as long as ...FrameBytes says.
DispatchFrameWriter BeginDispatchFrame(const FrameHeader& header,
                                       std::span<std::byte> frame);
AnswerFrameWriter BeginAnswerFrame(const FrameHeader& header,
                                   std::span<std::byte> frame);
void WriteRefusalFrame(const FrameHeader& header, absl::string_view message,
                       std::span<std::byte> frame);
void SealFrame(std::span<std::byte> frame);  // puts the checksum in
// The timings of an answer are known last: sets them; before SealFrame.
void SetAnswerTimings(std::span<std::byte> frame, uint64_t queue_ns,
                      uint64_t compute_ns);

// The kind alone, for choosing the decoder: checks magic, wire version and
// kind, not the checksum.
absl::StatusOr<FrameKind> PeekKind(std::span<const std::byte> frame);

// DATA_LOSS for a checksum that differs, INVALID_ARGUMENT naming the field for
// the rest. The frame starts on an 8-byte boundary at least. DecodeDispatch
// also refuses: routes out of (expert, token, slot) order, a (token, slot) or a
// (token, expert) named twice, a row that no route names or that two tokens
// share, rows out of token order, a gate that is not finite, padding that is
// not zero. DecodeAnswer checks padding; whether its routes are the right ones,
// each once, only the exchange that sent them can say (layer_exchange.h).
absl::StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte> frame);
absl::StatusOr<DispatchFrameView> DecodeDispatch(
    std::span<const std::byte> frame);
absl::StatusOr<AnswerFrameView> DecodeAnswer(std::span<const std::byte> frame);
absl::StatusOr<RefusalFrameView> DecodeRefusal(
    std::span<const std::byte> frame);

}  // namespace trunkline::dispatch
