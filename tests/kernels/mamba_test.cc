#include "kernels/mamba.h"

#include "kernels/scalar_math.h"
#include "tests/kernels/kernel_test_support.h"

namespace trunkline::kernels {
namespace {

class MambaTest : public OnEveryTarget {};

// States of several sequences, and the segments that use them.
class States {
 public:
  States(size_t count, int64_t bytes) {
    for (size_t i = 0; i < count; ++i) {
      buffers_.emplace_back(static_cast<size_t>(bytes) + 4);
    }
  }
  std::byte* of(size_t i) { return buffers_[i].data(); }
  std::vector<std::vector<std::byte>>& all() { return buffers_; }

 private:
  std::vector<std::vector<std::byte>> buffers_;
};

struct ConvCase {
  Activation out = Activation::kF32;
  int64_t channels = 0;
  int64_t kernel = 0;
  Rows x{0, 0, 0};
  std::vector<float> weight;
  std::vector<float> bias;

  ConvCase(Source& source, int64_t rows, Activation type)
      : out(type),
        channels(source.Between(1, source.Between(0, 3) == 0 ? 1200 : 70)),
        kernel(source.Between(2, 5)),
        x(source.FilledRows(rows, channels, channels + source.Between(0, 3),
                            type)),
        weight(source.Vector(channels * kernel, 0.5f)),
        bias(source.Between(0, 1) == 0 ? source.Vector(channels)
                                       : std::vector<float>()) {}

  CausalConvArgs Args(Rows& y, std::span<const StateSegment> segments) const {
    CausalConvArgs args;
    args.x = x.data();
    args.x_stride = x.stride();
    args.channels = channels;
    args.kernel = kernel;
    args.weight = weight.data();
    args.bias = bias.empty() ? nullptr : bias.data();
    args.segments = segments;
    args.y = y.data();
    args.y_stride = y.stride();
    args.out = out;
    return args;
  }
  int64_t StateBytes() const { return ConvStateBytes(channels, kernel, out); }
};

struct ScanCase {
  Activation out;
  int64_t groups;
  int64_t heads;
  int64_t head_dim;
  int64_t state_size;
  Rows x{0, 0, 0};
  Rows dt{0, 0, 0};
  std::vector<float> dt_bias, a, d;
  float dt_min = 0.0f;
  float dt_max = 3.4028235e38f;

