// `up`, `generate` and the server commands as processes: signals, deaths, exit
// codes. What a person sees of a healthy cluster is in tests/integration.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "tests/integration/child_process.h"
#include "tests/integration/eventually.h"

namespace trunkline::cli {
namespace {

using trunkline::Eventually;
using trunkline::testing::ChildProcess;
using trunkline::testing::ReadFile;
using trunkline::testing::RunProgram;
using trunkline::testing::RunResult;
using trunkline::testing::TempDir;
using Strings = std::vector<std::string>;

constexpr auto kPatience = std::chrono::seconds(60);
const std::string kDemo = std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo";

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Alive and not a zombie.
bool IsRunning(int pid) {
  const std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
  const size_t end = stat.rfind(')');
  return end != std::string::npos && stat[end + 2] != 'Z';
}

class Program {
 public:
  Program(const std::string& dir, const std::string& name, Strings arguments)
      : out_(dir + "/" + name + ".out"), err_(dir + "/" + name + ".err") {
    arguments.insert(arguments.begin(), TRUNKLINE_BINARY);
    process_ = std::make_unique<ChildProcess>(
        ChildProcess::Options{.argv = arguments,
                              .environment = {},
                              .stdout_file = out_,
                              .stderr_file = err_,
                              .stdin_text = ""});
  }
  ChildProcess& process() { return *process_; }
  std::string out() const { return ReadFile(out_); }
  std::string err() const { return ReadFile(err_); }
  bool AwaitOut(const std::string& part) {
    return Eventually(
               kPatience,
               [&] { return Contains(out(), part) || !process_->Running(); }) &&
           Contains(out(), part);
  }
  bool AwaitErr(const std::string& part) {
    return Eventually(kPatience, [&] { return Contains(err(), part); });
  }
  // -1 when it did not end by itself.
  int ExitCode() {
    const auto status = process_->Wait(kPatience);
    return status.has_value() && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
  }

