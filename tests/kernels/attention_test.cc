#include "kernels/attention.h"

#include <cmath>

#include "tests/kernels/kernel_test_support.h"

namespace trunkline::kernels {
namespace {

class AttentionTest : public OnEveryTarget {};

// The KV blocks of one sequence. Blocks are filled with a pattern of NaNs
// beyond what was written when `poisoned`: absent positions must not matter.
class Cache {
 public:
  Cache(int64_t positions, int64_t block_bytes, bool poisoned) {
    const int64_t count = (positions + kKvBlock - 1) / kKvBlock;
    for (int64_t i = 0; i < count; ++i) {
      storage_.emplace_back(static_cast<size_t>(block_bytes));
      if (poisoned) {
        std::fill(storage_.back().begin(), storage_.back().end(),
                  std::byte{0xff});
      }
    }
    for (auto& block : storage_) blocks_.push_back(block.data());
  }
  std::span<std::byte* const> blocks() const { return blocks_; }
  const std::vector<std::vector<std::byte>>& all() const { return storage_; }

 private:
  std::vector<std::vector<std::byte>> storage_;
  std::vector<std::byte*> blocks_;
};

struct Case {
  Activation out;
  int64_t kv_heads;
  int64_t heads;
  int64_t head_dim;
  int64_t window = 0;
  Rows q{0, 0, 0}, k{0, 0, 0}, v{0, 0, 0};

