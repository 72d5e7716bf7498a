#include "cli/up_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/announcement.h"
#include "cli/line_reader.h"
#include "common/random.h"

namespace trunkline::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The value behind a flag, "" when the flag is not there.
std::string ValueOf(const UpProcess& process, const std::string& flag) {
  for (size_t i = 0; i + 1 < process.arguments.size(); ++i) {
    if (process.arguments[i] == flag) return process.arguments[i + 1];
  }
  return "";
}

TEST(UpPlan, StartsEachWorkerUnderItsOwnNameAtAFreePort) {
  UpFlags flags;
  flags.model = "dir";
  flags.experts = 2;
  flags.trunks = 2;
  const std::vector<UpProcess> workers = PlanWorkers(flags, "h:1", 16);
  std::vector<std::string> names;
  for (const UpProcess& worker : workers) {
    names.push_back(worker.name);
    EXPECT_EQ(ValueOf(worker, "--name"), worker.name);
    EXPECT_EQ(ValueOf(worker, "--model"), "dir");
    EXPECT_EQ(ValueOf(worker, "--coordinator"), "h:1");
    EXPECT_EQ(ValueOf(worker, "--listen"), "127.0.0.1:0");
    EXPECT_EQ(ValueOf(worker, "--threads"), "8");
    EXPECT_EQ(ValueOf(worker, "--metrics-listen"), "127.0.0.1:0");
  }
  EXPECT_THAT(names, ElementsAre("expert-0", "expert-1", "trunk-0", "trunk-1"));
}

TEST(UpPlan, RoutesAreValidatedByTrunksWhenAsked) {
  UpFlags flags;
  flags.trunks = 2;
  for (const bool asked : {false, true}) {
    flags.validate_routes = asked;
    for (const UpProcess& worker : PlanWorkers(flags, "h:1", 2)) {
      EXPECT_EQ(std::count(worker.arguments.begin(), worker.arguments.end(),
                           "--validate-routes"),
                asked && worker.role == UpRole::kTrunk ? 1 : 0)
          << worker.name;
    }
  }
}

TEST(UpPlan, EveryTrunkGetsTheSameAdmissionAndABadOneNeverStarts) {
  UpFlags flags;
  flags.trunks = 2;
  flags.admission = "capacity:factor=1.25,group=64";
  EXPECT_TRUE(CheckUpFlags(flags).ok());
  for (const UpProcess& worker : PlanWorkers(flags, "h:1", 2)) {
    EXPECT_EQ(ValueOf(worker, "--admission"),
              worker.role == UpRole::kTrunk ? flags.admission : "");
  }
  flags.admission = "capacity:factor=1.25";
  EXPECT_THAT(std::string(CheckUpFlags(flags).message()),
              HasSubstr("--admission"));
}

TEST(UpPlan, EveryProcessIsToldTheSameNumericsClass) {
  UpFlags flags;
  flags.trunks = 2;
  flags.numerics = "bf16dot";
  for (const UpProcess& worker : PlanWorkers(flags, "h:1", 2))
    EXPECT_EQ(ValueOf(worker, "--numerics"), "bf16dot") << worker.name;
  EXPECT_EQ(ValueOf(PlanCoordinators(flags).front(), "--numerics"), "bf16dot");
}

TEST(UpPlan, EveryWorkerHasAThreadOnASmallMachine) {
  UpFlags flags;
  flags.experts = 7;
  for (const UpProcess& worker : PlanWorkers(flags, "h:1", 2)) {
    EXPECT_EQ(ValueOf(worker, "--threads"),
              worker.role == UpRole::kExpert ? "1" : "2");
  }
  flags.threads = 3;
  for (const UpProcess& worker : PlanWorkers(flags, "h:1", 2)) {
    EXPECT_EQ(ValueOf(worker, "--threads"), "3");
  }
}

// Experts compute at the same time, so their cpus are apart; the trunk computes
// while they wait, so it has them all.
TEST(UpPlan, NamedCpusAreSharedOutWithinARole) {
  UpFlags flags;
  flags.experts = 2;
  flags.cores = {2, 3, 6, 7};
  const std::vector<UpProcess> workers = PlanWorkers(flags, "h:1", 16);
  ASSERT_EQ(workers.size(), 3u);
  EXPECT_EQ(ValueOf(workers[0], "--cores"), "2,3");
  EXPECT_EQ(ValueOf(workers[1], "--cores"), "6,7");
  EXPECT_EQ(ValueOf(workers[2], "--cores"), "2,3,6,7");
  EXPECT_EQ(ValueOf(workers[0], "--threads"), "2");
  EXPECT_EQ(ValueOf(workers[2], "--threads"), "4");
  flags.threads = 1;
  EXPECT_EQ(ValueOf(PlanWorkers(flags, "h:1", 16)[2], "--threads"), "1");
  flags.cores.clear();
  EXPECT_EQ(ValueOf(PlanWorkers(flags, "h:1", 16)[0], "--cores"), "");
}

TEST(UpPlan, CpusThatAreNotNamedAreSharedOutWithinARoleToo) {
  UpFlags flags;
  flags.experts = 3;
  const std::vector<UpProcess> workers = PlanWorkers(flags, "h:1", 16);
  ASSERT_EQ(workers.size(), 4u);
  EXPECT_EQ(ValueOf(workers[0], "--threads"), "5");
  EXPECT_EQ(ValueOf(workers[3], "--threads"), "16");
}

