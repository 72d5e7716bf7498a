#include "trunk_worker/trunk_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "common/random.h"

namespace trunkline::trunk {
namespace {

using kernels::Activation;
using ::testing::HasSubstr;

constexpr int64_t kVocab = 1000;
constexpr int32_t kEos = 7;

// The token a sequence makes at an output position: a function of its prompt
// and the position alone, as the real model's is.
int32_t TokenOf(const std::vector<int32_t>& prompt, uint64_t position) {
  uint64_t h = position;
  for (int32_t id : prompt) h = SplitMix64(h + static_cast<uint64_t>(id));
  return static_cast<int32_t>(h % kVocab);
}

// Runs the core without a model: plays the part of the engine.
class FakeEdge {
 public:
  explicit FakeEdge(TrunkWorker::Options options = {},
                    SequencePool::Options state = {.sequences_max = 4,
                                                   .tokens_max = 512}) {
    model::ModelConfig config;
    model::LayerSpec mamba;
    mamba.index = LayerIndex(0);
    mamba.mamba = {.heads = 1,
                   .head_dim = 4,
                   .groups = 1,
                   .state_size = 4,
                   .conv_kernel = 4};
    model::LayerSpec attention;
    attention.index = LayerIndex(1);
    attention.kind = model::LayerKind::kAttention;
    attention.attention = {.heads = 1, .kv_heads = 1, .head_dim = 4};
    config.layers = {mamba, attention};
    pool = *SequencePool::Create(StateLayout::For(config, Activation::kF32),
                                 state);
    options.vocab_size = kVocab;
    core = std::make_unique<TrunkWorker>(options, pool.get(), nullptr);
  }

  RequestId Send(GenerationRequest request) {
    request.id = RequestId(next_id++);
    prompts[request.id] = request.prompt;
    core->Step(Submit{request}, now);
    Collect();
    return request.id;
  }

  // One step of the engine; `fate` is its result. False: nothing to do.
  bool RunStep(absl::Status fate = absl::OkStatus()) {
    now += absl::Milliseconds(1);
    // After a failed step the core rests a little.
    if (const absl::Time next = core->NextStep(); next < absl::InfiniteFuture())
      now = std::max(now, next);
    core->Tick(now);
    Collect();
    const StepPlan& plan = core->PlanStep(now);
    if (plan.runs.empty()) return false;
    last_plan.clear();
    StepResult result;
    result.status = fate;
    result.version = PlacementVersion(3);
    for (const StepRun& run : plan.runs) {
      last_plan.push_back(run.request);
      ExpectNextTokens(run);
      run.rows.state->BeginStep(run.rows.tokens.size());
      if (fate.ok()) run.rows.state->CommitStep();
      RunResult run_result;
      if (run.sample) {
        run_result.token.id =
            TokenOf(prompts[run.request], run.spec.output_position);
        run_result.token.logprobs.chosen = {run_result.token.id, -1.0f};
      }
      for (int32_t id : run.following)
        run_result.prompt_logprobs.push_back({{id, -2.0f}, {}});
      if (fate.ok()) result.runs.push_back(run_result);
    }
    core->OnStepResult(result, now);
    Collect();
    return true;
  }
  void RunAll() {
    while (RunStep()) {
    }
  }

  // Rows stand where their state ends, in what the sequence has so far.
  void ExpectNextTokens(const StepRun& run) {
    std::vector<int32_t> all = prompts[run.request];
    const std::vector<int32_t>& tokens = made[run.request];
    all.insert(all.end(), tokens.begin(), tokens.end());
    const size_t begin = static_cast<size_t>(run.rows.state->length());
    ASSERT_LE(begin + run.rows.tokens.size(), all.size());
    EXPECT_TRUE(std::equal(run.rows.tokens.begin(), run.rows.tokens.end(),
                           all.begin() + static_cast<std::ptrdiff_t>(begin)));
    EXPECT_EQ(run.sample, begin + run.rows.tokens.size() == all.size());
  }

  void Collect() {
    for (Output& output : core->TakeOutputs()) {
      ASSERT_FALSE(ended.contains(output.request)) << "output after the end";
      auto& tokens = made[output.request];
      tokens.insert(tokens.end(), output.token_ids.begin(),
                    output.token_ids.end());
      prompt_logprobs[output.request] +=
          static_cast<int>(output.prompt_logprobs.size());
      if (output.finished) ended[output.request] = output;
    }
  }