  Case(Source& source, int64_t rows, Activation type)
      : out(type),
        kv_heads(source.Between(1, 3)),
        heads(kv_heads * source.Between(1, 19)),
        head_dim(source.Between(1, 50)) {
    const int64_t gap = source.Between(0, 3);
    q = source.FilledRows(rows, heads * head_dim, heads * head_dim + gap, type);
    k = source.FilledRows(rows, kv_heads * head_dim, kv_heads * head_dim + gap,
                          type, 2.0f);
    v = source.FilledRows(rows, kv_heads * head_dim, kv_heads * head_dim + gap,
                          type);
  }
  AttentionArgs Args(Rows& y,
                     std::span<const AttentionSegment> segments) const {
    AttentionArgs args;
    args.q = q.data();
    args.q_stride = q.stride();
    args.k = k.data();
    args.k_stride = k.stride();
    args.v = v.data();
    args.v_stride = v.stride();
    args.heads = heads;
    args.kv_heads = kv_heads;
    args.head_dim = head_dim;
    args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    args.window = window;
    args.segments = segments;
    args.y = y.data();
    args.y_stride = y.stride();
    args.out = out;
    return args;
  }
  int64_t BlockBytes() const { return KvBlockBytes(kv_heads, head_dim, out); }
  Rows Output() const {
    return Rows(q.rows(), heads * head_dim, heads * head_dim + 1);
  }
};

Activation AnyType(Source& source) {
  return source.Between(0, 1) == 0 ? Activation::kF32 : Activation::kBf16;
}

// Two sequences in one call: one from its start, one resumed, both across block
// borders, with and without a window.
TEST_P(AttentionTest, EqualsTheReference) {
  Source source(51);
  for (int round = 0; round < 12; ++round) {
    const int64_t first = source.Between(1, 80);
    const int64_t resumed = source.Between(1, 70);
    const int64_t rows = first + resumed;
    Case c(source, rows, AnyType(source));
    if (round % 3 == 1) c.window = source.Between(1, 100);
    Cache mine_a(first, c.BlockBytes(), true);
    Cache mine_b(rows, c.BlockBytes(), true);
    Cache theirs_a(first, c.BlockBytes(), true);
    Cache theirs_b(rows, c.BlockBytes(), true);
    KernelContext context{&PoolOf(static_cast<int>(source.Between(1, 3)))};
    // Sequence b sees rows 0..first-1 first, then the resumed ones.
    for (int call = 0; call < 2; ++call) {
      std::vector<AttentionSegment> mine;
      std::vector<AttentionSegment> theirs;
      if (call == 0) {
        mine = {{0, first, 0, mine_b.blocks()}};
        theirs = {{0, first, 0, theirs_b.blocks()}};
      } else {
        mine = {{0, first, 0, mine_a.blocks()},
                {first, resumed, first, mine_b.blocks()}};
        theirs = {{0, first, 0, theirs_a.blocks()},
                  {first, resumed, first, theirs_b.blocks()}};
      }
      Rows y = c.Output();
      Rows expected = c.Output();
      Attention(context, c.Args(y, mine));
      reference::Attention(c.Args(expected, theirs));
      ASSERT_TRUE(SameBits(y, expected))
          << "round " << round << " window " << c.window;
    }
    ASSERT_EQ(mine_a.all(), theirs_a.all());
    ASSERT_EQ(mine_b.all(), theirs_b.all());
  }
}

TEST_P(AttentionTest, DoesNotDependOnChunkingOrThreads) {
  Source source(52);
  constexpr int64_t kTokens = 200;
  for (Activation type : {Activation::kF32, Activation::kBf16}) {
    for (int64_t window : {0, 37, 64}) {
      Case c(source, kTokens, type);
      c.window = window;
      Rows together = c.Output();
      Cache whole(kTokens, c.BlockBytes(), true);
      const AttentionSegment all{0, kTokens, 0, whole.blocks()};
      KernelContext context{&PoolOf(2)};
      Attention(context, c.Args(together, {&all, 1}));
      for (int64_t chunk : {1, 7, 64}) {
        Rows y = c.Output();
        Cache cache(kTokens, c.BlockBytes(), true);
        KernelContext other{&PoolOf(chunk == 7 ? 3 : 1)};
        for (int64_t at = 0; at < kTokens; at += chunk) {
          const AttentionSegment part{at, std::min(chunk, kTokens - at), at,
                                      cache.blocks()};
          Attention(other, c.Args(y, {&part, 1}));
        }
        EXPECT_TRUE(SameBits(y, together))
            << "chunks of " << chunk << ", window " << window;
      }
    }
  }
}

// Against the plain definition in long double, so that the online form itself
// is checked.
TEST_P(AttentionTest, IsCloseToThePlainSoftmax) {
  Source source(53);
  constexpr int64_t kTokens = 150;
  Case c(source, kTokens, Activation::kF32);
  Rows y = c.Output();
  Cache cache(kTokens, c.BlockBytes(), false);
  const AttentionSegment all{0, kTokens, 0, cache.blocks()};
  KernelContext context{&PoolOf(2)};
  const AttentionArgs args = c.Args(y, {&all, 1});
  Attention(context, args);
  for (int64_t i : {int64_t{0}, int64_t{63}, int64_t{64}, kTokens - 1}) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t kv = h / (c.heads / c.kv_heads);
      std::vector<long double> p(static_cast<size_t>(i) + 1);
      long double sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        long double s = 0;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          s += static_cast<long double>(c.q.at(i, h * c.head_dim + d)) *
               c.k.at(j, kv * c.head_dim + d);
        }
        p[static_cast<size_t>(j)] = expl(s * args.scale);
        sum += p[static_cast<size_t>(j)];
      }
      for (int64_t d = 0; d < c.head_dim; ++d) {
        long double o = 0;
        for (int64_t j = 0; j <= i; ++j) {
          o += p[static_cast<size_t>(j)] * c.v.at(j, kv * c.head_dim + d);
        }
        ASSERT_NEAR(y.at(i, h * c.head_dim + d), static_cast<double>(o / sum),
                    1e-5);
      }
    }
  }
}

TRUNKLINE_ON_EVERY_TARGET(AttentionTest);

// One class, one digest: on every target and with any number of threads.
TEST(SelfCheck, DigestIsTheSameOnEveryTargetAndThreadCount) {
  ASSERT_TRUE(SelectTarget("auto").ok());
  KernelContext context{&PoolOf(1)};
  const std::string digest = SelfCheckDigest(context);
  // Another value here is another numerics class: no replica of today's workers
  // may run it.
  EXPECT_EQ(digest, "11cabf8658d053f8");
  for (const std::string& target : SupportedTargets()) {
    ASSERT_TRUE(SelectTarget(target).ok());
    for (int threads : {1, 2, 3}) {
      KernelContext other{&PoolOf(threads)};
      EXPECT_EQ(SelfCheckDigest(other), digest) << target << " " << threads;
    }
  }
  ASSERT_TRUE(SelectTarget("auto").ok());
}

}  // namespace
}  // namespace trunkline::kernels