// They and the trunk are on the same cpus.
TEST(UpPlan, ExpertWorkersWaitForTheirTurn) {
  for (const UpProcess& worker : PlanWorkers(UpFlags(), "h:1", 16)) {
    const bool waits =
        std::find(worker.arguments.begin(), worker.arguments.end(),
                  "--shared-cores") != worker.arguments.end();
    EXPECT_EQ(waits, worker.role == UpRole::kExpert) << worker.name;
  }
}

TEST(UpPlan, TheCoordinatorWaitsForEveryExpertWorker) {
  UpFlags flags;
  flags.experts = 5;
  flags.replicas = 2;
  flags.no_metrics = true;
  ASSERT_EQ(PlanCoordinators(flags).size(), 1u);
  const UpProcess plan = PlanCoordinators(flags).front();
  EXPECT_EQ(plan.arguments.front(), "coordinator");
  EXPECT_EQ(ValueOf(plan, "--expert-workers"), "5");
  EXPECT_EQ(ValueOf(plan, "--replicas"), "2");
  EXPECT_EQ(ValueOf(plan, "--metrics-listen"), "");
  EXPECT_EQ(ValueOf(plan, "--state-file"), "");
}

TEST(UpPlan, SeveralCoordinatorsShareTheStoreAndAreAllKnownToWorkers) {
  UpFlags flags;
  flags.coordinators = 3;
  flags.store = "etcd://a:1/p";
  EXPECT_TRUE(CheckUpFlags(flags).ok());
  const std::vector<UpProcess> plans = PlanCoordinators(flags);
  ASSERT_EQ(plans.size(), 3u);
  EXPECT_EQ(plans[2].name, "coordinator-2");
  for (const UpProcess& plan : plans) {
    EXPECT_EQ(ValueOf(plan, "--store"), "etcd://a:1/p");
    EXPECT_EQ(ValueOf(plan, "--listen"), "127.0.0.1:0");
  }
  const auto workers = PlanWorkers(flags, "a:1,b:2", 4);
  EXPECT_EQ(ValueOf(workers.front(), "--coordinator"), "a:1,b:2");
  flags.coordinator_listen = "127.0.0.1:7070";
  EXPECT_THAT(std::string(CheckUpFlags(flags).message()),
              HasSubstr("--coordinator-listen"));
  flags.store = "sqlite:x";
  EXPECT_THAT(std::string(CheckUpFlags(flags).message()),
              HasSubstr("--coordinators is 3"));
  flags.coordinators = 1;
  EXPECT_TRUE(CheckUpFlags(flags).ok());
  flags.state_file = "y";
  EXPECT_THAT(std::string(CheckUpFlags(flags).message()),
              HasSubstr("--state-file"));
}

TEST(UpPlan, FlagsThatDoNotGoTogetherAreRefusedByName) {
  UpFlags flags;
  EXPECT_TRUE(CheckUpFlags(flags).ok());
  flags.replicas = 3;
  EXPECT_THAT(std::string(CheckUpFlags(flags).message()),
              HasSubstr("--replicas is 3"));
  flags.replicas = 1;
  flags.trunks = 2;
  EXPECT_TRUE(CheckUpFlags(flags).ok());
  flags.listen = "127.0.0.1:7080";
  EXPECT_THAT(std::string(CheckUpFlags(flags).message()),
              HasSubstr("--listen is \"127.0.0.1:7080\""));
}

TEST(Announcement, WhatIsWrittenIsRead) {
  const Announcement listening{Announcement::Kind::kListening, 0, 0,
                               "ucx://h:1", "h:2"};
  std::string line = FormatAnnouncement(listening);
  ASSERT_EQ(line.back(), '\n');
  line.pop_back();
  EXPECT_EQ(ParseAnnouncement(line)->address, "ucx://h:1");
  EXPECT_EQ(ParseAnnouncement(line)->metrics_address, "h:2");

  line = FormatAnnouncement({Announcement::Kind::kLoading, 3, 7, "", ""});
  const auto loading = ParseAnnouncement(line);
  ASSERT_TRUE(loading.ok()) << loading.status();
  EXPECT_EQ(loading->kind, Announcement::Kind::kLoading);
  EXPECT_EQ(loading->bytes_done, 3);
  EXPECT_EQ(loading->bytes_total, 7);
}

TEST(Announcement, AnythingElseIsRefused) {
  for (const std::string line :
       {"", "x", "{}", "[]", "3", R"({"event":"listening"})",
        R"({"event":"loading","bytes_done":"1","bytes_total":2})",
        R"({"event":1})", R"({"event":"other","address":"a"})"}) {
    EXPECT_EQ(ParseAnnouncement(line).status().code(),
              absl::StatusCode::kInvalidArgument)
        << line;
  }
}

TEST(LineReader, LinesComeWholeHoweverTheyAreCut) {
  const std::vector<std::string> expected = {"one", "", "three", "fo"};
  const std::string bytes = "one\n\nthree\nfo";
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed);
    LineReader reader;
    std::vector<std::string> lines;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = random.NextBelow(6);
      for (const std::string& line :
           reader.Append(absl::string_view(bytes).substr(at, n))) {
        lines.push_back(line);
      }
      at += n;
    }
    for (const std::string& line : reader.Finish()) lines.push_back(line);
    ASSERT_EQ(lines, expected) << "seed " << seed;
  }
}

TEST(LineReader, AnEndlessLineIsHandedOnInParts) {
  LineReader reader(/*line_bytes_max=*/4);
  EXPECT_THAT(reader.Append("abcdefghi"), ElementsAre("abcd", "efgh"));
  EXPECT_THAT(reader.Append("\n"), ElementsAre("i"));
  EXPECT_THAT(reader.Finish(), IsEmpty());
}

}  // namespace
}  // namespace trunkline::cli
