// A coordinator that kills itself, as kill -9 would, at one exact point of a
// placement change: just before or just after the commit that makes a step of
// it durable. The product's coordinator is linked as it is; only the store is
// wrapped.
//
//   dying_coordinator coordinator --arm-file FILE [the coordinator's flags]
//
// FILE holds the point, such as "activate:before"; it is removed when the point
// is reached, so that the next process lives.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/coordinator_server.h"
#include "tests/integration/child_process.h"

namespace trunkline::testing {
namespace {

using coordinator::PlacementStore;
using coordinator::StoreChange;
using coordinator::StoreContents;
using placement::VersionState;

// Which step of a change this commit makes durable; empty: none. open: a change
// is under way.
std::string StepOf(const StoreChange& change, bool open) {
  std::string step;
  for (const coordinator::PlacementRecord& record : change.placements) {
    switch (record.state) {
      case VersionState::kStaging:
        return "stage";
      case VersionState::kActive:
        return "activate";
      case VersionState::kAbandoned:
        return "abandon";
      case VersionState::kRetired:
        step = "retire";
        break;
      default:
        break;
    }
  }
  if (!step.empty() || !change.placements.empty()) return step;
  // A worker says what it has loaded; the change is not ready by that alone.
  return change.workers.empty() || !open ? "" : "report";
}

class DyingStore final : public PlacementStore {
 public:
  DyingStore(std::unique_ptr<PlacementStore> store, std::string arm_file)
      : store_(std::move(store)), arm_file_(std::move(arm_file)) {}

  absl::StatusOr<StoreContents> Load() override {
    absl::StatusOr<StoreContents> contents = store_->Load();
    if (contents.ok()) {
      open_ = false;
      for (const coordinator::PlacementRecord& record : contents->placements) {
        open_ = open_ || placement::IsOpen(record.state);
      }
    }
    return contents;
  }
  absl::Status Commit(const StoreChange& change) override {
    const std::string step = StepOf(change, open_);
    if (!step.empty()) DieAt(step + ":before");
    absl::Status status = store_->Commit(change);
    if (status.ok() && !step.empty()) DieAt(step + ":after");
    if (step == "stage") open_ = true;
    if (step == "activate" || step == "abandon") open_ = false;
    return status;
  }
  absl::Status Confirm() override { return store_->Confirm(); }

 private:
  void DieAt(const std::string& point) {
    if (ReadFile(arm_file_) != point) return;
    unlink(arm_file_.c_str());
    kill(getpid(), SIGKILL);
  }

  const std::unique_ptr<PlacementStore> store_;
  const std::string arm_file_;
  bool open_ = false;
};

int Run(std::map<std::string, std::string> flags) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  coordinator::CoordinatorOptions options;
  options.listen = flags["--listen"];
  options.store = flags["--store"];
  options.log_level = "info";
  if (!absl::SimpleAtoi(flags["--expert-workers"], &options.expert_workers) ||
      !absl::SimpleAtoi(flags["--replicas"], &options.replicas)) {
    std::fprintf(stderr, "dying_coordinator: no numbers\n");
    return 2;
  }
  options.wrap_store = [&](std::unique_ptr<PlacementStore> store) {
    return std::make_unique<DyingStore>(std::move(store), flags["--arm-file"]);
  };
  auto server = coordinator::CoordinatorServer::Start(options);
  if (!server.ok()) {
    std::fprintf(stderr, "dying_coordinator: %s\n",
                 std::string(server.status().message()).c_str());
    return 1;
  }
  WriteFile(flags["--address-file"], (*server)->address() + "\n");
  int signal = 0;
  sigwait(&signals, &signal);
  (*server)->Shutdown(absl::Seconds(5));
  return 0;
}

}  // namespace
}  // namespace trunkline::testing

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int i = 2; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  return trunkline::testing::Run(std::move(flags));
}
