#pragma once

// Which processes `trunkline up` starts and with what flags. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace trunkline::cli {

struct UpFlags {
  std::string model;
  int experts = 2;
  int trunks = 1;
  int replicas = 1;
  int threads = 0;  // per worker; 0: the machine's cpus shared out
  // Logical cpus to pin compute threads to; empty: not pinned. Expert workers
  // compute at the same time and share the set out among them, and so do trunk
  // workers; a trunk and its experts take turns, so each side gets all of it.
  std::vector<int> cores;
  std::string transport = "ucx";
  std::string listen = "127.0.0.1:0";  // of the first trunk's API
  std::string coordinator_listen = "127.0.0.1:0";
  int coordinators = 1;  // above 1: they share `store`, which is in etcd
  std::string state_file;
  std::string store;
  std::string simd = "auto";
  std::string numerics = "portable";   // a class: who plans has chosen it
  std::string admission = "dropless";  // of the trunk workers
  bool validate_routes = false;
  bool no_metrics = false;
  std::string log_level = "info";
  std::string log_dir;       // empty: lines go to stderr with a prefix
  std::string address_file;  // API addresses, once the cluster serves
  absl::Duration wait_ready = absl::InfiniteDuration();
  absl::Duration drain_timeout = absl::Seconds(10);
  bool keep_going = false;
};

// INVALID_ARGUMENT naming the flags that do not go together.
absl::Status CheckUpFlags(const UpFlags& flags);

// In the order in which they stop: who depends on others goes first.
enum class UpRole : uint8_t { kTrunk, kExpert, kCoordinator };

struct UpProcess {
  UpRole role = UpRole::kTrunk;
  std::string name;                    // "expert-0"
  std::vector<std::string> arguments;  // sub-command and flags
};

std::vector<UpProcess> PlanCoordinators(const UpFlags& flags);
// Expert workers, then trunks. coordinators: their addresses with commas
// between. machine_cpus: to be shared out.
std::vector<UpProcess> PlanWorkers(const UpFlags& flags,
                                   const std::string& coordinators,
                                   int machine_cpus);

}  // namespace trunkline::cli