 private:
  const std::string out_, err_;
  std::unique_ptr<ChildProcess> process_;
};

class UpProcess : public ::testing::Test {
 protected:
  void StartUp(Strings more = {}) {
    Strings arguments = {"up", "--model", kDemo, "--address-file", Address()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    up_ = std::make_unique<Program>(dir_.path(), "up", arguments);
    ASSERT_TRUE(Eventually(kPatience, [this] {
      return !ReadFile(Address()).empty() || !up_->process().Running();
    }));
    server_ = ReadFile(Address());
    ASSERT_FALSE(server_.empty()) << up_->out() << up_->err();
    server_.pop_back();
  }
  std::string Address() const { return dir_.path() + "/address"; }

  // The pid that `up` printed for a process; all of them for "".
  std::vector<int> PidsOf(const std::string& name) {
    std::vector<int> pids;
    const std::string out = up_->out();
    const std::regex line(name + "[a-z0-9-]* .* pid ([0-9]+)");
    for (std::sregex_iterator it(out.begin(), out.end(), line), end; it != end;
         ++it) {
      pids.push_back(std::stoi((*it)[1]));
    }
    return pids;
  }
  bool ChildrenAreGone(const std::vector<int>& pids) {
    return Eventually(std::chrono::seconds(10), [&] {
      for (const int pid : pids) {
        if (IsRunning(pid)) return false;
      }
      return true;
    });
  }
  std::unique_ptr<Program> Generate(const std::string& name, Strings more) {
    Strings arguments = {"generate",      "--server", server_,
                         "--temperature", "0",        "--ignore-eos"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.push_back("In the beginning");
    return std::make_unique<Program>(dir_.path(), name, arguments);
  }
  bool AwaitSomeText(Program& program) {
    return Eventually(kPatience, [&] { return program.out().size() > 40; });
  }

  TempDir dir_;
  std::unique_ptr<Program> up_;
  std::string server_;
};

TEST_F(UpProcess, AChildThatDiesEndsUpWithItsNameAndNoneIsLeft) {
  StartUp();
  const std::vector<int> all = PidsOf("");
  ASSERT_EQ(all.size(), 4u) << up_->out();
  kill(PidsOf("expert-1").at(0), SIGKILL);
  EXPECT_EQ(up_->ExitCode(), 1);
  EXPECT_TRUE(Contains(up_->err(), "expert-1")) << up_->err();
  EXPECT_TRUE(Contains(up_->err(), "signal 9")) << up_->err();
  EXPECT_TRUE(ChildrenAreGone(all));
}

TEST_F(UpProcess, WithKeepGoingTheOthersRunOnUntilStopped) {
  StartUp({"--keep-going"});
  const std::vector<int> all = PidsOf("");
  ASSERT_EQ(all.size(), 4u);
  kill(PidsOf("expert-1").at(0), SIGKILL);
  ASSERT_TRUE(up_->AwaitErr("ended: signal 9"));
  EXPECT_TRUE(IsRunning(PidsOf("expert-0").at(0)));
  EXPECT_TRUE(IsRunning(PidsOf("trunk-0").at(0)));
  up_->process().Signal(SIGTERM);
  EXPECT_EQ(up_->ExitCode(), 0) << up_->err();
  EXPECT_TRUE(ChildrenAreGone(all));
}

TEST_F(UpProcess, AKillOfUpLeavesNoChild) {
  StartUp({"--experts", "3", "--replicas", "2", "--trunks", "2"});
  const std::vector<int> all = PidsOf("");
  ASSERT_EQ(all.size(), 6u) << up_->out();
  for (const int pid : all) EXPECT_TRUE(IsRunning(pid));
  up_->process().Signal(SIGKILL);
  EXPECT_TRUE(ChildrenAreGone(all));
}

// The promise holds from the first moment on, not only for a cluster that
// serves: `up` dies between its forks here.
TEST_F(UpProcess, AKillOfUpWhileItStartsLeavesNoChild) {
  for (int round = 0; round < 5; ++round) {
    Program up(dir_.path(), "early-" + std::to_string(round),
               {"up", "--model", kDemo, "--log-dir", dir_.path()});
    // The coordinator's line is printed right before the workers are forked.
    ASSERT_TRUE(up.AwaitOut("coordinator")) << up.err();
    up.process().Signal(SIGKILL);
    up.process().Wait(kPatience);
    EXPECT_TRUE(Eventually(std::chrono::seconds(10), [&] {
      for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const std::string pid = entry.path().filename().string();
        if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
        if (Contains(ReadFile(entry.path().string() + "/cmdline"),
                     dir_.path() + "/") &&
            IsRunning(std::stoi(pid))) {
          return false;
        }
      }
      return true;
    }));
  }
}

TEST_F(UpProcess, AStopLetsARunningRequestFinish) {
  StartUp({"--drain-timeout", "60s"});
  const auto client = Generate("client", {"--max-tokens", "300"});
  ASSERT_TRUE(AwaitSomeText(*client));
  up_->process().Signal(SIGINT);
  EXPECT_EQ(client->ExitCode(), 0) << client->err();
  EXPECT_TRUE(Contains(client->err(), "[300 tokens")) << client->err();
  EXPECT_EQ(up_->ExitCode(), 0) << up_->err();
}

TEST_F(UpProcess, ASecondSignalEndsEverythingAtOnce) {
  StartUp({"--drain-timeout", "300s"});
  const std::vector<int> all = PidsOf("");
  const auto client = Generate("client", {"--max-tokens", "8000"});
  ASSERT_TRUE(AwaitSomeText(*client));
  up_->process().Signal(SIGINT);
  ASSERT_TRUE(up_->AwaitErr("stopping"));
  up_->process().Signal(SIGINT);
  EXPECT_EQ(up_->ExitCode(), 130);
  EXPECT_TRUE(ChildrenAreGone(all));
  EXPECT_EQ(client->ExitCode(), 1);
  EXPECT_TRUE(Contains(client->err(), "UNAVAILABLE")) << client->err();
}

TEST_F(UpProcess, CtrlCCancelsAGenerationAndTheServerGoesOn) {
  StartUp();
  const auto client = Generate("client", {"--max-tokens", "8000"});
  ASSERT_TRUE(AwaitSomeText(*client));
  client->process().Signal(SIGINT);
  EXPECT_EQ(client->ExitCode(), 130);
  EXPECT_TRUE(Contains(client->err(), "CANCELLED")) << client->err();
  const auto next = Generate("next", {"--max-tokens", "5"});
  EXPECT_EQ(next->ExitCode(), 0) << next->err();
  // What the cancelled one printed is the front of the whole text.
  const auto whole = Generate("whole", {"--max-tokens", "50"});
  EXPECT_EQ(whole->ExitCode(), 0) << whole->err();
  const size_t common = std::min(whole->out().size(), client->out().size());
  EXPECT_EQ(whole->out().substr(0, common), client->out().substr(0, common));
}

TEST_F(UpProcess, LogLinesCarryTheNameOfTheirProcess) {
  StartUp();
  for (const char* name :
       {"[coordinator] ", "[expert-0] ", "[expert-1] ", "[trunk-0] "}) {
    EXPECT_TRUE(Contains(up_->err(), name)) << up_->err();
  }
}

TEST_F(UpProcess, AClusterThatIsNotReadyInTimeIsAnError) {
  Program up(dir_.path(), "late",
             {"up", "--model", kDemo, "--wait-ready", "1ms"});
  EXPECT_EQ(up.ExitCode(), 1);
  EXPECT_TRUE(Contains(up.err(), "DEADLINE_EXCEEDED")) << up.err();
  EXPECT_TRUE(Contains(up.err(), "--wait-ready")) << up.err();
}

TEST_F(UpProcess, AModelThatIsNotThereEndsUpWithTheReason) {
  Program up(dir_.path(), "none", {"up", "--model", "/nowhere/at/all"});
  EXPECT_EQ(up.ExitCode(), 1);
  EXPECT_TRUE(Contains(up.err(), "NOT_FOUND")) << up.err();
  EXPECT_TRUE(Contains(up.err(), "/nowhere/at/all")) << up.err();
}

TEST(ServerProcess, StopsWithCodeZeroOnATermSignal) {
  TempDir dir;
  Program coordinator(dir.path(), "coordinator",
                      {"coordinator", "--listen", "127.0.0.1:0",
                       "--address-file", dir.path() + "/address"});
  ASSERT_TRUE(Eventually(
      kPatience, [&] { return !ReadFile(dir.path() + "/address").empty(); }));
  coordinator.process().Signal(SIGTERM);
  EXPECT_EQ(coordinator.ExitCode(), 0) << coordinator.err();
}

TEST(ServerProcess, APortThatIsTakenIsAnErrorThatNamesIt) {
  TempDir dir;
  Program first(dir.path(), "first",
                {"coordinator", "--listen", "127.0.0.1:0", "--address-file",
                 dir.path() + "/address"});
  ASSERT_TRUE(Eventually(
      kPatience, [&] { return !ReadFile(dir.path() + "/address").empty(); }));
  std::string address = ReadFile(dir.path() + "/address");
  address.pop_back();
  for (const Strings& command :
       {Strings{"coordinator"}, Strings{"trunk-worker", "--model", kDemo}}) {
    Strings argv = {TRUNKLINE_BINARY};
    argv.insert(argv.end(), command.begin(), command.end());
    argv.insert(argv.end(), {"--listen", address});
    const RunResult second = RunProgram(argv, kPatience);
    EXPECT_EQ(second.exit_code, 1) << second.err;
    EXPECT_TRUE(Contains(second.err, address)) << second.err;
  }
}

TEST(ServerProcess, ExitsWithItsParentWhenAsked) {
  TempDir dir;
  const std::string pid_file = dir.path() + "/pid";
  // The shell is the parent; it writes the server's pid and waits.
  ChildProcess shell(ChildProcess::Options{
      .argv = {"/bin/sh", "-c",
               std::string(TRUNKLINE_BINARY) +
                   " coordinator --listen 127.0.0.1:0 --exit-with-parent "
                   "--address-file " +
                   dir.path() + "/address & echo $! > " + pid_file + "; wait"},
      .environment = {},
      .stdout_file = "",
      .stderr_file = "",
      .stdin_text = ""});
  ASSERT_TRUE(Eventually(
      kPatience, [&] { return !ReadFile(dir.path() + "/address").empty(); }));
  const int pid = std::stoi(ReadFile(pid_file));
  EXPECT_TRUE(IsRunning(pid));
  shell.Signal(SIGKILL);
  EXPECT_TRUE(Eventually(kPatience, [&] { return !IsRunning(pid); }));
}

}  // namespace
}  // namespace trunkline::cli
