#include "transport/buffer_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace trunkline::transport {
namespace {

TEST(BufferPool, ClassesHoldTheirSizesAndWasteAtMostAFifth) {
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(ClassOf(ClassBytes(i)), i);
    EXPECT_LT(ClassBytes(i), ClassBytes(i + 1));
  }
  for (size_t size = 1; size < (size_t{1} << 33); size += size / 7 + 1) {
    const size_t bytes = ClassBytes(ClassOf(size));
    ASSERT_GE(bytes, size);
    ASSERT_LE(bytes * 4, std::max<size_t>(size * 5 + 4, 4 * 256)) << size;
  }
}

TEST(BufferPool, TakesBackWhatItGaveAndGivesItAgain) {
  BufferPool pool(1 << 20);
  AlignedBuffer buffer = pool.Take(1000);
  EXPECT_GE(buffer.size(), 1000u);
  const std::byte* where = buffer.data();
  pool.Give(std::move(buffer));
  EXPECT_EQ(pool.kept_bytes(), 1024);
  EXPECT_EQ(pool.Take(1024).data(), where);
  EXPECT_EQ(pool.kept_bytes(), 0);
}

// A buffer of 1000 bytes lies between the classes of 896 and 1024: it may only
// serve the lower one.
TEST(BufferPool, ForeignMemoryNeverServesMoreThanItHolds) {
  BufferPool pool(1 << 20);
  pool.Give(AlignedBuffer(1000));
  EXPECT_EQ(pool.kept_bytes(), 1000);
  EXPECT_GE(pool.Take(1000).size(), 1000u);
  EXPECT_EQ(pool.kept_bytes(), 1000);
  EXPECT_EQ(pool.Take(896).size(), 1000u);
  EXPECT_EQ(pool.kept_bytes(), 0);
}

TEST(BufferPool, KeepsNoMoreThanItsLimit) {
  BufferPool pool(4096);
  std::vector<AlignedBuffer> all;
  for (int i = 0; i < 10; ++i) all.push_back(pool.Take(1024));
  for (AlignedBuffer& buffer : all) pool.Give(std::move(buffer));
  EXPECT_EQ(pool.kept_bytes(), 4096);
  pool.Give(AlignedBuffer(1 << 20));
  EXPECT_EQ(pool.kept_bytes(), 4096);
}

TEST(BufferPool, EmptyMessagesNeedNoMemory) {
  BufferPool pool(4096);
  EXPECT_TRUE(pool.Take(0).empty());
  pool.Give(AlignedBuffer());
  EXPECT_EQ(pool.kept_bytes(), 0);
}

// No buffer is ever in two hands: each thread writes its number and finds it.
TEST(BufferPool, ThreadsShareItSafely) {
  BufferPool pool(1 << 20);
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 2000; ++i) {
        AlignedBuffer buffer = pool.Take(300 + i % 700);
        std::memset(buffer.data(), t, 300);
        std::this_thread::yield();
        for (int b = 0; b < 300; ++b)
          ASSERT_EQ(static_cast<int>(buffer.data()[b]), t);
        pool.Give(std::move(buffer));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace trunkline::transport
