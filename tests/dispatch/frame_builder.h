#pragma once

// Frames to write and break in tests.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/random.h"
#include "dispatch/expert_frame.h"
#include "tests/dispatch/random_layer.h"

namespace trunkline::dispatch {

// Owns a frame's bytes on the boundary that the format asks for.
class FrameBytes {
 public:
  explicit FrameBytes(size_t size)
      : storage_(size + kFrameAlignment), size_(size) {}
  FrameBytes(const FrameBytes& other) : FrameBytes(other.size_) {
    std::memcpy(bytes().data(), other.bytes().data(), size_);
  }
  FrameBytes& operator=(const FrameBytes&) = delete;
  size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {storage_.data() + Offset(), size_}; }
  std::span<const std::byte> bytes() const {
    return {storage_.data() + Offset(), size_};
  }

 private:
  size_t Offset() const {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    return (kFrameAlignment - address % kFrameAlignment) % kFrameAlignment;
  }
  std::vector<std::byte> storage_;
  size_t size_;
};

struct DispatchParts {
  FrameHeader header;
  std::vector<uint32_t> token_id;
  std::vector<uint16_t> slot;
  std::vector<uint32_t> expert_id;
  std::vector<uint32_t> row_index;
  std::vector<float> gate;
  std::vector<std::byte> rows;  // without padding
  size_t row_bytes() const {
    return header.row_width * static_cast<size_t>(DTypeBytes(header.row_dtype));
  }
};
struct AnswerFrameParts {
  FrameHeader header;
  std::vector<uint32_t> token_id;
  std::vector<uint16_t> slot;
  std::vector<uint32_t> expert_id;
  std::vector<std::byte> rows;
  size_t row_bytes() const {
    return header.row_width * static_cast<size_t>(DTypeBytes(header.row_dtype));
  }
};

inline FrameBytes Dirty(size_t size) {
  FrameBytes frame(size);
  // Whatever a buffer held before must not reach the wire.
  std::fill(frame.bytes().begin(), frame.bytes().end(), std::byte{0xee});
  return frame;
}

inline FrameBytes Write(const DispatchParts& p) {
  FrameBytes frame =
      Dirty(DispatchFrameBytes(p.header.row_count, p.header.route_count,
                               p.header.row_width, p.header.row_dtype));
  DispatchFrameWriter w = BeginDispatchFrame(p.header, frame.bytes());
  std::copy(p.token_id.begin(), p.token_id.end(), w.token_id.begin());
  std::copy(p.slot.begin(), p.slot.end(), w.slot.begin());
  std::copy(p.expert_id.begin(), p.expert_id.end(), w.expert_id.begin());
  std::copy(p.row_index.begin(), p.row_index.end(), w.row_index.begin());
  std::copy(p.gate.begin(), p.gate.end(), w.gate.begin());
  for (uint32_t r = 0; r < p.header.row_count; ++r) {
    std::memcpy(w.rows + r * w.row_stride, p.rows.data() + r * p.row_bytes(),
                p.row_bytes());
  }
  SealFrame(frame.bytes());
  return frame;
}

inline FrameBytes Write(const AnswerFrameParts& p) {
  FrameBytes frame = Dirty(AnswerFrameBytes(
      p.header.route_count, p.header.row_width, p.header.row_dtype));
  AnswerFrameWriter w = BeginAnswerFrame(p.header, frame.bytes());
  std::copy(p.token_id.begin(), p.token_id.end(), w.token_id.begin());
  std::copy(p.slot.begin(), p.slot.end(), w.slot.begin());
  std::copy(p.expert_id.begin(), p.expert_id.end(), w.expert_id.begin());
  for (uint32_t r = 0; r < p.header.route_count; ++r) {
    std::memcpy(w.rows + r * w.row_stride, p.rows.data() + r * p.row_bytes(),
                p.row_bytes());
  }
  SetAnswerTimings(frame.bytes(), p.header.queue_ns, p.header.compute_ns);
  SealFrame(frame.bytes());
  return frame;
}

inline void FillIds(RandomStream& random, FrameHeader* h) {
  h->cluster_id = random.Next();
  h->trunk_rank = static_cast<uint32_t>(random.Next());
  h->worker_rank = static_cast<uint32_t>(random.Next());
  h->epoch = random.Next();
  h->placement_version = random.Next();
  h->step_id = random.Next();
  h->layer = static_cast<uint32_t>(random.Next());
  h->micro_batch = static_cast<uint16_t>(random.Next());
  h->attempt = static_cast<uint16_t>(random.Next());
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  h->row_dtype = dtypes[random.NextBelow(3)];
  h->row_width = static_cast<uint32_t>(1 + random.NextBelow(70));
}

inline std::vector<std::byte> RandomRows(RandomStream& random, size_t bytes) {
  std::vector<std::byte> rows(bytes);
  for (std::byte& b : rows) b = static_cast<std::byte>(random.Next());
  return rows;
}

inline DispatchParts RandomDispatch(RandomStream& random) {
  DispatchParts p;
  FillIds(random, &p.header);
  const size_t tokens = 1 + random.NextBelow(9);
  std::vector<std::tuple<uint32_t, uint32_t, uint16_t>> routes;
  for (size_t t = 0; t < tokens; ++t) {
    const size_t k = 1 + random.NextBelow(5);
    const std::vector<uint32_t> experts = Distinct(random, 12, k);
    // Slots beyond 64 happen too.
    const std::vector<uint32_t> slots = Distinct(random, 90, k);
    for (size_t s = 0; s < k; ++s) {
      routes.emplace_back(experts[s], static_cast<uint32_t>(5 * t),
                          static_cast<uint16_t>(slots[s]));
    }
  }
  std::sort(routes.begin(), routes.end());
  for (const auto& [expert, token, slot] : routes) {
    p.expert_id.push_back(expert);
    p.token_id.push_back(token);
    p.slot.push_back(slot);
    p.row_index.push_back(token / 5);
    p.gate.push_back(static_cast<float>(random.NextUnit()));
  }
  p.header.row_count = static_cast<uint32_t>(tokens);
  p.header.route_count = static_cast<uint32_t>(routes.size());
  p.rows = RandomRows(random, tokens * p.row_bytes());
  return p;
}

inline AnswerFrameParts RandomAnswer(RandomStream& random) {
  const DispatchParts asked = RandomDispatch(random);
  AnswerFrameParts p;
  p.header = asked.header;
  p.header.gated = random.NextBelow(2) == 0;
  if (p.header.gated) p.header.row_dtype = DType::kF32;
  p.header.queue_ns = random.Next();
  p.header.compute_ns = random.Next();
  p.token_id = asked.token_id;
  p.slot = asked.slot;
  p.expert_id = asked.expert_id;
  p.header.row_count = p.header.route_count;
  p.rows = RandomRows(random, p.token_id.size() * p.row_bytes());
  return p;
}

// Tokens 10, 11, 12 in rows 0, 1, 2; token 10 has two routes, so that its keys
// can collide.
inline DispatchParts SmallDispatch() {
  DispatchParts p;
  p.header.row_dtype = DType::kF32;
  p.header.row_count = 3;
  p.header.route_count = 4;
  p.header.row_width = 5;
  p.expert_id = {1, 2, 3, 3};
  p.token_id = {10, 11, 10, 12};
  p.slot = {0, 0, 1, 0};
  p.row_index = {0, 1, 0, 2};
  p.gate = {0.5f, 1.0f, 0.5f, 1.0f};
  p.rows.assign(3 * p.row_bytes(), std::byte{0x41});
  return p;
}

}  // namespace trunkline::dispatch
