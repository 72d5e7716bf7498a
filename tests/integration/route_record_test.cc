// Recordings of a real cluster under load: what the file says is what the
// cluster's counters say, and what the recorded policy makes.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/completion.h"
#include "tests/integration/eventually.h"
#include "tests/integration/process_cluster.h"
#include "tests/trunk_worker/http_get.h"

namespace trunkline::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRecordFor[] = "3s";
constexpr int kClients = 4;

std::string FreeAddress() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(fd);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

// name{layer="4"} value, from Prometheus text.
std::map<int, uint64_t> LayerCounters(const std::string& text,
                                      const std::string& name) {
  std::map<int, uint64_t> values;
  std::istringstream lines(text);
  std::string line;
  const std::string prefix = name + "{layer=\"";
  while (std::getline(lines, line)) {
    if (line.rfind(prefix, 0) != 0) continue;
    const int layer = std::stoi(line.substr(prefix.size()));
    values[layer] =
        static_cast<uint64_t>(std::stod(line.substr(line.rfind(' '))));
  }
  return values;
}

struct Scrape {
  std::map<int, uint64_t> selected, executed, dropped;
};

class RouteRecordTest : public ::testing::Test {
 protected:
  void Start(int experts, int replicas) {
    metrics_ = FreeAddress();
    ProcessCluster::Options options;
    options.model = std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo";
    options.experts = experts;
    options.replicas = replicas;
    // The counts are those of the requests made here alone.
    options.trunk_flags = {"--metrics-listen", metrics_, "--canary-tokens",
                           "0"};
    options.trunk_flags.insert(options.trunk_flags.end(), trunk_flags_.begin(),
                               trunk_flags_.end());
    auto cluster = ProcessCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    ASSERT_TRUE(
        Stream(*cluster_->NewStub(), GreedyRequest("In the", 2)).status.ok());
  }
  void TearDown() override {
    StopLoad();
    if (HasFailure() && cluster_ != nullptr) std::cerr << cluster_->Logs();
  }

  void StartLoad() {
    for (int i = 0; i < kClients; ++i) {
      clients_.emplace_back([this, i] {
        const auto stub = cluster_->NewStub();
        while (!stop_load_) {
          const Completion done = Stream(
              *stub,
              GreedyRequest("And it came to pass " + std::to_string(i), 40));
          completions_ += done.status.ok() ? 1 : 0;
        }
      });
    }
  }
  void StopLoad() {
    stop_load_ = true;
    for (std::thread& client : clients_) client.join();
    clients_.clear();
  }

