// The engine thread over a tiny checkpoint: ends, errors, sleep.

#include "trunk_worker/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "tests/golden/checkpoint_fixture.h"
#include "tests/integration/eventually.h"
#include "tests/integration/idle_use.h"

namespace trunkline::trunk {
namespace {

using ::testing::HasSubstr;
using trunkline::Eventually;
using trunkline::testing::CheckpointFixture;
using trunkline::testing::LoadedModel;

// Experts that do what the test says: away, failing, or as good as those they
// wrap.
class MoodyExperts : public ExpertExchange {
 public:
  struct Mood {
    std::atomic<bool> away{false};
    std::atomic<int> fail_layers{0};  // the next Finish calls fail
    std::atomic<int> begins{0}, finishes{0}, steps_open{0};
  };
  MoodyExperts(std::unique_ptr<ExpertExchange> real, Mood* mood)
      : real_(std::move(real)), mood_(*mood) {}

  absl::Status Ready() override {
    return mood_.away ? absl::UnavailableError("expert-1 is away")
                      : absl::OkStatus();
  }
  absl::StatusOr<PlacementVersion> BeginStep(StepId step) override {
    ++mood_.steps_open;
    return real_->BeginStep(step);
  }
  void EndStep(StepId step) override {
    --mood_.steps_open;
    real_->EndStep(step);
  }
  absl::Status Begin(const MoeCall& call) override {
    ++mood_.begins;
    return real_->Begin(call);
  }
  absl::Status Finish(const MoeCall& call) override {
    ++mood_.finishes;
    const absl::Status status = real_->Finish(call);
    if (mood_.fail_layers > 0) {
      --mood_.fail_layers;
      return absl::UnavailableError("expert-1: layer 4, expert 7");
    }
    return status;
  }

 private:
  const std::unique_ptr<ExpertExchange> real_;
  Mood& mood_;
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = LoadedModel::Load(CheckpointFixture("tiny").checkpoint);
  }
  void StartEngine(Engine::Options options = {}) {
    options.state.tokens_max = 512;
    if (options.state.sequences_max == SequencePool::Options().sequences_max)
      options.state.sequences_max = 4;
    engine_ = model_->NewEngine(
        std::move(options),
        std::make_unique<MoodyExperts>(model_->NewLocalExperts(), &mood_));
  }
  GenerationRequest Request(int64_t max_tokens) {
    GenerationRequest request;
    request.prompt = {5, 6, 7, 8};
    request.max_tokens = max_tokens;
    return request;
  }

  // One request whose outputs the test waits for.
  struct Stream {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<int32_t> tokens;
    std::optional<absl::Status> end;
    RequestId id;
    void WaitForTokens(size_t count) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return tokens.size() >= count || end; });
    }
    absl::Status WaitForEnd() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return end.has_value(); });
      return *end;
    }
  };
  void Begin(GenerationRequest request, Stream* stream) {
    auto id = engine_->Start(std::move(request), [stream](Output output) {
      std::lock_guard lock(stream->mutex);
      stream->tokens.insert(stream->tokens.end(), output.token_ids.begin(),
                            output.token_ids.end());
      if (output.finished) stream->end = output.status;
      stream->changed.notify_all();
    });
    ASSERT_TRUE(id.ok());
    stream->id = *id;
  }

  std::unique_ptr<LoadedModel> model_;
  MoodyExperts::Mood mood_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, AFailedExchangeEndsItsRequestsWithTheTypedErrorOnly) {
  Engine::Options options;
  options.unready_patience = absl::ZeroDuration();
  StartEngine(std::move(options));
  const auto good = engine_->Generate(Request(20));
  ASSERT_TRUE(good.ok()) << good.status();
  Stream one, two;
  Begin(Request(400), &one);
  Begin(Request(400), &two);
  one.WaitForTokens(3);
  two.WaitForTokens(3);
  mood_.fail_layers = 1;
  EXPECT_EQ(one.WaitForEnd(),
            absl::UnavailableError("expert-1: layer 4, expert 7"));
  EXPECT_EQ(two.WaitForEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->Stats().state_bytes_used, 0);
  EXPECT_EQ(mood_.begins, mood_.finishes);
  EXPECT_EQ(mood_.steps_open, 0);
  const auto again = engine_->Generate(Request(20));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->token_ids, good->token_ids);
}

