#pragma once

// A coordinator and expert workers as processes of this program, and the
// calling process as their trunk: what `trunkline bench --experts N` measures.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "cli/up_plan.h"
#include "control/coordinator_client.h"
#include "kernels/kernel_context.h"
#include "model/checkpoint.h"
#include "trunk_worker/expert_link.h"

namespace trunkline::cli {

class BenchCluster {
 public:
  // Starts the processes; flags.trunks is not used. From the main thread.
  static absl::StatusOr<std::unique_ptr<BenchCluster>> Start(
      const UpFlags& flags, int machine_cpus);
  ~BenchCluster();  // ends them

  // Joins as the trunk and waits until every expert can be reached. The link is
  // the cluster's; it lives as long.
  absl::StatusOr<trunk::ExpertLink*> Join(const model::Checkpoint& checkpoint,
                                          const kernels::KernelContext& context,
                                          absl::Duration patience);

 private:
  explicit BenchCluster(const UpFlags& flags);
  absl::Status Spawn(const UpProcess& process);
  // The address that a process writes once it listens.
  absl::StatusOr<std::string> AwaitAddress(const std::string& name);
  absl::Status CheckAlive();
  std::string LogOf(const std::string& name) const;

  const UpFlags flags_;
  std::string directory_;  // addresses and logs, removed at the end
  std::string coordinator_address_;
  struct Member {
    std::string name;
    std::unique_ptr<ChildProcess> process;
  };
  std::vector<Member> members_;
  std::unique_ptr<trunk::ExpertLink> link_;
  control::Identity identity_;  // the client's threads only
  std::unique_ptr<control::CoordinatorClient> client_;
};

}  // namespace trunkline::cli
