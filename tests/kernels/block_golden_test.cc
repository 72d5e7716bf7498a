// One layer of tests/fixtures/checkpoints/tiny-bf16 at a time, built from these
// kernels alone and judged against block_out of an independent float64
// reference that rounds where NemotronH rounds: at least 99.5 % of the values
// bit for bit, the rest within 2 units in the last place of bf16.

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/attention.h"
#include "kernels/combine_rows.h"
#include "kernels/mamba.h"
#include "kernels/matmul.h"
#include "kernels/mlp.h"
#include "kernels/row_ops.h"
#include "tests/kernels/kernel_test_support.h"

namespace trunkline::kernels {
namespace {

using Json = nlohmann::json;

constexpr const char* kFolder = TRUNKLINE_FIXTURES "/checkpoints/tiny-bf16/";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

// config.json holds the literal Infinity, which is no JSON.
Json ReadConfig() {
  std::string text = ReadFile(std::string(kFolder) + "config.json");
  const std::string infinity = "Infinity";
  for (size_t at; (at = text.find(infinity)) != std::string::npos;) {
    text.replace(at, infinity.size(), "1e300");
  }
  return Json::parse(text);
}

// The tensors of one small safetensors file.
class Tensors {
 public:
  Tensors() : bytes_(ReadFile(std::string(kFolder) + "model.safetensors")) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
    header_ = Json::parse(bytes_.substr(8, header_bytes));
    data_ = 8 + header_bytes;
  }
  TensorView View(const std::string& name) const {
    const Json& entry = header_.at(name);
    TensorView view;
    view.name = name;
    view.dtype = entry.at("dtype") == "F32" ? DType::kF32 : DType::kBF16;
    view.shape = entry.at("shape").get<std::vector<int64_t>>();
    view.data = reinterpret_cast<const std::byte*>(bytes_.data()) + data_ +
                entry.at("data_offsets").at(0).get<size_t>();
    return view;
  }
  std::vector<float> Floats(const std::string& name) const {
    const TensorView view = View(name);
    std::vector<float> values(static_cast<size_t>(view.elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      if (view.dtype == DType::kF32) {
        std::memcpy(&values[i], view.data + i * 4, 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, view.data + i * 2, 2);
        values[i] = Bf16ToFloat(bits);
      }
    }
    return values;
  }
  PackedMatrix Packed(const std::string& name, ThreadPool& pool) const {
    auto packed = PackedMatrix::Pack(View(name), pool);
    EXPECT_TRUE(packed.ok()) << packed.status();
    return *std::move(packed);
  }

 private:
  std::string bytes_;
  Json header_;
  size_t data_ = 0;
};

using Matrix = std::vector<float>;  // [rows, width], no gaps

class Layers {
 public:
  Layers(const Tensors& tensors, const Json& config, KernelContext context)
      : tensors_(tensors), config_(config), context_(context) {}

  // The residual stream after layer `layer`.
  Matrix Run(int64_t layer, char kind, const Matrix& block_in) {
    prefix_ = "backbone.layers." + std::to_string(layer) + ".";
    hidden_ = Size("hidden_size");
    rows_ = static_cast<int64_t>(block_in.size()) / hidden_;
    Matrix h = block_in;
    const Matrix weight = tensors_.Floats(prefix_ + "norm.weight");
    RmsNormArgs norm;
    norm.x = block_in.data();
    norm.y = h.data();
    norm.x_stride = norm.y_stride = norm.width = hidden_;
    norm.rows = rows_;
    norm.weight = weight.data();
    norm.eps = config_.at("norm_eps").get<float>();
    norm.out = Activation::kBf16;
    RmsNorm(context_, norm);
    const Matrix y = kind == 'M'   ? Mamba(h)
                     : kind == '*' ? Attend(h)
                                   : Experts(h);
    Matrix out = block_in;
    Add(out, y);
    return out;
  }

 private:
  int64_t Size(const char* name) const {
    return config_.at(name).get<int64_t>();
  }
  void Add(Matrix& x, const Matrix& y) {
    AddRows(context_, x.data(), hidden_, y.data(), hidden_, rows_, hidden_,
            Activation::kBf16);
  }
  Matrix Product(const float* x, int64_t stride, const std::string& name,
                 Activation out = Activation::kBf16) {
    const PackedMatrix w =
        tensors_.Packed(prefix_ + "mixer." + name, *context_.pool);
    Matrix y(static_cast<size_t>(rows_ * w.n()));
    MatMulArgs args;
    args.x = x;
    args.x_stride = stride;
    args.rows = rows_;
    args.w = &w;
    args.y = y.data();
    args.y_stride = w.n();
    args.out = out;
    MatMul(context_, args);
    return y;
  }

