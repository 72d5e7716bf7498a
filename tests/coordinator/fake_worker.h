#pragma once

// A worker without experts, for tests of the coordinator over gRPC.

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "control/coordinator_client.h"
#include "tests/coordinator/cluster_fixture.h"

namespace trunkline::coordinator {

inline constexpr absl::Duration kPatience = absl::Seconds(20);

// A worker that reports READY for whatever it is given, and remembers what its
// client told it.
class FakeWorker {
 public:
  FakeWorker(const std::string& address, const std::string& name,
             control::Role role)
      : FakeWorker(address, TestRegistration(name, role)) {}
  FakeWorker(const std::string& address, control::Registration registration) {
    control::CoordinatorClient::Callbacks callbacks;
    callbacks.on_registered = [this](const control::Identity& identity) {
      const std::lock_guard<std::mutex> lock(mutex_);
      identities_.push_back(identity);
      changed_.notify_all();
    };
    callbacks.on_view = [this](const control::ClusterView& view) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (identities_.empty()) ++views_before_identity_;
      views_.push_back(view);
      changed_.notify_all();
    };
    callbacks.make_report = [this] { return Report(); };
    callbacks.on_refused = [this](const absl::Status& status) {
      const std::lock_guard<std::mutex> lock(mutex_);
      refused_ = status;
      changed_.notify_all();
    };
    client_ = control::CoordinatorClient::Start(
        address, std::move(registration), std::move(callbacks));
  }
  ~FakeWorker() { client_->Stop(); }

  // Waits for a state of this worker; false when it does not come.
  bool Await(const std::function<bool(const FakeWorker&)>& condition) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoSeconds(kPatience),
                             [&] { return condition(*this); });
  }
  bool AwaitView(
      const std::function<bool(const control::ClusterView&)>& condition) {
    return Await([&](const FakeWorker& self) {
      return !self.views_.empty() && condition(self.views_.back());
    });
  }
  bool AwaitActive(uint64_t version) {
    return AwaitView([&](const control::ClusterView& view) {
      return view.active == PlacementVersion(version) &&
             view.waiting_for.empty();
    });
  }
  control::CoordinatorClient& client() { return *client_; }
  std::vector<control::Identity> identities() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return identities_;
  }
  std::vector<control::ClusterView> views() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return views_;
  }
  absl::Status refused() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return refused_;
  }
  size_t registrations() const { return identities_.size(); }
  int views_before_identity() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return views_before_identity_;
  }
  const absl::Status& refusal() const { return refused_; }
  // Goes out with the next heartbeat.
  void AddLoads(std::vector<control::ExpertLoadReport> loads) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      loads_ = std::move(loads);
    }
    client_->ReportNow();
  }

 private:
  control::Report Report() {
    const std::lock_guard<std::mutex> lock(mutex_);
    control::Report report;
    report.loads = std::move(loads_);
    loads_.clear();
    if (identities_.empty() || views_.empty()) return report;
    for (const auto& placement : views_.back().placements) {
      const auto owners = placement.map.Workers();
      if (std::count(owners.begin(), owners.end(), identities_.back().worker) ==
          0) {
        continue;
      }
      report.versions.push_back({.version = placement.map.version,
                                 .state = control::ShardState::kReady,
                                 .error = "",
                                 .bytes_loaded = 1,
                                 .bytes_total = 1});
    }
    return report;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int views_before_identity_ = 0;
  std::vector<control::Identity> identities_;
  std::vector<control::ClusterView> views_;
  absl::Status refused_;
  std::vector<control::ExpertLoadReport> loads_;
  std::unique_ptr<control::CoordinatorClient> client_;
};

}  // namespace trunkline::coordinator
