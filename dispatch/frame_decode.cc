// The reading half of the wire format. Everything here is untrusted until it
// has been checked.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "dispatch/expert_frame.h"
#include "dispatch/frame_checksum.h"
#include "dispatch/frame_layout.h"

namespace trunkline::dispatch {
namespace {

template <typename T>
T Load(std::span<const std::byte> frame, size_t offset) {
  T value;
  std::memcpy(&value, frame.data() + offset, sizeof(value));
  return value;
}

template <typename... Args>
absl::Status Bad(absl::string_view field, const Args&... why) {
  return absl::InvalidArgumentError(
      absl::StrCat("frame field ", field, ": ", why...));
}

// What tells this format from anything else; needed before any other field can
// be believed.
absl::Status CheckIdentity(std::span<const std::byte> frame) {
  if (frame.size() < kFrameHeaderBytes) {
    return Bad("size", "a frame of ", frame.size(), " bytes is shorter than ",
               "its header, ", kFrameHeaderBytes);
  }
  if (reinterpret_cast<uintptr_t>(frame.data()) % alignof(uint64_t) != 0) {
    return Bad("address", "the frame does not start on an 8-byte boundary");
  }
  const auto magic = Load<uint32_t>(frame, header_offset::kMagic);
  if (magic != kFrameMagic) {
    return Bad("magic", absl::StrCat(absl::Hex(magic), " is not ",
                                     absl::Hex(kFrameMagic)));
  }
  const auto version = Load<uint16_t>(frame, header_offset::kWireVersion);
  if (version != kWireVersion) {
    return Bad("wire_version", version, ", this side speaks ", kWireVersion);
  }
  return absl::OkStatus();
}

FrameHeader LoadHeader(std::span<const std::byte> frame) {
  namespace at = header_offset;
  FrameHeader h;
  h.kind = static_cast<FrameKind>(Load<uint8_t>(frame, at::kKind));
  h.row_dtype = static_cast<DType>(Load<uint8_t>(frame, at::kRowDType));
  h.gated = (Load<uint16_t>(frame, at::kFlags) & kFlagGated) != 0;
  h.cluster_id = Load<uint64_t>(frame, at::kClusterId);
  h.trunk_rank = Load<uint32_t>(frame, at::kTrunkRank);
  h.worker_rank = Load<uint32_t>(frame, at::kWorkerRank);
  h.epoch = Load<uint64_t>(frame, at::kEpoch);
  h.placement_version = Load<uint64_t>(frame, at::kPlacementVersion);
  h.step_id = Load<uint64_t>(frame, at::kStepId);
  h.layer = Load<uint32_t>(frame, at::kLayer);
  h.micro_batch = Load<uint16_t>(frame, at::kMicroBatch);
  h.attempt = Load<uint16_t>(frame, at::kAttempt);
  h.row_count = Load<uint32_t>(frame, at::kRowCount);
  h.route_count = Load<uint32_t>(frame, at::kRouteCount);
  h.row_width = Load<uint32_t>(frame, at::kRowWidth);
  h.refusal = static_cast<RefusalCode>(Load<uint16_t>(frame, at::kRefusal));
  h.payload_bytes = Load<uint64_t>(frame, at::kPayloadBytes);
  h.checksum = Load<uint64_t>(frame, at::kChecksum);
  h.queue_ns = Load<uint64_t>(frame, at::kQueueNs);
  h.compute_ns = Load<uint64_t>(frame, at::kComputeNs);
  return h;
}

absl::Status CheckKind(FrameKind kind) {
  switch (kind) {
    case FrameKind::kDispatch:
    case FrameKind::kAnswer:
    case FrameKind::kRefusal:
      return absl::OkStatus();
  }
  return Bad("kind", static_cast<int>(kind), " is not a frame kind");
}

absl::Status CheckEnums(const FrameHeader& h, uint16_t flags) {
  TL_RETURN_IF_ERROR(CheckKind(h.kind));
  switch (h.row_dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
    default:
      return Bad("row_dtype", static_cast<int>(h.row_dtype),
                 " is not an element type");
  }
  if ((flags & ~kFlagsKnown) != 0) {
    return Bad("flags", flags, " has bits that version ", kWireVersion,
               " does not know");
  }
  if (h.gated && h.kind != FrameKind::kAnswer) {
    return Bad("flags", "only an answer can be gated");
  }
  if (h.gated && h.row_dtype != DType::kF32) {
    return Bad("flags", "gated rows are F32, these are ",
               DTypeName(h.row_dtype));
  }
  const bool refused = h.refusal != RefusalCode::kNone;
  if (refused != (h.kind == FrameKind::kRefusal) ||
      h.refusal > RefusalCode::kInternal) {
    return Bad("refusal", static_cast<int>(h.refusal),
               " can not stand in a frame of kind ", static_cast<int>(h.kind));
  }
  return absl::OkStatus();
}

absl::Status CheckCounts(const FrameHeader& h) {
  if (h.kind != FrameKind::kAnswer && (h.queue_ns != 0 || h.compute_ns != 0)) {
    return Bad("queue_ns, compute_ns", "only an answer has timings");
  }
  if (h.kind == FrameKind::kRefusal) {
    if (h.row_count != 0 || h.route_count != 0 || h.row_width != 0) {
      return Bad("row_count, route_count, row_width", "a refusal has none");
    }
    if (h.payload_bytes > kRefusalMessageMax) {
      return Bad("payload_bytes", "a refusal's message has ", h.payload_bytes,
                 " bytes, the most is ", kRefusalMessageMax);
    }
    return absl::OkStatus();
  }
  if (h.route_count == 0 || h.route_count > kFrameRowsMax) {
    return Bad("route_count", h.route_count, " is not between 1 and ",
               kFrameRowsMax);
  }
  if (h.row_width == 0 || h.row_width > kFrameWidthMax) {
    return Bad("row_width", h.row_width, " is not between 1 and ",
               kFrameWidthMax);
  }
  if (h.kind == FrameKind::kAnswer && h.row_count != h.route_count) {
    return Bad("row_count", h.row_count, ", an answer of ", h.route_count,
               " routes has as many rows");
  }
  if (h.row_count == 0 || h.row_count > h.route_count) {
    return Bad("row_count", h.row_count, ", a frame of ", h.route_count,
               " routes has at least one row and no row without a route");
  }
  const size_t bytes =
      LayoutOf(h.kind, h.row_count, h.route_count, h.row_width, h.row_dtype)
          .rows.end();
  if (h.payload_bytes != bytes - kFrameHeaderBytes) {
    return Bad("payload_bytes", h.payload_bytes, ", counts and width make ",
               bytes - kFrameHeaderBytes);
  }
  return absl::OkStatus();
}

absl::Status CheckZero(std::span<const std::byte> frame, size_t begin,
                       size_t end, absl::string_view what) {
  for (size_t i = begin; i < end; ++i) {
    if (frame[i] != std::byte{0}) {
      return Bad(what, "byte ", i, " of the frame is padding and not zero");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPadding(std::span<const std::byte> frame,
                          const FrameLayout& layout) {
  const std::array<std::pair<const FrameSection*, absl::string_view>, 5>
      sections = {{{&layout.token_id, "token_id"},
                   {&layout.slot, "slot"},
                   {&layout.expert_id, "expert_id"},
                   {&layout.row_index, "row_index"},
                   {&layout.gate, "gate"}}};
  for (const auto& [section, name] : sections) {
    if (section->used == 0) continue;
    TL_RETURN_IF_ERROR(
        CheckZero(frame, section->begin + section->used, section->end(), name));
  }
  if (layout.row_bytes == layout.row_stride) return absl::OkStatus();
  for (size_t at = 0; at < layout.rows.used; at += layout.row_stride) {
    const size_t row = layout.rows.begin + at;
    TL_RETURN_IF_ERROR(CheckZero(frame, row + layout.row_bytes,
                                 row + layout.row_stride, "rows"));
  }
  return absl::OkStatus();
}

template <typename T>
std::span<const T> View(std::span<const std::byte> frame,
                        const FrameSection& section) {
  return {reinterpret_cast<const T*>(frame.data() + section.begin),
          section.used / sizeof(T)};
}

absl::Status DuplicateKey(uint32_t token, uint16_t slot) {
  return Bad("slot", "token ", token, ", slot ", slot, " is named twice");
}

// No (token, slot) twice. Slots below 64 are a bit each of their row's word;
// models with more slots than that go the slow way.
absl::Status CheckKeysOnce(std::span<const uint32_t> token,
                           std::span<const uint16_t> slot,
                           std::span<const uint32_t> row, size_t row_count) {
  absl::InlinedVector<uint64_t, 256> seen(row_count, 0);
  std::vector<uint64_t> high;
  for (size_t i = 0; i < token.size(); ++i) {
    if (slot[i] >= 64) {
      high.push_back((uint64_t{token[i]} << 16) | slot[i]);
      continue;
    }
    const uint64_t bit = uint64_t{1} << slot[i];
    if ((seen[row[i]] & bit) != 0) return DuplicateKey(token[i], slot[i]);
    seen[row[i]] |= bit;
  }
  std::sort(high.begin(), high.end());
  const auto twice = std::adjacent_find(high.begin(), high.end());
  if (twice != high.end()) {
    return DuplicateKey(static_cast<uint32_t>(*twice >> 16),
                        static_cast<uint16_t>(*twice & 0xffff));
  }
  return absl::OkStatus();
}

// Every row is one token's, tokens ascend with rows, and some route names each.
absl::Status CheckRows(const DispatchFrameView& v) {
  constexpr uint32_t kUnnamed = UINT32_MAX;
  absl::InlinedVector<uint32_t, 512> token_of(v.header.row_count, kUnnamed);
  for (size_t i = 0; i < v.token_id.size(); ++i) {
    const uint32_t row = v.row_index[i];
    if (row >= v.header.row_count) {
      return Bad("row_index", "route ", i, " names row ", row, " of ",
                 v.header.row_count);
    }
    if (v.token_id[i] == kUnnamed) {
      return Bad("token_id", "route ", i, " names no token");
    }
    if (token_of[row] == kUnnamed) {
      token_of[row] = v.token_id[i];
    } else if (token_of[row] != v.token_id[i]) {
      return Bad("row_index", "row ", row, " is claimed by token ",
                 token_of[row], " and token ", v.token_id[i]);
    }
  }
  for (size_t r = 0; r < token_of.size(); ++r) {
    if (token_of[r] == kUnnamed) {
      return Bad("row_index", "row ", r, " belongs to no route");
    }
    if (r > 0 && token_of[r - 1] >= token_of[r]) {
      return Bad("row_index", "row ", r, " is of token ", token_of[r],
                 ", the one before of token ", token_of[r - 1],
                 "; tokens ascend");
    }
  }
  return CheckKeysOnce(v.token_id, v.slot, v.row_index, v.header.row_count);
}

absl::Status CheckOrder(const DispatchFrameView& v) {
  for (size_t i = 0; i < v.expert_id.size(); ++i) {
    if (!std::isfinite(v.gate[i])) {
      return Bad("gate", "of route ", i, " is not finite: ", v.gate[i]);
    }
    if (i == 0 || v.expert_id[i - 1] < v.expert_id[i]) continue;
    if (v.expert_id[i - 1] > v.expert_id[i]) {
      return Bad("expert_id", "route ", i, " names expert ", v.expert_id[i],
                 " after ", v.expert_id[i - 1], "; experts ascend");
    }
    if (v.token_id[i - 1] >= v.token_id[i]) {
      return Bad("token_id", "route ", i, " names token ", v.token_id[i],
                 " after ", v.token_id[i - 1], " for expert ", v.expert_id[i],
                 "; tokens ascend and occur once an expert");
    }
  }
  return absl::OkStatus();
}

absl::Status ExpectKind(const FrameHeader& h, FrameKind kind) {
  if (h.kind == kind) return absl::OkStatus();
  return Bad("kind", static_cast<int>(h.kind), ", expected ",
             static_cast<int>(kind));
}

}  // namespace

absl::StatusOr<FrameKind> PeekKind(std::span<const std::byte> frame) {
  TL_RETURN_IF_ERROR(CheckIdentity(frame));
  const auto kind =
      static_cast<FrameKind>(Load<uint8_t>(frame, header_offset::kKind));
  TL_RETURN_IF_ERROR(CheckKind(kind));
  return kind;
}

absl::StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte> frame) {
  TL_RETURN_IF_ERROR(CheckIdentity(frame));
  const FrameHeader h = LoadHeader(frame);
  if (h.payload_bytes != frame.size() - kFrameHeaderBytes) {
    return Bad("payload_bytes", h.payload_bytes, ", the message has ",
               frame.size() - kFrameHeaderBytes, " bytes after its header");
  }
  if (const uint64_t sum = FrameChecksum(frame); sum != h.checksum) {
    return absl::DataLossError(
        absl::StrCat("frame field checksum: ", absl::Hex(h.checksum),
                     " in the header, ", absl::Hex(sum), " over the frame"));
  }
  TL_RETURN_IF_ERROR(
      CheckEnums(h, Load<uint16_t>(frame, header_offset::kFlags)));
  TL_RETURN_IF_ERROR(CheckZero(frame, header_offset::kReserved,
                               kFrameHeaderBytes, "reserved"));
  TL_RETURN_IF_ERROR(CheckCounts(h));
  return h;
}

absl::StatusOr<DispatchFrameView> DecodeDispatch(
    std::span<const std::byte> frame) {
  DispatchFrameView v;
  TL_ASSIGN_OR_RETURN(v.header, DecodeHeader(frame));
  TL_RETURN_IF_ERROR(ExpectKind(v.header, FrameKind::kDispatch));
  const FrameLayout layout =
      LayoutOf(FrameKind::kDispatch, v.header.row_count, v.header.route_count,
               v.header.row_width, v.header.row_dtype);
  v.token_id = View<uint32_t>(frame, layout.token_id);
  v.slot = View<uint16_t>(frame, layout.slot);
  v.expert_id = View<uint32_t>(frame, layout.expert_id);
  v.row_index = View<uint32_t>(frame, layout.row_index);
  v.gate = View<float>(frame, layout.gate);
  v.rows = frame.subspan(layout.rows.begin, layout.rows.used);
  v.row_stride = layout.row_stride;
  TL_RETURN_IF_ERROR(CheckPadding(frame, layout));
  TL_RETURN_IF_ERROR(CheckOrder(v));
  TL_RETURN_IF_ERROR(CheckRows(v));
  return v;
}

absl::StatusOr<AnswerFrameView> DecodeAnswer(std::span<const std::byte> frame) {
  AnswerFrameView v;
  TL_ASSIGN_OR_RETURN(v.header, DecodeHeader(frame));
  TL_RETURN_IF_ERROR(ExpectKind(v.header, FrameKind::kAnswer));
  const FrameLayout layout =
      LayoutOf(FrameKind::kAnswer, v.header.row_count, v.header.route_count,
               v.header.row_width, v.header.row_dtype);
  v.token_id = View<uint32_t>(frame, layout.token_id);
  v.slot = View<uint16_t>(frame, layout.slot);
  v.expert_id = View<uint32_t>(frame, layout.expert_id);
  v.rows = frame.subspan(layout.rows.begin, layout.rows.used);
  v.row_stride = layout.row_stride;
  TL_RETURN_IF_ERROR(CheckPadding(frame, layout));
  return v;
}

absl::StatusOr<RefusalFrameView> DecodeRefusal(
    std::span<const std::byte> frame) {
  RefusalFrameView v;
  TL_ASSIGN_OR_RETURN(v.header, DecodeHeader(frame));
  TL_RETURN_IF_ERROR(ExpectKind(v.header, FrameKind::kRefusal));
  v.message.assign(
      reinterpret_cast<const char*>(frame.data()) + kFrameHeaderBytes,
      static_cast<size_t>(v.header.payload_bytes));
  return v;
}

}  // namespace trunkline::dispatch