  Matrix Mamba(const Matrix& h) {
    const int64_t heads = Size("mamba_num_heads");
    const int64_t head_dim = Size("mamba_head_dim");
    const int64_t groups = Size("n_groups");
    const int64_t state_size = Size("ssm_state_size");
    const int64_t inner = heads * head_dim;
    const int64_t channels = inner + 2 * groups * state_size;
    const int64_t projected = inner + channels + heads;
    const Matrix u = Product(h.data(), hidden_, "in_proj.weight");

    const Matrix taps = tensors_.Floats(prefix_ + "mixer.conv1d.weight");
    const int64_t kernel = Size("conv_kernel");
    Matrix weight(taps.size());
    for (int64_t ch = 0; ch < channels; ++ch) {
      for (int64_t j = 0; j < kernel; ++j) {
        weight[static_cast<size_t>(j * channels + ch)] =
            taps[static_cast<size_t>(ch * kernel + j)];
      }
    }
    const Matrix bias = tensors_.Floats(prefix_ + "mixer.conv1d.bias");
    std::vector<std::byte> conv_state(static_cast<size_t>(
        ConvStateBytes(channels, kernel, Activation::kBf16)));
    const StateSegment conv_segment{0, rows_, conv_state.data()};
    Matrix xbc(static_cast<size_t>(rows_ * channels));
    CausalConvArgs conv;
    conv.x = u.data() + inner;
    conv.x_stride = projected;
    conv.channels = channels;
    conv.kernel = kernel;
    conv.weight = weight.data();
    conv.bias = bias.data();
    conv.segments = {&conv_segment, 1};
    conv.y = xbc.data();
    conv.y_stride = channels;
    conv.out = Activation::kBf16;
    CausalConv(context_, conv);

    const Matrix a_log = tensors_.Floats(prefix_ + "mixer.A_log");
    const Matrix dt_bias = tensors_.Floats(prefix_ + "mixer.dt_bias");
    const Matrix d = tensors_.Floats(prefix_ + "mixer.D");
    Matrix a(a_log.size());
    NegativeExp(a_log.data(), heads, a.data());
    std::vector<std::byte> scan_state(
        static_cast<size_t>(ScanStateBytes(heads, head_dim, state_size)));
    const StateSegment scan_segment{0, rows_, scan_state.data()};
    Matrix y(static_cast<size_t>(rows_ * inner));
    SelectiveScanArgs scan;
    scan.x = xbc.data();
    scan.x_stride = channels;
    scan.dt = u.data() + inner + channels;
    scan.dt_stride = projected;
    scan.dt_bias = dt_bias.data();
    scan.a = a.data();
    scan.d = d.data();
    scan.heads = heads;
    scan.head_dim = head_dim;
    scan.groups = groups;
    scan.state_size = state_size;
    scan.segments = {&scan_segment, 1};
    scan.y = y.data();
    scan.y_stride = inner;
    scan.out = Activation::kBf16;
    SelectiveScan(context_, scan);

    const Matrix norm_weight = tensors_.Floats(prefix_ + "mixer.norm.weight");
    GatedRmsNormArgs norm;
    norm.x = y.data();
    norm.z = u.data();
    norm.y = y.data();
    norm.x_stride = norm.y_stride = norm.width = inner;
    norm.z_stride = projected;
    norm.rows = rows_;
    norm.group_size = inner / groups;
    norm.weight = norm_weight.data();
    norm.eps = config_.at("norm_eps").get<float>();
    norm.out = Activation::kBf16;
    GatedRmsNorm(context_, norm);
    return Product(y.data(), inner, "out_proj.weight");
  }

