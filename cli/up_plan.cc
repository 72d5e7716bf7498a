#include "cli/up_plan.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/contract_spec.h"
#include "common/compute_threads.h"
#include "common/status_macros.h"

namespace trunkline::cli {
namespace {

void AppendCommon(const UpFlags& flags, std::vector<std::string>* arguments) {
  if (!flags.no_metrics) {
    arguments->insert(arguments->end(), {"--metrics-listen", "127.0.0.1:0"});
  }
  arguments->insert(arguments->end(),
                    {"--log-level", flags.log_level, "--drain-timeout",
                     absl::FormatDuration(flags.drain_timeout)});
}

// cores: of this worker; empty: not pinned.
UpProcess PlanWorker(const UpFlags& flags, UpRole role, int index,
                     const std::string& coordinator, int threads,
                     const std::vector<int>& cores) {
  const bool trunk = role == UpRole::kTrunk;
  UpProcess process;
  process.role = role;
  process.name = absl::StrCat(trunk ? "trunk-" : "expert-", index);
  process.arguments = {trunk ? "trunk-worker" : "expert-worker",
                       "--name",
                       process.name,
                       "--model",
                       flags.model,
                       "--coordinator",
                       coordinator,
                       "--listen",
                       trunk && index == 0 ? flags.listen : "127.0.0.1:0",
                       "--transport",
                       flags.transport,
                       "--threads",
                       absl::StrCat(threads),
                       "--simd",
                       flags.simd,
                       "--numerics",
                       flags.numerics};
  if (!cores.empty()) {
    process.arguments.insert(process.arguments.end(),
                             {"--cores", absl::StrJoin(cores, ",")});
  }
  if (trunk) {
    process.arguments.insert(process.arguments.end(),
                             {"--admission", flags.admission});
    if (flags.validate_routes) {
      process.arguments.push_back("--validate-routes");
    }
  } else {
    process.arguments.push_back("--shared-cores");
  }
  AppendCommon(flags, &process.arguments);
  return process;
}

}  // namespace

absl::Status CheckUpFlags(const UpFlags& flags) {
  if (flags.replicas > flags.experts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--replicas is ", flags.replicas, ", but --experts is ", flags.experts,
        ": copies of one expert never share a worker"));
  }
  if (!flags.store.empty() && !flags.state_file.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--store is \"", flags.store, "\" and --state-file is \"",
                     flags.state_file, "\": only one of them can be"));
  }
  if (flags.coordinators > 1 && !absl::StartsWith(flags.store, "etcd://")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--coordinators is ", flags.coordinators, ", but --store is \"",
        flags.store, "\": several share a store in etcd only (etcd://...)"));
  }
  if (flags.coordinators > 1 &&
      !absl::EndsWith(flags.coordinator_listen, ":0")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--coordinator-listen is \"", flags.coordinator_listen,
                     "\", but --coordinators is ", flags.coordinators,
                     ": they can not share a port; use port 0"));
  }
  if (flags.trunks > 1 && !absl::EndsWith(flags.listen, ":0")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen is \"", flags.listen, "\", but --trunks is ",
                     flags.trunks, ": they can not share a port; use port 0"));
  }
  return Annotate(ServingAdmissionFromText(flags.admission).status(),
                  "--admission");
}

std::vector<UpProcess> PlanCoordinators(const UpFlags& flags) {
  UpProcess process;
  process.role = UpRole::kCoordinator;
  process.name = "coordinator";
  process.arguments = {"coordinator",
                       "--listen",
                       flags.coordinator_listen,
                       "--expert-workers",
                       absl::StrCat(flags.experts),
                       "--replicas",
                       absl::StrCat(flags.replicas),
                       "--numerics",
                       flags.numerics};
  if (!flags.state_file.empty()) {
    process.arguments.insert(process.arguments.end(),
                             {"--state-file", flags.state_file});
  }
  if (!flags.store.empty()) {
    process.arguments.insert(process.arguments.end(), {"--store", flags.store});
  }
  AppendCommon(flags, &process.arguments);
  if (flags.coordinators == 1) return {process};
  std::vector<UpProcess> processes;
  for (int i = 0; i < flags.coordinators; ++i) {
    processes.push_back(process);
    processes.back().name = absl::StrCat("coordinator-", i);
  }
  return processes;
}

std::vector<UpProcess> PlanWorkers(const UpFlags& flags,
                                   const std::string& coordinators,
                                   int machine_cpus) {
  std::vector<UpProcess> processes;
  // The workers of a role compute at the same time and share the cpus out; the
  // trunk computes while they wait, so it has them all.
  const auto plan = [&](UpRole role, int count) {
    const int shared_out = std::max(1, machine_cpus / std::max(count, 1));
    std::vector<std::vector<int>> cores(static_cast<size_t>(count));
    if (!flags.cores.empty() && count > 0) cores = ShareOut(flags.cores, count);
    for (int i = 0; i < count; ++i) {
      const std::vector<int>& own = cores[static_cast<size_t>(i)];
      int threads = flags.threads;
      if (threads == 0)
        threads = own.empty() ? shared_out : static_cast<int>(own.size());
      processes.push_back(
          PlanWorker(flags, role, i, coordinators, threads, own));
    }
  };
  plan(UpRole::kExpert, flags.experts);
  plan(UpRole::kTrunk, flags.trunks);
  return processes;
}

}  // namespace trunkline::cli
