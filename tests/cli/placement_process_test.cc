// The operators' commands against a real cluster: what they print, what they
// wait for, their exit codes, and what they say of wrong input.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/integration/child_process.h"
#include "tests/integration/completion.h"
#include "tests/integration/eventually.h"
#include "tests/integration/placement_documents.h"
#include "tests/integration/process_cluster.h"

namespace trunkline::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace trunkline::testing;  // the process harness
using Strings = std::vector<std::string>;

constexpr auto kPatience = std::chrono::seconds(60);
const std::string kDemo = std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo";

class PlacementCommands : public ::testing::Test {
 protected:
  void StartCluster(ProcessCluster::Options options = {}) {
    options.model = kDemo;
    auto cluster = ProcessCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::cerr << cluster_->Logs();
  }
  Strings Argv(Strings arguments) {
    arguments.insert(arguments.begin(), TRUNKLINE_BINARY);
    arguments.insert(arguments.end(),
                     {"--coordinator", cluster_->coordinator_address()});
    return arguments;
  }
  RunResult Run(Strings arguments, const std::string& stdin_text = "") {
    return RunProgram(Argv(std::move(arguments)), kPatience, stdin_text);
  }
  // Runs a command that has to succeed; its stdout.
  std::string Output(Strings arguments, const std::string& stdin_text = "") {
    const RunResult run = Run(arguments, stdin_text);
    EXPECT_EQ(run.exit_code, 0) << ::testing::PrintToString(arguments) << "\n"
                                << run.out << run.err;
    return run.out;
  }
  json Json(Strings arguments, const std::string& stdin_text = "") {
    arguments.push_back("--json");
    const std::string out = Output(arguments, stdin_text);
    const json parsed = json::parse(out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << out;
    return parsed;
  }
  // Fails with this code's name and a reason that has this text.
  void ExpectFailure(Strings arguments, const std::string& code,
                     const std::string& reason, int exit_code = 1) {
    const RunResult run = Run(arguments);
    EXPECT_EQ(run.exit_code, exit_code)
        << ::testing::PrintToString(arguments) << "\n"
        << run.out << run.err;
    EXPECT_THAT(run.err, HasSubstr("trunkline " + arguments[0]));
    EXPECT_THAT(run.err, HasSubstr(code));
    EXPECT_THAT(run.err, HasSubstr(reason));
  }
  std::unique_ptr<ChildProcess> Begin(Strings arguments,
                                      const std::string& name) {
    return std::make_unique<ChildProcess>(
        ChildProcess::Options{.argv = Argv(std::move(arguments)),
                              .environment = {},
                              .stdout_file = File(name + ".out"),
                              .stderr_file = File(name + ".err"),
                              .stdin_text = ""});
  }
  int ExitCode(ChildProcess& process) {
    const auto status = process.Wait(kPatience);
    return status.has_value() && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
  }
  std::string File(const std::string& name) { return dir_.path() + "/" + name; }
  // A shuffled document in a file.
  std::string Shuffled(const std::string& name, size_t replicas = 1) {
    WriteFile(File(name), ShufflePlacement(Output({"placement", "export"}),
                                           replicas, random_));
    return File(name);
  }
  uint64_t ActiveVersion() {
    return Json({"placement", "show"})["active_version"];
  }
  Completion Text() {
    return Stream(*cluster_->NewStub(), GreedyRequest("In the beginning", 24));
  }

  TempDir dir_;
  RandomStream random_{7};
  std::unique_ptr<ProcessCluster> cluster_;
};

TEST_F(PlacementCommands, ChangeFollowAndUndoPlacementsWithoutChangingAText) {
  StartCluster({.experts = 3});
  const Completion before = Text();
  ASSERT_TRUE(before.status.ok()) << before.status.error_message();
  const std::string show = Output({"placement", "show"});
  EXPECT_THAT(show, HasSubstr("active version  1"));
  EXPECT_THAT(show, HasSubstr("initial"));
  EXPECT_THAT(show, HasSubstr("expert-2"));

  const std::string file = Shuffled("one.json");
  EXPECT_THAT(Output({"placement", "diff", "active", file}),
              HasSubstr("version 1 -> " + file));
  EXPECT_THAT(Output({"placement", "apply", file, "--dry-run"}),
              HasSubstr("against version 1"));
  EXPECT_EQ(ActiveVersion(), 1u) << "a dry run changed it";
  const std::string applied =
      Output({"placement", "apply", file, "--base-version", "1", "--all"});
  EXPECT_THAT(applied, HasSubstr("version 2 is active"));
  EXPECT_EQ(ActiveVersion(), 2u);
  EXPECT_EQ(Text().ids, before.ids);
  // What was exported comes back as it was.
  EXPECT_EQ(Json({"placement", "diff", "2", file})["loads"], json::array());

  EXPECT_THAT(Output({"placement", "rollback"}),
              HasSubstr("version 3 is active"));
  EXPECT_THAT(Output({"placement", "diff", "1", "3"}),
              HasSubstr("the same owners"));
  EXPECT_THAT(Output({"placement", "rollback", "2"}),
              HasSubstr("version 4 is active"));
  EXPECT_EQ(Text().ids, before.ids);
  const std::string history = Output({"placement", "history", "--limit", "0"});
  EXPECT_THAT(history, HasSubstr("rollback to 1"));
  EXPECT_THAT(history, HasSubstr("retired"));
  EXPECT_EQ(Json({"placement", "history", "--limit", "3"})["entries"].size(),
            3u);
  // From one command into the next.
  EXPECT_THAT(
      Output({"placement", "apply", "-"}, Output({"placement", "export", "3"})),
      HasSubstr("version 5 is active"));
  EXPECT_EQ(Output({"placement", "export", "--out", File("out.json")}), "");
  EXPECT_THAT(ReadFile(File("out.json")), HasSubstr("trunkline.placement"));
}

TEST_F(PlacementCommands, RebalanceByRecordedLoadsMovesWhatItSaid) {
  StartCluster({.experts = 2});
  // Everything on one worker but one expert of each layer: there is much to
  // win.
  json lopsided = json::parse(Output({"placement", "export"}));
  int slots[2] = {0, 0};
  for (json& layer : lopsided["layers"]) {
    for (size_t e = 0; e < layer["experts"].size(); ++e) {
      const int worker = e == 0 ? 0 : 1;
      const int id = lopsided["workers"][static_cast<size_t>(worker)]["id"];
      layer["experts"][e] = {{{"worker", id}, {"slot", slots[worker]++}}};
    }
  }
  Output({"placement", "apply", "-"}, lopsided.dump());

  EXPECT_THAT(Output({"experts", "record", "start"}),
              HasSubstr("recording for"));
  const Completion before = Text();
  ASSERT_TRUE(before.status.ok());
  uint64_t rows = 0;
  json loads;
  // Loads come with the trunk's next heartbeat.
  ASSERT_TRUE(Eventually(kPatience, [&] {
    loads = Json({"experts", "record", "dump"});
    rows = 0;
    for (const json& layer : loads["loads"]) {
      for (const uint64_t count : layer["executed"]) rows += count;
    }
    return rows > 0;
  }));
  EXPECT_THAT(Output({"experts", "record", "dump"}), HasSubstr("HOTTEST"));
  EXPECT_TRUE(loads["running"].get<bool>());
  EXPECT_FALSE(Json({"experts", "record", "stop"})["running"].get<bool>());

  const json plan = Json({"placement", "plan", "--out", File("plan.json")});
  EXPECT_TRUE(plan["worthwhile"].get<bool>()) << plan["reason"];
  EXPECT_GT(plan["after"]["balancedness"], plan["before"]["balancedness"]);
  EXPECT_GT(plan["expected_seconds"], 0);
  EXPECT_THAT(Output({"placement", "plan"}), HasSubstr("expected time"));
  EXPECT_EQ(json::parse(ReadFile(File("plan.json"))), plan["document"]);
  const uint64_t half = plan["moved_bytes"].get<uint64_t>() / 2;
  const json limited =
      Json({"placement", "plan", "--max-moved-bytes", std::to_string(half)});
  EXPECT_LE(limited["moved_bytes"], half);
  EXPECT_THAT(Output({"rebalance", "--dry-run"}), HasSubstr("worth it"));
  EXPECT_EQ(ActiveVersion(), 2u);

  EXPECT_THAT(Output({"rebalance", "--min-gain", "0.01"}),
              HasSubstr("version 3 is active"));
  EXPECT_EQ(Text().ids, before.ids);
  EXPECT_THAT(Output({"rebalance", "--min-gain", "0.9"}),
              HasSubstr("nothing to do"));
  EXPECT_EQ(ActiveVersion(), 3u);
  EXPECT_THAT(Output({"rebalance", "--policy", "static", "--min-gain", "0",
                      "--no-wait"}),
              Not(HasSubstr("is active")));
}

TEST_F(PlacementCommands, PinHoldsARebalanceBackUntilUnpin) {
  StartCluster({.experts = 2});
  EXPECT_THAT(Output({"placement", "pin", "--reason", "an experiment"}),
              HasSubstr("version 1: pinned"));
  EXPECT_THAT(Output({"placement", "show"}),
              HasSubstr("pinned          an experiment"));
  ExpectFailure({"rebalance"}, "FAILED_PRECONDITION", "an experiment");
  EXPECT_FALSE(Json({"placement", "unpin"}).empty());
  Output({"rebalance", "--dry-run"});
}

TEST_F(PlacementCommands, DrainWaitsUntilItIsSafeAndThenTheWorkerStops) {
  StartCluster({.experts = 3});
  const Completion before = Text();
  EXPECT_THAT(Output({"drain", "expert-1"}),
              HasSubstr("expert-1: safe to stop"));
  EXPECT_THAT(Output({"drain", "expert-1"}), HasSubstr("safe to stop"))
      << "a second time";
  EXPECT_THAT(Output({"workers"}), HasSubstr("safe to stop"));
  const json workers = Json({"workers"});
  for (const json& info : workers["workers"]) {
    const bool drained = info["worker"]["name"] == "expert-1";
    EXPECT_EQ(info["worker"]["drained"].get<bool>(), drained);
    if (info["worker"]["role"] == "expert" && !drained)
      EXPECT_GT(info["copies"], 0);
    else
      EXPECT_EQ(info["copies"], 0);
  }
  cluster_->expert(1).Signal(SIGTERM);
  EXPECT_EQ(ExitCode(cluster_->expert(1)), 0);
  EXPECT_EQ(Text().ids, before.ids);
  // The drain outlives the process; undrain ends it.
  cluster_->RestartExpert(1);
  ASSERT_TRUE(Eventually(kPatience, [&] {
    const json now = Json({"workers"});
    for (const json& info : now["workers"]) {
      if (info["worker"]["name"] == "expert-1")
        return info["worker"]["alive"].get<bool>();
    }
    return false;
  }));
  ExpectFailure({"placement", "rollback"}, "FAILED_PRECONDITION",
                "no usable expert worker");
  EXPECT_THAT(Output({"undrain", "expert-1"}), HasSubstr("expert-1"));
  EXPECT_THAT(Output({"placement", "rollback", "1"}), HasSubstr("is active"));
  EXPECT_EQ(Text().ids, before.ids);
}

TEST_F(PlacementCommands, ADrainWithoutRoomSaysWhatIsMissing) {
  // Each has room for its half and a little more, not for the whole.
  StartCluster({.experts = 2, .expert_flags = {"--memory-limit", "9MiB"}});
  const RunResult run = Run({"drain", "expert-0", "--timeout", "1s"});
  EXPECT_EQ(run.exit_code, 1) << run.out << run.err;
  EXPECT_THAT(run.err, HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_THAT(run.err, HasSubstr("waiting: layer "));
  EXPECT_THAT(run.err, HasSubstr("has room"));
  EXPECT_THAT(Output({"workers"}), HasSubstr("blocked: "));
  EXPECT_TRUE(Text().status.ok()) << "it serves until it may stop";
}

TEST_F(PlacementCommands, AWaitEndsByInterruptByTimeoutAndByAbandoning) {
  StartCluster({.experts = 3, .coordinator_flags = {"--lease", "60s"}});
  const std::string file = Shuffled("one.json");
  // It holds its lease and never says that it has loaded.
  cluster_->expert(2).Signal(SIGSTOP);
  const auto apply = Begin({"placement", "apply", file}, "apply");
  ASSERT_TRUE(Eventually(kPatience, [&] {
    return Output({"placement", "show"}).find("staging") != std::string::npos;
  }));
  ExpectFailure({"placement", "rollback", "1"}, "FAILED_PRECONDITION",
                "one change at a time");
  apply->Signal(SIGINT);
  EXPECT_EQ(ExitCode(*apply), 130);
  EXPECT_THAT(ReadFile(File("apply.err")), HasSubstr("goes on"));
  EXPECT_THAT(Output({"placement", "show"}), HasSubstr("staging"));

  EXPECT_THAT(Output({"placement", "abandon", "2", "--reason", "too slow"}),
              HasSubstr("version 2 is abandoned"));
  EXPECT_THAT(Output({"placement", "show"}), HasSubstr("too slow"));
  const RunResult late = Run({"placement", "apply", file, "--timeout", "1s"});
  EXPECT_EQ(late.exit_code, 1);
  EXPECT_THAT(late.err, HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_THAT(late.err, HasSubstr("version 3 is staging"));
  EXPECT_THAT(Output({"placement", "abandon", "3"}), HasSubstr("abandoned"));

  const auto given_up = Begin({"placement", "apply", file}, "given_up");
  ASSERT_TRUE(Eventually(kPatience, [&] {
    return Run({"placement", "abandon", "4", "--reason", "a better idea"})
               .exit_code == 0;
  }));
  EXPECT_EQ(ExitCode(*given_up), 1);
  EXPECT_THAT(ReadFile(File("given_up.err")),
              HasSubstr("ABORTED: version 4 was abandoned: a better idea"));
  cluster_->expert(2).Signal(SIGCONT);
}

TEST_F(PlacementCommands, WrongInputIsRefusedByNameAndChangesNothing) {
  StartCluster({.experts = 2});
  WriteFile(File("garbage.json"), "{\"format\": \"trunkline.placement\"");
  ExpectFailure({"placement", "apply", File("garbage.json")},
                "INVALID_ARGUMENT", "line 1, column 33");
  ExpectFailure({"placement", "apply", File("none.json")}, "NOT_FOUND",
                "none.json");
  const std::string document = Output({"placement", "export"});
  std::string stranger = document;
  stranger.replace(stranger.find("expert-1"), 8, "expert-9");
  WriteFile(File("stranger.json"), stranger);
  ExpectFailure({"placement", "apply", File("stranger.json")}, "NOT_FOUND",
                "expert-9");
  ExpectFailure({"placement", "diff", File("stranger.json")}, "NOT_FOUND",
                "stranger.json");
  json orphan = json::parse(document);
  orphan["layers"][1]["experts"][3] = json::array();
  WriteFile(File("orphan.json"), orphan.dump());
  ExpectFailure({"placement", "apply", File("orphan.json")}, "INVALID_ARGUMENT",
                "expert");
  WriteFile(File("same.json"), document);
  ExpectFailure({"placement", "apply", File("same.json")}, "ALREADY_EXISTS",
                "version 1");
  ExpectFailure(
      {"placement", "apply", File("same.json"), "--base-version", "7"},
      "FAILED_PRECONDITION", "version 7");
  ExpectFailure({"placement", "export", "99"}, "NOT_FOUND", "99");
  ExpectFailure({"placement", "export", "--out", "/nowhere/at/all"}, "UNKNOWN",
                "/nowhere/at/all");
  ExpectFailure({"placement", "rollback"}, "NOT_FOUND", "before");
  ExpectFailure({"placement", "abandon", "1"}, "FAILED_PRECONDITION",
                "version 1");
  ExpectFailure({"drain", "expert-7"}, "NOT_FOUND", "expert-7");
  ExpectFailure({"undrain", "expert-7"}, "NOT_FOUND", "expert-7");
  EXPECT_EQ(ActiveVersion(), 1u);

  for (const Strings& wrong :
       std::vector<Strings>{{"placement"},
                            {"placement", "apply"},
                            {"placement", "frobnicate"},
                            {"placement", "export", "zero"},
                            {"placement", "plan", "--policy", "best"},
                            {"rebalance", "--min-gain", "1.5"},
                            {"rebalance", "--max-moved-bytes", "much"},
                            {"drain"},
                            {"drain", "expert-0", "--timeout", "soon"},
                            {"experts", "record"},
                            {"experts", "record", "rewind"}}) {
    ExpectFailure(wrong, wrong[0], "--help", 2);
  }
}

TEST(PlacementCommandsAlone, ACoordinatorThatIsNotThereIsNamed) {
  for (const Strings& command :
       std::vector<Strings>{{"placement", "show"},
                            {"placement", "diff", "1"},
                            {"workers"},
                            {"rebalance"},
                            {"drain", "expert-0"},
                            {"experts", "record", "dump"}}) {
    Strings argv = {TRUNKLINE_BINARY};
    argv.insert(argv.end(), command.begin(), command.end());
    argv.insert(argv.end(), {"--coordinator", "127.0.0.1:1"});
    const RunResult run = RunProgram(argv, kPatience);
    EXPECT_EQ(run.exit_code, 1) << command[0] << run.out << run.err;
    EXPECT_THAT(run.err, HasSubstr("UNAVAILABLE"));
    EXPECT_THAT(run.err, HasSubstr("127.0.0.1:1"));
  }
}

TEST(PlacementCommandsAlone, EveryHelpHasAnExample) {
  for (const Strings& command : std::vector<Strings>{{"placement"},
                                                     {"rebalance"},
                                                     {"drain"},
                                                     {"undrain"},
                                                     {"workers"},
                                                     {"experts", "record"}}) {
    Strings argv = {TRUNKLINE_BINARY};
    argv.insert(argv.end(), command.begin(), command.end());
    argv.push_back("--help");
    const RunResult run = RunProgram(argv, kPatience);
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_THAT(run.out, HasSubstr("Example"));
  }
}

}  // namespace
}  // namespace trunkline::cli
