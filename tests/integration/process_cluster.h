#pragma once

// A cluster of real trunkline processes on loopback, for tests that kill,
// starve and flood it.

#include <grpcpp/channel.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/generation.grpc.pb.h"
#include "tests/integration/child_process.h"

namespace trunkline::testing {

class ProcessCluster {
 public:
  struct Options {
    std::string model = {};
    int experts = 2;
    int trunks = 1;
    int replicas = 1;
    int coordinators = 1;  // above 1: coordinator_flags name an etcd store
    // Another program than trunkline that takes the coordinator's flags.
    std::string coordinator_program = {};
    std::vector<std::string> coordinator_flags = {}, trunk_flags = {},
                             expert_flags = {};
    std::vector<std::pair<std::string, std::string>> environment = {};
    // Instead of `model`, one for each expert worker.
    std::vector<std::string> expert_models = {};
  };

  // Starts everything and waits until every trunk answers GetModel with an
  // active placement version.
  static absl::StatusOr<std::unique_ptr<ProcessCluster>> Start(
      const Options& options);

  const std::string& trunk_address(int i = 0) const {
    return trunk_addresses_[static_cast<size_t>(i)];
  }
  // Of all coordinators, with commas between.
  const std::string& coordinator_address() const {
    return coordinator_address_;
  }
  const std::string& coordinator_address(int i) const {
    return coordinator_addresses_[static_cast<size_t>(i)];
  }
  std::unique_ptr<v1::Generation::Stub> NewStub(int trunk = 0) const;

  ChildProcess& coordinator(int i = 0) {
    return *coordinators_[static_cast<size_t>(i)];
  }
  ChildProcess& trunk(int i = 0) { return *trunks_[static_cast<size_t>(i)]; }
  ChildProcess& expert(int i) { return *experts_[static_cast<size_t>(i)]; }
  // Starts coordinator i again after it ended, at the same address, and waits
  // until it listens.
  absl::Status RestartCoordinator(int i = 0);
  // Starts expert i again after it ended, under the same name.
  void RestartExpert(int i);
  // Starts one more expert worker, on another model directory, with more flags.
  // Its number.
  int AddExpert(const std::string& model,
                const std::vector<std::string>& flags = {});
  std::string Logs() const;  // of every process, for a failing test

 private:
  explicit ProcessCluster(const Options& options) : options_(options) {}
  absl::Status StartAll();
  void SpawnCoordinator(int i, const std::string& listen);
  std::unique_ptr<ChildProcess> Spawn(const std::string& role,
                                      const std::string& name,
                                      std::vector<std::string> flags);
  absl::StatusOr<std::string> AwaitAddress(const std::string& name,
                                           ChildProcess& process);

  Options options_;
  // Of experts that are not like the others.
  std::map<int, std::string> expert_models_;
  std::map<int, std::vector<std::string>> expert_flags_;
  TempDir dir_;
  std::string coordinator_address_;
  std::vector<std::string> trunk_addresses_;
  std::vector<std::string> coordinator_addresses_;
  std::vector<std::unique_ptr<ChildProcess>> coordinators_, experts_, trunks_;
};

}  // namespace trunkline::testing
