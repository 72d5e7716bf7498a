#pragma once

// A fixture checkpoint with what it is expected to do, and an engine over it.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/kernel_context.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "trunk_worker/engine.h"
#include "trunk_worker/expert_exchange.h"
#include "trunk_worker/trunk_weights.h"

namespace trunkline::testing {

struct Fixture {
  std::string checkpoint;  // directory
  std::string expected;    // directory of index.json and its files
};
Fixture CheckpointFixture(const std::string& name);  // "tiny", ...
Fixture DemoFixture();
// "demo" too.
std::string DirectoryOf(const std::string& name);

// A checkpoint and the class it is computed in.
struct ClassCase {
  const char* checkpoint;
  kernels::Numerics numerics = kernels::Numerics::kPortable;
};
// For parameterised tests: "tinybf16", "tinybf16_bf16dot".
std::string NameOf(const ::testing::TestParamInfo<ClassCase>& test);

nlohmann::json ReadJson(const std::string& file);
// Row-major little-endian float32.
std::vector<float> ReadFloats(const std::string& file);

// Everything between a checkpoint directory and an engine, in this process.
class LoadedModel {
 public:
  static std::unique_ptr<LoadedModel> Load(
      const std::string& directory, int threads = 1,
      kernels::Numerics numerics = kernels::Numerics::kPortable);

  // experts: null for LocalExperts.
  std::unique_ptr<trunk::Engine> NewEngine(
      trunk::Engine::Options options,
      std::unique_ptr<trunk::ExpertExchange> experts = nullptr);
  const model::Checkpoint& checkpoint() const { return *checkpoint_; }
  std::shared_ptr<const model::Checkpoint> shared_checkpoint() const {
    return checkpoint_;
  }
  const trunk::TrunkWeights& weights() const { return weights_; }
  kernels::Activation activation() const;
  ThreadPool& pool() { return pool_; }
  kernels::KernelContext context() { return {&pool_, numerics_}; }
  std::unique_ptr<trunk::ExpertExchange> NewLocalExperts();

 private:
  LoadedModel(std::shared_ptr<const model::Checkpoint> checkpoint, int threads,
              kernels::Numerics numerics)
      : checkpoint_(std::move(checkpoint)),
        numerics_(numerics),
        pool_(Threads(threads)) {}
  static ThreadPool::Options Threads(int threads) {
    ThreadPool::Options options;
    options.threads = threads;
    return options;
  }
  const std::shared_ptr<const model::Checkpoint> checkpoint_;
  const kernels::Numerics numerics_;
  std::shared_ptr<const model::Tokenizer> tokenizer_;
  ThreadPool pool_;
  trunk::TrunkWeights weights_;
};

// What an engine makes of a prompt: the logits after every prompt token and
// after every token made but the last, and the tokens.
struct Scored {
  std::vector<float> logits;  // [positions, vocab]
  std::vector<int32_t> token_ids;
};

struct ScoreOptions {
  trunk::BatchLimits batch{};
  int64_t max_tokens = 1;
  // How to reach the experts; null: LocalExperts.
  std::function<std::unique_ptr<trunk::ExpertExchange>(LoadedModel&)> experts;
};
// All prompts at once, as batch mates.
std::vector<Scored> ScoreTogether(
    LoadedModel& model, const std::vector<std::vector<int32_t>>& prompts,
    const ScoreOptions& options);

}  // namespace trunkline::testing
