#include "kernels/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "kernels/bf16_dot.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/machine_limits.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sums the bytes as 32-bit words: one load and one add a vector. Four streams
// side by side, as a product of one row reads its panels, fetched ahead.
uint32_t SumWords(const uint32_t* words, size_t count) {
  const hn::ScalableTag<uint32_t> d;
  const size_t lanes = hn::Lanes(d);
  const size_t quarter = count / 4 / (4 * lanes) * (4 * lanes);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  for (size_t i = 0; i < quarter; i += lanes) {
    const uint32_t* at = words + i;
    hwy::Prefetch(at + 512);
    hwy::Prefetch(at + quarter + 512);
    hwy::Prefetch(at + 2 * quarter + 512);
    hwy::Prefetch(at + 3 * quarter + 512);
    s0 = hn::Add(s0, hn::LoadU(d, at));
    s1 = hn::Add(s1, hn::LoadU(d, at + quarter));
    s2 = hn::Add(s2, hn::LoadU(d, at + 2 * quarter));
    s3 = hn::Add(s3, hn::LoadU(d, at + 3 * quarter));
  }
  return hn::GetLane(
      hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

// `rounds` times 12 independent fused multiply-adds; returns the operations.
double FmaRounds(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  // Different values: equal chains would be merged by the compiler.
  auto a00 = hn::Set(d, 1.0f);
  auto a01 = hn::Set(d, 2.0f);
  auto a02 = hn::Set(d, 3.0f);
  auto a03 = hn::Set(d, 4.0f);
  auto a04 = hn::Set(d, 5.0f);
  auto a05 = hn::Set(d, 6.0f);
  auto a06 = hn::Set(d, 7.0f);
  auto a07 = hn::Set(d, 8.0f);
  auto a08 = hn::Set(d, 9.0f);
  auto a09 = hn::Set(d, 10.0f);
  auto a10 = hn::Set(d, 11.0f);
  auto a11 = hn::Set(d, 12.0f);
  const auto x = hn::Set(d, 0.999f);
  const auto y = hn::Set(d, 0.001f);
  for (int64_t i = 0; i < rounds; ++i) {
    a00 = hn::MulAdd(a00, x, y);
    a01 = hn::MulAdd(a01, x, y);
    a02 = hn::MulAdd(a02, x, y);
    a03 = hn::MulAdd(a03, x, y);
    a04 = hn::MulAdd(a04, x, y);
    a05 = hn::MulAdd(a05, x, y);
    a06 = hn::MulAdd(a06, x, y);
    a07 = hn::MulAdd(a07, x, y);
    a08 = hn::MulAdd(a08, x, y);
    a09 = hn::MulAdd(a09, x, y);
    a10 = hn::MulAdd(a10, x, y);
    a11 = hn::MulAdd(a11, x, y);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(hn::Add(a00, a01), hn::Add(a02, a03)),
                      hn::Add(hn::Add(a04, a05), hn::Add(a06, a07))),
              hn::Add(hn::Add(a08, a09), hn::Add(a10, a11)));
  *sink = hn::GetLane(sum);
  return 2.0 * 12.0 * static_cast<double>(rounds) *
         static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Operations per second of all threads that run `rounds` at the same time: the
// best of `repeats` passes.
template <class Rounds>
double OperationsPerSecond(ThreadPool& pool, int repeats,
                           const Rounds& rounds) {
  const int threads = pool.threads();
  double best = 0;
  for (int r = 0; r < repeats; ++r) {
    std::atomic<double> operations{0.0};
    std::atomic<float> sink{0.0f};
    const auto start = Clock::now();
    pool.ParallelFor(threads * 4, [&](int64_t, int) {
      float value = 0.0f;
      operations.fetch_add(rounds(&value));
      sink.store(value, std::memory_order_relaxed);
    });
    best = std::max(best, operations.load() / SecondsSince(start));
  }
  return best;
}

}  // namespace

HWY_EXPORT(SumWords);
HWY_EXPORT(FmaRounds);

double ReadBandwidth(ThreadPool& pool,
                     std::span<const std::span<const std::byte>> ranges,
                     int repeats) {
  constexpr size_t kPiece = size_t{1} << 20;
  double best = 0;
  std::atomic<uint32_t> sink{0};
  for (int r = 0; r < repeats; ++r) {
    double bytes = 0;
    const auto start = Clock::now();
    for (const auto& range : ranges) {
      const auto pieces = static_cast<int64_t>(range.size() / kPiece);
      pool.ParallelFor(pieces, [&](int64_t piece, int) {
        const std::byte* at =
            range.data() + static_cast<size_t>(piece) * kPiece;
        sink.fetch_add(HWY_DYNAMIC_DISPATCH(SumWords)(
                           reinterpret_cast<const uint32_t*>(at), kPiece / 4),
                       std::memory_order_relaxed);
      });
      bytes += static_cast<double>(pieces) * static_cast<double>(kPiece);
    }
    best = std::max(best, bytes / SecondsSince(start));
  }
  return best;
}

double FmaPeak(ThreadPool& pool, int repeats) {
  constexpr int64_t kRounds = 400000;
  return OperationsPerSecond(pool, repeats, [](float* sink) {
    return HWY_DYNAMIC_DISPATCH(FmaRounds)(kRounds, sink);
  });
}

double Bf16DotPeak(ThreadPool& pool, int repeats) {
  constexpr int64_t kRounds = 400000;
  if (!MachineHasBf16Dot()) return 0.0;
  return OperationsPerSecond(
      pool, repeats, [](float* sink) { return Bf16DotRounds(kRounds, sink); });
}

double CacheCopy(int repeats) {
  constexpr size_t kBytes = 8 << 10;  // read and written: 16 KiB in the cache
  constexpr int kCopies = 4096;
  std::vector<char> from(kBytes, 1), to(kBytes);
  double best = 0;
  for (int r = 0; r < repeats; ++r) {
    const auto start = Clock::now();
    for (int i = 0; i < kCopies; ++i) {
      std::memcpy(to.data(), from.data(), kBytes);
      // The compiler must believe that each copy is read.
      asm volatile("" : : "r"(to.data()), "r"(from.data()) : "memory");
    }
    best = std::max(
        best, static_cast<double>(kBytes) * kCopies / SecondsSince(start));
  }
  return best;
}

double ForkJoinSeconds(ThreadPool& pool, int repeats) {
  std::vector<double> seconds;
  for (int r = 0; r < repeats; ++r) {
    const auto start = Clock::now();
    pool.ParallelFor(pool.threads(), [](int64_t, int) {});
    seconds.push_back(SecondsSince(start));
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2,
                   seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
