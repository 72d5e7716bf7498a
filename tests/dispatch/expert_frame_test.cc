#include "dispatch/expert_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/random.h"
#include "dispatch/frame_layout.h"
#include "tests/dispatch/frame_builder.h"

namespace trunkline::dispatch {
namespace {

using ::testing::HasSubstr;

TEST(ExpertFrame, ADispatchFrameComesBackAsItWasWritten) {
  RandomStream random(1);
  for (int i = 0; i < 2000; ++i) {
    const DispatchParts parts = RandomDispatch(random);
    const FrameBytes frame = Write(parts);
    ASSERT_EQ(frame.size() % kFrameAlignment, 0u);
    EXPECT_EQ(*PeekKind(frame.bytes()), FrameKind::kDispatch);
    const auto view = DecodeDispatch(frame.bytes());
    ASSERT_TRUE(view.ok()) << view.status();
    const FrameHeader& h = view->header;
    ASSERT_EQ(h.cluster_id, parts.header.cluster_id);
    ASSERT_EQ(h.trunk_rank, parts.header.trunk_rank);
    ASSERT_EQ(h.worker_rank, parts.header.worker_rank);
    ASSERT_EQ(h.epoch, parts.header.epoch);
    ASSERT_EQ(h.placement_version, parts.header.placement_version);
    ASSERT_EQ(h.step_id, parts.header.step_id);
    ASSERT_EQ(h.layer, parts.header.layer);
    ASSERT_EQ(h.micro_batch, parts.header.micro_batch);
    ASSERT_EQ(h.attempt, parts.header.attempt);
    ASSERT_EQ(h.row_dtype, parts.header.row_dtype);
    ASSERT_EQ(h.payload_bytes, frame.size() - kFrameHeaderBytes);
    ASSERT_TRUE(std::ranges::equal(view->token_id, parts.token_id));
    ASSERT_TRUE(std::ranges::equal(view->slot, parts.slot));
    ASSERT_TRUE(std::ranges::equal(view->expert_id, parts.expert_id));
    ASSERT_TRUE(std::ranges::equal(view->row_index, parts.row_index));
    ASSERT_TRUE(std::ranges::equal(view->gate, parts.gate));
    const size_t row_bytes = parts.row_bytes();
    ASSERT_EQ(view->row_stride, RowStride(h.row_width, h.row_dtype));
    for (uint32_t r = 0; r < h.row_count; ++r) {
      ASSERT_EQ(std::memcmp(view->rows.data() + r * view->row_stride,
                            parts.rows.data() + r * row_bytes, row_bytes),
                0);
    }
    // A dispatch frame is nothing else.
    ASSERT_FALSE(DecodeAnswer(frame.bytes()).ok());
    ASSERT_FALSE(DecodeRefusal(frame.bytes()).ok());
  }
}

TEST(ExpertFrame, AnAnswerComesBackAsItWasWritten) {
  RandomStream random(2);
  for (int i = 0; i < 2000; ++i) {
    AnswerFrameParts parts = RandomAnswer(random);
    const FrameBytes frame = Write(parts);
    const auto view = DecodeAnswer(frame.bytes());
    ASSERT_TRUE(view.ok()) << view.status();
    ASSERT_EQ(view->header.gated, parts.header.gated);
    ASSERT_EQ(view->header.queue_ns, parts.header.queue_ns);
    ASSERT_EQ(view->header.compute_ns, parts.header.compute_ns);
    ASSERT_EQ(view->header.row_count, view->header.route_count);
    ASSERT_TRUE(std::ranges::equal(view->token_id, parts.token_id));
    ASSERT_TRUE(std::ranges::equal(view->slot, parts.slot));
    ASSERT_TRUE(std::ranges::equal(view->expert_id, parts.expert_id));
    const size_t row_bytes = parts.row_bytes();
    for (uint32_t r = 0; r < view->header.row_count; ++r) {
      ASSERT_EQ(std::memcmp(view->rows.data() + r * view->row_stride,
                            parts.rows.data() + r * row_bytes, row_bytes),
                0);
    }
    ASSERT_FALSE(DecodeDispatch(frame.bytes()).ok());
  }
}

TEST(ExpertFrame, ARefusalCarriesItsCodeItsMessageAndTheRequestsName) {
  FrameHeader header;
  header.row_count = header.route_count = 7;  // of the request it refuses
  header.row_width = 9;
  header.step_id = 44;
  header.attempt = 2;
  for (uint16_t code = 1; code <= 9; ++code) {
    header.refusal = static_cast<RefusalCode>(code);
    for (size_t length : {0ul, 1ul, 1024ul, 1025ul, 5000ul}) {
      const std::string message(length, 'x');
      FrameBytes frame(RefusalFrameBytes(length));
      WriteRefusalFrame(header, message, frame.bytes());
      SealFrame(frame.bytes());
      const auto view = DecodeRefusal(frame.bytes());
      ASSERT_TRUE(view.ok()) << view.status();
      EXPECT_EQ(view->header.refusal, header.refusal);
      EXPECT_EQ(view->header.step_id, 44u);
      EXPECT_EQ(view->header.attempt, 2u);
      EXPECT_EQ(view->message, message.substr(0, kRefusalMessageMax));
    }
    EXPECT_NE(RefusalName(header.refusal), "unknown refusal");
  }
}

// Any one byte of a sealed frame, changed in any of a few ways.
TEST(ExpertFrame, NoticesEveryChangedByte) {
  RandomStream random(3);
  const std::vector<FrameBytes> frames = [&] {
    std::vector<FrameBytes> all;
    all.push_back(Write(RandomDispatch(random)));
    all.push_back(Write(RandomAnswer(random)));
    FrameHeader header;
    header.refusal = RefusalCode::kOverloaded;
    all.emplace_back(RefusalFrameBytes(5));
    WriteRefusalFrame(header, "later", all.back().bytes());
    SealFrame(all.back().bytes());
    return all;
  }();
  for (const FrameBytes& good : frames) {
    ASSERT_TRUE(DecodeHeader(good.bytes()).ok());
    for (size_t at = 0; at < good.size(); ++at) {
      for (unsigned flip : {0x01u, 0x80u, 0xffu}) {
        FrameBytes bad(good);
        bad.bytes()[at] ^= static_cast<std::byte>(flip);
        const auto header = DecodeHeader(bad.bytes());
        ASSERT_FALSE(header.ok()) << "byte " << at;
        const auto code = header.status().code();
        ASSERT_TRUE(code == absl::StatusCode::kDataLoss ||
                    code == absl::StatusCode::kInvalidArgument)
            << header.status();
        ASSERT_FALSE(DecodeDispatch(bad.bytes()).ok());
        ASSERT_FALSE(DecodeAnswer(bad.bytes()).ok());
        ASSERT_FALSE(DecodeRefusal(bad.bytes()).ok());
      }
    }
  }
}

TEST(ExpertFrame, RefusesEveryOtherLength) {
  RandomStream random(4);
  const FrameBytes good = Write(RandomDispatch(random));
  for (size_t length = 0; length < good.size(); ++length) {
    const auto view = DecodeDispatch(good.bytes().first(length));
    ASSERT_FALSE(view.ok());
    ASSERT_EQ(view.status().code(), absl::StatusCode::kInvalidArgument);
  }
  FrameBytes longer(good.size() + 64);
  std::memcpy(longer.bytes().data(), good.bytes().data(), good.size());
  ASSERT_FALSE(DecodeDispatch(longer.bytes()).ok());
}

struct HeaderLie {
  std::string names;  // the field, as the error spells it
  size_t offset;
  size_t size;
  uint64_t value;
};

// The checksum is made right again, so that each field has to be caught itself.
TEST(ExpertFrame, NamesTheHeaderFieldThatIsOutOfBounds) {
  namespace at = header_offset;
  const FrameBytes good = Write(SmallDispatch());
  const std::vector<HeaderLie> lies = {
      {"magic", at::kMagic, 4, 0x4e4b5255},
      {"wire_version", at::kWireVersion, 2, 2},
      {"wire_version", at::kWireVersion, 2, 0},
      {"kind", at::kKind, 1, 0},
      {"kind", at::kKind, 1, 4},
      {"row_dtype", at::kRowDType, 1, 0},
      {"row_dtype", at::kRowDType, 1, 4},
      {"rows", at::kRowDType, 1, 3},
      {"row_count", at::kRowCount, 4, 0},
      {"row_count", at::kRowCount, 4, 5},
      {"row_count", at::kRowCount, 4, UINT32_MAX},
      {"payload_bytes", at::kRowCount, 4, 2},
      {"route_count", at::kRouteCount, 4, 0},
      {"route_count", at::kRouteCount, 4, kFrameRowsMax + 1},
      {"route_count", at::kRouteCount, 4, UINT32_MAX},
      {"payload_bytes", at::kRouteCount, 4, 40},
      {"row_width", at::kRowWidth, 4, 0},
      {"row_width", at::kRowWidth, 4, kFrameWidthMax + 1},
      {"payload_bytes", at::kRowWidth, 4, 500},
      {"refusal", at::kRefusal, 2, 3},
      {"flags", at::kFlags, 2, 1},
      {"flags", at::kFlags, 2, 2},
      {"payload_bytes", at::kPayloadBytes, 8, 0},
      {"payload_bytes", at::kPayloadBytes, 8, UINT64_MAX},
      {"queue_ns", at::kQueueNs, 8, 1},
      {"compute_ns", at::kComputeNs, 8, 1},
      {"reserved", at::kReserved, 1, 1},
      {"reserved", kFrameHeaderBytes - 1, 1, 1},
  };
  for (const HeaderLie& lie : lies) {
    FrameBytes bad(good);
    std::memcpy(bad.bytes().data() + lie.offset, &lie.value, lie.size);
    SealFrame(bad.bytes());
    const auto view = DecodeDispatch(bad.bytes());
    ASSERT_FALSE(view.ok()) << lie.names << " = " << lie.value;
    EXPECT_EQ(view.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(view.status().message()), HasSubstr(lie.names));
  }
}

TEST(ExpertFrame, RefusesAnswersThatContradictThemselves) {
  namespace at = header_offset;
  RandomStream random(5);
  AnswerFrameParts parts = RandomAnswer(random);
  parts.header.gated = false;
  parts.header.row_dtype = DType::kBF16;
  parts.rows.resize(parts.token_id.size() * parts.row_bytes());
  const FrameBytes good = Write(parts);
  ASSERT_TRUE(DecodeAnswer(good.bytes()).ok());
  const std::vector<HeaderLie> lies = {
      {"gated rows are F32", at::kFlags, 2, 1},
      {"row_count", at::kRowCount, 4, parts.token_id.size() + 1},
      {"refusal", at::kRefusal, 2, 7},
  };
  for (const HeaderLie& lie : lies) {
    FrameBytes bad(good);
    std::memcpy(bad.bytes().data() + lie.offset, &lie.value, lie.size);
    SealFrame(bad.bytes());
    const auto view = DecodeAnswer(bad.bytes());
    ASSERT_FALSE(view.ok()) << lie.names;
    EXPECT_THAT(std::string(view.status().message()), HasSubstr(lie.names));
  }
}

TEST(ExpertFrame, NamesWhatIsWrongWithTheRoutes) {
  using Change = void (*)(DispatchParts&);
  const std::vector<std::pair<std::string, Change>> lies = {
      {"names row 3 of 3", [](DispatchParts& p) { p.row_index[0] = 3; }},
      {"names row 4294967295",
       [](DispatchParts& p) { p.row_index[0] = UINT32_MAX; }},
      {"claimed by token", [](DispatchParts& p) { p.row_index[0] = 1; }},
      {"experts ascend", [](DispatchParts& p) { p.expert_id[0] = 99; }},
      {"occur once an expert",
       [](DispatchParts& p) {
         p.token_id[3] = 10;
         p.row_index[3] = 0;
       }},
      {"token 10, slot 0 is named twice",
       [](DispatchParts& p) { p.slot[2] = 0; }},
      {"token 10, slot 70 is named twice",
       [](DispatchParts& p) { p.slot[0] = p.slot[2] = 70; }},
      {"gate: of route 1 is not finite",
       [](DispatchParts& p) {
         p.gate[1] = std::numeric_limits<float>::quiet_NaN();
       }},
      {"gate: of route 0 is not finite",
       [](DispatchParts& p) {
         p.gate[0] = -std::numeric_limits<float>::infinity();
       }},
      {"belongs to no route",
       [](DispatchParts& p) {
         p.token_id[3] = 11;
         p.row_index[3] = 1;
       }},
      {"tokens ascend",
       [](DispatchParts& p) { p.token_id[0] = p.token_id[2] = 13; }},
      {"names no token", [](DispatchParts& p) { p.token_id[3] = UINT32_MAX; }},
  };
  ASSERT_TRUE(DecodeDispatch(Write(SmallDispatch()).bytes()).ok());
  for (const auto& [names, change] : lies) {
    DispatchParts parts = SmallDispatch();
    change(parts);
    const FrameBytes frame = Write(parts);
    const auto view = DecodeDispatch(frame.bytes());
    ASSERT_FALSE(view.ok()) << names;
    EXPECT_EQ(view.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(view.status().message()), HasSubstr(names));
  }
}

// The failure list's "a one in a padded slot".
TEST(ExpertFrame, RefusesPaddingThatIsNotZero) {
  const DispatchParts parts = SmallDispatch();
  const FrameBytes good = Write(parts);
  const FrameLayout layout = LayoutOf(
      FrameKind::kDispatch, parts.header.row_count, parts.header.route_count,
      parts.header.row_width, parts.header.row_dtype);
  std::vector<bool> carries(good.size(), false);
  std::fill_n(carries.begin(), kFrameHeaderBytes, true);
  for (const FrameSection& s : {layout.token_id, layout.slot, layout.expert_id,
                                layout.row_index, layout.gate}) {
    std::fill_n(carries.begin() + static_cast<long>(s.begin), s.used, true);
  }
  for (uint32_t r = 0; r < parts.header.row_count; ++r) {
    std::fill_n(carries.begin() + static_cast<long>(layout.rows.begin +
                                                    r * layout.row_stride),
                layout.row_bytes, true);
  }
  size_t padding = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    if (carries[at]) continue;
    ++padding;
    FrameBytes bad(good);
    bad.bytes()[at] = std::byte{1};
    SealFrame(bad.bytes());
    const auto view = DecodeDispatch(bad.bytes());
    ASSERT_FALSE(view.ok()) << "byte " << at;
    EXPECT_THAT(std::string(view.status().message()), HasSubstr("padding"));
  }
  EXPECT_GT(padding, 100u);
}

// The example of docs/wire_format.md, byte for byte.
TEST(ExpertFrame, LaysOutTheDocumentedExample) {
  DispatchParts parts;
  parts.header.row_dtype = DType::kBF16;
  parts.header.cluster_id = 0x1122334455667788;
  parts.header.trunk_rank = 1;
  parts.header.worker_rank = 2;
  parts.header.epoch = 3;
  parts.header.placement_version = 4;
  parts.header.step_id = 5;
  parts.header.layer = 6;
  parts.header.micro_batch = 1;
  parts.header.attempt = 0;
  parts.header.row_count = 2;
  parts.header.route_count = 3;
  parts.header.row_width = 40;
  parts.token_id = {0, 3, 3};
  parts.slot = {1, 0, 2};
  parts.expert_id = {7, 7, 9};
  parts.row_index = {0, 1, 1};
  parts.gate = {0.5f, 0.25f, 0.125f};
  parts.rows.assign(2 * 80, std::byte{0x3f});
  const FrameBytes frame = Write(parts);
  EXPECT_EQ(frame.size(), 704u);
  EXPECT_EQ(DispatchFrameBytes(2, 3, 40, DType::kBF16), 704u);
  const auto hex = [&](size_t at, size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) {
      char two[3];
      std::snprintf(two, sizeof(two), "%02x",
                    static_cast<unsigned>(frame.bytes()[at + i]));
      text += two;
    }
    return text;
  };
  EXPECT_EQ(hex(0, 16), "54524b4e010001038877665544332211");
  EXPECT_EQ(hex(16, 16), "01000000020000000300000000000000");
  EXPECT_EQ(hex(32, 16), "04000000000000000500000000000000");
  EXPECT_EQ(hex(48, 16), "06000000010000000200000003000000");
  EXPECT_EQ(hex(64, 16), "28000000000000004002000000000000");
  EXPECT_EQ(hex(80, 8), "d1743d267555d24b") << "checksum";
  EXPECT_EQ(hex(128, 12), "000000000300000003000000");
  EXPECT_EQ(hex(192, 6), "010000000200");
  EXPECT_EQ(hex(256, 12), "070000000700000009000000");
  EXPECT_EQ(hex(320, 12), "000000000100000001000000");
  EXPECT_EQ(hex(384, 12), "0000003f0000803e0000003e");
  EXPECT_EQ(hex(448, 2), "3f3f");
  EXPECT_EQ(hex(576, 2), "3f3f");
}

}  // namespace
}  // namespace trunkline::dispatch
