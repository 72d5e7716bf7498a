#include "sim/sim_model.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/random.h"
#include "common/tensor_view.h"

namespace trunkline::sim {
namespace {

int32_t Ternary(uint64_t hash) { return static_cast<int32_t>(hash % 3) - 1; }

// Into -4..4.
int32_t Small(int64_t value) {
  return static_cast<int32_t>(((value % 9) + 9) % 9) - 4;
}

uint64_t Hash(const Row& row, uint64_t salt) {
  uint64_t hash = SplitMix64(salt);
  for (const int32_t v : row)
    hash = SplitMix64(hash ^ static_cast<uint64_t>(v + 100));
  return hash;
}

kernels::PackedMatrix Pack(const std::vector<float>& values, int64_t rows,
                           int64_t columns, ThreadPool& pool) {
  TensorView view;
  view.name = "simulated expert";
  view.shape = {rows, columns};
  view.data = reinterpret_cast<const std::byte*>(values.data());
  auto packed = kernels::PackedMatrix::Pack(view, pool);
  TL_CHECK(packed.ok()) << packed.status();
  return *std::move(packed);
}

}  // namespace

SimModel::SimModel(uint64_t seed, int layers, int experts, int top_k)
    : seed_(SplitMix64(seed ^ 0x5eed)), experts_(experts), top_k_(top_k) {
  // Layer indices as a hybrid model has them: not dense.
  for (int l = 0; l < layers; ++l) {
    shapes_.push_back({.layer = LayerIndex(static_cast<uint32_t>(1 + 3 * l)),
                       .experts = experts,
                       .expert_bytes = kExpertBytes});
  }
}

std::vector<expert::MoeLayer> SimModel::worker_layers() const {
  std::vector<expert::MoeLayer> layers;
  for (const auto& shape : shapes_) {
    layers.push_back({shape.layer, static_cast<uint32_t>(shape.experts),
                      static_cast<uint32_t>(kWidth)});
  }
  return layers;
}

Row SimModel::Embed(std::span<const int32_t> prefix) {
  uint64_t hash = 1;
  for (const int32_t token : prefix)
    hash = SplitMix64(hash ^ static_cast<uint64_t>(token));
  Row row;
  for (int i = 0; i < kWidth; ++i)
    row[i] = Small(static_cast<int64_t>(SplitMix64(hash + i) % 9));
  return row;
}

std::vector<SimModel::Choice> SimModel::Route(LayerIndex layer,
                                              const Row& row) const {
  uint64_t hash = Hash(row, seed_ ^ (0x70ull + layer.value));
  std::vector<Choice> choices;
  while (static_cast<int>(choices.size()) < top_k_) {
    hash = SplitMix64(hash);
    // Skewed, so that balancing has something to do.
    const uint64_t a = hash % static_cast<uint64_t>(experts_);
    const uint64_t b = (hash >> 20) % static_cast<uint64_t>(experts_);
    const auto expert = static_cast<uint32_t>(std::min(a, b));
    const bool taken =
        std::any_of(choices.begin(), choices.end(),
                    [&](const Choice& c) { return c.expert == expert; });
    if (taken) continue;
    choices.push_back({expert, 1 + static_cast<int32_t>((hash >> 40) % 7)});
  }
  return choices;
}

int32_t SimModel::Up(expert::ExpertKey key, int inner, int in) const {
  return Ternary(SplitMix64(seed_ + key.layer.value * 7919ull +
                            key.expert.value * 104729ull +
                            static_cast<uint64_t>(inner * kWidth + in)));
}

int32_t SimModel::Down(expert::ExpertKey key, int out, int inner) const {
  return Ternary(SplitMix64(~seed_ + key.layer.value * 7919ull +
                            key.expert.value * 104729ull +
                            static_cast<uint64_t>(out * kInner + inner)));
}

Row SimModel::Expert(expert::ExpertKey key, const Row& row) const {
  std::array<int64_t, kInner> inner{};
  for (int i = 0; i < kInner; ++i) {
    int64_t sum = 0;
    for (int k = 0; k < kWidth; ++k) sum += Up(key, i, k) * row[k];
    inner[i] = sum > 0 ? sum * sum : 0;
  }
  Row out;
  for (int o = 0; o < kWidth; ++o) {
    int64_t sum = 0;
    for (int i = 0; i < kInner; ++i) sum += Down(key, o, i) * inner[i];
    out[o] = static_cast<int32_t>(sum);
  }
  return out;
}

Row SimModel::Combined(LayerIndex layer, const Row& row) const {
  Row sum{};
  for (const Choice& choice : Route(layer, row)) {
    const Row out = Expert({layer, ExpertId(choice.expert)}, row);
    for (int i = 0; i < kWidth; ++i) sum[i] += choice.gate * out[i];
  }
  return sum;
}

Row SimModel::Residual(const Row& row, const Row& combined) {
  Row next;
  for (int i = 0; i < kWidth; ++i)
    next[i] = Small(int64_t{row[i]} + combined[i]);
  return next;
}

int32_t SimModel::Token(const Row& row, std::span<const int32_t> prefix) {
  return static_cast<int32_t>(
      Hash(row, 0x70c3 + static_cast<uint64_t>(prefix.back())) % kVocabulary);
}

std::vector<int32_t> SimModel::Generate(std::vector<int32_t> prompt,
                                        int count) const {
  std::vector<int32_t> made;
  for (int i = 0; i < count; ++i) {
    Row row = Embed(prompt);
    for (const auto& shape : shapes_)
      row = Residual(row, Combined(shape.layer, row));
    made.push_back(Token(row, prompt));
    prompt.push_back(made.back());
  }
  return made;
}

SimModel::Parts SimModel::PartsOf(expert::ExpertKey key) const {
  Parts parts;
  for (int i = 0; i < kInner; ++i)
    for (int k = 0; k < kWidth; ++k)
      parts.up.push_back(static_cast<float>(Up(key, i, k)));
  for (int o = 0; o < kWidth; ++o)
    for (int i = 0; i < kInner; ++i)
      parts.down.push_back(static_cast<float>(Down(key, o, i)));
  return parts;
}

std::shared_ptr<const kernels::MlpWeights> SimModel::PackParts(
    const Parts& parts) {
  auto weights = std::make_shared<kernels::MlpWeights>();
  weights->up = Pack(parts.up, kInner, kWidth, pool_);
  weights->down = Pack(parts.down, kWidth, kInner, pool_);
  return weights;
}

std::shared_ptr<const kernels::MlpWeights> SimModel::Weights(
    expert::ExpertKey key) {
  std::shared_ptr<const kernels::MlpWeights>& shared = weights_[key];
  if (shared == nullptr) shared = PackParts(PartsOf(key));
  return shared;
}

expert::ExpertRequest SimModel::Request(expert::ExpertKey key) const {
  const Parts parts = PartsOf(key);
  const std::span<const std::byte> bytes[expert::kShardParts] = {
      std::as_bytes(std::span(parts.up)), std::as_bytes(std::span(parts.down))};
  expert::ExpertRequest request;
  request.key = key;
  request.parts[0] = {.rows = kInner, .columns = kWidth, .dtype = DType::kF32};
  request.parts[1] = {.rows = kWidth, .columns = kInner, .dtype = DType::kF32};
  request.digest = model::DigestOfParts(bytes);
  return request;
}

std::shared_ptr<const kernels::MlpWeights> SimModel::Weights(
    const expert::FetchedExpert& fetched) {
  Parts parts;
  parts.up.resize(kInner * kWidth);
  parts.down.resize(kWidth * kInner);
  std::memcpy(parts.up.data(), fetched.parts[0].data(),
              parts.up.size() * sizeof(float));
  std::memcpy(parts.down.data(), fetched.parts[1].data(),
              parts.down.size() * sizeof(float));
  return PackParts(parts);
}

}  // namespace trunkline::sim
