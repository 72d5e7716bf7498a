// A small forward pass over fixed pseudo-random rows, digested: machines whose
// digests differ must not be replicas of each other.

#include <bit>
#include <cstdint>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/random.h"
#include "kernels/array_math.h"
#include "kernels/attention.h"
#include "kernels/bf16_dot.h"
#include "kernels/kernel_context.h"
#include "kernels/mamba.h"
#include "kernels/matmul.h"
#include "kernels/mlp.h"
#include "kernels/rounding.h"
#include "kernels/row_ops.h"
#include "xxhash.h"

namespace trunkline::kernels {
namespace {

constexpr int64_t kRows = 37;
constexpr int64_t kWidth = 80;

std::vector<float> RandomRows(RandomStream& random, int64_t count, float scale,
                              Activation type = Activation::kF32) {
  std::vector<float> rows(static_cast<size_t>(count));
  for (float& value : rows) {
    // 24 random bits: exact in fp32, so the input is the same everywhere.
    const auto bits = static_cast<int32_t>(random.Next() >> 40) - (1 << 23);
    value = RoundTo(type, scale * static_cast<float>(bits) * 0x1p-22f);
  }
  return rows;
}

PackedMatrix RandomMatrix(const KernelContext& context, RandomStream& random,
                          int64_t n, int64_t k) {
  std::vector<uint16_t> bits(static_cast<size_t>(n * k));
  for (uint16_t& b : bits) {
    // bf16 with exponents around 2^-4.
    const uint64_t r = random.Next();
    b = static_cast<uint16_t>((r & 0x807fu) | ((120u + r / 65536u % 5u) << 7));
  }
  TensorView view;
  view.name = "self check";
  view.dtype = DType::kBF16;
  view.shape = {n, k};
  view.data = reinterpret_cast<const std::byte*>(bits.data());
  auto packed = PackedMatrix::Pack(view, *context.pool, context.numerics);
  TL_CHECK(packed.ok()) << packed.status().ToString();
  return *std::move(packed);
}

class Digest {
 public:
  void Add(const std::vector<float>& rows) {
    hash_ =
        XXH3_64bits_withSeed(rows.data(), rows.size() * sizeof(float), hash_);
  }
  std::string Hex() const { return absl::StrFormat("%016x", hash_); }

