// Packing loses nothing: any rows come back as they were stored.

#include "kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "common/random.h"
#include "common/thread_pool.h"

namespace trunkline::kernels {
namespace {

TEST(PackedMatrixUnpack, GivesAnyRowsBackBitForBit) {
  RandomStream random(11);
  ThreadPool pool(ThreadPool::Options{});
  for (int round = 0; round < 200; ++round) {
    const DType dtype = static_cast<DType>(1 + random.NextBelow(3));
    const int64_t n = 1 + static_cast<int64_t>(random.NextBelow(100));
    const int64_t k = 1 + static_cast<int64_t>(random.NextBelow(300));
    TensorView view{.name = "w", .dtype = dtype, .shape = {n, k}, .data = {}};
    // Any bits, NaNs too, on any boundary.
    std::vector<std::byte> stored(static_cast<size_t>(view.bytes()) + 1);
    for (std::byte& byte : stored) {
      byte = static_cast<std::byte>(random.NextBelow(256));
    }
    view.data = stored.data() + 1;
    const auto packed = PackedMatrix::Pack(view, pool);
    ASSERT_TRUE(packed.ok());
    const int64_t first = static_cast<int64_t>(random.NextBelow(n + 1));
    const int64_t count = static_cast<int64_t>(random.NextBelow(n - first + 1));
    const int64_t row_bytes = k * DTypeBytes(dtype);
    std::vector<std::byte> rows(static_cast<size_t>(count * row_bytes) + 1);
    packed->Unpack(first, count, rows.data() + 1);
    ASSERT_EQ(std::memcmp(rows.data() + 1, view.data + first * row_bytes,
                          static_cast<size_t>(count * row_bytes)),
              0)
        << n << " x " << k << ", rows " << first << "..+" << count;
  }
}

}  // namespace
}  // namespace trunkline::kernels
