// Routing contracts while serving: a step that breaks one ends its requests
// with INTERNAL and the contract's name, is counted, and the server goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "prometheus/text_serializer.h"
#include "routing/route_validator.h"
#include "tests/golden/checkpoint_fixture.h"
#include "trunk_worker/live_route_validator.h"
#include "trunk_worker/route_recorder_service.h"
#include "trunk_worker/trunk_metrics.h"

namespace trunkline::trunk {
namespace {

using routing::RouteContract;
using routing::RouteTable;
using ::testing::HasSubstr;
using trunkline::testing::CheckpointFixture;
using trunkline::testing::LoadedModel;

// Experts whose finished layers a test may falsify.
class FalsifiedExperts : public ExpertExchange {
 public:
  using Falsify = std::function<void(const MoeCall&)>;
  FalsifiedExperts(std::unique_ptr<ExpertExchange> real, const Falsify* falsify)
      : real_(std::move(real)), falsify_(*falsify) {}
  absl::Status Ready() override { return real_->Ready(); }
  absl::StatusOr<PlacementVersion> BeginStep(StepId step) override {
    return real_->BeginStep(step);
  }
  void EndStep(StepId step) override { real_->EndStep(step); }
  absl::Status Begin(const MoeCall& call) override {
    return real_->Begin(call);
  }
  absl::Status Finish(const MoeCall& call) override {
    const absl::Status status = real_->Finish(call);
    if (status.ok() && falsify_) falsify_(call);
    return status;
  }

 private:
  const std::unique_ptr<ExpertExchange> real_;
  const Falsify& falsify_;
};

class RouteContractsTest : public ::testing::Test {
 protected:
  void Start(const std::string& fixture, bool validate) {
    model_ = LoadedModel::Load(CheckpointFixture(fixture).checkpoint);
    Engine::Options options;
    options.state.tokens_max = 128;
    options.state.sequences_max = 4;
    options.on_step = [this](const StepStats& step) {
      metrics_.OnStep(step);
      moe_layers_run_ += step.layer_routes.size();
    };
    options.on_routes = [this](LayerIndex, RouteTable* table) {
      if (break_routes_) break_routes_(table);
    };
    if (validate) {
      auto layers =
          MakeRecordingHeader(model_->checkpoint(), model_->weights(), {}, {});
      ASSERT_TRUE(layers.ok()) << layers.status();
      validator_ = std::make_unique<LiveRouteValidator>(
          *std::move(layers), [this] { ++layers_validated_; });
      options.observers.push_back(validator_.get());
    }
    engine_ = model_->NewEngine(std::move(options),
                                std::make_unique<FalsifiedExperts>(
                                    model_->NewLocalExperts(), &falsify_));
  }
  absl::StatusOr<Completion> Generate() {
    GenerationRequest request;
    request.prompt = {5, 6, 7, 8, 9};
    request.max_tokens = 6;
    return engine_->Generate(std::move(request));
  }
  double Broken(RouteContract contract) {
    const std::string line =
        "trunkline_route_contracts_broken_total{contract=\"" +
        std::string(routing::Name(contract)) + "\"} ";
    const std::string page =
        prometheus::TextSerializer().Serialize(registry_.Collect());
    const size_t at = page.find(line);
    EXPECT_NE(at, std::string::npos) << line;
    return at == std::string::npos ? -1
                                   : std::stod(page.substr(at + line.size()));
  }
  // One step breaks the contract, and only that one is hurt.
  void ExpectOneBrokenStep(RouteContract contract) {
    const absl::StatusOr<Completion> good = Generate();
    ASSERT_TRUE(good.ok()) << good.status();
    EXPECT_EQ(Broken(contract), 0);
    armed_ = true;
    const absl::Status bad = Generate().status();
    EXPECT_EQ(bad.code(), absl::StatusCode::kInternal) << bad;
    EXPECT_THAT(std::string(bad.message()),
                HasSubstr("broken contract \"" +
                          std::string(routing::Name(contract)) + "\""));
    EXPECT_THAT(std::string(bad.message()), HasSubstr("layer "));
    EXPECT_EQ(Broken(contract), 1);
    EXPECT_FALSE(armed_) << "the fault was never planted";
    EXPECT_EQ(engine_->Stats().state_bytes_used, 0);
    const absl::StatusOr<Completion> again = Generate();
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->token_ids, good->token_ids);
    EXPECT_EQ(Broken(contract), 1);
  }
  void BreakRoutesOnce(std::function<void(RouteTable*)> change) {
    break_routes_ = [this, change = std::move(change)](RouteTable* table) {
      if (armed_.exchange(false)) change(table);
    };
  }
  void FalsifyOnce(FalsifiedExperts::Falsify change) {
    falsify_ = [this, change = std::move(change)](const MoeCall& call) {
      if (armed_.exchange(false)) change(call);
    };
  }

