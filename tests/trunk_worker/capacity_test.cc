// Fixed capacity in serving: it drops routes and says so, and what it drops
// depends on nothing but the sequence.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/golden/checkpoint_fixture.h"
#include "trunk_worker/live_route_validator.h"
#include "trunk_worker/route_recorder_service.h"

namespace trunkline::trunk {
namespace {

using ::testing::HasSubstr;
using trunkline::testing::CheckpointFixture;
using trunkline::testing::LoadedModel;

routing::AdmissionPolicy Capacity(double factor, int64_t group) {
  routing::AdmissionPolicy p;
  p.kind = routing::AdmissionKind::kFixedCapacity;
  p.capacity_factor = factor;
  p.scope = routing::GroupScope::kSequence;
  p.group_tokens = group;
  p.arbitration = routing::Arbitration::kTokenSlot;
  return p;
}

// What one request saw: the logits after each of its tokens, and its usage.
struct Seen {
  std::map<int64_t, std::vector<float>> logits;  // by position
  std::vector<int32_t> tokens;
  Usage usage;
};
bool SameBits(const Seen& a, const Seen& b) {
  if (a.tokens != b.tokens || a.logits.size() != b.logits.size()) return false;
  for (const auto& [position, row] : a.logits) {
    const auto other = b.logits.find(position);
    if (other == b.logits.end() || other->second.size() != row.size() ||
        std::memcmp(other->second.data(), row.data(),
                    row.size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

using Prompts = std::vector<std::vector<int32_t>>;

class CapacityTest : public ::testing::Test {
 protected:
  // All prompts at once, every layer of every step validated in full.
  std::vector<Seen> Run(LoadedModel& model, const Prompts& prompts,
                        const routing::AdmissionPolicy& admission,
                        const BatchLimits& batch) {
    std::mutex mutex;
    std::map<RequestId, Seen> seen;
    Engine::Options options;
    options.state.tokens_max = 128;
    options.state.sequences_max = 8;
    options.batch = batch;
    options.admission = admission;
    options.on_logits = [&](RequestId id, int64_t position,
                            std::span<const float> row) {
      std::lock_guard lock(mutex);
      seen[id].logits[position] = {row.begin(), row.end()};
    };
    options.on_step = [&](const StepStats& step) {
      dropped_in_steps_ += step.routes.dropped;
      selected_in_steps_ += step.routes.selected;
      EXPECT_EQ(step.routes.selected,
                step.routes.accepted + step.routes.dropped);
      EXPECT_EQ(step.routes.accepted, step.routes.returned);
    };
    auto layers =
        MakeRecordingHeader(model.checkpoint(), model.weights(), admission, {});
    EXPECT_TRUE(layers.ok()) << layers.status();
    LiveRouteValidator validator(*std::move(layers), [] {});
    options.observers.push_back(&validator);
    auto engine = model.NewEngine(std::move(options));
    std::vector<RequestId> ids;
    for (const std::vector<int32_t>& prompt : prompts) {
      GenerationRequest request;
      request.prompt = prompt;
      request.max_tokens = 12;
      request.prompt_logprobs = true;
      request.sampling.temperature = 0.0f;
      auto id = engine->Start(std::move(request), [&](Output output) {
        std::lock_guard lock(mutex);
        Seen& one = seen[output.request];
        one.tokens.insert(one.tokens.end(), output.token_ids.begin(),
                          output.token_ids.end());
        if (!output.finished) return;
        EXPECT_TRUE(output.status.ok()) << output.status;
        one.usage = output.usage;
      });
      EXPECT_TRUE(id.ok());
      ids.push_back(*id);
    }
    engine->Shutdown(absl::InfiniteDuration());
    std::vector<Seen> all;
    for (RequestId id : ids) all.push_back(seen[id]);
    return all;
  }

  uint64_t dropped_in_steps_ = 0, selected_in_steps_ = 0;
};

Prompts SomePrompts() {
  Prompts prompts;
  for (int p = 0; p < 4; ++p) {
    prompts.emplace_back();
    for (int i = 0; i < 9 + 7 * p; ++i)
      prompts.back().push_back((5 + 3 * i + 11 * p) % 60);
  }
  return prompts;
}

class CapacityModels : public CapacityTest,
                       public ::testing::WithParamInterface<const char*> {};

TEST_P(CapacityModels, LogitsAndDropsAreTheSameInEveryBatchAndChunking) {
  auto model = LoadedModel::Load(CheckpointFixture(GetParam()).checkpoint);
  const Prompts prompts = SomePrompts();
  for (const bool renormalize : {false, true}) {
    routing::AdmissionPolicy admission = Capacity(0.5, 8);
    if (renormalize) {
      admission.overflow = routing::Overflow::kDropRenormalize;
      admission.renormalize = routing::RenormalizeRule::kSelectedSum;
    }
    std::vector<Seen> alone;
    for (const std::vector<int32_t>& prompt : prompts)
      alone.push_back(Run(*model, {prompt}, admission,
                          {.rows_max = 64, .prefill_chunk = 64})[0]);
    for (const int64_t chunk : {1, 3, 8, 29}) {
      const std::vector<Seen> together =
          Run(*model, prompts, admission,
              {.rows_max = 2 * chunk + 2, .prefill_chunk = chunk});
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_TRUE(SameBits(together[i], alone[i]))
            << "prompt " << i << ", chunk " << chunk;
        EXPECT_EQ(together[i].usage.routes_dropped,
                  alone[i].usage.routes_dropped);
        EXPECT_EQ(together[i].usage.routes_selected,
                  alone[i].usage.routes_selected);
        EXPECT_GT(together[i].usage.routes_dropped, 0u);
      }
    }
    // It is no no-op: another model answers.
    const std::vector<Seen> dropless =
        Run(*model, {prompts[3]}, {}, {.rows_max = 64, .prefill_chunk = 64});
    EXPECT_FALSE(SameBits(dropless[0], alone[3]));
    EXPECT_EQ(dropless[0].usage.routes_dropped, 0u);
    EXPECT_EQ(dropless[0].usage.routes_selected,
              alone[3].usage.routes_selected);
  }
}
INSTANTIATE_TEST_SUITE_P(Fixtures, CapacityModels,
                         ::testing::Values("tiny", "tiny-bf16", "tiny-latent"));

TEST_F(CapacityTest, ResponsesAddUpToTheStepsCounts) {
  auto model = LoadedModel::Load(CheckpointFixture("tiny").checkpoint);
  uint64_t dropped = 0, selected = 0;
  for (const Seen& seen : Run(*model, SomePrompts(), Capacity(0.25, 16),
                              {.rows_max = 16, .prefill_chunk = 5})) {
    dropped += seen.usage.routes_dropped;
    selected += seen.usage.routes_selected;
  }
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(dropped, dropped_in_steps_);
  EXPECT_EQ(selected, selected_in_steps_);
}

// With room for whatever may come, nothing is dropped and no bit differs.
TEST_F(CapacityTest, ACapacityThatNobodyFillsIsDropless) {
  auto model = LoadedModel::Load(CheckpointFixture("tiny").checkpoint);
  const BatchLimits batch{.rows_max = 16, .prefill_chunk = 5};
  const std::vector<Seen> roomy =
      Run(*model, SomePrompts(), Capacity(4.0, 8), batch);
  const std::vector<Seen> dropless = Run(*model, SomePrompts(), {}, batch);
  for (size_t i = 0; i < roomy.size(); ++i) {
    EXPECT_TRUE(SameBits(roomy[i], dropless[i])) << i;
    EXPECT_EQ(roomy[i].usage.routes_dropped, 0u);
  }
}

TEST_F(CapacityTest, WhatCanNotBeServedIsRefusedBeforeTheFirstStep) {
  auto model = LoadedModel::Load(CheckpointFixture("tiny").checkpoint);
  const auto why = [&](const routing::AdmissionPolicy& admission,
                       LoadedModel& served) {
    Engine::Options options;
    options.admission = admission;
    return std::string(Engine::Create(&served.checkpoint(), &served.weights(),
                                      nullptr, served.NewLocalExperts(),
                                      &served.pool(), std::move(options))
                           .status()
                           .message());
  };
  routing::AdmissionPolicy batch = Capacity(1, 8);
  batch.scope = routing::GroupScope::kBatch;
  EXPECT_THAT(why(batch, *model), HasSubstr("who else is served"));
  routing::AdmissionPolicy by_gate = Capacity(1, 8);
  by_gate.arbitration = routing::Arbitration::kGateTokenSlot;
  EXPECT_THAT(why(by_gate, *model), HasSubstr("later token"));
  auto dense = LoadedModel::Load(CheckpointFixture("tiny-dense").checkpoint);
  EXPECT_THAT(why(Capacity(1, 8), *dense), HasSubstr("no routed experts"));
}

}  // namespace
}  // namespace trunkline::trunk
