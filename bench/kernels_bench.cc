// The kernels against the machine's limits. Every line prints its figure, the
// limit measured around it in the same process, and their ratio:
//
//   figure, limit   GB/s of distinct weight or state bytes, or GFLOP/s
//   ratio           figure / limit
//   label           memory, fma or dot (bf16 pairs): which limit takes longer
//
// --threads=N (default: one per core, each pinned to its own), --target=NAME
// (default: auto), and Google Benchmark's own flags.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <vector>

#include "bench/free_order_product.h"
#include "common/aligned_buffer.h"
#include "common/bfloat16.h"
#include "common/compute_threads.h"
#include "common/random.h"
#include "kernels/attention.h"
#include "kernels/kernel_context.h"
#include "kernels/machine_limits.h"
#include "kernels/mamba.h"
#include "kernels/matmul.h"
#include "kernels/mlp.h"

namespace trunkline::bench {
namespace {

using kernels::Activation;
using kernels::Bf16DotPeak;
using kernels::FmaPeak;
using kernels::Numerics;
using kernels::PackedMatrix;
using kernels::ReadBandwidth;

// Weights are rotated through at least this much memory, so that no cache holds
// what the next iteration reads.
constexpr int64_t kWorkingSetBytes = int64_t{640} << 20;

std::unique_ptr<ThreadPool> g_pool;

kernels::KernelContext Context() { return {g_pool.get()}; }

std::vector<uint16_t> RandomBf16(int64_t count) {
  RandomStream random(7);
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  for (uint16_t& b : bits) {
    b = FloatToBf16(static_cast<float>(random.NextUnit() - 0.5) * 0.1f);
  }
  return bits;
}

// Rows in the memory that a step has them in.
class Rows {
 public:
  explicit Rows(int64_t count)
      : buffer_(static_cast<size_t>(count) * sizeof(float)) {}
  float* data() { return buffer_.as<float>(); }
  const float* data() const { return buffer_.as<float>(); }

