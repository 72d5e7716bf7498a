#include "dispatch/layer_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/dispatch/exchange_driver.h"

namespace trunkline::dispatch {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1000);

// Three workers; experts 0 and 1 on workers 1 and 2, expert 2 on worker 3
// alone. Two tokens: (0: experts 0, 2), (1: experts 1, 2).
class LayerExchangeTest : public ::testing::Test {
 protected:
  LayerExchangeTest() {
    placement_.layer = LayerIndex(5);
    placement_.replicas = {{{WorkerId(1), 0}, {WorkerId(2), 0}},
                           {{WorkerId(1), 1}, {WorkerId(2), 1}},
                           {{WorkerId(3), 0}}};
    table_.Clear(2, 3, 2);
    table_.Add(0, 0, ExpertId(0), 0.5f);
    table_.Add(0, 1, ExpertId(2), 0.5f);
    table_.Add(1, 0, ExpertId(1), 0.5f);
    table_.Add(1, 1, ExpertId(2), 0.5f);
  }
  std::vector<SendAction> Begin() {
    auto sends = exchange_.Begin(
        StepId(9), 1, &table_, &placement_, PlacementVersion(4),
        {WorkerId(1), WorkerId(2), WorkerId(3)}, limits_, kStart);
    EXPECT_TRUE(sends.ok()) << sends.status();
    return *sends;
  }
  AnswerParts AnswerTo(const SendAction& send) const {
    return MakeAnswer(send, table_, StepId(9), LayerIndex(5), 1);
  }
  RefusalFrameView RefusalOf(const SendAction& send, RefusalCode code) const {
    return {MakeReplyHeader(send, StepId(9), LayerIndex(5), 1, code),
            "because"};
  }

  placement::LayerPlacement placement_;
  routing::RouteTable table_;
  LayerExchange::Limits limits_;
  LayerExchange exchange_;
};

TEST_F(LayerExchangeTest, IsDoneWhenEveryShareIsAnswered) {
  const auto sends = Begin();
  ASSERT_EQ(sends.size(), 3u);
  EXPECT_FALSE(exchange_.CheckConservation().ok());
  uint32_t number = 70;
  for (const SendAction& send : sends) {
    EXPECT_FALSE(exchange_.done());
    EXPECT_EQ(send.version, PlacementVersion(4));
    AnswerParts answer = AnswerTo(send);
    const auto used =
        exchange_.OnAnswer(send.share->worker, answer.View(), number++);
    ASSERT_TRUE(used.ok()) << used.status();
    EXPECT_TRUE(*used);
  }
  EXPECT_TRUE(exchange_.done());
  EXPECT_EQ(exchange_.next_deadline(), absl::InfiniteFuture());
  EXPECT_TRUE(exchange_.CheckConservation().ok());
  EXPECT_EQ(exchange_.counters().routes_done, 4u);
  // Expert 2's rows are the two of worker 3's answer, in its order.
  EXPECT_EQ(exchange_.answers()[1].answer, 72u);
  EXPECT_EQ(exchange_.answers()[1].row, 0u);
  EXPECT_EQ(exchange_.answers()[3].row, 1u);
}

TEST_F(LayerExchangeTest, TakesTheRowsOfAnAnswerInAnyOrder) {
  const auto sends = Begin();
  const SendAction& two = sends[2];
  AnswerParts answer = AnswerTo(two);
  std::swap(answer.token_id[0], answer.token_id[1]);
  std::swap(answer.slot[0], answer.slot[1]);
  const auto used = exchange_.OnAnswer(WorkerId(3), answer.View(), 8);
  ASSERT_TRUE(used.ok()) << used.status();
  EXPECT_EQ(exchange_.answers()[1].row, 1u);
  EXPECT_EQ(exchange_.answers()[3].row, 0u);
}