  Matrix Attend(const Matrix& h) {
    const int64_t heads = Size("num_attention_heads");
    const int64_t kv_heads = Size("num_key_value_heads");
    const int64_t head_dim = Size("head_dim");
    const Matrix q = Product(h.data(), hidden_, "q_proj.weight");
    const Matrix k = Product(h.data(), hidden_, "k_proj.weight");
    const Matrix v = Product(h.data(), hidden_, "v_proj.weight");
    std::vector<std::byte> block(static_cast<size_t>(
        KvBlockBytes(kv_heads, head_dim, Activation::kBf16)));
    EXPECT_LE(rows_, kKvBlock);
    std::byte* const blocks[] = {block.data()};
    const AttentionSegment segment{0, rows_, 0, blocks};
    Matrix y(q.size());
    AttentionArgs args;
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    args.q_stride = args.y_stride = heads * head_dim;
    args.k_stride = args.v_stride = kv_heads * head_dim;
    args.heads = heads;
    args.kv_heads = kv_heads;
    args.head_dim = head_dim;
    args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    args.segments = {&segment, 1};
    args.y = y.data();
    args.out = Activation::kBf16;
    Attention(context_, args);
    return Product(y.data(), heads * head_dim, "o_proj.weight");
  }

  struct Choice {
    int64_t expert;
    float gate;
  };

  // nemotron-h section 4 for one row of sigmoid scores, ascending expert ids.
  std::vector<Choice> Choose(const float* scores, const Matrix& bias) {
    const int64_t experts = Size("n_routed_experts");
    const int64_t groups = Size("n_group");
    const int64_t group_size = experts / groups;
    std::vector<float> corrected(static_cast<size_t>(experts));
    for (size_t e = 0; e < corrected.size(); ++e) {
      corrected[e] = scores[e] + bias[e];
    }
    std::vector<std::pair<float, int64_t>> group_scores;
    for (int64_t g = 0; g < groups; ++g) {
      std::vector<float> members(corrected.begin() + g * group_size,
                                 corrected.begin() + (g + 1) * group_size);
      std::sort(members.rbegin(), members.rend());
      group_scores.emplace_back(-(members[0] + members[1]), g);
    }
    std::sort(group_scores.begin(), group_scores.end());
    std::vector<std::pair<float, int64_t>> candidates;
    for (int64_t i = 0; i < Size("topk_group"); ++i) {
      const int64_t g = group_scores[static_cast<size_t>(i)].second;
      for (int64_t e = g * group_size; e < (g + 1) * group_size; ++e) {
        candidates.emplace_back(-corrected[static_cast<size_t>(e)], e);
      }
    }
    std::sort(candidates.begin(), candidates.end());
    candidates.resize(static_cast<size_t>(Size("num_experts_per_tok")));
    float sum = 0.0f;
    for (const auto& candidate : candidates) sum += scores[candidate.second];
    std::vector<Choice> choices;
    for (const auto& candidate : candidates) {
      const float gate = scores[candidate.second] / (sum + 1e-20f) *
                         config_.at("routed_scaling_factor").get<float>();
      choices.push_back({candidate.second, gate});
    }
    std::sort(
        choices.begin(), choices.end(),
        [](const Choice& x, const Choice& y) { return x.expert < y.expert; });
    return choices;
  }

  MlpWeights Weights(const std::string& name) {
    MlpWeights weights;
    weights.up = tensors_.Packed(prefix_ + "mixer." + name + ".up_proj.weight",
                                 *context_.pool);
    weights.down = tensors_.Packed(
        prefix_ + "mixer." + name + ".down_proj.weight", *context_.pool);
    return weights;
  }

  Matrix Mlp(const Matrix& h, std::span<const MlpGroup> groups,
             const uint32_t* index, int64_t rows) {
    Matrix y(static_cast<size_t>(rows * hidden_));
    GroupedMlpArgs args;
    args.x = h.data();
    args.x_stride = hidden_;
    args.row_index = index;
    args.groups = groups;
    args.y = y.data();
    args.y_stride = hidden_;
    args.out = Activation::kBf16;
    MlpScratch scratch;
    GroupedMlp(context_, args, &scratch);
    return y;
  }