 private:
  uint64_t hash_ = 0;
};

void AddProducts(const KernelContext& context, RandomStream& random,
                 Activation out, Digest& digest) {
  const std::vector<float> x = RandomRows(random, kRows * kWidth, 1.0f, out);
  MlpWeights weights;
  weights.up = RandomMatrix(context, random, 70, kWidth);
  weights.down = RandomMatrix(context, random, kWidth, 70);
  std::vector<float> y(x.size());
  const MlpGroup groups[] = {{&weights, 0, 3}, {&weights, 3, kRows - 3}};
  GroupedMlpArgs args;
  args.x = x.data();
  args.x_stride = kWidth;
  args.groups = groups;
  args.y = y.data();
  args.y_stride = kWidth;
  args.out = out;
  MlpScratch scratch;
  GroupedMlp(context, args, &scratch);
  digest.Add(y);

  const std::vector<float> weight = RandomRows(random, kWidth, 1.0f);
  std::vector<float> normed(x.size());
  GatedRmsNormArgs norm;
  norm.x = x.data();
  norm.z = y.data();
  norm.y = normed.data();
  norm.x_stride = norm.z_stride = norm.y_stride = norm.width = kWidth;
  norm.rows = kRows;
  norm.group_size = kWidth / 2;
  norm.weight = weight.data();
  norm.out = out;
  GatedRmsNorm(context, norm);
  digest.Add(normed);
}

void AddScan(const KernelContext& context, RandomStream& random, Activation out,
             Digest& digest) {
  constexpr int64_t kHeads = 4;
  constexpr int64_t kHeadDim = 12;
  constexpr int64_t kState = 8;
  constexpr int64_t kInner = kHeads * kHeadDim;
  constexpr int64_t kChannels = kInner + 2 * 2 * kState;
  static_assert(kChannels == kWidth);
  const std::vector<float> x = RandomRows(random, kRows * kChannels, 1.0f, out);
  const std::vector<float> dt = RandomRows(random, kRows * kHeads, 2.0f, out);
  const std::vector<float> conv = RandomRows(random, 4 * kChannels, 0.5f);
  const std::vector<float> head = RandomRows(random, 3 * kHeads, 1.0f);
  std::vector<float> a(kHeads);
  NegativeExp(head.data(), kHeads, a.data());
  AlignedBuffer conv_state(
      static_cast<size_t>(ConvStateBytes(kChannels, 4, out)));
  AlignedBuffer scan_state(
      static_cast<size_t>(ScanStateBytes(kHeads, kHeadDim, kState)));
  const StateSegment conv_segment{0, kRows, conv_state.data()};
  std::vector<float> xbc(x.size());
  CausalConvArgs conv_args;
  conv_args.x = x.data();
  conv_args.y = xbc.data();
  conv_args.x_stride = conv_args.y_stride = conv_args.channels = kChannels;
  conv_args.kernel = 4;
  conv_args.weight = conv.data();
  conv_args.segments = {&conv_segment, 1};
  conv_args.out = out;
  CausalConv(context, conv_args);
  digest.Add(xbc);

  const StateSegment scan_segment{0, kRows, scan_state.data()};
  std::vector<float> y(static_cast<size_t>(kRows * kInner));
  SelectiveScanArgs scan;
  scan.x = xbc.data();
  scan.x_stride = kChannels;
  scan.dt = dt.data();
  scan.dt_stride = kHeads;
  scan.dt_bias = head.data() + kHeads;
  scan.a = a.data();
  scan.d = head.data() + 2 * kHeads;
  scan.heads = kHeads;
  scan.head_dim = kHeadDim;
  scan.groups = 2;
  scan.state_size = kState;
  scan.segments = {&scan_segment, 1};
  scan.y = y.data();
  scan.y_stride = kInner;
  scan.out = out;
  SelectiveScan(context, scan);
  digest.Add(y);
}

void AddAttention(const KernelContext& context, RandomStream& random,
                  Activation out, Digest& digest) {
  constexpr int64_t kTokens = 70;  // more than one block
  constexpr int64_t kHeadDim = 20;
  const std::vector<float> rows =
      RandomRows(random, kTokens * 4 * kHeadDim, 1.0f, out);
  const auto block_bytes = static_cast<size_t>(KvBlockBytes(1, kHeadDim, out));
  AlignedBuffer cache(2 * block_bytes);
  std::byte* const blocks[] = {cache.data(), cache.data() + block_bytes};
  const AttentionSegment segment{0, kTokens, 0, blocks};
  std::vector<float> y(static_cast<size_t>(kTokens * 2 * kHeadDim));
  AttentionArgs args;
  args.q = rows.data();
  args.k = rows.data() + 2 * kHeadDim;
  args.v = rows.data() + 3 * kHeadDim;
  args.q_stride = args.k_stride = args.v_stride = 4 * kHeadDim;
  args.heads = 2;
  args.kv_heads = 1;
  args.head_dim = kHeadDim;
  args.scale = 0.25f;
  args.segments = {&segment, 1};
  args.y = y.data();
  args.y_stride = 2 * kHeadDim;
  args.out = out;
  Attention(context, args);
  digest.Add(y);
}

// Operands of any bits: what becomes of subnormal and tiny values is part of
// the class. Which NaN it is that comes out is not.
void AddDots(RandomStream& random, Digest& digest) {
  constexpr int64_t kDots = 256;
  std::vector<uint32_t> x, w;
  std::vector<float> acc;
  for (int64_t i = 0; i < kDots * 16; ++i) {
    x.push_back(static_cast<uint32_t>(random.Next()));
    w.push_back(static_cast<uint32_t>(random.Next()));
    acc.push_back(std::bit_cast<float>(static_cast<uint32_t>(random.Next())));
  }
  Bf16DotLanes(x.data(), w.data(), kDots, acc.data());
  for (float& value : acc) {
    if (value != value) value = 0.5f;
  }
  digest.Add(acc);
}

}  // namespace

std::string SelfCheckDigest(const KernelContext& context) {
  TL_CHECK(context.pool != nullptr);
  RandomStream random(20240607);
  Digest digest;
  for (Activation out : {Activation::kF32, Activation::kBf16}) {
    AddProducts(context, random, out, digest);
    AddScan(context, random, out, digest);
    AddAttention(context, random, out, digest);
  }
  std::vector<float> x = RandomRows(random, 4096, 20.0f);
  for (MathFunction function : {MathFunction::kExp, MathFunction::kSoftplus,
                                MathFunction::kSigmoid, MathFunction::kSilu}) {
    std::vector<float> y(x.size());
    ApplyMath(function, x.data(), static_cast<int64_t>(x.size()), y.data());
    digest.Add(y);
  }
  if (context.numerics == Numerics::kBf16Dot) AddDots(random, digest);
  return digest.Hex();
}

}  // namespace trunkline::kernels
