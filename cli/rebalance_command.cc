// trunkline rebalance: plans with the current loads and applies what is worth
// it.

#include <cstdio>
#include <memory>

#include "cli/admin_client.h"
#include "cli/command.h"
#include "cli/placement_change.h"
#include "common/status_macros.h"

namespace trunkline::cli {
namespace {

struct RebalanceFlags {
  AdminFlags admin;
  PlanFlags plan;
  WaitFlags wait;
  bool dry_run = false, all = false;
};

absl::Status Rebalance(const RebalanceFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  admin::PlanRequest request = MakePlanRequest(flags.plan);
  request.set_dry_run(flags.dry_run);
  TL_ASSIGN_OR_RETURN(
      const admin::PlanResponse plan,
      client.Call(&AdminClient::Stub::Rebalance, request, absl::Minutes(10)));
  TL_RETURN_IF_ERROR(PrintPlan(client, plan, flags.admin.as_json, flags.all));
  if (plan.version() == 0) return absl::OkStatus();
  return FollowChange("rebalance", client, flags.wait, plan.version(),
                      flags.admin.as_json);
}

}  // namespace

void AddRebalanceCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "rebalance", "Move experts so that the slowest worker is faster");
  command->footer(
      "Plans as placement plan does, from the loads of the last minutes, and "
      "applies a plan\nthat is worth it. Text is not changed by it and no "
      "stream ends.\n"
      "Examples:\n"
      "  trunkline rebalance --dry-run\n"
      "  trunkline rebalance --max-moved-bytes 2GiB --min-gain 0.1\n"
      "Exit codes: 0 done, or nothing is worth it, 1 refused or failed, 2 "
      "wrong usage,\n130 the wait was interrupted; the change goes on.");
  const auto flags = std::make_shared<RebalanceFlags>();
  AddAdminFlags(command, &flags->admin);
  AddPlanFlags(command, &flags->plan);
  command->add_flag("--dry-run", flags->dry_run,
                    "Say what would be done and change nothing");
  command->add_flag("--all", flags->all, "List every move");
  AddWaitFlags(command, &flags->wait);
  command->callback([selected, flags] {
    *selected = [flags] {
      return RunWaiting("rebalance", [&] { return Rebalance(*flags); });
    };
  });
}

}  // namespace trunkline::cli