  std::unique_ptr<ChildProcess> Record(std::vector<std::string> flags) {
    std::vector<std::string> argv = {TRUNKLINE_BINARY, "experts", "record",
                                     "--server",       Server(),  "--out",
                                     file(),           "--wait",  "30s"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    return std::make_unique<ChildProcess>(
        ChildProcess::Options{.argv = argv,
                              .environment = {},
                              .stdout_file = dir_.path() + "/record.out",
                              .stderr_file = dir_.path() + "/record.err",
                              .stdin_text = ""});
  }
  // The file is made when the server's header has come.
  bool RecordingRuns() {
    return Eventually(seconds(30),
                      [&] { return std::filesystem::exists(file()); });
  }
  int ExitCode(ChildProcess& process, seconds limit) {
    const std::optional<int> status = process.Wait(limit);
    return status.has_value() && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
  }
  RunResult Replay(std::vector<std::string> flags) {
    std::vector<std::string> argv = {TRUNKLINE_BINARY, "replay", file()};
    argv.insert(argv.end(), flags.begin(), flags.end());
    return RunProgram(argv, seconds(120));
  }
  nlohmann::json ReplayJson() {
    const RunResult result = Replay({"--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  }
  Scrape ScrapeCounters() {
    const std::string text = HttpGet(metrics_, "/metrics");
    return {LayerCounters(text, "trunkline_layer_routes_selected_total"),
            LayerCounters(text, "trunkline_layer_routes_executed_total"),
            LayerCounters(text, "trunkline_layer_routes_dropped_total")};
  }
  std::string RecordError() { return ReadFile(dir_.path() + "/record.err"); }
  std::string Server() { return cluster_->trunk_address(); }
  std::string file() { return dir_.path() + "/routes.tlrec"; }

  TempDir dir_;
  std::string metrics_;
  std::vector<std::string> trunk_flags_;
  std::unique_ptr<ProcessCluster> cluster_;
  std::vector<std::thread> clients_;
  std::atomic<bool> stop_load_{false};
  std::atomic<int> completions_{0};
};

// The whole load lies inside the recording, so the counters read over HTTP
// before and after must have risen by exactly what the file holds.
TEST_F(RouteRecordTest, TotalsEqualThePrometheusCountersAndEveryRouteIsEqual) {
  Start(2, 1);
  const Scrape before = ScrapeCounters();
  ASSERT_EQ(before.selected.size(), 4u);
  const auto recorder = Record({"--for", "600s"});
  ASSERT_TRUE(RecordingRuns()) << RecordError();
  StartLoad();
  ASSERT_TRUE(Eventually(seconds(60), [&] { return completions_ >= 8; }));
  StopLoad();
  recorder->Signal(SIGINT);  // ends it cleanly
  ASSERT_EQ(ExitCode(*recorder, seconds(30)), 0) << RecordError();
  const Scrape after = ScrapeCounters();

  const nlohmann::json replay = ReplayJson();
  ASSERT_EQ(replay["layers"].size(), 4u) << replay.dump(1);
  EXPECT_EQ(replay["end"], "stopped");
  uint64_t routes = 0;
  for (const nlohmann::json& layer : replay["layers"]) {
    const int index = layer["layer"];
    const uint64_t selected = layer["selected"];
    EXPECT_GT(selected, 0u);
    EXPECT_EQ(selected, after.selected.at(index) - before.selected.at(index));
    EXPECT_EQ(layer["executed"],
              after.executed.at(index) - before.executed.at(index));
    EXPECT_EQ(layer["counters"]["selected_at_begin"],
              before.selected.at(index));
    EXPECT_EQ(layer["counters"]["selected_at_end"], after.selected.at(index));
    EXPECT_EQ(layer["records_left_out"], 0);
    routes += selected;
  }
  EXPECT_EQ(replay["routes_equal"], routes);
}

// The load goes on before, during and after: the recording still begins and
// ends between two steps.
TEST_F(RouteRecordTest, ATimedRecordingInTheMiddleOfTheLoadAddsUp) {
  Start(2, 1);
  StartLoad();
  ASSERT_TRUE(Eventually(seconds(60), [&] { return completions_ >= 2; }));
  const Scrape before = ScrapeCounters();
  const auto recorder = Record({"--for", kRecordFor, "--layers", "4,9"});
  ASSERT_EQ(ExitCode(*recorder, seconds(60)), 0) << RecordError();
  const Scrape after = ScrapeCounters();
  StopLoad();

  const nlohmann::json replay = ReplayJson();
  ASSERT_EQ(replay["layers"].size(), 2u) << replay.dump(1);
  EXPECT_EQ(replay["end"], "the time was over");
  uint64_t routes = 0;
  for (const nlohmann::json& layer : replay["layers"]) {
    const int index = layer["layer"];
    EXPECT_TRUE(index == 4 || index == 9);
    const nlohmann::json& counters = layer["counters"];
    EXPECT_GE(counters["selected_at_begin"], before.selected.at(index));
    EXPECT_LE(counters["selected_at_end"], after.selected.at(index));
    EXPECT_EQ(layer["selected"].get<uint64_t>(),
              counters["selected_at_end"].get<uint64_t>() -
                  counters["selected_at_begin"].get<uint64_t>());
    EXPECT_EQ(layer["executed"], layer["selected"]);
    routes += layer["selected"].get<uint64_t>() -
              layer["selected_left_out"].get<uint64_t>();
  }
  EXPECT_GT(routes, 0u);
  EXPECT_EQ(replay["routes_equal"], routes);
  // The same file under another contract.
  const RunResult compared =
      Replay({"--layers", "4", "--admission", "capacity:factor=1", "--workers",
              "2", "--json"});
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  const nlohmann::json columns =
      nlohmann::json::parse(compared.out)[0]["contracts"];
  ASSERT_EQ(columns.size(), 2u);
  EXPECT_EQ(columns[0]["result"]["dropped"], 0);
  EXPECT_GT(columns[1]["result"]["dropped"], 0);
  EXPECT_EQ(columns[0]["result"]["requested"],
            columns[1]["result"]["requested"]);
}

// A worker dies in the middle: its routes run elsewhere, the choice stays, and
// every layer keeps its contracts meanwhile.
TEST_F(RouteRecordTest, RoutesThatRanOnAnotherReplicaAreEqualToo) {
  trunk_flags_ = {"--validate-routes"};
  Start(3, 2);
  const auto recorder = Record({"--for", "600s"});
  ASSERT_TRUE(RecordingRuns()) << RecordError();
  StartLoad();
  ASSERT_TRUE(Eventually(seconds(60), [&] { return completions_ >= 2; }));
  cluster_->expert(0).Signal(SIGKILL);
  const int seen = completions_;
  ASSERT_TRUE(
      Eventually(seconds(60), [&] { return completions_ >= seen + 6; }));
  StopLoad();
  recorder->Signal(SIGINT);
  ASSERT_EQ(ExitCode(*recorder, seconds(30)), 0) << RecordError();
  EXPECT_GT(ReplayJson()["routes_equal"], 0);
  const std::string page = HttpGet(metrics_, "/metrics");
  EXPECT_THAT(page, HasSubstr("trunkline_steps_failed_total 0\n"));
  EXPECT_THAT(page, Not(HasSubstr("trunkline_route_layers_validated_total 0")));
}

// Fixed capacity on a whole cluster: what the responses say they lost is what
// the counters say and what the recording replays to, and other placements
// answer the same.
TEST_F(RouteRecordTest, FixedCapacityIsServedCountedRecordedAndReplayed) {
  const std::string spec =
      "capacity:factor=0.5,scope=sequence,group=8,order=source,overflow=drop";
  trunk_flags_ = {"--admission", "capacity:factor=0.5,group=8",
                  "--validate-routes"};
  Start(2, 1);
  const v1::GetModelResponse model = GetModel(*cluster_->NewStub());
  ASSERT_EQ(model.moe_layers_size(), 4);
  EXPECT_EQ(model.moe_layers(0).admission(), spec);
  EXPECT_EQ(model.moe_layers(0).capacity_rows(), 1u);  // 0.5 x 8 x 4 / 32, up
  EXPECT_EQ(model.moe_layers(0).group_tokens(), 8u);
  const Scrape before = ScrapeCounters();
  const auto recorder = Record({"--for", "600s"});
  ASSERT_TRUE(RecordingRuns()) << RecordError();
  uint64_t dropped = 0;
  std::vector<Completion> answers;
  for (const char* prompt : {"In the beginning", "And it came to pass", "A"}) {
    answers.push_back(Stream(*cluster_->NewStub(), GreedyRequest(prompt, 24)));
    ASSERT_TRUE(answers.back().status.ok());
    EXPECT_GT(answers.back().usage.routes_dropped(), 0u);
    dropped += answers.back().usage.routes_dropped();
  }
  recorder->Signal(SIGINT);
  ASSERT_EQ(ExitCode(*recorder, seconds(30)), 0) << RecordError();
  const Scrape after = ScrapeCounters();
  uint64_t counted = 0;
  for (const auto& [layer, value] : after.dropped)
    counted += value - before.dropped.at(layer);
  EXPECT_EQ(counted, dropped);
  const RunResult under = Replay({"--placement", "recorded", "--json"});
  ASSERT_EQ(under.exit_code, 0) << under.err;
  uint64_t replayed = 0;
  for (const nlohmann::json& layer : nlohmann::json::parse(under.out))
    replayed += layer["contracts"][0]["result"]["dropped"].get<uint64_t>();
  EXPECT_EQ(replayed, dropped);
  // Each worker did what the plan of the recording says.
  const nlohmann::json proof = ReplayJson();
  std::map<int, int64_t> proven, placed;
  for (const nlohmann::json& worker : proof["workers"])
    proven[worker["worker"]] += worker["routes"].get<int64_t>();
  for (const nlohmann::json& layer : nlohmann::json::parse(under.out))
    for (const nlohmann::json& worker :
         layer["contracts"][0]["result"]["workers"])
      placed[worker["worker"]] += worker["routes"].get<int64_t>();
  EXPECT_EQ(proven.size(), 2u);
  EXPECT_EQ(proven, placed);
  EXPECT_GT(proof["routes_equal"], 0);

  Start(3, 2);
  for (size_t i = 0; i < answers.size(); ++i) {
    const char* prompts[] = {"In the beginning", "And it came to pass", "A"};
    const Completion again =
        Stream(*cluster_->NewStub(), GreedyRequest(prompts[i], 24));
    EXPECT_EQ(again.ids, answers[i].ids);
    EXPECT_EQ(again.usage.routes_dropped(), answers[i].usage.routes_dropped());
  }
}

TEST_F(RouteRecordTest, AServerThatDiesLeavesAWholeFileThatSaysSo) {
  Start(1, 1);
  StartLoad();
  const auto recorder = Record({"--for", "600s"});
  ASSERT_TRUE(RecordingRuns()) << RecordError();
  const int seen = completions_;
  ASSERT_TRUE(
      Eventually(seconds(60), [&] { return completions_ >= seen + 3; }));
  cluster_->trunk().Signal(SIGKILL);
  EXPECT_EQ(ExitCode(*recorder, seconds(60)), 1);
  StopLoad();
  EXPECT_THAT(RecordError(), HasSubstr("UNAVAILABLE"));
  const nlohmann::json replay = ReplayJson();
  EXPECT_EQ(replay["end"], "the connection was lost");
  EXPECT_FALSE(replay["layers"][0].contains("counters"));
}

TEST_F(RouteRecordTest, AServerThatStopsInOrderEndsTheRecordingInOrder) {
  Start(1, 1);
  const auto recorder = Record({"--for", "600s"});
  ASSERT_TRUE(RecordingRuns()) << RecordError();
  ASSERT_TRUE(
      Stream(*cluster_->NewStub(), GreedyRequest("In the", 8)).status.ok());
  cluster_->trunk().Signal(SIGTERM);
  EXPECT_EQ(ExitCode(*recorder, seconds(60)), 0) << RecordError();
  EXPECT_EQ(ReplayJson()["end"], "the server stopped");
}

TEST_F(RouteRecordTest, WhatCanNotBeRecordedIsRefusedByName) {
  Start(1, 1);
  auto refused = Record({"--layers", "0"});
  EXPECT_EQ(ExitCode(*refused, seconds(60)), 1);
  EXPECT_THAT(RecordError(), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(RecordError(), HasSubstr("layers: 0 is no moe layer"));
  EXPECT_FALSE(std::filesystem::exists(file()));
  const auto running = Record({"--for", "600s"});
  ASSERT_TRUE(RecordingRuns()) << RecordError();
  const RunResult second =
      RunProgram({TRUNKLINE_BINARY, "experts", "record", "--server", Server(),
                  "--out", dir_.path() + "/second.tlrec"},
                 seconds(60));
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr("RESOURCE_EXHAUSTED"));
  running->Signal(SIGINT);
  EXPECT_EQ(ExitCode(*running, seconds(30)), 0) << RecordError();
  // Nothing was served, so there is nothing to route again.
  const RunResult empty = Replay({});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_THAT(empty.err, HasSubstr("nothing was served"));
}

}  // namespace
}  // namespace trunkline::testing
