// trunkline placement: what is placed where, and changing it.

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/admin_client.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/message_json.h"
#include "cli/placement_change.h"
#include "cli/placement_report.h"
#include "common/status_macros.h"
#include "control/coordinator_client.h"
#include "placement/placement_json.h"

namespace trunkline::cli {
namespace {

using Stub = AdminClient::Stub;

struct PlacementFlags {
  AdminFlags admin;
  PlanFlags plan;
  WaitFlags wait;
  uint64_t version = 0, base_version = 0;
  uint32_t limit = 20;
  std::string file, out, from, to = "active", reason;
  bool dry_run = false, all = false;
};
using Flags = std::shared_ptr<PlacementFlags>;

template <typename Message, typename MakeText>
void Print(const Message& message, bool as_json, const MakeText& make_text) {
  const std::string text = as_json ? MessageJson(message).dump(2) + "\n"
                                   : std::string(make_text(message));
  std::fputs(text.c_str(), stdout);
}

absl::Status Show(const PlacementFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  TL_ASSIGN_OR_RETURN(const admin::ShowResponse show,
                      client.Call(&Stub::Show, admin::ShowRequest()));
  Print(show, flags.admin.as_json, ShowText);
  return absl::OkStatus();
}

absl::Status History(const PlacementFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  admin::HistoryRequest request;
  request.set_limit(flags.limit);
  TL_ASSIGN_OR_RETURN(const admin::HistoryResponse history,
                      client.Call(&Stub::History, request));
  Print(history, flags.admin.as_json, HistoryText);
  return absl::OkStatus();
}

absl::StatusOr<std::string> FetchDocument(const AdminClient& client,
                                          uint64_t version) {
  admin::ExportRequest request;
  request.set_version(version);
  TL_ASSIGN_OR_RETURN(admin::ExportResponse response,
                      client.Call(&Stub::Export, request));
  return response.document();
}

absl::Status Export(const PlacementFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  TL_ASSIGN_OR_RETURN(const std::string document,
                      FetchDocument(client, flags.version));
  return WriteDocument(flags.out, document);
}

absl::Status Pin(const PlacementFlags& flags, bool pinned) {
  const AdminClient client(flags.admin.coordinator);
  admin::PinRequest request;
  request.set_pinned(pinned);
  request.set_reason(flags.reason);
  TL_ASSIGN_OR_RETURN(const admin::PinResponse response,
                      client.Call(&Stub::Pin, request));
  Print(response, flags.admin.as_json, [&](const admin::PinResponse& r) {
    const std::string version =
        r.active_version() == 0 ? "no version is active yet"
                                : absl::StrCat("version ", r.active_version());
    return absl::StrCat(version, pinned ? ": pinned\n" : ": not pinned\n");
  });
  return absl::OkStatus();
}

struct NamedMap {
  std::string name;
  placement::PlacementMap map;
};

// "7", "active", or a document's file.
absl::StatusOr<NamedMap> MapOf(const std::string& what,
                               const AdminClient& client,
                               const std::map<std::string, WorkerId>& cluster) {
  uint64_t version = 0;
  const bool by_number = absl::SimpleAtoi(what, &version) && version > 0;
  if (by_number || what == "active") {
    TL_ASSIGN_OR_RETURN(const std::string text, FetchDocument(client, version));
    // The ids are this cluster's own, also of workers that it has forgotten.
    TL_ASSIGN_OR_RETURN(placement::PlacementDocument document,
                        placement::PlacementFromJson(text));
    return NamedMap{absl::StrCat("version ", document.map.version.value),
                    std::move(document.map)};
  }
  TL_ASSIGN_OR_RETURN(const std::string text, ReadDocument(what));
  absl::StatusOr<placement::PlacementDocument> document =
      placement::PlacementFromJson(text);
  if (!document.ok()) return Annotate(document.status(), what);
  absl::StatusOr<placement::PlacementMap> map =
      placement::ResolveWorkers(*document, cluster);
  if (!map.ok()) return Annotate(map.status(), what);
  return NamedMap{what, *std::move(map)};
}

absl::Status Diff(const PlacementFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  TL_ASSIGN_OR_RETURN(
      const control::ClusterView view,
      control::FetchCluster(flags.admin.coordinator, absl::Seconds(60)));
  DiffReport report;
  std::map<std::string, WorkerId> cluster;
  for (const control::WorkerView& worker : view.workers) {
    if (worker.role != control::Role::kExpert) continue;
    cluster[worker.name] = worker.id;
    report.names[worker.id.value] = worker.name;
  }
  TL_ASSIGN_OR_RETURN(const NamedMap from, MapOf(flags.from, client, cluster));
  TL_ASSIGN_OR_RETURN(const NamedMap to, MapOf(flags.to, client, cluster));
  report.from = from.name;
  report.to = to.name;
  TL_ASSIGN_OR_RETURN(report.diff, placement::DiffPlacements(from.map, to.map,
                                                             view.moe_layers));
  const std::string text = flags.admin.as_json
                               ? DiffJson(report).dump(2) + "\n"
                               : DiffText(report, MovesListed(flags.all));
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

absl::Status Plan(const PlacementFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  TL_ASSIGN_OR_RETURN(
      const admin::PlanResponse plan,
      client.Call(&Stub::Plan, MakePlanRequest(flags.plan), absl::Minutes(10)));
  if (!flags.out.empty())
    TL_RETURN_IF_ERROR(WriteDocument(flags.out, plan.document()));
  return PrintPlan(client, plan, flags.admin.as_json, flags.all);
}

absl::Status Apply(const PlacementFlags& flags) {
  admin::ApplyRequest request;
  TL_ASSIGN_OR_RETURN(*request.mutable_document(), ReadDocument(flags.file));
  request.set_base_version(flags.base_version);
  request.set_dry_run(flags.dry_run);
  const AdminClient client(flags.admin.coordinator);
  TL_ASSIGN_OR_RETURN(const admin::PlanResponse plan,
                      client.Call(&Stub::Apply, request));
  TL_RETURN_IF_ERROR(PrintPlan(client, plan, flags.admin.as_json, flags.all));
  if (flags.dry_run) return absl::OkStatus();
  return FollowChange("placement apply", client, flags.wait, plan.version(),
                      flags.admin.as_json);
}

absl::Status Rollback(const PlacementFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  admin::RollbackRequest request;
  request.set_version(flags.version);
  TL_ASSIGN_OR_RETURN(const admin::ChangeResponse change,
                      client.Call(&Stub::Rollback, request));
  if (flags.admin.as_json)
    std::printf("%s\n", MessageJson(change).dump(2).c_str());
  std::fflush(stdout);
  return FollowChange("placement rollback", client, flags.wait,
                      change.version(), flags.admin.as_json);
}

absl::Status Abandon(const PlacementFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  admin::AbandonRequest request;
  request.set_version(flags.version);
  request.set_reason(flags.reason);
  TL_ASSIGN_OR_RETURN(const admin::ChangeResponse change,
                      client.Call(&Stub::Abandon, request));
  Print(change, flags.admin.as_json, [](const admin::ChangeResponse& c) {
    return absl::StrCat("version ", c.version(), " is abandoned\n");
  });
  return absl::OkStatus();
}

// One sub-command; `waits`: stop signals end its wait.
CLI::App* Add(CLI::App* placement, SelectedCommand* selected,
              const Flags& flags, const std::string& name, const char* help,
              absl::Status (*run)(const PlacementFlags&), bool waits = false) {
  CLI::App* command = placement->add_subcommand(name, help);
  AddAdminFlags(command, &flags->admin);
  command->callback([selected, flags, name, run, waits] {
    *selected = [flags, name, run, waits]() -> int {
      const std::string full = "placement " + name;
      if (waits) return RunWaiting(full, [&] { return run(*flags); });
      const absl::Status status = run(*flags);
      return status.ok() ? kExitOk : ReportFailure(full, status);
    };
  });
  return command;
}

void AddVersion(CLI::App* command, const Flags& flags, const char* help) {
  command->add_option("VERSION", flags->version, help)
      ->check(CLI::Range(uint64_t{1}, UINT64_MAX));
}

void AddAll(CLI::App* command, const Flags& flags) {
  command->add_flag(
      "--all", flags->all,
      absl::StrCat("List every move, not the first ", kMovesListed));
}

void AddReading(CLI::App* placement, SelectedCommand* selected,
                const Flags& flags) {
  Add(placement, selected, flags, "show",
      "The active version, changes under way, workers", Show);
  CLI::App* history = Add(placement, selected, flags, "history",
                          "What became of versions, oldest first", History);
  history
      ->add_option("--limit", flags->limit,
                   "The newest so many entries; 0: all that are kept")
      ->type_name("N")
      ->capture_default_str();
  CLI::App* exported = Add(placement, selected, flags, "export",
                           "A version as a document for apply", Export);
  AddVersion(exported, flags, "Which (default: the active one)");
  exported->add_option("--out", flags->out, "Instead of stdout")
      ->type_name("FILE");
  CLI::App* diff =
      Add(placement, selected, flags, "diff",
          "What it takes to get from one placement to another", Diff);
  diff->add_option("FROM", flags->from, "A version, \"active\", or a document")
      ->required();
  diff->add_option("TO", flags->to, "The same")->capture_default_str();
  AddAll(diff, flags);
}

void AddChanging(CLI::App* placement, SelectedCommand* selected,
                 const Flags& flags) {
  CLI::App* plan = Add(placement, selected, flags, "plan",
                       "Think a rebalance out and change nothing", Plan);
  AddPlanFlags(plan, &flags->plan);
  plan->add_option("--out", flags->out, "Also write the document for apply")
      ->type_name("FILE");
  AddAll(plan, flags);
  CLI::App* apply = Add(placement, selected, flags, "apply",
                        "Change to the placement of a document", Apply, true);
  apply->add_option("FILE", flags->file, "The document; -: stdin")->required();
  apply
      ->add_option("--base-version", flags->base_version,
                   "Refuse when another version is active by now")
      ->type_name("N");
  apply->add_flag("--dry-run", flags->dry_run, "Judge it and change nothing");
  AddAll(apply, flags);
  AddWaitFlags(apply, &flags->wait);
  CLI::App* rollback = Add(placement, selected, flags, "rollback",
                           "Change back to an earlier version", Rollback, true);
  AddVersion(rollback, flags,
             "Which (default: the one that was active before)");
  AddWaitFlags(rollback, &flags->wait);
  CLI::App* abandon = Add(placement, selected, flags, "abandon",
                          "Give up a change that is not active yet", Abandon);
  AddVersion(abandon, flags, "Which");
  abandon->get_option("VERSION")->required();
  CLI::App* pin = Add(placement, selected, flags, "pin",
                      "Let nothing change the placement by itself",
                      [](const PlacementFlags& f) { return Pin(f, true); });
  for (CLI::App* command : {abandon, pin}) {
    command->add_option("--reason", flags->reason, "For those who look later")
        ->type_name("TEXT");
  }
  Add(placement, selected, flags, "unpin", "Undo pin",
      [](const PlacementFlags& f) { return Pin(f, false); });
}

}  // namespace

void AddPlacementCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* placement = program->add_subcommand(
      "placement", "Which worker holds which expert, and changing it");
  placement->require_subcommand(1);
  placement->footer(
      "docs/placement.md shows each command with its output.\n"
      "Examples:\n"
      "  trunkline placement show --coordinator 10.0.0.1:7070\n"
      "  trunkline placement plan --max-moved-bytes 2GiB --out plan.json\n"
      "  trunkline placement apply plan.json --base-version 3\n"
      "  trunkline placement diff 3 active --all\n"
      "  trunkline placement rollback\n"
      "  trunkline placement export 3 | trunkline placement apply - --dry-run\n"
      "Exit codes: 0 done, 1 refused or failed (stderr has the code and the "
      "reason), 2 wrong usage,\n130 the wait was interrupted; the change goes "
      "on.");
  const auto flags = std::make_shared<PlacementFlags>();
  AddReading(placement, selected, flags);
  AddChanging(placement, selected, flags);
}

}  // namespace trunkline::cli
