#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/bfloat16.h"
#include "kernels/attention.h"
#include "kernels/reduction_reference.h"
#include "kernels/rounding.h"
#include "kernels/scalar_math.h"

namespace trunkline::kernels::reference {
namespace {

// Access to one kv head of a block by (position in block, channel).
class BlockView {
 public:
  BlockView(const AttentionArgs& args, std::byte* block, int64_t kv_head)
      : args_(args), block_(block), kv_head_(kv_head) {}

  float Key(int64_t j, int64_t d) const { return Read(KeyPlace(j, d)); }
  float Value(int64_t j, int64_t d) const { return Read(ValuePlace(j, d)); }
  void Set(int64_t j, int64_t d, float key, float value) {
    Write(KeyPlace(j, d), key);
    Write(ValuePlace(j, d), value);
  }

 private:
  int64_t KeyPlace(int64_t j, int64_t d) const {
    return (kv_head_ * args_.head_dim + d) * kKvBlock + j;
  }
  int64_t ValuePlace(int64_t j, int64_t d) const {
    return ((args_.kv_heads + kv_head_) * kKvBlock + j) * args_.head_dim + d;
  }
  float Read(int64_t i) const {
    return args_.out == Activation::kBf16
               ? Bf16ToFloat(reinterpret_cast<const uint16_t*>(block_)[i])
               : reinterpret_cast<const float*>(block_)[i];
  }
  void Write(int64_t i, float value) {
    if (args_.out == Activation::kBf16) {
      reinterpret_cast<uint16_t*>(block_)[i] = FloatToBf16(value);
    } else {
      reinterpret_cast<float*>(block_)[i] = value;
    }
  }

  const AttentionArgs& args_;
  std::byte* block_;
  int64_t kv_head_;
};

void AttendOne(const AttentionArgs& args, const AttentionSegment& segment,
               int64_t row, int64_t position, int64_t head) {
  const int64_t kv_head = head / (args.heads / args.kv_heads);
  const float* q = args.q + row * args.q_stride + head * args.head_dim;
  float m = -std::numeric_limits<float>::infinity();
  float l = 0.0f;
  std::vector<float> o(static_cast<size_t>(args.head_dim), 0.0f);
  bool first = true;
  for (int64_t b = 0; b * kKvBlock <= position; ++b) {
    const BlockView block(args, segment.blocks[static_cast<size_t>(b)],
                          kv_head);
    bool present[kKvBlock];
    float s[kKvBlock] = {};
    float m_new = m;
    bool any = false;
    for (int64_t j = 0; j < kKvBlock; ++j) {
      const int64_t at = b * kKvBlock + j;
      present[j] =
          at <= position && (args.window == 0 || at > position - args.window);
      if (!present[j]) continue;
      any = true;
      for (int64_t d = 0; d < args.head_dim; ++d) {
        s[j] = std::fma(q[d], block.Key(j, d), s[j]);
      }
      s[j] *= args.scale;
      if (s[j] > m_new) m_new = s[j];
    }
    if (!any) continue;
    float p[kKvBlock];
    for (int64_t j = 0; j < kKvBlock; ++j) {
      p[j] = present[j] ? Exp(s[j] - m_new) : 0.0f;
    }
    const float c = first ? 0.0f : Exp(m - m_new);
    l = std::fma(l, c, SumInOrder(kKvBlock, [&](int64_t j) { return p[j]; }));
    for (int64_t d = 0; d < args.head_dim; ++d) {
      float& out = o[static_cast<size_t>(d)];
      out = out * c;
      for (int64_t j = 0; j < kKvBlock; ++j) {
        if (present[j]) out = std::fma(p[j], block.Value(j, d), out);
      }
    }
    m = m_new;
    first = false;
  }
  for (int64_t d = 0; d < args.head_dim; ++d) {
    args.y[row * args.y_stride + head * args.head_dim + d] =
        RoundTo(args.out, o[static_cast<size_t>(d)] / l);
  }
}

}  // namespace

void Attention(const AttentionArgs& args) {
  for (const AttentionSegment& segment : args.segments) {
    for (int64_t r = 0; r < segment.row_count; ++r) {
      const int64_t position = segment.position + r;
      const int64_t row = segment.row_begin + r;
      for (int64_t kv = 0; kv < args.kv_heads; ++kv) {
        BlockView block(
            args, segment.blocks[static_cast<size_t>(position / kKvBlock)], kv);
        for (int64_t d = 0; d < args.head_dim; ++d) {
          block.Set(position % kKvBlock, d,
                    args.k[row * args.k_stride + kv * args.head_dim + d],
                    args.v[row * args.v_stride + kv * args.head_dim + d]);
        }
      }
      for (int64_t head = 0; head < args.heads; ++head) {
        AttendOne(args, segment, row, position, head);
      }
    }
  }
}

}  // namespace trunkline::kernels::reference
