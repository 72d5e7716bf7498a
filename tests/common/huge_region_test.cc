#include "common/huge_region.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "common/random.h"

namespace trunkline {
namespace {

bool AllAre(const std::byte* data, size_t bytes, std::byte value) {
  return std::all_of(data, data + bytes,
                     [value](std::byte b) { return b == value; });
}

// Pages of [data, data + bytes) in memory; -1 when they are not mapped.
int64_t PagesInMemory(std::byte* data, size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  if (mincore(data, bytes, resident.data()) != 0) return -1;
  return std::count_if(resident.begin(), resident.end(),
                       [](unsigned char r) { return (r & 1) != 0; });
}

// Buffers of random sizes come and go: always zero when new, never over one
// another, and what is written stays.
TEST(HugeRegion, BuffersNeitherOverlapNorComeBackUsed) {
  struct Held {
    size_t bytes;
    std::byte fill;
  };
  RandomStream random(4);
  std::map<std::byte*, Held> held;
  for (int i = 0; i < 400; ++i) {
    if (held.size() < 12 && random.NextBelow(3) != 0) {
      const size_t bytes = 1 + random.NextBelow(3 * kHugePageBytes);
      std::byte* data = AllocateHuge(bytes);
      ASSERT_TRUE(AllAre(data, bytes, std::byte{0}));
      const auto next = held.lower_bound(data);
      if (next != held.end()) {
        ASSERT_LE(data + bytes, next->first);
      }
      if (next != held.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second.bytes, data);
      }
      const auto fill = static_cast<std::byte>(1 + random.NextBelow(255));
      std::memset(data, static_cast<int>(fill), bytes);
      held[data] = {bytes, fill};
    } else if (!held.empty()) {
      auto gone = std::next(
          held.begin(), static_cast<int64_t>(random.NextBelow(held.size())));
      ASSERT_TRUE(AllAre(gone->first, gone->second.bytes, gone->second.fill));
      FreeHuge(gone->first, gone->second.bytes);
      held.erase(gone);
    }
  }
  for (const auto& [data, what] : held) {
    EXPECT_TRUE(AllAre(data, what.bytes, what.fill));
    FreeHuge(data, what.bytes);
  }
}

TEST(HugeRegion, FreedMemoryGoesBackWhileTheNeighboursStay) {
  const size_t bytes = 5 * kHugePageBytes - 4096;
  std::byte* buffers[3];
  for (std::byte*& buffer : buffers) {
    buffer = AllocateHuge(bytes);
    std::memset(buffer, 7, bytes);
  }
  FreeHuge(buffers[1], bytes);
  EXPECT_EQ(PagesInMemory(buffers[1], bytes), 0);
  EXPECT_TRUE(AllAre(buffers[0], bytes, std::byte{7}));
  EXPECT_TRUE(AllAre(buffers[2], bytes, std::byte{7}));
  FreeHuge(buffers[0], bytes);
  FreeHuge(buffers[2], bytes);
}

// Address space: a region goes when its last buffer has gone, and its successor
// has been opened.
TEST(HugeRegion, AnEmptyRegionIsUnmapped) {
  const size_t most = (size_t{1} << 30) - kHugePageBytes;
  std::byte* first = AllocateHuge(most);
  std::byte* second = AllocateHuge(most);
  std::byte* third = AllocateHuge(most);
  FreeHuge(second, most);
  EXPECT_EQ(PagesInMemory(second, 4096), -1);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(PagesInMemory(first, 4096), 0);
  // Larger than a region: one of its own.
  const size_t larger = (size_t{3} << 30) + 1;
  std::byte* large = AllocateHuge(larger);
  large[larger - 1] = std::byte{1};
  FreeHuge(first, most);
  FreeHuge(third, most);
  EXPECT_EQ(PagesInMemory(third, 4096), -1);
  FreeHuge(large, larger);
}

TEST(HugeRegion, ThreadsShareIt) {
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        const size_t bytes = kHugePageBytes + static_cast<size_t>(t) * 4096;
        std::byte* data = AllocateHuge(bytes);
        std::memset(data, t, bytes);
        EXPECT_TRUE(AllAre(data, bytes, static_cast<std::byte>(t)));
        FreeHuge(data, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace trunkline
