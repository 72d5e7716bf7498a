#include "cli/cluster_monitor.h"

#include <unistd.h>

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/server_readiness.h"
#include "control/coordinator_client.h"

namespace trunkline::cli {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(100);
constexpr absl::Duration kLookPatience = absl::Seconds(2);

}  // namespace

ClusterMonitor::ClusterMonitor(std::string coordinator,
                               std::vector<std::string> trunks, int wake_fd)
    : coordinator_(std::move(coordinator)),
      trunks_(std::move(trunks)),
      wake_fd_(wake_fd),
      thread_([this] { Run(); }) {}

ClusterMonitor::~ClusterMonitor() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  thread_.join();
}

ClusterMonitor::Snapshot ClusterMonitor::Get() {
  std::lock_guard lock(mutex_);
  return snapshot_;
}

void ClusterMonitor::Run() {
  for (;;) {
    Snapshot seen = Look();
    const bool ready = seen.ready;
    std::unique_lock lock(mutex_);
    snapshot_ = std::move(seen);
    const uint64_t one = 1;
    // The counter can not overflow, so a failed write changes nothing.
    if (write(wake_fd_, &one, sizeof(one)) < 0) return;
    if (ready) return;
    if (stopping_.wait_for(lock, kBetweenLooks, [this] { return stop_; })) {
      return;
    }
  }
}

ClusterMonitor::Snapshot ClusterMonitor::Look() {
  Snapshot snapshot;
  const absl::StatusOr<control::ClusterView> view =
      control::FetchCluster(coordinator_, kLookPatience);
  if (!view.ok()) {
    snapshot.waiting_for =
        absl::StrCat("the coordinator: ", view.status().message());
    return snapshot;
  }
  for (const control::WorkerView& worker : view->workers) {
    for (const control::VersionReport& report : worker.versions) {
      snapshot.bytes_loaded += static_cast<int64_t>(report.bytes_loaded);
      snapshot.bytes_total += static_cast<int64_t>(report.bytes_total);
    }
  }
  if (!view->active.valid()) {
    snapshot.waiting_for = view->waiting_for;
    return snapshot;
  }
  for (const std::string& trunk : trunks_) {
    const absl::Status seen = LookAtServer(DialServer(trunk), kLookPatience);
    if (seen.ok()) continue;
    snapshot.waiting_for = absl::StrCat(trunk, ": ", seen.message());
    return snapshot;
  }
  snapshot.ready = true;
  return snapshot;
}

}  // namespace trunkline::cli