TEST_F(EngineTest, StreamsGoOnUnchangedAfterStepsThatFailedInAnyLayer) {
  std::atomic<uint64_t> recomputed{0};
  Engine::Options options;
  options.on_recompute = [&](uint64_t sequences) { recomputed += sequences; };
  StartEngine(std::move(options));
  const auto undisturbed = engine_->Generate(Request(120));
  ASSERT_TRUE(undisturbed.ok());
  Stream one, two;
  Begin(Request(120), &one);
  Begin(Request(120), &two);
  for (size_t tokens = 5; tokens < 100; tokens += 15) {
    one.WaitForTokens(tokens);
    mood_.fail_layers = 1 + static_cast<int>(tokens % 3);
  }
  EXPECT_TRUE(one.WaitForEnd().ok());
  EXPECT_TRUE(two.WaitForEnd().ok());
  EXPECT_EQ(one.tokens, undisturbed->token_ids);
  EXPECT_EQ(two.tokens, undisturbed->token_ids);
  EXPECT_GE(recomputed, 7u);
  EXPECT_EQ(engine_->Stats().state_bytes_used, 0);
}

TEST_F(EngineTest, AStreamPausesWhileExpertsAreAwayAndGoesOnUnchanged) {
  StartEngine();
  const auto undisturbed = engine_->Generate(Request(300));
  Stream stream;
  Begin(Request(300), &stream);
  stream.WaitForTokens(5);
  mood_.away = true;
  ASSERT_TRUE(Eventually(std::chrono::seconds(10),
                         [&] { return !engine_->Stats().readiness.ok(); }));
  Stream refused;
  Begin(Request(5), &refused);
  EXPECT_THAT(refused.WaitForEnd().message(), HasSubstr("expert-1 is away"));
  mood_.away = false;
  EXPECT_TRUE(stream.WaitForEnd().ok());
  EXPECT_EQ(stream.tokens, undisturbed->token_ids);
}

// Those that run and those that asked to wait; both go on.
TEST_F(EngineTest, RequestsHeldWhileExpertsAreAwayAreCountedUntilTheyGoOn) {
  std::atomic<size_t> held{0}, most{0};
  Engine::Options options;
  options.on_hold = [&](size_t requests) {
    held = requests;
    most = std::max(most.load(), requests);
  };
  StartEngine(std::move(options));
  Stream running, waiting;
  Begin(Request(200), &running);
  running.WaitForTokens(2);
  mood_.away = true;
  ASSERT_TRUE(Eventually(std::chrono::seconds(10), [&] { return held == 1; }));
  GenerationRequest patient = Request(5);
  patient.wait_for_capacity = true;
  Begin(patient, &waiting);
  ASSERT_TRUE(Eventually(std::chrono::seconds(10), [&] { return held == 2; }));
  mood_.away = false;
  EXPECT_TRUE(running.WaitForEnd().ok());
  EXPECT_TRUE(waiting.WaitForEnd().ok());
  EXPECT_EQ(held, 0u);
  EXPECT_EQ(most, 2u);
}

TEST_F(EngineTest, ExpertsThatStayAwayEndRunningRequestsAfterThePatience) {
  Engine::Options options;
  options.unready_patience = absl::Milliseconds(50);
  StartEngine(std::move(options));
  Stream stream;
  Begin(Request(400), &stream);
  stream.WaitForTokens(2);
  mood_.away = true;
  EXPECT_EQ(stream.WaitForEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->Stats().state_bytes_used, 0);
}

TEST_F(EngineTest, CancelAndDeadlineFreeTheSlot) {
  StartEngine();
  Stream cancelled;
  Begin(Request(400), &cancelled);
  cancelled.WaitForTokens(2);
  engine_->CancelRequest(cancelled.id, absl::CancelledError("client"));
  EXPECT_EQ(cancelled.WaitForEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->Stats().running, 0u);
  // A second cancel of what has ended is nothing.
  engine_->CancelRequest(cancelled.id, absl::CancelledError("client"));

  GenerationRequest hasty = Request(500);
  hasty.deadline = engine_->Now() + absl::Milliseconds(20);
  Stream late;
  Begin(hasty, &late);
  const absl::Status end = late.WaitForEnd();
  EXPECT_TRUE(end.ok() || absl::IsDeadlineExceeded(end)) << end;
  EXPECT_EQ(engine_->Stats().state_bytes_used, 0);
}

