#include "cli/placement_change.h"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "cli/flags.h"
#include "cli/format.h"
#include "cli/placement_report.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace trunkline::cli {

void AddPlanFlags(CLI::App* command, PlanFlags* f) {
  command
      ->add_option("--policy", f->policy,
                   "incremental (fewest bytes from what is placed now), eplb "
                   "or static")
      ->type_name("POLICY")
      ->capture_default_str()
      ->check(CLI::IsMember({"incremental", "eplb", "static"}));
  AddBytesFlag(command, "--max-moved-bytes", &f->max_moved_bytes,
               "What may be loaded in all; 0: not limited");
  command
      ->add_option("--min-gain", f->min_gain,
                   "Share of the slowest worker's time that a plan has to win")
      ->type_name("SHARE")
      ->capture_default_str()
      ->check(FiniteIn({.least = 0, .most = 1, .open_most = true}));
  const auto add_count = [command](const char* name, int64_t* value,
                                   const char* help) {
    command->add_option(name, *value, help)
        ->type_name("N")
        ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  };
  add_count("--replicas", &f->replicas,
            "Copies of every expert at least (default: as in the first "
            "placement)");
  add_count("--slots-per-worker", &f->slots_per_worker,
            "Copies of one layer on a worker at most (default: as many in all "
            "as now)");
  add_count("--groups", &f->num_groups, "eplb: expert groups (default: 1)");
  add_count("--nodes", &f->num_nodes, "eplb: server nodes (default: 1)");
}

admin::PlanRequest MakePlanRequest(const PlanFlags& flags) {
  admin::PlanRequest request;
  request.set_policy(flags.policy);
  request.set_replicas(static_cast<uint32_t>(flags.replicas));
  request.set_slots_per_worker(static_cast<uint32_t>(flags.slots_per_worker));
  request.set_max_moved_bytes(static_cast<uint64_t>(flags.max_moved_bytes));
  request.set_min_gain(flags.min_gain);
  request.set_num_groups(static_cast<uint32_t>(flags.num_groups));
  request.set_num_nodes(static_cast<uint32_t>(flags.num_nodes));
  return request;
}

absl::Status PrintPlan(const AdminClient& client,
                       const admin::PlanResponse& plan, bool as_json,
                       bool all) {
  if (as_json) {
    std::printf("%s\n", PlanJson(plan).dump(2).c_str());
  } else {
    TL_ASSIGN_OR_RETURN(const admin::ListWorkersResponse workers,
                        client.Call(&AdminClient::Stub::ListWorkers,
                                    admin::ListWorkersRequest()));
    std::fputs(PlanText(plan, NamesOf(workers), MovesListed(all)).c_str(),
               stdout);
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status FollowChange(const std::string& command, const AdminClient& client,
                          const WaitFlags& flags, uint64_t version,
                          bool as_json) {
  std::FILE* const out = as_json ? stderr : stdout;
  if (flags.no_wait) {
    std::fprintf(out, "version %llu has begun\n",
                 static_cast<unsigned long long>(version));
    return absl::OkStatus();
  }
  const absl::Time began = Clock::Monotonic().Now();
  TL_ASSIGN_OR_RETURN(const ChangeProgress progress,
                      AwaitChange(command, client, flags.timeout,
                                  [version](const admin::ShowResponse& show) {
                                    return JudgeChange(show, version);
                                  }));
  std::fprintf(out, "%s (%s)\n", progress.text.c_str(),
               HumanDuration(Clock::Monotonic().Now() - began).c_str());
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadDocument(const std::string& path) {
  if (path == "-")
    return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad())
    return absl::NotFoundError(absl::StrCat(path, ": can not be read"));
  return text;
}

absl::Status WriteDocument(const std::string& path, const std::string& text) {
  if (path.empty()) {
    std::fputs(text.c_str(), stdout);
    return absl::OkStatus();
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file)
    return absl::UnknownError(absl::StrCat(path, ": can not be written"));
  return absl::OkStatus();
}

}  // namespace trunkline::cli
