// What the placement commands print, whole: a change of it is a change of the
// program's interface.

#include "cli/placement_report.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "cli/worker_report.h"

namespace trunkline::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

template <typename Message>
Message Parse(const char* text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

constexpr char kShow[] = R"(
  active_version: 3 cluster_id: 77 epoch: 2
  pinned: true pin_reason: "an experiment" blocked: "no room"
  load { slowest: 10 ideal: 9 balancedness: 0.9 }
  versions { version: 3 state: PLACEMENT_STATE_ACTIVE origin: "initial"
             copies: 128 workers: 2 workers_ready: 2 bytes_loaded: 9
             bytes_total: 9 }
  versions { version: 4 state: PLACEMENT_STATE_STAGING origin: "apply"
             replaces: 3 copies: 128 workers: 2 workers_ready: 1
             bytes_loaded: 1048576 bytes_total: 4194304 }
  workers { worker { worker_id: 0 name: "expert-0" role: WORKER_ROLE_EXPERT
                     alive: true data_address: "ucx://a:1"
                     memory_bytes: 1073741824 failure_domain: "h" }
            copies: 64 shard_bytes: 2097152 load_share: 0.55 }
  workers { worker { worker_id: 1 name: "expert-1" role: WORKER_ROLE_EXPERT
                     alive: true draining: true data_address: "ucx://b:1"
                     failure_domain: "h" }
            copies: 64 shard_bytes: 2097152 load_share: 0.45 }
  workers { worker { worker_id: 2 name: "trunk-0" role: WORKER_ROLE_TRUNK
                     alive: false api_address: "c:7080" failure_domain: "h" } }
)";

TEST(ShowText, SaysStateVersionsAndWorkers) {
  EXPECT_EQ(ShowText(Parse<admin::ShowResponse>(kShow)),
            R"(cluster 77, coordinator epoch 2
active version  3
blocked         no room
pinned          an experiment
balancedness    0.900 under the current loads

VERSION  STATE    ORIGIN   COPIES  WORKERS  LOADED                                WHY ABANDONED
      3  active   initial     128        2
      4  staging  apply       128        2  1 of 2 workers, 1.00 MiB of 4.00 MiB

ID  WORKER    ROLE    STATE     COPIES    SHARDS    MEMORY   LOAD  DOMAIN  ADDRESS
 0  expert-0  expert  serving       64  2.00 MiB  1.00 GiB  55.0%  h       ucx://a:1
 1  expert-1  expert  draining      64  2.00 MiB  no limit  45.0%  h       ucx://b:1
 2  trunk-0   trunk   lost                                         h       c:7080
)");
}

TEST(ShowText, SaysWhatAnEmptyClusterWaitsFor) {
  const std::string text = ShowText(Parse<admin::ShowResponse>(
      "waiting_for: 'expert workers: 1 of 3 have joined'"));
  EXPECT_THAT(text, HasSubstr("active version  none\n"));
  EXPECT_THAT(text, HasSubstr("waiting for     expert workers: 1 of 3"));
  EXPECT_THAT(text, Not(HasSubstr("balancedness")));
}

TEST(HistoryText, IsATableInUtc) {
  EXPECT_EQ(HistoryText(Parse<admin::HistoryResponse>(R"(
    entries { sequence: 12 unix_nanos: 1700000000123000000 version: 4
              state: PLACEMENT_STATE_ABANDONED detail: "expert-1 was lost" })")),
            R"( #  TIME (UTC)               VERSION  STATE      DETAIL
12  2023-11-14 22:13:20.123        4  abandoned  expert-1 was lost
)");
}

constexpr char kPlan[] = R"(
  base_version: 3 worthwhile: true reason: "wins 20 %" gain: 0.2
  before { slowest: 10 ideal: 8 balancedness: 0.8 }
  after { slowest: 8 ideal: 8 balancedness: 1 }
  moved_bytes: 2097152 drops: 1 expected_seconds: 1.5
  moves { layer: 1 expert: 7 worker_id: 1 worker: "expert-1" source_ids: 0
          source_ids: 5 bytes: 1048576 }
  moves { layer: 4 expert: 0 worker_id: 0 bytes: 1048576 }
  document: "{\"format\": \"trunkline.placement\"}"
)";

