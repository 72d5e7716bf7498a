// The bytes by which weights travel: read as they were written, and refused
// when any bit differs.

#include "expert_worker/shard_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "common/random.h"

namespace trunkline::expert {
namespace {

using testing::HasSubstr;

ShardHeader RowsHeader() {
  ShardHeader header;
  header.kind = ShardFrameKind::kRows;
  header.cluster_id = 0x1122334455667788;
  header.request = 9;
  header.key = {LayerIndex(4), ExpertId(127)};
  header.part = ShardPart::kDown;
  header.first_row = 2;
  header.row_count = 3;
  header.dtype = DType::kBF16;
  header.rows = 5;
  header.columns = 7;
  header.parts = kShardParts;
  for (size_t i = 0; i < header.digest.size(); ++i) {
    header.digest[i] = static_cast<std::byte>(i);
  }
  return header;
}

std::vector<std::byte> Frame(const ShardHeader& header, size_t payload) {
  std::vector<std::byte> frame(ShardFrameBytes(payload));
  const std::span<std::byte> place = BeginShardFrame(header, frame);
  for (size_t i = 0; i < place.size(); ++i) {
    place[i] = static_cast<std::byte>(i * 7 + 1);
  }
  SealShardFrame(frame);
  return frame;
}

TEST(ShardFrame, IsReadAsItWasWritten) {
  const std::vector<std::byte> bytes = Frame(RowsHeader(), 3 * 7 * 2);
  ASSERT_TRUE(IsShardFrame(bytes));
  const auto frame = DecodeShardFrame(bytes);
  ASSERT_TRUE(frame.ok()) << frame.status();
  const ShardHeader want = RowsHeader();
  EXPECT_EQ(frame->header.cluster_id, want.cluster_id);
  EXPECT_EQ(frame->header.request, want.request);
  EXPECT_EQ(frame->header.key, want.key);
  EXPECT_EQ(frame->header.part, want.part);
  EXPECT_EQ(frame->header.first_row, want.first_row);
  EXPECT_EQ(frame->header.row_count, want.row_count);
  EXPECT_EQ(frame->header.dtype, want.dtype);
  EXPECT_EQ(frame->header.rows, want.rows);
  EXPECT_EQ(frame->header.columns, want.columns);
  EXPECT_EQ(frame->header.parts, want.parts);
  EXPECT_EQ(frame->header.digest, want.digest);
  ASSERT_EQ(frame->rows.size(), 42u);
  EXPECT_EQ(frame->rows[41], static_cast<std::byte>(41 * 7 + 1));
}

TEST(ShardFrame, RequestsAndRefusalsCarryNoRows) {
  ShardHeader header = RowsHeader();
  header.kind = ShardFrameKind::kRequest;
  EXPECT_TRUE(DecodeShardFrame(Frame(header, 0)).ok());
  EXPECT_FALSE(DecodeShardFrame(Frame(header, 8)).ok());
  header.kind = ShardFrameKind::kRefusal;
  header.refusal = ShardRefusalCode::kBusy;
  const auto refusal = DecodeShardFrame(Frame(header, 4));
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  EXPECT_EQ(refusal->header.refusal, ShardRefusalCode::kBusy);
  EXPECT_EQ(refusal->message.size(), 4u);
  EXPECT_FALSE(DecodeShardFrame(Frame(header, kShardMessageMax + 1)).ok());
  header.refusal = ShardRefusalCode::kNone;
  EXPECT_FALSE(DecodeShardFrame(Frame(header, 4)).ok());
}

TEST(ShardFrame, FieldsThatMakeNoSenseAreNamed) {
  const auto refused = [](auto change, const std::string& said) {
    ShardHeader header = RowsHeader();
    change(header);
    const auto frame = DecodeShardFrame(Frame(header, 42));
    EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(frame.status().message()), HasSubstr(said));
  };
  refused([](auto& h) { h.kind = static_cast<ShardFrameKind>(4); }, "kind");
  refused([](auto& h) { h.part = static_cast<ShardPart>(2); }, "part");
  refused([](auto& h) { h.dtype = static_cast<DType>(9); }, "dtype");
  refused([](auto& h) { h.rows = 0; }, "rows");
  refused([](auto& h) { h.columns = kShardDimensionMax + 1; }, "columns");
  refused([](auto& h) { h.parts = 0; }, "parts");
  refused([](auto& h) { h.first_row = 3; }, "outside of 5");
  refused([](auto& h) { h.first_row = ~0u; }, "outside of 5");
  refused([](auto& h) { h.row_count = 0; }, "outside of 5");
  refused([](auto& h) { h.row_count = 2; }, "payload_bytes");
}

TEST(ShardFrame, BytesWithoutAMeaningAreZero) {
  for (const size_t at : {size_t{33}, size_t{58}, size_t{60}, size_t{100}}) {
    std::vector<std::byte> frame = Frame(RowsHeader(), 42);
    frame[at] = std::byte{1};
    SealShardFrame(frame);
    EXPECT_FALSE(DecodeShardFrame(frame).ok()) << at;
  }
  // A request has no digest.
  ShardHeader header = RowsHeader();
  header.kind = ShardFrameKind::kRequest;
  std::vector<std::byte> frame = Frame(header, 0);
  frame[64] = std::byte{1};
  SealShardFrame(frame);
  EXPECT_FALSE(DecodeShardFrame(frame).ok());
}

TEST(ShardFrame, EveryFlippedBitAndEveryOtherLengthIsRefused) {
  const std::vector<std::byte> good = Frame(RowsHeader(), 42);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_FALSE(DecodeShardFrame(bad).ok()) << "bit " << bit;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    ASSERT_FALSE(DecodeShardFrame(std::span(good).first(size)).ok()) << size;
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(DecodeShardFrame(longer).ok());
}

}  // namespace
}  // namespace trunkline::expert
