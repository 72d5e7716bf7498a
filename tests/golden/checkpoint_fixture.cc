#include "tests/golden/checkpoint_fixture.h"

#include <gtest/gtest.h>

#include <bit>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

#include "common/check.h"
#include "trunk_worker/local_experts.h"

namespace trunkline::testing {
namespace {

std::string ReadAll(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  TL_CHECK(in.good()) << file;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace

Fixture CheckpointFixture(const std::string& name) {
  const std::string directory =
      std::string(TRUNKLINE_FIXTURES) + "/checkpoints/" + name;
  return {directory, directory + "/expected"};
}

Fixture DemoFixture() {
  return {std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo",
          std::string(TRUNKLINE_FIXTURES) + "/demo/expected"};
}

std::string DirectoryOf(const std::string& name) {
  return name == "demo" ? DemoFixture().checkpoint
                        : CheckpointFixture(name).checkpoint;
}

std::string NameOf(const ::testing::TestParamInfo<ClassCase>& test) {
  std::string name = test.param.checkpoint;
  std::erase(name, '-');
  if (test.param.numerics != kernels::Numerics::kPortable)
    name += "_" + kernels::NumericsName(test.param.numerics);
  return name;
}

nlohmann::json ReadJson(const std::string& file) {
  return nlohmann::json::parse(ReadAll(file));
}

std::vector<float> ReadFloats(const std::string& file) {
  static_assert(std::endian::native == std::endian::little);
  const std::string bytes = ReadAll(file);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

std::unique_ptr<LoadedModel> LoadedModel::Load(const std::string& directory,
                                               int threads,
                                               kernels::Numerics numerics) {
  auto checkpoint = model::Checkpoint::Open(directory);
  TL_CHECK(checkpoint.ok()) << checkpoint.status();
  std::unique_ptr<LoadedModel> loaded(
      new LoadedModel(*std::move(checkpoint), threads, numerics));
  auto weights =
      trunk::TrunkWeights::Load(*loaded->checkpoint_, loaded->context(), {});
  TL_CHECK(weights.ok()) << weights.status();
  loaded->weights_ = *std::move(weights);
  const std::string tokenizer = directory + "/tokenizer.json";
  if (std::filesystem::exists(tokenizer)) {
    auto parsed = model::Tokenizer::Load(tokenizer);
    TL_CHECK(parsed.ok()) << parsed.status();
    loaded->tokenizer_ = *std::move(parsed);
  }
  return loaded;
}

kernels::Activation LoadedModel::activation() const {
  return checkpoint_->activation_dtype() == DType::kBF16
             ? kernels::Activation::kBf16
             : kernels::Activation::kF32;
}

std::unique_ptr<trunk::ExpertExchange> LoadedModel::NewLocalExperts() {
  auto experts = trunk::LocalExperts::Load(*checkpoint_, context());
  TL_CHECK(experts.ok()) << experts.status();
  return *std::move(experts);
}

std::unique_ptr<trunk::Engine> LoadedModel::NewEngine(
    trunk::Engine::Options options,
    std::unique_ptr<trunk::ExpertExchange> experts) {
  if (experts == nullptr) experts = NewLocalExperts();
  auto engine =
      trunk::Engine::Create(checkpoint_.get(), &weights_, tokenizer_.get(),
                            std::move(experts), &pool_, std::move(options));
  TL_CHECK(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::vector<Scored> ScoreTogether(
    LoadedModel& model, const std::vector<std::vector<int32_t>>& prompts,
    const ScoreOptions& options) {
  const int64_t vocab = model.checkpoint().config().vocab_size;
  // Ids are handed out in order, so request i + 1 is prompt i; logits come on
  // the engine's thread, before the request's end.
  std::vector<Scored> scored(prompts.size());
  trunk::Engine::Options engine_options;
  engine_options.batch = options.batch;
  engine_options.state = {.sequences_max = static_cast<int64_t>(prompts.size()),
                          .tokens_max = 4096};
  engine_options.on_logits = [&](RequestId id, int64_t position,
                                 std::span<const float> row) {
    std::vector<float>& all = scored[id.value - 1].logits;
    TL_CHECK_EQ(static_cast<int64_t>(all.size()), position * vocab);
    all.insert(all.end(), row.begin(), row.end());
  };
  auto engine =
      model.NewEngine(std::move(engine_options),
                      options.experts ? options.experts(model) : nullptr);
  std::mutex mutex;
  std::condition_variable changed;
  size_t finished = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    trunk::GenerationRequest request;
    request.prompt = prompts[i];
    request.max_tokens = options.max_tokens;
    request.prompt_logprobs = true;
    auto id = engine->Start(std::move(request), [&, i](trunk::Output output) {
      std::lock_guard lock(mutex);
      auto& ids = scored[i].token_ids;
      ids.insert(ids.end(), output.token_ids.begin(), output.token_ids.end());
      if (!output.finished) return;
      EXPECT_TRUE(output.status.ok()) << output.status;
      ++finished;
      changed.notify_one();
    });
    TL_CHECK(id.ok()) << id.status();
    TL_CHECK_EQ(id->value, i + 1);
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return finished == prompts.size(); });
  return scored;
}

}  // namespace trunkline::testing