TEST_F(LayerExchangeTest, RetriesOnAReplicaAndDropsTheDeadWorkersLateAnswer) {
  const auto sends = Begin();
  AnswerParts late = AnswerTo(sends[0]);
  const auto again =
      exchange_.OnWorkerDown(WorkerId(1), "connection lost", kStart);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->size(), 1u);
  EXPECT_EQ((*again)[0].share->worker, WorkerId(2));
  EXPECT_EQ((*again)[0].attempt, 1);
  EXPECT_EQ(exchange_.states()[0], RouteState::kRetried);
  const auto used = exchange_.OnAnswer(WorkerId(1), late.View(), 1);
  ASSERT_TRUE(used.ok());
  EXPECT_FALSE(*used);
  EXPECT_EQ(exchange_.counters().late_answers, 1u);
  EXPECT_EQ(exchange_.counters().workers_failed, 1u);
  EXPECT_EQ(exchange_.counters().routes_retried, 1u);
  for (const SendAction* send : {&sends[1], &sends[2], &(*again)[0]}) {
    AnswerParts answer = AnswerTo(*send);
    ASSERT_TRUE(*exchange_.OnAnswer(send->share->worker, answer.View(), 2));
  }
  EXPECT_TRUE(exchange_.done());
  EXPECT_TRUE(exchange_.CheckConservation().ok());
}

TEST_F(LayerExchangeTest, NamesWorkerLayerAndExpertWhenNoReplicaIsLeft) {
  Begin();
  const auto again =
      exchange_.OnWorkerDown(WorkerId(3), "connection lost", kStart);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), absl::StatusCode::kUnavailable);
  const std::string message(again.status().message());
  EXPECT_THAT(message, HasSubstr("worker 3"));
  EXPECT_THAT(message, HasSubstr("layer 5"));
  EXPECT_THAT(message, HasSubstr("expert 2"));
  EXPECT_THAT(message, HasSubstr("connection lost"));
  // The first error is final.
  EXPECT_EQ(exchange_.Tick(kStart).status(), again.status());
  EXPECT_EQ(exchange_.OnWorkerDown(WorkerId(1), "later", kStart).status(),
            again.status());
  EXPECT_EQ(exchange_.states()[0], RouteState::kFailed);
  EXPECT_FALSE(exchange_.done());
  EXPECT_FALSE(exchange_.CheckConservation().ok());
}

TEST_F(LayerExchangeTest, DropsADuplicateAnswer) {
  const auto sends = Begin();
  AnswerParts answer = AnswerTo(sends[0]);
  EXPECT_TRUE(*exchange_.OnAnswer(WorkerId(1), answer.View(), 1));
  EXPECT_FALSE(*exchange_.OnAnswer(WorkerId(1), answer.View(), 2));
  EXPECT_EQ(exchange_.answers()[0].answer, 1u);
}

TEST_F(LayerExchangeTest, DropsAnswersOfEarlierStepsAndLayers) {
  const auto sends = Begin();
  AnswerParts answer = AnswerTo(sends[0]);
  answer.header.step_id = 8;
  answer.header.layer = 50;  // of an older step: nothing else matters
  EXPECT_FALSE(*exchange_.OnAnswer(WorkerId(1), answer.View(), 1));
  answer.header.step_id = 9;
  answer.header.layer = 4;
  EXPECT_FALSE(*exchange_.OnAnswer(WorkerId(1), answer.View(), 1));
  EXPECT_EQ(exchange_.counters().late_answers, 2u);
}