 private:
  AlignedBuffer buffer_;
};

Rows RandomRows(int64_t count) {
  RandomStream random(8);
  Rows rows(count);
  for (int64_t i = 0; i < count; ++i) {
    rows.data()[i] = RoundToBf16(static_cast<float>(random.NextUnit() - 0.5));
  }
  return rows;
}

PackedMatrix Packed(const std::vector<uint16_t>& bits, int64_t n, int64_t k,
                    Numerics numerics = Numerics::kPortable) {
  TensorView view;
  view.name = "bench";
  view.dtype = DType::kBF16;
  view.shape = {n, k};
  view.data = reinterpret_cast<const std::byte*>(bits.data());
  auto packed = PackedMatrix::Pack(view, *g_pool, numerics);
  if (!packed.ok()) {
    std::cerr << packed.status() << "\n";
    std::exit(1);
  }
  return *std::move(packed);
}

std::span<const std::byte> BytesOf(const PackedMatrix& w) {
  return {w.panel(0), static_cast<size_t>(w.bytes())};
}

void ReportRate(benchmark::State& state, const char* bound,
                double per_iteration, double limit) {
  state.SetLabel(bound);
  state.counters["limit"] = limit * 1e-9;
  state.counters["figure"] = benchmark::Counter(
      per_iteration * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["ratio"] = benchmark::Counter(
      per_iteration / limit, benchmark::Counter::kIsIterationInvariantRate);
}

// What one run has to do, each byte read once.
struct Work {
  double bytes = 0;
  double operations = 0;
};

// The work against the limit that takes longer: reading `ranges`, or the
// class's arithmetic in registers. One run goes before the clock starts, so
// that no first touch of memory is in the figure; the limits are measured on
// both sides of the runs, since machines drift.
template <class Run>
void MeasureAgainst(benchmark::State& state, const Work& work,
                    std::span<const std::span<const std::byte>> ranges,
                    Numerics numerics, const Run& run) {
  const bool dot = numerics == Numerics::kBf16Dot;
  double read = 0;
  double peak = 0;
  const auto measure = [&] {
    read += ReadBandwidth(*g_pool, ranges, 3) / 2;
    peak += (dot ? Bf16DotPeak : FmaPeak)(*g_pool, 5) / 2;
  };
  run();
  measure();
  for (auto _ : state) run();
  measure();
  if (work.bytes / read >= work.operations / peak) {
    ReportRate(state, "memory", work.bytes, read);
  } else {
    ReportRate(state, dot ? "dot" : "fma", work.operations, peak);
  }
}

// Rows times one matrix [n, k].
void MatMulOfClass(benchmark::State& state, Numerics numerics) {
  const int64_t rows = state.range(0);
  const int64_t n = state.range(1);
  const int64_t k = state.range(2);
  const std::vector<uint16_t> bits = RandomBf16(n * k);
  const int64_t copies =
      rows <= 16 ? std::max<int64_t>(kWorkingSetBytes / (n * k * 2), 1) : 1;
  std::vector<PackedMatrix> matrices;
  std::vector<std::span<const std::byte>> ranges;
  for (int64_t i = 0; i < copies; ++i)
    matrices.push_back(Packed(bits, n, k, numerics));
  for (const PackedMatrix& w : matrices) ranges.push_back(BytesOf(w));
  const Rows x = RandomRows(rows * k);
  Rows y(rows * n);
  kernels::MatMulArgs args;
  args.x = x.data();
  args.x_stride = k;
  args.rows = rows;
  args.y = y.data();
  args.y_stride = n;
  args.out = Activation::kBf16;
  size_t next = 0;
  MeasureAgainst(state,
                 {static_cast<double>(ranges[0].size()),
                  2.0 * static_cast<double>(rows * n * k)},
                 ranges, numerics, [&] {
                   args.w = &matrices[next++ % matrices.size()];
                   kernels::MatMul(Context(), args);
                   benchmark::DoNotOptimize(y.data());
                 });
}

void MatMulBf16(benchmark::State& state) {
  MatMulOfClass(state, Numerics::kPortable);
}
void MatMulBf16Dot(benchmark::State& state) {
  MatMulOfClass(state, Numerics::kBf16Dot);
}

// What the fixed order costs: the exact product and the free one in turn over
// the same weights, no cache holding them. cost is the median of the pairs'
// ratios, less one; "few percent" is as fine as a noisy machine lets it be.
void OrderCost(benchmark::State& state) {
  const int64_t rows = state.range(0);
  constexpr int64_t kN = 10304;
  constexpr int64_t kK = 2688;
  const std::vector<uint16_t> bits = RandomBf16(kN * kK);
  std::vector<PackedMatrix> matrices;
  for (int64_t i = 0; i < kWorkingSetBytes / (kN * kK * 2); ++i)
    matrices.push_back(Packed(bits, kN, kK));
  const Rows x = RandomRows(rows * kK);
  Rows y(rows * kN);
  kernels::MatMulArgs args;
  args.x = x.data();
  args.x_stride = kK;
  args.rows = rows;
  args.y = y.data();
  args.y_stride = kN;
  args.out = Activation::kF32;
  const auto timed = [](const auto& run) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin)
        .count();
  };
  std::vector<double> ratios;
  size_t next = 0;
  for (auto _ : state) {
    // Each takes a matrix that neither has just read.
    args.w = &matrices[next++ % matrices.size()];
    const double exact = timed([&] { kernels::MatMul(Context(), args); });
    const PackedMatrix& other = matrices[next++ % matrices.size()];
    const double freed = timed(
        [&] { FreeOrderProduct(*g_pool, x.data(), rows, other, y.data()); });
    ratios.push_back(exact / freed);
    benchmark::DoNotOptimize(y.data());
  }
  std::nth_element(ratios.begin(), ratios.begin() + ratios.size() / 2,
                   ratios.end());
  state.counters["cost"] = ratios[ratios.size() / 2] - 1.0;
}

// One moe layer at the Nano shape: 128 experts, 6 a row, random routing. Each
// activated expert's bytes count once.
void GroupedExpertsOfClass(benchmark::State& state, Numerics numerics) {
  const int64_t rows = state.range(0);
  constexpr int64_t kWidth = 2688;
  constexpr int64_t kInner = 1856;
  constexpr uint64_t kExperts = 128;
  RandomStream random(9);
  std::vector<std::vector<uint32_t>> chosen(kExperts);
  for (int64_t r = 0; r < rows; ++r) {
    for (int slot = 0; slot < 6;) {
      auto& routes = chosen[random.NextBelow(kExperts)];
      if (!routes.empty() && routes.back() == static_cast<uint32_t>(r)) {
        continue;
      }
      routes.push_back(static_cast<uint32_t>(r));
      ++slot;
    }
  }
  const std::vector<uint16_t> bits = RandomBf16(kWidth * kInner);
  std::vector<std::unique_ptr<kernels::MlpWeights>> weights;
  std::vector<std::span<const std::byte>> ranges;
  std::vector<kernels::MlpGroup> groups;
  std::vector<uint32_t> index;
  double bytes = 0;
  for (const auto& routes : chosen) {
    if (routes.empty()) continue;
    weights.push_back(std::make_unique<kernels::MlpWeights>());
    weights.back()->up = Packed(bits, kInner, kWidth, numerics);
    weights.back()->down = Packed(bits, kWidth, kInner, numerics);
    ranges.push_back(BytesOf(weights.back()->up));
    ranges.push_back(BytesOf(weights.back()->down));
    bytes += static_cast<double>(weights.back()->bytes());
    groups.push_back({weights.back().get(), static_cast<int64_t>(index.size()),
                      static_cast<int64_t>(routes.size())});
    index.insert(index.end(), routes.begin(), routes.end());
  }
  const Rows x = RandomRows(rows * kWidth);
  Rows y(static_cast<int64_t>(index.size()) * kWidth);
  kernels::GroupedMlpArgs args;
  args.x = x.data();
  args.x_stride = kWidth;
  args.row_index = index.data();
  args.groups = groups;
  args.y = y.data();
  args.y_stride = kWidth;
  args.out = Activation::kBf16;
  kernels::MlpScratch scratch;
  state.counters["experts"] = static_cast<double>(groups.size());
  MeasureAgainst(
      state, {bytes, 4.0 * static_cast<double>(index.size() * kWidth * kInner)},
      ranges, numerics, [&] {
        kernels::GroupedMlp(Context(), args, &scratch);
        benchmark::DoNotOptimize(y.data());
      });
}

void GroupedExperts(benchmark::State& state) {
  GroupedExpertsOfClass(state, Numerics::kPortable);
}
void GroupedExpertsBf16Dot(benchmark::State& state) {
  GroupedExpertsOfClass(state, Numerics::kBf16Dot);
}

// One mamba layer's scan at the Nano shape. Decode streams the state (read and
// written); prefill does five operations per state element and token.
void Scan(benchmark::State& state) {
  const int64_t rows = state.range(0);
  kernels::SelectiveScanArgs args;
  args.heads = 64;
  args.head_dim = 64;
  args.groups = 8;
  args.state_size = 128;
  const int64_t inner = args.heads * args.head_dim;
  args.x_stride = inner + 2 * args.groups * args.state_size;
  args.dt_stride = args.heads;
  args.y_stride = inner;
  args.out = Activation::kBf16;
  const Rows x = RandomRows(rows * args.x_stride);
  const Rows dt = RandomRows(rows * args.heads);
  const Rows head = RandomRows(3 * args.heads);
  std::vector<float> a(static_cast<size_t>(args.heads), -1.0f);
  Rows y(rows * inner);
  args.x = x.data();
  args.dt = dt.data();
  args.dt_bias = head.data();
  args.a = a.data();
  args.d = head.data();
  args.y = y.data();
  const int64_t state_bytes =
      kernels::ScanStateBytes(args.heads, args.head_dim, args.state_size);
  const int64_t copies =
      rows == 1 ? std::max<int64_t>(kWorkingSetBytes / 2 / state_bytes, 1) : 1;
  AlignedBuffer states(static_cast<size_t>(copies * state_bytes));
  std::memset(states.data(), 0, states.size());
  const std::span<const std::byte> range = states.bytes();
  int64_t next = 0;
  MeasureAgainst(state,
                 {2.0 * static_cast<double>(state_bytes),
                  5.0 * static_cast<double>(rows * state_bytes / 4)},
                 {&range, 1}, Numerics::kPortable, [&] {
                   const kernels::StateSegment segment{
                       0, rows, states.data() + next++ % copies * state_bytes};
                   args.segments = {&segment, 1};
                   kernels::SelectiveScan(Context(), args);
                   benchmark::DoNotOptimize(y.data());
                 });
}

// One decode row of one attention layer at the Nano shape over a long context:
// the cache is read once.
void AttentionDecode(benchmark::State& state) {
  const int64_t context = state.range(0);
  kernels::AttentionArgs args;
  args.heads = 32;
  args.kv_heads = 2;
  args.head_dim = 128;
  args.scale = 1.0f / std::sqrt(128.0f);
  args.out = Activation::kBf16;
  const int64_t block_bytes =
      kernels::KvBlockBytes(args.kv_heads, args.head_dim, args.out);
  const int64_t blocks = context / kernels::kKvBlock;
  AlignedBuffer cache(static_cast<size_t>(blocks * block_bytes));
  std::memset(cache.data(), 0x3c, cache.size());
  std::vector<std::byte*> pointers;
  for (int64_t b = 0; b < blocks; ++b) {
    pointers.push_back(cache.data() + b * block_bytes);
  }
  const Rows rows = RandomRows(32 * 128);
  Rows y(32 * 128);
  args.q = args.k = args.v = rows.data();
  args.q_stride = args.y_stride = 32 * 128;
  args.k_stride = args.v_stride = 2 * 128;
  args.y = y.data();
  const kernels::AttentionSegment segment{0, 1, context - 1, pointers};
  args.segments = {&segment, 1};
  const std::span<const std::byte> range = cache.bytes();
  // Scores and values: a multiply-add for each head, position and channel.
  MeasureAgainst(
      state,
      {static_cast<double>(cache.size()),
       4.0 * static_cast<double>(context * args.heads * args.head_dim)},
      {&range, 1}, Numerics::kPortable, [&] {
        kernels::Attention(Context(), args);
        benchmark::DoNotOptimize(y.data());
      });
}

void Pack(benchmark::State& state) {
  constexpr int64_t kN = 10304;
  constexpr int64_t kK = 2688;
  const std::vector<uint16_t> bits = RandomBf16(kN * kK);
  const std::span<const std::byte> range = std::as_bytes(std::span(bits));
  MeasureAgainst(state, {static_cast<double>(range.size()), 0}, {&range, 1},
                 Numerics::kPortable, [&] {
                   const PackedMatrix w = Packed(bits, kN, kK);
                   benchmark::DoNotOptimize(w.panel(0));
                 });
}

void RegisterAll() {
  const auto add = [](const char* name, void (*fn)(benchmark::State&),
                      std::vector<std::vector<int64_t>> cases) {
    for (const auto& c : cases) {
      benchmark::RegisterBenchmark(name, fn)
          ->Args(c)
          ->UseRealTime()
          ->MinTime(0.3)
          ->Unit(benchmark::kMicrosecond);
    }
  };
  std::vector<std::vector<int64_t>> products;
  for (int64_t rows : {1, 2, 4, 8, 12, 16}) {
    products.push_back({rows, 10304, 2688});
  }
  products.push_back({1, 2688, 4096});
  products.push_back({8, 2688, 4096});
  products.push_back({128, 2688, 4096});
  products.push_back({512, 10304, 2688});
  products.push_back({512, 2688, 4096});
  add("MatMulBf16/rows/n/k", MatMulBf16, products);
  add("OrderCost/rows", OrderCost, {{1}, {2}, {4}, {8}});
  add("GroupedExperts/rows", GroupedExperts, {{1}, {8}, {512}});
  if (kernels::CheckMachineHas(Numerics::kBf16Dot).ok()) {
    add("MatMulBf16Dot/rows/n/k", MatMulBf16Dot, products);
    add("GroupedExpertsBf16Dot/rows", GroupedExpertsBf16Dot, {{1}, {8}, {512}});
  }
  add("Scan/rows", Scan, {{1}, {512}});
  add("AttentionDecode/context", AttentionDecode, {{2048}, {32768}});
  add("Pack", Pack, {{}});
}

// Takes --threads and --target out of argv; false with a message on a bad one.
bool ParseFlags(int* argc, char** argv, int* threads, std::string* target) {
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--threads=", 0) == 0) {
      *threads = std::atoi(arg.c_str() + 10);
    } else if (arg.rfind("--target=", 0) == 0) {
      *target = arg.substr(9);
    } else {
      argv[kept++] = argv[i];
    }
  }
  *argc = kept;
  if (*threads < 1) {
    std::cerr << "--threads must be a number of at least 1\n";
    return false;
  }
  return true;
}

}  // namespace
}  // namespace trunkline::bench

int main(int argc, char** argv) {
  const std::vector<int> cores = trunkline::UsableCores();
  int threads = static_cast<int>(cores.size());
  std::string target = "auto";
  if (!trunkline::bench::ParseFlags(&argc, argv, &threads, &target)) return 2;
  const absl::Status selected = trunkline::kernels::SelectTarget(target);
  if (!selected.ok()) {
    std::cerr << selected << "\n";
    return 2;
  }
  trunkline::ThreadPool::Options options;
  options.threads = threads;
  options.cores = cores;
  trunkline::bench::g_pool = std::make_unique<trunkline::ThreadPool>(options);
  trunkline::bench::g_pool->AdoptCaller();
  benchmark::AddCustomContext("simd_target",
                              trunkline::kernels::ActiveTarget());
  benchmark::AddCustomContext("threads", std::to_string(threads));
  trunkline::bench::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