  absl::Time now = absl::UnixEpoch();
  uint64_t next_id = 1;
  std::unique_ptr<SequencePool> pool;
  std::unique_ptr<TrunkWorker> core;
  std::map<RequestId, std::vector<int32_t>> prompts, made;
  std::map<RequestId, Output> ended;
  std::map<RequestId, int> prompt_logprobs;
  std::vector<RequestId> last_plan;
};

GenerationRequest Request(int prompt_tokens, int64_t max_tokens) {
  GenerationRequest request;
  for (int i = 0; i < prompt_tokens; ++i) request.prompt.push_back(i + 1);
  request.max_tokens = max_tokens;
  return request;
}

TEST(TrunkWorker, MakesMaxTokensAndReportsLengthAndUsage) {
  FakeEdge edge({.batch = {.rows_max = 16, .prefill_chunk = 8}});
  const RequestId id = edge.Send(Request(20, 5));
  edge.RunAll();
  const Output& end = edge.ended.at(id);
  EXPECT_TRUE(end.status.ok());
  EXPECT_EQ(end.reason, FinishReason::kLength);
  EXPECT_EQ(end.usage.prompt_tokens, 20);
  EXPECT_EQ(end.usage.output_tokens, 5);
  EXPECT_EQ(end.usage.prefill, absl::Milliseconds(3));  // 8 + 8 + 4 rows
  EXPECT_EQ(end.usage.decode, absl::Milliseconds(4));
  ASSERT_EQ(edge.made[id].size(), 5u);
  for (uint64_t i = 0; i < 5; ++i)
    EXPECT_EQ(edge.made[id][i], TokenOf(edge.prompts[id], i));
  EXPECT_EQ(edge.pool->sequences(), 0);
}

TEST(TrunkWorker, StopsAtAStopTokenAndCountsIt) {
  FakeEdge edge;
  GenerationRequest request = Request(3, 400);
  request.stop_token_ids = {kEos, TokenOf(request.prompt, 6)};
  const RequestId id = edge.Send(request);
  edge.RunAll();
  EXPECT_EQ(edge.ended.at(id).reason, FinishReason::kStop);
  EXPECT_LE(edge.made[id].size(), 7u);
  EXPECT_EQ(edge.made[id].back(),
            TokenOf(request.prompt, edge.made[id].size() - 1));
}

TEST(TrunkWorker, PromptLogprobsCoverEveryPromptTokenAfterTheFirst) {
  FakeEdge edge({.batch = {.rows_max = 8, .prefill_chunk = 3}});
  GenerationRequest request = Request(11, 2);
  request.prompt_logprobs = true;
  request.id = RequestId(1);
  edge.prompts[request.id] = request.prompt;
  edge.core->Step(Submit{request}, edge.now);
  std::vector<Output> outputs;
  while (outputs.empty()) {
    const StepPlan& plan = edge.core->PlanStep(edge.now);
    StepResult result;
    for (const StepRun& run : plan.runs) {
      EXPECT_EQ(run.rows.logits, LogitRows::kAll);
      run.rows.state->BeginStep(run.rows.tokens.size());
      run.rows.state->CommitStep();
      RunResult run_result;
      for (int32_t id : run.following)
        run_result.prompt_logprobs.push_back({{id, -2.0f}, {}});
      result.runs.push_back(run_result);
    }
    edge.core->OnStepResult(result, edge.now);
    outputs = edge.core->TakeOutputs();
  }
  ASSERT_EQ(outputs[0].prompt_logprobs.size(), 10u);
  for (size_t i = 0; i < 10; ++i)
    EXPECT_EQ(outputs[0].prompt_logprobs[i].chosen.id, request.prompt[i + 1]);
}

TEST(TrunkWorker, CancelFreesTheSlotBeforeTheNextStep) {
  FakeEdge edge;
  const RequestId one = edge.Send(Request(4, 100));
  const RequestId two = edge.Send(Request(5, 100));
  edge.RunStep();
  EXPECT_EQ(edge.pool->sequences(), 2);
  edge.core->Step(Cancel{one, absl::CancelledError("gone")}, edge.now);
  EXPECT_EQ(edge.pool->sequences(), 1);
  edge.RunStep();
  EXPECT_EQ(edge.last_plan, (std::vector<RequestId>{two}));
  EXPECT_EQ(edge.ended.at(one).status.code(), absl::StatusCode::kCancelled);
}

TEST(TrunkWorker, CancelDuringAStepEndsAtOnceAndFreesWhenTheStepReports) {
  FakeEdge edge;
  const RequestId id = edge.Send(Request(4, 100));
  const StepPlan& plan = edge.core->PlanStep(edge.now);
  ASSERT_EQ(plan.runs.size(), 1u);
  plan.runs[0].rows.state->BeginStep(4);
  edge.core->Step(Cancel{id, absl::CancelledError("gone")}, edge.now);
  edge.Collect();
  EXPECT_TRUE(edge.ended.contains(id));
  EXPECT_EQ(edge.pool->sequences(), 1) << "the step still reads the state";
  plan.runs[0].rows.state->CommitStep();
  StepResult result;
  result.runs.resize(1);
  edge.core->OnStepResult(result, edge.now);
  edge.Collect();
  EXPECT_EQ(edge.pool->sequences(), 0);
}

TEST(TrunkWorker, ADeadlineEndsRunningAndWaitingRequests) {
  FakeEdge edge({}, {.sequences_max = 1, .tokens_max = 512});
  GenerationRequest running = Request(4, 400);
  running.deadline = edge.now + absl::Milliseconds(10);
  GenerationRequest waiting = Request(4, 400);
  waiting.deadline = edge.now + absl::Milliseconds(5);
  waiting.wait_for_capacity = true;
  const RequestId one = edge.Send(running);
  const RequestId two = edge.Send(waiting);
  EXPECT_EQ(edge.core->NextDeadline(), waiting.deadline);
  edge.RunAll();
  EXPECT_EQ(edge.ended.at(one).status.code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(edge.ended.at(two).status.message(), HasSubstr("waited"));
  EXPECT_EQ(edge.made[one].size(), 9u);
  GenerationRequest late = Request(4, 4);
  late.deadline = edge.now;
  EXPECT_EQ(edge.ended.at(edge.Send(late)).status.code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(TrunkWorker, AFullServerRefusesAtOnceOrLetsWaitInOrder) {
  FakeEdge edge({.waiting_max = 2}, {.sequences_max = 1, .tokens_max = 512});
  const RequestId first = edge.Send(Request(4, 10));
  const RequestId refused = edge.Send(Request(4, 10));
  EXPECT_EQ(edge.ended.at(refused).status.code(),
            absl::StatusCode::kResourceExhausted);
  GenerationRequest patient = Request(4, 10);
  patient.wait_for_capacity = true;
  const RequestId second = edge.Send(patient);
  const RequestId third = edge.Send(patient);
  const RequestId overflow = edge.Send(patient);
  EXPECT_THAT(edge.ended.at(overflow).status.message(),
              HasSubstr("the queue is full: 2"));
  edge.RunAll();
  for (RequestId id : {first, second, third})
    EXPECT_TRUE(edge.ended.at(id).status.ok());
  EXPECT_LT(edge.ended.at(second).usage.queued,
            edge.ended.at(third).usage.queued);
}

TEST(TrunkWorker, TheServersOwnRequestsTakeNoPlaceInTheQueue) {
  FakeEdge edge({.waiting_max = 1}, {.sequences_max = 1, .tokens_max = 512});
  const RequestId first = edge.Send(Request(4, 10));
  GenerationRequest own = Request(4, 10);
  own.wait_for_capacity = true;
  own.background = true;
  const RequestId canary = edge.Send(own);
  GenerationRequest patient = Request(4, 10);
  patient.wait_for_capacity = true;
  const RequestId waits = edge.Send(patient);
  const RequestId overflow = edge.Send(patient);
  EXPECT_THAT(edge.ended.at(overflow).status.message(),
              HasSubstr("the queue is full: 1"));
  const RequestId another = edge.Send(own);
  edge.RunAll();
  for (RequestId id : {first, canary, waits, another})
    EXPECT_TRUE(edge.ended.at(id).status.ok());
}

TEST(TrunkWorker, AFailedStepEndsItsSequencesWithTheErrorAndTheNextOnesRun) {
  FakeEdge edge;
  const RequestId id = edge.Send(Request(4, 10));
  edge.RunStep();
  edge.RunStep(absl::InternalError("worker expert-1, layer 4, expert 9"));
  EXPECT_EQ(edge.ended.at(id).status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(edge.ended.at(id).status.message(), HasSubstr("expert 9"));
  EXPECT_EQ(edge.pool->sequences(), 0);
  EXPECT_EQ(edge.core->recomputed(), 0u);
  const RequestId next = edge.Send(Request(4, 10));
  edge.RunAll();
  EXPECT_TRUE(edge.ended.at(next).status.ok());
}

TEST(TrunkWorker, AStepWithoutItsExpertsIsComputedAnewWithPromptAndOutputs) {
  FakeEdge edge({.batch = {.rows_max = 8, .prefill_chunk = 4}});
  GenerationRequest with_logprobs = Request(9, 12);
  with_logprobs.prompt_logprobs = true;
  const RequestId one = edge.Send(with_logprobs);
  const RequestId two = edge.Send(Request(5, 12));
  const absl::Status away =
      absl::UnavailableError("worker expert-1, layer 4, expert 9");
  const absl::Status late = absl::DeadlineExceededError("layer 4");
  // In the prompt, behind it, and again while the text is built anew.
  for (int i = 0; i < 40; ++i) {
    edge.RunStep(i % 5 == 1 ? away : i % 7 == 2 ? late : absl::OkStatus());
  }
  edge.RunAll();
  for (const RequestId id : {one, two}) {
    EXPECT_TRUE(edge.ended.at(id).status.ok()) << edge.ended.at(id).status;
    ASSERT_EQ(edge.made[id].size(), 12u);
    for (uint64_t i = 0; i < 12; ++i)
      EXPECT_EQ(edge.made[id][i], TokenOf(edge.prompts[id], i));
  }
  EXPECT_GT(edge.core->recomputed(), 4u);
  EXPECT_EQ(edge.prompt_logprobs[one], 8) << "delivered once, all of them";
  EXPECT_EQ(edge.pool->bytes_used(), 0);
}

TEST(TrunkWorker, StepsThatKeepFailingEndTheirSequencesAfterThePatience) {
  FakeEdge edge({.unready_patience = absl::Seconds(5)});
  const RequestId id = edge.Send(Request(4, 10));
  edge.RunStep();
  const absl::Time began = edge.now;
  int steps = 0;
  for (; !edge.ended.contains(id); ++steps) {
    ASSERT_TRUE(edge.RunStep(
        absl::UnavailableError("worker expert-1, layer 4, expert 9")));
  }
  EXPECT_EQ(edge.ended.at(id).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(edge.ended.at(id).status.message(), HasSubstr("expert 9"));
  EXPECT_GE(edge.now - began, absl::Seconds(5));
  EXPECT_LE(edge.now - began, absl::Seconds(7));
  EXPECT_LE(steps, 15) << "failing steps follow each other without a rest";
  EXPECT_EQ(edge.pool->sequences(), 0);
}

TEST(TrunkWorker, WhileExpertsAreAwayRunningRequestsAreHeldThenEnd) {
  FakeEdge edge({.unready_patience = absl::Seconds(2)});
  const RequestId held = edge.Send(Request(4, 100));
  edge.RunStep();
  const size_t made = edge.made[held].size();
  const absl::Status away = absl::UnavailableError("no placement");
  edge.core->Step(Readiness{away}, edge.now);
  EXPECT_FALSE(edge.RunStep());
  EXPECT_EQ(edge.ended.at(edge.Send(Request(4, 4))).status, away);
  GenerationRequest patient = Request(4, 4);
  patient.wait_for_capacity = true;
  const RequestId waiting = edge.Send(patient);

  edge.now += absl::Seconds(1);
  edge.core->Step(Readiness{absl::OkStatus()}, edge.now);
  edge.RunStep();
  EXPECT_GT(edge.made[held].size(), made) << "the pause broke the stream";
  EXPECT_TRUE(edge.made.contains(waiting));

  edge.core->Step(Readiness{away}, edge.now);
  edge.now += absl::Seconds(2);
  edge.RunStep();
  EXPECT_EQ(edge.ended.at(held).status, away);
  EXPECT_EQ(edge.pool->sequences(), 0);
}

TEST(TrunkWorker, DrainingRefusesNewRequestsAndFinishesTheOldOnes) {
  FakeEdge edge;
  const RequestId old = edge.Send(Request(4, 10));
  edge.core->Step(Drain{}, edge.now);
  EXPECT_EQ(edge.ended.at(edge.Send(Request(4, 10))).status.code(),
            absl::StatusCode::kUnavailable);
  edge.RunAll();
  EXPECT_TRUE(edge.ended.at(old).status.ok());
}

TEST(TrunkWorker, RequestsThatCanNotRunAreRefusedByName) {
  FakeEdge edge;
  GenerationRequest bad_id = Request(4, 4);
  bad_id.prompt[2] = kVocab;
  GenerationRequest bad_top_p = Request(4, 4);
  bad_top_p.sampling.top_p = 2.0f;
  GenerationRequest bad_stop = Request(4, 4);
  bad_stop.stop = {"a", ""};
  const std::vector<std::pair<GenerationRequest, const char*>> cases = {
      {Request(0, 4), "prompt is empty"}, {Request(4, 600), "max_tokens 600"},
      {Request(512, 0), "max_tokens 1"},  {bad_id, "prompt tokens[2] is 1000"},
      {bad_top_p, "sampling.top_p is 2"}, {bad_stop, "stop[1] is empty"}};
  for (const auto& [request, message] : cases) {
    const Output& end = edge.ended.at(edge.Send(request));
    EXPECT_EQ(end.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(end.status.message(), HasSubstr(message));
  }
  GenerationRequest stop = Request(4, 4);
  stop.stop = {"x"};
  EXPECT_EQ(edge.ended.at(edge.Send(stop)).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

// Random lives: submissions of all sizes, cancels, deadlines, failed steps,
// experts that come and go. Every request ends exactly once (Collect checks),
// its tokens are a prefix of what it would make alone, an accepted one that is
// left alone finishes, and every slot returns.
TEST(TrunkWorker, RandomWalksLoseNoRequestNoSlotAndNoToken) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed);
    FakeEdge edge(
        {.batch = {.rows_max = 2 + static_cast<int64_t>(random.NextBelow(20)),
                   .prefill_chunk =
                       1 + static_cast<int64_t>(random.NextBelow(20))},
         .waiting_max = 3,
         .unready_patience = absl::Milliseconds(20)},
        {.sequences_max = 3, .tokens_max = 200});
    std::map<RequestId, int64_t> wanted;
    std::map<RequestId, bool> disturbed;
    bool ready = true;
    for (int i = 0; i < 200; ++i) {
      switch (random.NextBelow(12)) {
        case 0:
        case 1:
        case 2: {
          GenerationRequest r =
              Request(1 + static_cast<int>(random.NextBelow(60)),
                      1 + static_cast<int64_t>(random.NextBelow(40)));
          r.prompt[0] = static_cast<int32_t>(random.NextBelow(kVocab));
          r.wait_for_capacity = random.NextBelow(2) != 0;
          const bool deadline = random.NextBelow(4) == 0;
          if (deadline)
            r.deadline = edge.now + absl::Milliseconds(random.NextBelow(30));
          const RequestId id = edge.Send(r);
          wanted[id] = r.max_tokens;
          disturbed[id] = deadline;
          break;
        }
        case 3: {
          if (edge.next_id == 1) break;
          const RequestId id(1 + random.NextBelow(edge.next_id - 1));
          disturbed[id] = true;
          edge.core->Step(Cancel{id, absl::CancelledError("client")}, edge.now);
          edge.Collect();
          break;
        }
        case 4:
          if (random.NextBelow(4) == 0) {
            ready = !ready;
            edge.core->Step(Readiness{ready ? absl::OkStatus()
                                            : absl::UnavailableError("away")},
                            edge.now);
          }
          break;
        case 5:
          if (random.NextBelow(4) == 0) {
            edge.RunStep(absl::UnavailableError("worker"));
            break;
          }
          [[fallthrough]];
        default:
          edge.RunStep();
      }
      ASSERT_EQ(edge.pool->sequences(),
                static_cast<int64_t>(edge.core->running()));
    }
    edge.core->Step(Readiness{absl::OkStatus()}, edge.now);
    edge.RunAll();
    EXPECT_TRUE(edge.core->idle());
    EXPECT_EQ(edge.pool->bytes_used(), 0);
    for (const auto& [id, tokens] : wanted) {
      ASSERT_TRUE(edge.ended.contains(id)) << "seed " << seed << " id " << id;
      const auto& made = edge.made[id];
      for (size_t i = 0; i < made.size(); ++i)
        ASSERT_EQ(made[i], TokenOf(edge.prompts[id], i));
      const absl::StatusCode code = edge.ended[id].status.code();
      if (code == absl::StatusCode::kOk) {
        EXPECT_EQ(static_cast<int64_t>(made.size()), tokens);
      } else if (code == absl::StatusCode::kCancelled ||
                 code == absl::StatusCode::kDeadlineExceeded) {
        EXPECT_TRUE(disturbed[id]) << "seed " << seed;
      } else {
        EXPECT_TRUE(code == absl::StatusCode::kResourceExhausted ||
                    code == absl::StatusCode::kUnavailable)
            << edge.ended[id].status;
      }
    }
  }
}

}  // namespace
}  // namespace trunkline::trunk