TEST(PlanText, SaysMovesBytesBalancednessAndTime) {
  const auto plan = Parse<admin::PlanResponse>(kPlan);
  const WorkerNames names = {{0, "expert-0"}, {1, "expert-1"}};
  EXPECT_EQ(PlanText(plan, names, 9),
            R"(against version 3: worth it, wins 20 %
moves           2 copies to load, 2.00 MiB; 1 copy to drop
balancedness    0.800 -> 1.000 (the slowest worker's time falls by 20.0%)
expected time   1.5 s to load

LAYER  EXPERT  TO        HELD BY                BYTES
    1       7  expert-1  expert-0, worker 5  1.00 MiB
    4       0  expert-0  disk                1.00 MiB
)");
  EXPECT_THAT(PlanText(plan, names, 1),
              HasSubstr("... and 1 more (--all lists them)\n"));
}

TEST(PlanText, SaysWhenThereIsNothingToDoOrNoTimeIsKnown) {
  auto plan = Parse<admin::PlanResponse>(kPlan);
  plan.set_expected_seconds(0);
  EXPECT_THAT(PlanText(plan, {}, 9), HasSubstr("not known"));
  plan.clear_moves();
  plan.set_worthwhile(false);
  plan.mutable_before()->set_slowest(0);
  const std::string text = PlanText(plan, {}, 9);
  EXPECT_THAT(text, HasSubstr("nothing to do, wins 20 %"));
  EXPECT_THAT(text, HasSubstr("none: nothing is loaded"));
  EXPECT_THAT(text, HasSubstr("no load is known"));
}

TEST(PlanJson, HoldsTheDocumentAsAnObject) {
  const auto json = PlanJson(Parse<admin::PlanResponse>(kPlan));
  EXPECT_EQ(json["document"]["format"], "trunkline.placement");
  EXPECT_EQ(json["moves"][0]["source_ids"][1], 5);
  EXPECT_EQ(json["moved_bytes"], 2097152);
}

DiffReport SomeDiff() {
  DiffReport report;
  report.from = "version 3";
  report.to = "plan.json";
  report.names = {{0, "expert-0"}, {1, "expert-1"}};
  report.diff.loads = {
      {LayerIndex(4), ExpertId(9), WorkerId(1), {WorkerId(0)}, 1048576}};
  report.diff.drops = {{LayerIndex(4), ExpertId(9), WorkerId(0)},
                       {LayerIndex(7), ExpertId(1), WorkerId(2)}};
  report.diff.bytes = 1048576;
  return report;
}

TEST(DiffText, ListsLoadsAndDropsByLayerAndExpert) {
  EXPECT_EQ(
      DiffText(SomeDiff(), 9),
      R"(version 3 -> plan.json: 1 copy to load, 1.00 MiB; 2 copies to drop

   LAYER  EXPERT  WORKER       BYTES
+      4       9  expert-1  1.00 MiB
-      4       9  expert-0
-      7       1  worker 2
)");
  DiffReport same = SomeDiff();
  same.diff = {};
  EXPECT_EQ(DiffText(same, 9), "version 3 -> plan.json: the same owners\n");
}

TEST(DiffJson, NamesWorkersAndSources) {
  const auto json = DiffJson(SomeDiff());
  EXPECT_EQ(json["loads"][0]["worker"], "expert-1");
  EXPECT_EQ(json["loads"][0]["source_ids"][0], 0);
  EXPECT_EQ(json["drops"][1]["worker"], "worker 2");
  EXPECT_EQ(json["moved_bytes"], 1048576);
}

TEST(LoadsText, SumsEachLayer) {
  EXPECT_EQ(LoadsText(Parse<admin::RecordLoadsResponse>(R"(
    running: true seconds: 2
    loads { layer: 1 selected: [10, 0, 30, 0] executed: [10, 0, 28, 0] }
    loads { layer: 4 selected: [0, 0] executed: [0, 0] })")),
            R"(recording for 2.0 s

LAYER  SELECTED  EXECUTED  EXPERTS USED  HOTTEST  ITS SHARE  BALANCEDNESS
    1        40        38        2 of 4        2      75.0%         0.333
    4         0         0        0 of 2
)");
}

TEST(WorkersText, SaysWhatBlocksADrain) {
  EXPECT_THAT(WorkersText(Parse<admin::ListWorkersResponse>(
                  "blocked: 'no room for layer 4, expert 9'")),
              HasSubstr("blocked: no room for layer 4, expert 9\n"));
}

TEST(WorkerState, SafeToStopComesFirst) {
  control::v1::WorkerView worker;
  EXPECT_EQ(WorkerState(worker), "lost");
  worker.set_alive(true);
  EXPECT_EQ(WorkerState(worker), "serving");
  worker.set_draining(true);
  EXPECT_EQ(WorkerState(worker), "draining");
  worker.set_drained(true);
  EXPECT_EQ(WorkerState(worker), "safe to stop");
}

}  // namespace
}  // namespace trunkline::cli