TEST_F(LayerExchangeTest, CallsEveryAnswerThatWasNeverAskedForALie) {
  const auto sends = Begin();
  using Change = void (*)(AnswerParts&);
  const std::vector<std::pair<std::string, Change>> lies = {
      {"step", [](AnswerParts& a) { a.header.step_id = 10; }},
      {"layer", [](AnswerParts& a) { a.header.layer = 6; }},
      {"micro-batch", [](AnswerParts& a) { a.header.micro_batch = 0; }},
      {"attempt", [](AnswerParts& a) { a.header.attempt = 1; }},
      {"worker rank", [](AnswerParts& a) { a.header.worker_rank = 1; }},
      {"placement version",
       [](AnswerParts& a) { a.header.placement_version = 3; }},
      {"expert 1", [](AnswerParts& a) { a.expert_id[0] = 1; }},
      {"slot 0", [](AnswerParts& a) { a.slot[0] = 0; }},
      {"token 7", [](AnswerParts& a) { a.token_id[0] = 7; }},
      {"slot 1 twice", [](AnswerParts& a) { a.token_id[1] = a.token_id[0]; }},
      {"1 routes where 2",
       [](AnswerParts& a) {
         a.token_id.pop_back();
         a.slot.pop_back();
         a.expert_id.pop_back();
       }},
      {"3 routes where 2",
       [](AnswerParts& a) {
         a.token_id.push_back(0);
         a.slot.push_back(0);
         a.expert_id.push_back(0);
       }},
  };
  for (const auto& [names, change] : lies) {
    AnswerParts answer = AnswerTo(sends[2]);
    change(answer);
    const auto used = exchange_.OnAnswer(WorkerId(3), answer.View(), 1);
    ASSERT_FALSE(used.ok()) << names;
    EXPECT_EQ(used.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(used.status().message());
    EXPECT_THAT(message, HasSubstr("worker 3"));
    EXPECT_THAT(message, HasSubstr(names));
    EXPECT_EQ(exchange_.answers()[1].answer, UINT32_MAX) << names;
  }
  // The true one is still taken.
  AnswerParts answer = AnswerTo(sends[2]);
  EXPECT_TRUE(*exchange_.OnAnswer(WorkerId(3), answer.View(), 1));
}

TEST_F(LayerExchangeTest, MovesTheRoutesOfAWorkerThatRefuses) {
  for (RefusalCode code : {RefusalCode::kMalformed, RefusalCode::kWrongCluster,
                           RefusalCode::kWrongWorker, RefusalCode::kNotOwner,
                           RefusalCode::kWrongShape, RefusalCode::kOverloaded,
                           RefusalCode::kDraining, RefusalCode::kInternal}) {
    const auto sends = Begin();
    const auto again =
        exchange_.OnRefused(WorkerId(1), RefusalOf(sends[0], code), kStart);
    ASSERT_TRUE(again.ok()) << again.status();
    ASSERT_EQ(again->size(), 1u);
    EXPECT_EQ((*again)[0].share->worker, WorkerId(2));
    EXPECT_EQ(exchange_.counters().refusals, 1u);
    ASSERT_EQ(exchange_.excluded().size(), 1u);
    EXPECT_EQ(exchange_.excluded()[0], WorkerId(1));
  }
}

TEST_F(LayerExchangeTest, SaysWhyTheLastHolderRefused) {
  const auto sends = Begin();
  const auto again = exchange_.OnRefused(
      WorkerId(3), RefusalOf(sends[2], RefusalCode::kNotOwner), kStart);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(std::string(again.status().message()),
              HasSubstr("worker 3: refused: not the owner of an expert: "
                        "because"));
}

TEST_F(LayerExchangeTest, WaitsForANewerPlacementWhenTheVersionIsUnknown) {
  const auto sends = Begin();
  const auto again = exchange_.OnRefused(
      WorkerId(3), RefusalOf(sends[2], RefusalCode::kUnknownVersion), kStart);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition);
  for (const SendAction* send : {&sends[0], &sends[1]}) {
    AnswerParts answer = AnswerTo(*send);
    ASSERT_TRUE(*exchange_.OnAnswer(send->share->worker, answer.View(), 1));
  }
  EXPECT_FALSE(exchange_.done());
  const std::vector<WorkerId> live = {WorkerId(2), WorkerId(4)};
  EXPECT_EQ(exchange_.Replace(&placement_, PlacementVersion(4), live, kStart)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  placement::LayerPlacement other = placement_;
  other.layer = LayerIndex(6);
  EXPECT_EQ(exchange_.Replace(&other, PlacementVersion(5), live, kStart)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  placement::LayerPlacement newer = placement_;
  newer.replicas[2] = {{WorkerId(4), 0}};
  const auto sent =
      exchange_.Replace(&newer, PlacementVersion(5), live, kStart);
  ASSERT_TRUE(sent.ok()) << sent.status();
  ASSERT_EQ(sent->size(), 1u);
  EXPECT_EQ((*sent)[0].version, PlacementVersion(5));
  EXPECT_EQ((*sent)[0].share->worker, WorkerId(4));
  AnswerParts answer = AnswerTo((*sent)[0]);
  ASSERT_TRUE(*exchange_.OnAnswer(WorkerId(4), answer.View(), 2));
  EXPECT_TRUE(exchange_.done());
  EXPECT_TRUE(exchange_.CheckConservation().ok());
}

TEST_F(LayerExchangeTest, PlansAgainAtOnceWhenTheNewerPlacementIsKnown) {
  const auto sends = Begin();
  const std::vector<WorkerId> live = {WorkerId(1), WorkerId(2), WorkerId(3)};
  ASSERT_TRUE(
      exchange_.Replace(&placement_, PlacementVersion(5), live, kStart).ok());
  const auto again = exchange_.OnRefused(
      WorkerId(3), RefusalOf(sends[2], RefusalCode::kUnknownVersion), kStart);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->size(), 1u);
  EXPECT_EQ((*again)[0].version, PlacementVersion(5));
  EXPECT_EQ((*again)[0].share->worker, WorkerId(3));
}

TEST_F(LayerExchangeTest, NeverPlansOnAnExcludedWorkerAgain) {
  Begin();
  ASSERT_TRUE(exchange_.OnWorkerDown(WorkerId(1), "gone", kStart).ok());
  const std::vector<WorkerId> live = {WorkerId(1), WorkerId(2), WorkerId(3)};
  ASSERT_TRUE(
      exchange_.Replace(&placement_, PlacementVersion(5), live, kStart).ok());
  const auto again = exchange_.OnWorkerDown(WorkerId(2), "gone", kStart);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(LayerExchangeTest, TreatsAWorkerThatMissesItsDeadlineAsDown) {
  const auto sends = Begin();
  AnswerParts third = AnswerTo(sends[2]);
  ASSERT_TRUE(*exchange_.OnAnswer(WorkerId(3), third.View(), 1));
  EXPECT_EQ(exchange_.next_deadline(), kStart + limits_.worker_deadline);
  const absl::Time later = kStart + absl::Seconds(3);
  const auto moved = exchange_.OnWorkerDown(WorkerId(1), "gone", later);
  ASSERT_TRUE(moved.ok());
  // The first share of worker 2 is overdue now; with it goes the second.
  const auto none =
      exchange_.Tick(kStart + limits_.worker_deadline - absl::Nanoseconds(1));
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
  const auto missed = exchange_.Tick(kStart + limits_.worker_deadline);
  EXPECT_EQ(missed.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(missed.status().message()),
              HasSubstr("worker 2: no answer within 10s"));
  EXPECT_EQ(exchange_.counters().deadlines_missed, 1u);
}

TEST_F(LayerExchangeTest, EndsWhenTheStepsDeadlineIsMissed) {
  limits_.worker_deadline = absl::Hours(1);
  Begin();
  EXPECT_EQ(exchange_.next_deadline(), kStart + limits_.step_deadline);
  const auto missed = exchange_.Tick(kStart + limits_.step_deadline);
  EXPECT_EQ(missed.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(missed.status().message()), HasSubstr("layer 5"));
  EXPECT_THAT(std::string(missed.status().message()), HasSubstr("worker 1"));
}

TEST_F(LayerExchangeTest, GivesUpAfterTheAllowedAttempts) {
  limits_.attempts_max = 1;
  Begin();
  const auto again = exchange_.OnWorkerDown(WorkerId(1), "gone", kStart);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(again.status().message()),
              HasSubstr("unanswered after 1 attempts after worker 1: gone"));
}

TEST_F(LayerExchangeTest, IsDoneAtOnceWithoutAcceptedRoutes) {
  for (auto& fate : table_.fate) fate = routing::RouteFate::kDropped;
  EXPECT_TRUE(Begin().empty());
  EXPECT_TRUE(exchange_.done());
  EXPECT_TRUE(exchange_.CheckConservation().ok());
}

}  // namespace
}  // namespace trunkline::dispatch
