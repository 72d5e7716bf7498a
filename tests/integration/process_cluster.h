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
  const std::string& coordinator_address() const {
    return coordinator_address_;
  }
  std::unique_ptr<v1::Generation::Stub> NewStub(int trunk = 0) const;

  ChildProcess& coordinator() { return *coordinator_; }
  ChildProcess& trunk(int i = 0) { return *trunks_[static_cast<size_t>(i)]; }
  ChildProcess& expert(int i) { return *experts_[static_cast<size_t>(i)]; }
  // Starts expert i again after it ended, under the same name.
  void RestartExpert(int i);
  std::string Logs() const;  // of every process, for a failing test

 private:
  explicit ProcessCluster(const Options& options) : options_(options) {}
  absl::Status StartAll();
  std::unique_ptr<ChildProcess> Spawn(const std::string& role,
                                      const std::string& name,
                                      std::vector<std::string> flags);
  absl::StatusOr<std::string> AwaitAddress(const std::string& name,
                                           ChildProcess& process);

  Options options_;
  TempDir dir_;
  std::string coordinator_address_;
  std::vector<std::string> trunk_addresses_;
  std::unique_ptr<ChildProcess> coordinator_;
  std::vector<std::unique_ptr<ChildProcess>> experts_, trunks_;
};

}  // namespace trunkline::testing
