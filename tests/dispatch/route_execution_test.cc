#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "dispatch/layer_exchange.h"
#include "routing/physical_route.h"
#include "routing/route_validator.h"
#include "tests/dispatch/exchange_driver.h"
#include "tests/dispatch/random_layer.h"

namespace trunkline::dispatch {
namespace {

void Describe(const LayerExchange& exchange, routing::LayerRecord* record) {
  std::vector<RouteExecution> executions;
  exchange.DescribeExecution(&executions);
  record->placement_version = PlacementVersion(5);
  for (uint32_t route : record->handoff_routes) {
    record->physical.push_back(PhysicalOf(WorkerId(1), executions[route]));
  }
}

// A routed layer of the serving policy, sent over random placements, with a
// worker lost on the way in half of the cases: the record of it keeps every
// contract.
TEST(RouteExecution, MakesARecordThatTheValidatorAccepts) {
  RandomStream random(61);
  int retried = 0;
  for (int i = 0; i < 2000; ++i) {
    const RandomLayer layer = MakeRandomLayer(random, 1, 9, 4, false);
    routing::LayerRecord record;
    record.step = StepId(3);
    record.layer = layer.placement.layer;
    const auto experts = static_cast<int64_t>(layer.placement.replicas.size());
    record.policy = routing::NemotronHPolicy(
        experts,
        static_cast<int64_t>(1 +
                             random.NextBelow(static_cast<uint64_t>(experts))),
        1, 1, true, 2.5);
    const auto rows = static_cast<int64_t>(random.NextBelow(7));
    record.bias.assign(static_cast<size_t>(experts), 0.0f);
    for (int64_t v = 0; v < rows * experts; ++v) {
      record.values.push_back(static_cast<float>(random.NextUnit()));
    }
    ASSERT_TRUE(routing::FillRecord(rows, &record).ok());

    LayerExchange exchange;
    const absl::Time now = absl::UnixEpoch();
    const auto begun = exchange.Begin(
        record.step, 0, &record.table, &layer.placement, PlacementVersion(5),
        layer.workers, LayerExchange::Limits(), now);
    ASSERT_TRUE(begun.ok());
    std::deque<SendAction> sends(begun->begin(), begun->end());
    bool lost = random.NextBelow(2) == 0;
    bool failed = false;
    while (!sends.empty()) {
      const SendAction send = sends.front();
      sends.pop_front();
      if (lost) {
        lost = false;
        const auto again =
            exchange.OnWorkerDown(send.share->worker, "lost", now);
        failed = !again.ok();
        if (failed) break;
        sends.insert(sends.end(), again->begin(), again->end());
        retried += again->empty() ? 0 : 1;
        continue;
      }
      const AnswerParts answer =
          MakeAnswer(send, record.table, record.step, record.layer, 0);
      ASSERT_TRUE(*exchange.OnAnswer(send.share->worker, answer.View(), 0));
    }
    if (failed) continue;  // no replica was left
    Describe(exchange, &record);
    const absl::Status status = routing::ValidateLayer(record);
    ASSERT_TRUE(status.ok()) << "case " << i << ": " << status;
  }
  EXPECT_GT(retried, 300);
}

}  // namespace
}  // namespace trunkline::dispatch
