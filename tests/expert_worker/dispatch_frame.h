#pragma once

// A well-formed dispatch frame for tests, to be sent as it is or broken in one
// place.

#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/bfloat16.h"
#include "common/random.h"
#include "dispatch/expert_frame.h"

namespace trunkline::expert {

struct TestRoute {
  uint32_t token = 0;
  uint16_t slot = 0;
  uint32_t expert = 0;
  uint32_t row = 0;
  float gate = 1.0f;
};

struct TestFrame {
  dispatch::FrameHeader header;
  // By (expert, token, slot); rows ascend with tokens.
  std::vector<TestRoute> routes;
  uint64_t seed = 1;  // of the rows

  // Element `column` of row `row`, exactly representable in bf16.
  float At(uint32_t row, uint32_t column) const {
    const uint64_t bits =
        SplitMix64(seed * 1000003 + row * uint64_t{65537} + column);
    return RoundToBf16(static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f);
  }

  AlignedBuffer Bytes() const {
    dispatch::FrameHeader h = header;
    h.kind = dispatch::FrameKind::kDispatch;
    h.route_count = static_cast<uint32_t>(routes.size());
    h.row_count = 0;
    for (const TestRoute& route : routes)
      h.row_count = std::max(h.row_count, route.row + 1);
    AlignedBuffer buffer(dispatch::DispatchFrameBytes(
        h.row_count, h.route_count, h.row_width, h.row_dtype));
    const std::span<std::byte> frame(buffer.data(), buffer.size());
    const dispatch::DispatchFrameWriter writer =
        dispatch::BeginDispatchFrame(h, frame);
    for (size_t i = 0; i < routes.size(); ++i) {
      writer.token_id[i] = routes[i].token;
      writer.slot[i] = routes[i].slot;
      writer.expert_id[i] = routes[i].expert;
      writer.row_index[i] = routes[i].row;
      writer.gate[i] = routes[i].gate;
    }
    for (uint32_t r = 0; r < h.row_count; ++r) {
      for (uint32_t c = 0; c < h.row_width; ++c) {
        std::byte* to = writer.rows + r * writer.row_stride;
        if (h.row_dtype == DType::kBF16) {
          const Bf16Bits bits = FloatToBf16(At(r, c));
          std::memcpy(to + c * sizeof(bits), &bits, sizeof(bits));
        } else {
          const float value = At(r, c);
          std::memcpy(to + c * sizeof(value), &value, sizeof(value));
        }
      }
    }
    dispatch::SealFrame(frame);
    return buffer;
  }
};

}  // namespace trunkline::expert
