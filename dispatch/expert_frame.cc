// Sizes, names and the writing half; frame_decode.cc reads.

#include "dispatch/expert_frame.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/check.h"
#include "dispatch/frame_checksum.h"
#include "dispatch/frame_layout.h"

namespace trunkline::dispatch {

// Values are copied between memory and frame as they are.
static_assert(std::endian::native == std::endian::little,
              "the wire format is little endian; this host is not");
static_assert(header_offset::kReserved + 24 == kFrameHeaderBytes);

namespace {

template <typename T>
void Store(std::span<std::byte> frame, size_t offset, T value) {
  std::memcpy(frame.data() + offset, &value, sizeof(value));
}

void StoreHeader(const FrameHeader& h, std::span<std::byte> frame) {
  namespace at = header_offset;
  std::memset(frame.data(), 0, kFrameHeaderBytes);
  Store(frame, at::kMagic, kFrameMagic);
  Store(frame, at::kWireVersion, kWireVersion);
  Store(frame, at::kKind, static_cast<uint8_t>(h.kind));
  Store(frame, at::kRowDType, static_cast<uint8_t>(h.row_dtype));
  Store(frame, at::kClusterId, h.cluster_id);
  Store(frame, at::kTrunkRank, h.trunk_rank);
  Store(frame, at::kWorkerRank, h.worker_rank);
  Store(frame, at::kEpoch, h.epoch);
  Store(frame, at::kPlacementVersion, h.placement_version);
  Store(frame, at::kStepId, h.step_id);
  Store(frame, at::kLayer, h.layer);
  Store(frame, at::kMicroBatch, h.micro_batch);
  Store(frame, at::kAttempt, h.attempt);
  Store(frame, at::kRowCount, h.row_count);
  Store(frame, at::kRouteCount, h.route_count);
  Store(frame, at::kRowWidth, h.row_width);
  Store(frame, at::kRefusal, static_cast<uint16_t>(h.refusal));
  Store(frame, at::kFlags, h.gated ? kFlagGated : uint16_t{0});
  Store(frame, at::kPayloadBytes, h.payload_bytes);
  Store(frame, at::kQueueNs, h.queue_ns);
  Store(frame, at::kComputeNs, h.compute_ns);
}

template <typename T>
std::span<T> Place(std::span<std::byte> frame, const FrameSection& section) {
  std::memset(frame.data() + section.begin + section.used, 0,
              section.end() - section.begin - section.used);
  return {reinterpret_cast<T*>(frame.data() + section.begin),
          section.used / sizeof(T)};
}

std::byte* PlaceRows(std::span<std::byte> frame, const FrameLayout& layout) {
  std::byte* rows = frame.data() + layout.rows.begin;
  if (layout.row_bytes < layout.row_stride) {
    for (size_t at = 0; at < layout.rows.used; at += layout.row_stride) {
      std::memset(rows + at + layout.row_bytes, 0,
                  layout.row_stride - layout.row_bytes);
    }
  }
  return rows;
}

void CheckPlace(std::span<std::byte> frame, size_t bytes) {
  TL_CHECK_EQ(frame.size(), bytes);
  TL_CHECK(reinterpret_cast<uintptr_t>(frame.data()) % kFrameAlignment == 0);
}

}  // namespace

absl::string_view RefusalName(RefusalCode code) {
  switch (code) {
    case RefusalCode::kNone:
      return "none";
    case RefusalCode::kMalformed:
      return "malformed frame";
    case RefusalCode::kWrongCluster:
      return "wrong cluster";
    case RefusalCode::kWrongWorker:
      return "wrong worker";
    case RefusalCode::kUnknownVersion:
      return "unknown placement version";
    case RefusalCode::kNotOwner:
      return "not the owner of an expert";
    case RefusalCode::kWrongShape:
      return "wrong row width or dtype";
    case RefusalCode::kOverloaded:
      return "overloaded";
    case RefusalCode::kDraining:
      return "draining";
    case RefusalCode::kInternal:
      return "internal error";
  }
  return "unknown refusal";
}

FrameLayout LayoutOf(FrameKind kind, uint32_t row_count, uint32_t route_count,
                     uint32_t row_width, DType dtype) {
  FrameLayout layout;
  const size_t routes = route_count;
  layout.row_bytes =
      static_cast<size_t>(row_width) * static_cast<size_t>(DTypeBytes(dtype));
  layout.row_stride = AlignUp(layout.row_bytes);
  layout.token_id = {kFrameHeaderBytes, routes * sizeof(uint32_t)};
  layout.slot = {layout.token_id.end(), routes * sizeof(uint16_t)};
  layout.expert_id = {layout.slot.end(), routes * sizeof(uint32_t)};
  size_t end = layout.expert_id.end();
  if (kind == FrameKind::kDispatch) {
    layout.row_index = {end, routes * sizeof(uint32_t)};
    layout.gate = {layout.row_index.end(), routes * sizeof(float)};
    end = layout.gate.end();
  }
  layout.rows = {end, row_count * layout.row_stride};
  return layout;
}

size_t RowStride(uint32_t row_width, DType dtype) {
  return AlignUp(static_cast<size_t>(row_width) *
                 static_cast<size_t>(DTypeBytes(dtype)));
}
size_t DispatchFrameBytes(uint32_t rows, uint32_t routes, uint32_t row_width,
                          DType dtype) {
  return LayoutOf(FrameKind::kDispatch, rows, routes, row_width, dtype)
      .rows.end();
}
size_t AnswerFrameBytes(uint32_t routes, uint32_t row_width, DType dtype) {
  return LayoutOf(FrameKind::kAnswer, routes, routes, row_width, dtype)
      .rows.end();
}
size_t RefusalFrameBytes(size_t message_bytes) {
  return kFrameHeaderBytes + std::min(message_bytes, kRefusalMessageMax);
}

DispatchFrameWriter BeginDispatchFrame(const FrameHeader& header,
                                       std::span<std::byte> frame) {
  const FrameLayout layout =
      LayoutOf(FrameKind::kDispatch, header.row_count, header.route_count,
               header.row_width, header.row_dtype);
  CheckPlace(frame, layout.rows.end());
  FrameHeader h = header;
  h.kind = FrameKind::kDispatch;
  h.payload_bytes = frame.size() - kFrameHeaderBytes;
  StoreHeader(h, frame);
  DispatchFrameWriter writer;
  writer.token_id = Place<uint32_t>(frame, layout.token_id);
  writer.slot = Place<uint16_t>(frame, layout.slot);
  writer.expert_id = Place<uint32_t>(frame, layout.expert_id);
  writer.row_index = Place<uint32_t>(frame, layout.row_index);
  writer.gate = Place<float>(frame, layout.gate);
  writer.rows = PlaceRows(frame, layout);
  writer.row_stride = layout.row_stride;
  return writer;
}

AnswerFrameWriter BeginAnswerFrame(const FrameHeader& header,
                                   std::span<std::byte> frame) {
  const FrameLayout layout =
      LayoutOf(FrameKind::kAnswer, header.route_count, header.route_count,
               header.row_width, header.row_dtype);
  CheckPlace(frame, layout.rows.end());
  FrameHeader h = header;
  h.kind = FrameKind::kAnswer;
  h.row_count = h.route_count;
  h.payload_bytes = frame.size() - kFrameHeaderBytes;
  StoreHeader(h, frame);
  AnswerFrameWriter writer;
  writer.token_id = Place<uint32_t>(frame, layout.token_id);
  writer.slot = Place<uint16_t>(frame, layout.slot);
  writer.expert_id = Place<uint32_t>(frame, layout.expert_id);
  writer.rows = PlaceRows(frame, layout);
  writer.row_stride = layout.row_stride;
  return writer;
}

void WriteRefusalFrame(const FrameHeader& header, absl::string_view message,
                       std::span<std::byte> frame) {
  CheckPlace(frame, RefusalFrameBytes(message.size()));
  FrameHeader h = header;
  h.kind = FrameKind::kRefusal;
  h.gated = false;
  h.row_count = h.route_count = h.row_width = 0;
  h.queue_ns = h.compute_ns = 0;
  h.payload_bytes = frame.size() - kFrameHeaderBytes;
  StoreHeader(h, frame);
  std::memcpy(frame.data() + kFrameHeaderBytes, message.data(),
              static_cast<size_t>(h.payload_bytes));
}

void SealFrame(std::span<std::byte> frame) {
  TL_CHECK_GE(frame.size(), kFrameHeaderBytes);
  Store(frame, header_offset::kChecksum, FrameChecksum(frame));
}

void SetAnswerTimings(std::span<std::byte> frame, uint64_t queue_ns,
                      uint64_t compute_ns) {
  TL_CHECK_GE(frame.size(), kFrameHeaderBytes);
  Store(frame, header_offset::kQueueNs, queue_ns);
  Store(frame, header_offset::kComputeNs, compute_ns);
}

}  // namespace trunkline::dispatch
