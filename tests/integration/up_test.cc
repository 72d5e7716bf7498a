// `trunkline up` and `trunkline generate` as a person uses them.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <set>
#include <string>

#include "tests/integration/child_process.h"
#include "tests/integration/eventually.h"

namespace trunkline::testing {
namespace {

// Processes whose command line names `marker`, by /proc.
std::set<int> ProcessesNaming(const std::string& marker) {
  std::set<int> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (ReadFile(entry.path().string() + "/cmdline").find(marker) !=
        std::string::npos)
      pids.insert(std::stoi(name));
  }
  pids.erase(getpid());
  return pids;
}

class Up : public ::testing::Test {
 protected:
  void StartUp() {
    up_ = std::make_unique<ChildProcess>(ChildProcess::Options{
        .argv = {TRUNKLINE_BINARY, "up", "--model",
                 std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo",
                 "--experts", "2", "--log-dir", dir_.path(), "--address-file",
                 dir_.path() + "/address"},
        .environment = {},
        .stdout_file = dir_.path() + "/up.out",
        .stderr_file = dir_.path() + "/up.err",
        .stdin_text = ""});
    ASSERT_TRUE(Eventually(std::chrono::seconds(60), [this] {
      return !ReadFile(dir_.path() + "/address").empty() || !up_->Running();
    })) << ReadFile(dir_.path() + "/up.err");
    address_ = ReadFile(dir_.path() + "/address");
    ASSERT_FALSE(address_.empty()) << ReadFile(dir_.path() + "/up.err");
    while (address_.back() == '\n') address_.pop_back();
    // up, a coordinator, two expert workers, a trunk worker.
    ASSERT_GE(ProcessesNaming(dir_.path()).size(), 5u);
  }
  bool AllGone() {
    return Eventually(std::chrono::seconds(10), [this] {
      up_->Running();  // reaps
      return ProcessesNaming(dir_.path()).empty();
    });
  }

  TempDir dir_;
  std::unique_ptr<ChildProcess> up_;
  std::string address_;
};

TEST_F(Up, GeneratesAndStopsCleanlyOnInterrupt) {
  StartUp();
  const RunResult run = RunProgram(
      {TRUNKLINE_BINARY, "generate", "--server", address_, "--max-tokens", "20",
       "--temperature", "0", "--ignore-eos", "In the beginning"},
      std::chrono::seconds(60));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_GT(run.out.size(), 20u);
  EXPECT_NE(run.err.find("tok/s"), std::string::npos) << run.err;
  const RunResult piped =
      RunProgram({TRUNKLINE_BINARY, "generate", "--server", address_,
                  "--max-tokens", "20", "--temperature", "0", "--ignore-eos"},
                 std::chrono::seconds(60), "In the beginning");
  EXPECT_EQ(piped.out, run.out) << piped.err;
  up_->Signal(SIGINT);
  const auto status = up_->Wait(std::chrono::seconds(30));
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) &&
              (WEXITSTATUS(*status) == 0 || WEXITSTATUS(*status) == 130))
      << *status;
  EXPECT_TRUE(AllGone()) << ::testing::PrintToString(
      ProcessesNaming(dir_.path()));
}

TEST_F(Up, NoOrphanSurvivesAKillOfUp) {
  StartUp();
  up_->Signal(SIGKILL);
  EXPECT_TRUE(AllGone()) << ::testing::PrintToString(
      ProcessesNaming(dir_.path()));
}

TEST(Generate, WithoutAServerFailsWithTheCodeOnStderr) {
  const RunResult run = RunProgram({TRUNKLINE_BINARY, "generate", "--server",
                                    "127.0.0.1:1", "--wait", "200ms", "hello"},
                                   std::chrono::seconds(20));
  EXPECT_EQ(run.exit_code, 1) << run.out << run.err;
  EXPECT_NE(run.err.find("UNAVAILABLE"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("127.0.0.1:1"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace trunkline::testing