  ScanCase(Source& source, int64_t rows, Activation type)
      : out(type),
        groups(source.Between(1, 3)),
        heads(groups * source.Between(1, 4)),
        head_dim(source.Between(1, source.Between(0, 1) == 0 ? 20 : 80)),
        state_size(source.Between(1, 40)),
        x(source.FilledRows(rows, Width(), Width() + source.Between(0, 3),
                            type)),
        dt(source.FilledRows(rows, heads, heads + source.Between(0, 3), type,
                             3.0f)),
        dt_bias(source.Vector(heads)),
        a(static_cast<size_t>(heads)),
        d(source.Vector(heads)) {
    const std::vector<float> a_log = source.Vector(heads);
    NegativeExp(a_log.data(), heads, a.data());
    if (source.Between(0, 2) == 0) {
      dt_min = 0.001f;
      dt_max = 0.5f;
    }
  }
  int64_t Width() const { return heads * head_dim + 2 * groups * state_size; }
  SelectiveScanArgs Args(Rows& y,
                         std::span<const StateSegment> segments) const {
    SelectiveScanArgs args;
    args.x = x.data();
    args.x_stride = x.stride();
    args.dt = dt.data();
    args.dt_stride = dt.stride();
    args.dt_bias = dt_bias.data();
    args.a = a.data();
    args.d = d.data();
    args.dt_min = dt_min;
    args.dt_max = dt_max;
    args.heads = heads;
    args.head_dim = head_dim;
    args.groups = groups;
    args.state_size = state_size;
    args.segments = segments;
    args.y = y.data();
    args.y_stride = y.stride();
    args.out = out;
    return args;
  }
  int64_t StateBytes() const {
    return ScanStateBytes(heads, head_dim, state_size);
  }
};

Activation AnyType(Source& source) {
  return source.Between(0, 1) == 0 ? Activation::kF32 : Activation::kBf16;
}

// Three sequences in one call, twice, so that the second call starts from a
// state; one of them has no row.
template <typename Case, typename Run, typename Reference>
void ExpectEqualToReference(uint64_t seed, const Run& run,
                            const Reference& reference) {
  Source source(seed);
  for (int round = 0; round < 25; ++round) {
    const int64_t first = source.Between(1, 17);
    const int64_t second = source.Between(0, 5);
    const int64_t rows = first + second + 1;
    const Case c(source, rows, AnyType(source));
    States states(3, c.StateBytes());
    States expected_states(3, c.StateBytes());
    const auto segments = [&](States& s) {
      return std::vector<StateSegment>{{0, first, s.of(0)},
                                       {first, second, s.of(1)},
                                       {first + second, 1, s.of(2)}};
    };
    const std::vector<StateSegment> mine = segments(states);
    const std::vector<StateSegment> theirs = segments(expected_states);
    const int64_t width = Case::OutputWidth(c);
    for (int call = 0; call < 2; ++call) {
      Rows y(rows, width, width + 2);
      Rows expected = y;
      KernelContext context{&PoolOf(static_cast<int>(source.Between(1, 3)))};
      run(context, c.Args(y, mine));
      reference(c.Args(expected, theirs));
      ASSERT_TRUE(SameBits(y, expected)) << "round " << round;
      ASSERT_EQ(states.all(), expected_states.all()) << "round " << round;
    }
  }
}

struct Conv : ConvCase {
  using ConvCase::ConvCase;
  static int64_t OutputWidth(const ConvCase& c) { return c.channels; }
};
struct Scan : ScanCase {
  using ScanCase::ScanCase;
  static int64_t OutputWidth(const ScanCase& c) { return c.heads * c.head_dim; }
};

TEST_P(MambaTest, CausalConvEqualsTheReference) {
  ExpectEqualToReference<Conv>(31, CausalConv, reference::CausalConv);
}

TEST_P(MambaTest, SelectiveScanEqualsTheReference) {
  ExpectEqualToReference<Scan>(32, SelectiveScan, reference::SelectiveScan);
}

// Prefill in any chunking, and token by token, leaves the same outputs and the
// same state.
template <typename Case, typename Run>
void ExpectChunkingInvariance(uint64_t seed, const Run& run) {
  Source source(seed);
  constexpr int64_t kTokens = 150;
  for (Activation type : {Activation::kF32, Activation::kBf16}) {
    const Case c(source, kTokens, type);
    const int64_t width = Case::OutputWidth(c);
    KernelContext context{&PoolOf(2)};
    States whole(1, c.StateBytes());
    Rows together(kTokens, width, width);
    const StateSegment all{0, kTokens, whole.of(0)};
    run(context, c.Args(together, {&all, 1}));
    for (int64_t chunk : {1, 2, 7, 64}) {
      States parts(1, c.StateBytes());
      Rows y(kTokens, width, width);
      for (int64_t at = 0; at < kTokens; at += chunk) {
        const StateSegment part{at, std::min(chunk, kTokens - at), parts.of(0)};
        run(context, c.Args(y, {&part, 1}));
      }
      EXPECT_TRUE(SameBits(y, together)) << "chunks of " << chunk;
      EXPECT_EQ(parts.all(), whole.all()) << "chunks of " << chunk;
    }
  }
}

TEST_P(MambaTest, CausalConvDoesNotDependOnChunking) {
  ExpectChunkingInvariance<Conv>(33, CausalConv);
}

TEST_P(MambaTest, SelectiveScanDoesNotDependOnChunking) {
  ExpectChunkingInvariance<Scan>(34, SelectiveScan);
}

// The sizes of the released models: whole vectors only.
TEST_P(MambaTest, SelectiveScanEqualsTheReferenceAtModelSizes) {
  Source source(35);
  ScanCase c(source, 3, Activation::kBf16);
  c.groups = 2;
  c.heads = 4;
  c.head_dim = 64;
  c.state_size = 128;
  c.x = source.FilledRows(3, c.Width(), c.Width(), c.out);
  c.dt = source.FilledRows(3, 4, 4, c.out);
  c.dt_bias = source.Vector(4);
  c.a = {-0.5f, -1.0f, -2.0f, -8.0f};
  c.d = source.Vector(4);
  States states(2, c.StateBytes());
  const StateSegment mine{0, 3, states.of(0)};
  const StateSegment theirs{0, 3, states.of(1)};
  Rows y(3, 256, 256);
  Rows expected = y;
  KernelContext context{&PoolOf(3)};
  SelectiveScan(context, c.Args(y, {&mine, 1}));
  reference::SelectiveScan(c.Args(expected, {&theirs, 1}));
  EXPECT_TRUE(SameBits(y, expected));
  EXPECT_EQ(states.all()[0], states.all()[1]);
}

TRUNKLINE_ON_EVERY_TARGET(MambaTest);

}  // namespace
}  // namespace trunkline::kernels
