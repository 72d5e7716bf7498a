#include "transport/ucx/message_assembler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/random.h"

namespace trunkline::transport::ucx {
namespace {

class MessageAssemblerTest : public ::testing::Test {
 protected:
  absl::StatusCode BeginCode(const ChunkHeader& header, size_t bytes,
                             int64_t unread = 0) {
    return assembler_.Begin(header, bytes, unread).status().code();
  }

  BufferPool pool_{64 << 20};
  MessageAssembler assembler_{&pool_, 8 << 20, 32 << 20};
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Random messages, their chunks begun and finished in random orders: what comes
// out is what went in, in order. The reference is the list of messages itself.
TEST_F(MessageAssemblerTest, AnyOrderOfChunksGivesTheMessagesInOrder) {
  RandomStream random(11);
  struct Piece {
    ChunkHeader header;
    size_t bytes;
    MessageAssembler::Target target;
  };
  for (int round = 0; round < 20; ++round) {
    MessageAssembler assembler(&pool_, 8 << 20, 64 << 20);
    std::vector<size_t> sizes;
    std::vector<Piece> pieces;
    for (uint64_t m = 0; m < 12; ++m) {
      const size_t size = random.NextBelow(4) == 0
                              ? random.NextBelow(3) * kChunkBytes
                              : random.NextBelow(3 * kChunkBytes);
      sizes.push_back(size);
      size_t offset = 0;
      do {
        const size_t bytes = std::min(kChunkBytes, size - offset);
        pieces.push_back({{m, size, offset}, bytes, {}});
        offset += bytes;
      } while (offset < size);
    }
    const auto shuffle = [&](auto begin, auto end) {
      for (auto n = end - begin; n > 1; --n)
        std::swap(begin[n - 1], begin[random.NextBelow(n)]);
    };
    shuffle(pieces.begin(), pieces.end());
    for (Piece& piece : pieces) {
      auto target = assembler.Begin(piece.header, piece.bytes, 0);
      ASSERT_TRUE(target.ok()) << target.status();
      piece.target = *target;
    }
    shuffle(pieces.begin(), pieces.end());
    std::vector<Message> out;
    Message message;
    for (Piece& piece : pieces) {
      // Each byte names its message and its chunk.
      if (piece.bytes > 0) {
        std::memset(piece.target.bytes,
                    static_cast<int>(piece.header.sequence * 16 +
                                     piece.header.offset / kChunkBytes),
                    piece.bytes);
      }
      assembler.Finish(piece.target.assembly.get(), piece.bytes);
      while (assembler.TakeNext(&message)) out.push_back(std::move(message));
    }
    ASSERT_EQ(out.size(), sizes.size());
    EXPECT_EQ(assembler.assembling_bytes(), 0);
    for (uint64_t m = 0; m < out.size(); ++m) {
      ASSERT_EQ(out[m].size, sizes[m]);
      for (size_t i = 0; i < out[m].size; i += 4093) {
        ASSERT_EQ(static_cast<uint8_t>(out[m].data()[i]),
                  static_cast<uint8_t>(m * 16 + i / kChunkBytes));
      }
    }
  }
}

TEST_F(MessageAssemblerTest, AMessageAboveTheLimitIsRefusedBeforeAnyMemory) {
  EXPECT_EQ(BeginCode({0, (8 << 20) + 1, 0}, kChunkBytes), kInvalid);
  EXPECT_EQ(BeginCode({0, ~uint64_t{0}, 0}, kChunkBytes), kInvalid);
  EXPECT_EQ(assembler_.assembling_bytes(), 0);
}

TEST_F(MessageAssemblerTest, ASequenceNumberMustLieInTheWindow) {
  EXPECT_EQ(BeginCode({2 * kWindowMessages, 1, 0}, 1), kInvalid);
  EXPECT_EQ(BeginCode({~uint64_t{0}, 1, 0}, 1), kInvalid);
  const auto target = assembler_.Begin({0, 1, 0}, 1, 0);
  ASSERT_TRUE(target.ok());
  assembler_.Finish(target->assembly.get(), 1);
  Message message;
  ASSERT_TRUE(assembler_.TakeNext(&message));
  EXPECT_EQ(BeginCode({0, 1, 0}, 1), kInvalid) << "delivered already";
}

TEST_F(MessageAssemblerTest, AChunkMustBeOneOfTheMessagesOwn) {
  const uint64_t total = 2 * kChunkBytes + 5;
  EXPECT_EQ(BeginCode({0, total, 1}, kChunkBytes), kInvalid);
  EXPECT_EQ(BeginCode({1, total, 0}, kChunkBytes - 1), kInvalid);
  EXPECT_EQ(BeginCode({2, total, 2 * kChunkBytes}, 6), kInvalid);
  EXPECT_EQ(BeginCode({3, total, 3 * kChunkBytes}, 0), kInvalid);
  EXPECT_EQ(BeginCode({4, total, ~uint64_t{0} << 20}, 5), kInvalid);
  EXPECT_EQ(BeginCode({5, kChunkBytes, kChunkBytes}, 0), kInvalid);
  EXPECT_EQ(BeginCode({6, 0, 0}, 1), kInvalid);
  EXPECT_EQ(BeginCode({7, 0, kChunkBytes}, 0), kInvalid);
}

TEST_F(MessageAssemblerTest, AChunkComesOnceAndAMessageKeepsItsSize) {
  const uint64_t total = 3 * kChunkBytes;
  ASSERT_TRUE(assembler_.Begin({0, total, kChunkBytes}, kChunkBytes, 0).ok());
  EXPECT_EQ(BeginCode({0, total, kChunkBytes}, kChunkBytes), kInvalid);
  EXPECT_EQ(BeginCode({0, total - 1, 0}, kChunkBytes), kInvalid);
}

TEST_F(MessageAssemblerTest, UnreadAndUnfinishedBytesShareOneLimit) {
  ASSERT_TRUE(assembler_.Begin({0, 8 << 20, 0}, kChunkBytes, 20 << 20).ok());
  EXPECT_EQ(BeginCode({1, 8 << 20, 0}, kChunkBytes, 20 << 20),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(assembler_.Begin({1, 8 << 20, 0}, kChunkBytes, 16 << 20).ok());
}

// Random headers never get memory outside their message.
TEST_F(MessageAssemblerTest, RandomHeadersAreRefusedOrFit) {
  RandomStream random(5);
  const auto number = [&](uint64_t scale) {
    switch (random.NextBelow(4)) {
      case 0:
        return random.NextBelow(4) * scale;
      case 1:
        return random.NextBelow(scale + 1);
      case 2:
        return random.Next();
      default:
        return uint64_t{0};
    }
  };
  for (int i = 0; i < 3000; ++i) {
    MessageAssembler assembler(&pool_, 8 << 20, 32 << 20);
    for (int k = 0; k < 3; ++k) {
      const ChunkHeader header{random.NextBelow(3), number(kChunkBytes),
                               number(kChunkBytes)};
      const size_t bytes = number(kChunkBytes) % (kChunkBytes + 2);
      const auto target = assembler.Begin(header, bytes, 0);
      if (!target.ok() || bytes == 0) continue;
      const Message& message = target->assembly->message;
      ASSERT_GE(target->bytes, message.data());
      ASSERT_LE(target->bytes + bytes, message.data() + message.size);
    }
  }
}

}  // namespace
}  // namespace trunkline::transport::ucx