TEST_F(EngineTest, ShutdownLetsRunningRequestsFinishAndRefusesNewOnes) {
  StartEngine();
  Stream running;
  Begin(Request(200), &running);
  running.WaitForTokens(1);
  engine_->Shutdown(absl::InfiniteDuration());
  EXPECT_TRUE(running.WaitForEnd().ok());
  EXPECT_EQ(running.tokens.size(), 200u);
  const auto refused = engine_->Generate(Request(3));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineTest, ShutdownWithoutPatienceEndsThemWithUnavailable) {
  StartEngine();
  Stream running;
  Begin(Request(500), &running);
  running.WaitForTokens(1);
  engine_->Shutdown(absl::ZeroDuration());
  EXPECT_EQ(running.WaitForEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->Stats().state_bytes_used, 0);
}

TEST_F(EngineTest, StopStringsEndTheTextBeforeThem) {
  StartEngine();
  const auto whole = engine_->Generate(Request(60));
  ASSERT_TRUE(whole.ok());
  ASSERT_GT(whole->text.size(), 12u);
  // A stop string out of the middle of the text, where it first occurs.
  GenerationRequest request = Request(60);
  size_t at = whole->text.size() / 2;
  while ((static_cast<unsigned char>(whole->text[at]) & 0xc0) == 0x80) ++at;
  size_t end = at + 3;
  while (end < whole->text.size() &&
         (static_cast<unsigned char>(whole->text[end]) & 0xc0) == 0x80)
    ++end;
  request.stop = {whole->text.substr(at, end - at)};
  const auto stopped = engine_->Generate(request);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->reason, FinishReason::kStop);
  EXPECT_EQ(stopped->stop, request.stop[0]);
  EXPECT_EQ(stopped->text,
            whole->text.substr(0, whole->text.find(request.stop[0])));
  EXPECT_LT(stopped->token_ids.size(), whole->token_ids.size());
}

TEST_F(EngineTest, PromptLogprobsAndTokenLogprobsAgreeAcrossTheBoundary) {
  StartEngine();
  GenerationRequest request = Request(8);
  request.logprobs = 3;
  const auto made = engine_->Generate(request);
  ASSERT_TRUE(made.ok());
  // The same tokens as a prompt: their log-probabilities are the same bits.
  GenerationRequest scored = Request(1);
  scored.prompt.insert(scored.prompt.end(), made->token_ids.begin(),
                       made->token_ids.end());
  scored.prompt_logprobs = true;
  scored.logprobs = 3;
  const auto again = engine_->Generate(scored);
  ASSERT_TRUE(again.ok());
  ASSERT_EQ(again->prompt_logprobs.size(), 3u + 8u);
  for (size_t i = 0; i < 8; ++i) {
    const TokenLogprobs& a = made->logprobs[i];
    const TokenLogprobs& b = again->prompt_logprobs[3 + i];
    EXPECT_EQ(a.chosen.id, b.chosen.id);
    EXPECT_EQ(a.chosen.logprob, b.chosen.logprob);
    ASSERT_EQ(a.top.size(), 3u);
    for (size_t t = 0; t < 3; ++t) {
      EXPECT_EQ(a.top[t].id, b.top[t].id);
      EXPECT_EQ(a.top[t].logprob, b.top[t].logprob);
    }
  }
}

TEST_F(EngineTest, AnIdleEngineNeitherSpinsNorPolls) {
  StartEngine();
  ASSERT_TRUE(engine_->Generate(Request(5)).ok());
  const IdleUse use =
      MeasureIdleUse(std::chrono::milliseconds(500), [](auto interval) {
        poll(nullptr, 0, static_cast<int>(interval.count()));
      });
  EXPECT_LT(use.cores, 0.25);
  EXPECT_LT(use.wake_ups_per_second, 100);
}

TEST_F(EngineTest, AFullEventQueueIsResourceExhausted) {
  Engine::Options options;
  options.events_max = 0;
  StartEngine(std::move(options));
  EXPECT_EQ(engine_->Generate(Request(3)).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(EngineOptions, ImpossibleOnesAreRefused) {
  auto model = LoadedModel::Load(CheckpointFixture("tiny").checkpoint);
  Engine::Options options;
  options.batch.rows_max = 1;
  const auto engine =
      Engine::Create(&model->checkpoint(), &model->weights(), nullptr,
                     model->NewLocalExperts(), &model->pool(), options);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace trunkline::trunk
