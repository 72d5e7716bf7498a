#include "model/layer_check.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/config_layers.h"

namespace trunkline::model {
namespace {

class LayerCheck {
 public:
  LayerCheck(JsonFields* text, std::string place, const LayerSpec& layer)
      : text_(text), place_(std::move(place)), layer_(layer) {}

  void Run() {
    switch (layer_.kind) {
      case LayerKind::kMamba:
        return Mamba(layer_.mamba);
      case LayerKind::kAttention:
        return Attention(layer_.attention);
      case LayerKind::kMlp:
        return Positive("intermediate_size", layer_.mlp.width);
      case LayerKind::kMoe:
        return Moe(layer_.moe);
    }
  }

 private:
  template <typename... Parts>
  void Fail(const Parts&... parts) {
    text_->Fail(absl::InvalidArgumentError(
        absl::StrCat(text_->file(), ": ", place_, " (",
                     LayerKindName(layer_.kind), "): ", parts...)));
  }
  void Positive(const char* name, int64_t value) {
    if (value < 1) Fail(text_->NameOf(name), " is ", value, ", not above 0");
  }
  void Bounded(const char* what, int64_t value) {
    if (value > kDimensionMax)
      Fail(what, " is ", value, ", above ", kDimensionMax);
  }

  void Mamba(const MambaShape& mamba) {
    Positive("mamba_num_heads", mamba.heads);
    Positive("mamba_head_dim", mamba.head_dim);
    Positive("n_groups", mamba.groups);
    Positive("ssm_state_size", mamba.state_size);
    Positive("conv_kernel", mamba.conv_kernel);
    if (!text_->ok()) return;
    // A head reads the group heads / groups by integer division, and the gated
    // norm works on inner / groups columns.
    if (mamba.heads % mamba.groups != 0) {
      Fail("mamba_num_heads ", mamba.heads, " is not divisible by n_groups ",
           mamba.groups);
    }
    Bounded("mamba_num_heads * mamba_head_dim", mamba.inner());
    Bounded("n_groups * ssm_state_size", mamba.groups * mamba.state_size);
  }

  void Attention(const AttentionShape& attention) {
    Positive("num_attention_heads", attention.heads);
    Positive("num_key_value_heads", attention.kv_heads);
    Positive("head_dim", attention.head_dim);
    if (!text_->ok()) return;
    if (attention.heads % attention.kv_heads != 0) {
      Fail("num_attention_heads ", attention.heads,
           " is not divisible by num_key_value_heads ", attention.kv_heads);
    }
    Bounded("num_attention_heads * head_dim",
            attention.heads * attention.head_dim);
  }

  void Moe(const MoeShape& moe) {
    Positive("n_routed_experts", moe.experts);
    Positive("num_experts_per_tok", moe.top_k);
    Positive("moe_intermediate_size", moe.width);
    Bounded("the shared experts' width", moe.shared_width);
    if (!text_->ok()) return;
    if (moe.top_k > moe.experts) {
      Fail("num_experts_per_tok ", moe.top_k, " is above n_routed_experts ",
           moe.experts);
    } else if (moe.experts % moe.n_group != 0) {
      Fail("n_routed_experts ", moe.experts, " is not divisible by n_group ",
           moe.n_group);
    } else if (moe.topk_group > moe.n_group) {
      Fail("topk_group ", moe.topk_group, " is above n_group ", moe.n_group);
    } else if (moe.n_group > 1 && moe.experts / moe.n_group < 2) {
      Fail("n_group ", moe.n_group, " leaves one of ", moe.experts,
           " experts in each group; a group is judged by its best two");
    } else if (moe.top_k > moe.topk_group * (moe.experts / moe.n_group)) {
      Fail("num_experts_per_tok ", moe.top_k, " is above the ",
           moe.topk_group * (moe.experts / moe.n_group),
           " experts of the topk_group ", moe.topk_group, " kept groups");
    }
  }

  JsonFields* text_;
  const std::string place_;
  const LayerSpec& layer_;
};

}  // namespace

void CheckLayer(JsonFields* text, const std::string& place,
                const LayerSpec& layer) {
  LayerCheck(text, place, layer).Run();
}

}  // namespace trunkline::model