  Matrix Experts(const Matrix& h) {
    const int64_t experts = Size("n_routed_experts");
    Matrix scores = Product(h.data(), hidden_, "gate.weight", Activation::kF32);
    Sigmoid(context_, scores.data(), experts, rows_, experts);
    const Matrix bias =
        tensors_.Floats(prefix_ + "mixer.gate.e_score_correction_bias");
    std::vector<std::vector<Choice>> choices;
    for (int64_t m = 0; m < rows_; ++m) {
      choices.push_back(Choose(scores.data() + m * experts, bias));
    }
    std::vector<MlpWeights> weights(static_cast<size_t>(experts));
    std::vector<MlpGroup> groups;
    std::vector<uint32_t> index;
    std::map<std::pair<int64_t, int64_t>, size_t> answer;  // (row, expert)
    for (int64_t e = 0; e < experts; ++e) {
      MlpWeights& w = weights[static_cast<size_t>(e)];
      w = Weights("experts." + std::to_string(e));
      const auto begin = static_cast<int64_t>(index.size());
      for (int64_t m = 0; m < rows_; ++m) {
        for (const Choice& choice : choices[static_cast<size_t>(m)]) {
          if (choice.expert != e) continue;
          answer[{m, e}] = index.size();
          index.push_back(static_cast<uint32_t>(m));
        }
      }
      groups.push_back({&w, begin, static_cast<int64_t>(index.size()) - begin});
    }
    const Matrix routed =
        Mlp(h, groups, index.data(), static_cast<int64_t>(index.size()));

    std::vector<uint32_t> offsets = {0};
    std::vector<Contribution> contributions;
    for (int64_t m = 0; m < rows_; ++m) {
      for (const Choice& choice : choices[static_cast<size_t>(m)]) {
        Contribution contribution;
        contribution.gate = choice.gate;
        contribution.values = reinterpret_cast<const std::byte*>(
            routed.data() +
            static_cast<int64_t>(answer.at({m, choice.expert})) * hidden_);
        contributions.push_back(contribution);
      }
      offsets.push_back(static_cast<uint32_t>(contributions.size()));
    }
    Matrix y(h.size());
    CombineArgs combine;
    combine.offsets = offsets;
    combine.contributions = contributions;
    combine.width = hidden_;
    combine.y = y.data();
    combine.y_stride = hidden_;
    combine.out = Activation::kBf16;
    CombineRows(context_, combine);

    const MlpWeights shared = Weights("shared_experts");
    const MlpGroup all{&shared, 0, rows_};
    Add(y, Mlp(h, {&all, 1}, nullptr, rows_));
    return y;
  }

  const Tensors& tensors_;
  const Json& config_;
  KernelContext context_;
  std::string prefix_;
  int64_t hidden_ = 0;
  int64_t rows_ = 0;
};

Matrix ReadFloats(const std::string& name) {
  const std::string bytes = ReadFile(std::string(kFolder) + "expected/" + name);
  Matrix values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// Distance in bf16 steps.
int64_t StepsApart(float a, float b) {
  const auto order = [](float v) {
    const int64_t bits = FloatToBf16(v);
    return (bits & 0x8000) != 0 ? 0x8000 - bits : bits;
  };
  return std::abs(order(a) - order(b));
}

class BlockGoldenTest : public OnEveryTarget {};

TEST_P(BlockGoldenTest, EveryLayerLeavesTheExpectedResidualStream) {
  const Tensors tensors;
  const Json config = ReadConfig();
  const Json index =
      Json::parse(ReadFile(std::string(kFolder) + "expected/index.json"));
  Layers layers(tensors, config, KernelContext{&PoolOf(2)});
  int64_t checked = 0;
  for (const Json& prompt : index.at("prompts")) {
    if (!prompt.contains("blocks")) continue;
    for (const Json& block : prompt.at("blocks")) {
      const Matrix in = ReadFloats(block.at("in").get<std::string>());
      const Matrix expected = ReadFloats(block.at("out").get<std::string>());
      const auto layer = block.at("layer").get<int64_t>();
      const char kind = block.at("kind").get<std::string>()[0];
      const Matrix out = layers.Run(layer, kind, in);
      ASSERT_EQ(out.size(), expected.size());
      int64_t equal = 0;
      for (size_t i = 0; i < out.size(); ++i) {
        if (out[i] == expected[i]) ++equal;
        EXPECT_LE(StepsApart(out[i], expected[i]), 2)
            << "layer " << layer << " value " << i;
      }
      const double share =
          static_cast<double>(equal) / static_cast<double>(out.size());
      EXPECT_GE(share, 0.995) << "layer " << layer << " kind " << kind;
      RecordProperty("layer_" + std::to_string(layer) + kind,
                     std::to_string(share));
      ++checked;
    }
  }
  EXPECT_EQ(checked, 8);
}

TRUNKLINE_ON_EVERY_TARGET(BlockGoldenTest);

}  // namespace
}  // namespace trunkline::kernels