  std::unique_ptr<LoadedModel> model_;
  prometheus::Registry registry_;
  TrunkMetrics metrics_{registry_};
  std::atomic<bool> armed_{false};
  std::atomic<uint64_t> moe_layers_run_{0}, layers_validated_{0};
  std::function<void(RouteTable*)> break_routes_;
  FalsifiedExperts::Falsify falsify_;
  std::unique_ptr<LiveRouteValidator> validator_;
  std::unique_ptr<Engine> engine_;
};

// The cheap contracts need no flag.

TEST_F(RouteContractsTest, ADroppedRouteEndsTheStepAsNotDropless) {
  BreakRoutesOnce(
      [](RouteTable* t) { t->fate[1] = routing::RouteFate::kDropped; });
  Start("tiny", false);
  ExpectOneBrokenStep(RouteContract::kDropless);
}

TEST_F(RouteContractsTest, AnOmittedRouteEndsTheStepByItsDegree) {
  BreakRoutesOnce([](RouteTable* t) { t->token_id.pop_back(); });
  Start("tiny", false);
  ExpectOneBrokenStep(RouteContract::kDegree);
}

TEST_F(RouteContractsTest, ARouteOfAnotherTokenEndsTheStepByItsKey) {
  BreakRoutesOnce([](RouteTable* t) { ++t->token_id.back(); });
  Start("tiny", false);
  ExpectOneBrokenStep(RouteContract::kStableKey);
}

TEST_F(RouteContractsTest, AnExpertThatThereIsNotEndsTheStepBySelection) {
  BreakRoutesOnce([](RouteTable* t) {
    t->expert_id[0] = ExpertId(static_cast<uint32_t>(t->experts));
  });
  Start("tiny", false);
  ExpectOneBrokenStep(RouteContract::kSelection);
}

TEST_F(RouteContractsTest, AGateThatIsTooLargeEndsTheStep) {
  BreakRoutesOnce([](RouteTable* t) { t->gate[0] *= 1000.0f; });
  Start("tiny", false);
  ExpectOneBrokenStep(RouteContract::kSelectedGates);
}

TEST_F(RouteContractsTest, ARouteWhoseOutputWasNotAddedEndsTheStep) {
  FalsifyOnce([](const MoeCall& call) { --*call.routes_added; });
  Start("tiny", false);
  ExpectOneBrokenStep(RouteContract::kCompletion);
}

// The full validator, with the flag.

class ValidatedModels : public RouteContractsTest,
                        public ::testing::WithParamInterface<const char*> {};

TEST_P(ValidatedModels, EveryLayerOfEveryStepKeepsEveryContract) {
  Start(GetParam(), true);
  const absl::StatusOr<Completion> done = Generate();
  ASSERT_TRUE(done.ok()) << done.status();
  engine_->Shutdown(absl::ZeroDuration());
  EXPECT_GE(layers_validated_, 6u);  // a prefill step and five decode steps
  EXPECT_EQ(layers_validated_, moe_layers_run_);
}
// Fp32 rows with a grouped router, a latent width, bf16 rows.
INSTANTIATE_TEST_SUITE_P(Fixtures, ValidatedModels,
                         ::testing::Values("tiny", "tiny-latent", "tiny-bf16"));

TEST_F(RouteContractsTest,
       AnExpertThatSumsCanNotFindIsFoundByTheFullValidator) {
  // Two routes of one token swap their gates: every sum is as before.
  BreakRoutesOnce([](RouteTable* t) { std::swap(t->gate[0], t->gate[1]); });
  Start("tiny", true);
  ExpectOneBrokenStep(RouteContract::kSelectedGates);
}

TEST_F(RouteContractsTest, AWrongExpertIsFoundByTheFullValidator) {
  BreakRoutesOnce([](RouteTable* t) {
    const uint32_t other =
        (t->expert_id[0].value + 1) % static_cast<uint32_t>(t->experts);
    t->expert_id[0] = ExpertId(other);
  });
  Start("tiny", true);
  armed_ = true;
  const absl::Status bad = Generate().status();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInternal) << bad;
  EXPECT_THAT(std::string(bad.message()), HasSubstr("broken contract"));
}

TEST_F(RouteContractsTest, ACombinedRowThatIsOneBitOffIsFound) {
  FalsifyOnce([](const MoeCall& call) {
    call.combined[3] =
        std::bit_cast<float>(std::bit_cast<uint32_t>(call.combined[3]) ^ 1u);
  });
  Start("tiny", true);
  ExpectOneBrokenStep(RouteContract::kCombine);
}

TEST_F(RouteContractsTest, AnOverwrittenSumIsFound) {
  FalsifyOnce([](const MoeCall& call) {
    // As if the last contribution had been assigned instead of added.
    const std::vector<float>& added = call.executed->contributions;
    const size_t last = added.size() - static_cast<size_t>(call.width);
    const int64_t row = call.routes->rows - 1;
    for (int64_t i = 0; i < call.width; ++i)
      call.combined[row * call.combined_stride + i] =
          added[last + static_cast<size_t>(i)];
  });
  Start("tiny", true);
  ExpectOneBrokenStep(RouteContract::kCombine);
}

}  // namespace
}  // namespace trunkline::trunk
