// Any bytes as a GenerateRequest: refused with a named field, or a request that
// the core takes, plans and ends.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "proto/generation.pb.h"
#include "trunk_worker/generation_wire.h"
#include "trunk_worker/trunk_worker.h"

using namespace trunkline;
using namespace trunkline::trunk;

namespace {

constexpr int64_t kTokensMax = 256;

// A checkpoint without weights: requests need its sizes and defaults only.
class Sizes final : public model::Checkpoint {
 public:
  Sizes() {
    config_.vocab_size = 128;
    config_.eos_token_ids = {2};
    model::LayerSpec attention;
    attention.index = LayerIndex(0);
    attention.kind = model::LayerKind::kAttention;
    attention.attention.heads = 1;
    attention.attention.kv_heads = 1;
    attention.attention.head_dim = 4;
    config_.layers = {attention};
  }
  const std::string& directory() const override { return name_; }
  const model::ModelConfig& config() const override { return config_; }
  const model::GenerationDefaults& generation_defaults() const override {
    return defaults_;
  }
  const std::vector<model::TensorInfo>& tensors() const override {
    return tensors_;
  }
  const std::vector<std::string>& files() const override { return files_; }
  DType projection_dtype() const override { return DType::kF32; }
  DType activation_dtype() const override { return DType::kF32; }
  const std::string& digest() const override { return name_; }
  absl::StatusOr<std::unique_ptr<model::WeightMap>> MapTrunk() const override {
    return absl::UnimplementedError("no weights");
  }
  absl::StatusOr<std::unique_ptr<model::WeightMap>> MapExpert(
      LayerIndex, ExpertId) const override {
    return absl::UnimplementedError("no weights");
  }

 private:
  const std::string name_ = "sizes";
  model::ModelConfig config_;
  model::GenerationDefaults defaults_;
  std::vector<model::TensorInfo> tensors_;
  std::vector<std::string> files_;
};

const ServedModel& Served() {
  static const ServedModel* const served = new ServedModel(
      ServedModel::For(std::make_shared<Sizes>(), nullptr, kTokensMax));
  return *served;
}

// Runs the request with one token for all: every one ends, and exactly once.
void RunToItsEnd(GenerationRequest request) {
  auto pool =
      SequencePool::Create(StateLayout::For(Served().checkpoint->config(),
                                            kernels::Activation::kF32),
                           {2, kTokensMax, 0});
  TL_CHECK(pool.ok()) << pool.status();
  TrunkWorker::Options options;
  options.vocab_size = Served().checkpoint->config().vocab_size;
  TrunkWorker core(options, pool->get(), nullptr);
  request.id = RequestId(1);
  core.Step(Submit{std::move(request)}, absl::UnixEpoch());
  int ends = 0;
  while (true) {
    for (const Output& output : core.TakeOutputs()) ends += output.finished;
    const StepPlan& plan = core.PlanStep(absl::UnixEpoch());
    if (plan.runs.empty()) break;
    StepResult result;
    for (const StepRun& run : plan.runs) {
      run.rows.state->BeginStep(static_cast<int64_t>(run.rows.tokens.size()));
      run.rows.state->CommitStep();
      RunResult made;
      made.token.id = 1;
      made.prompt_logprobs.resize(run.following.size());
      result.runs.push_back(made);
    }
    core.OnStepResult(result, absl::UnixEpoch());
  }
  TL_CHECK_EQ(ends, 1);
  TL_CHECK_EQ((*pool)->bytes_used(), 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  v1::GenerateRequest wire;
  if (!wire.ParseFromArray(data, static_cast<int>(size))) return 0;
  absl::StatusOr<GenerationRequest> request =
      RequestFromWire(wire, Served(), 7);
  if (!request.ok()) {
    TL_CHECK(!request.status().message().empty());
    return 0;
  }
  TL_CHECK(!request->prompt.empty());
  TL_CHECK(ValidateSampling(request->sampling).ok());
  RunToItsEnd(*std::move(request));
  return 0;
}
