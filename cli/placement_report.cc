#include "cli/placement_report.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/format.h"
#include "cli/message_json.h"
#include "cli/worker_report.h"

namespace trunkline::cli {
namespace {

using Align = Table::Align;

std::string NameOf(const WorkerNames& names, uint32_t worker) {
  const auto found = names.find(worker);
  return found == names.end() ? absl::StrCat("worker ", worker) : found->second;
}

std::string Bytes(uint64_t bytes) {
  return HumanBytes(static_cast<int64_t>(bytes));
}

std::string Copies(uint64_t count) {
  return absl::StrCat(count, count == 1 ? " copy" : " copies");
}

// How far a version is that its workers still load.
std::string Loaded(const admin::VersionInfo& version) {
  const bool loading =
      version.state() == control::v1::PLACEMENT_STATE_STAGING ||
      version.state() == control::v1::PLACEMENT_STATE_READY;
  if (!loading) return "";
  return absl::StrCat(version.workers_ready(), " of ", version.workers(),
                      " workers, ", Bytes(version.bytes_loaded()), " of ",
                      Bytes(version.bytes_total()));
}

std::string VersionsText(const admin::ShowResponse& show) {
  Table table({"VERSION", "STATE", "ORIGIN", "COPIES", "WORKERS", "LOADED",
               "WHY ABANDONED"},
              {Align::kRight, Align::kLeft, Align::kLeft, Align::kRight,
               Align::kRight, Align::kLeft, Align::kLeft});
  for (const admin::VersionInfo& version : show.versions()) {
    table.AddRow({absl::StrCat(version.version()), StateName(version.state()),
                  version.origin(), absl::StrCat(version.copies()),
                  absl::StrCat(version.workers()), Loaded(version),
                  version.reason()});
  }
  return table.ToString();
}

// The first `rows_max` rows, and how many there are beyond.
template <typename Rows, typename MakeRow>
std::string Listed(const Rows& rows, size_t rows_max, Table table,
                   const MakeRow& make_row) {
  if (rows.empty()) return "";
  size_t listed = 0;
  for (const auto& row : rows) {
    if (listed == rows_max) break;
    table.AddRow(make_row(row));
    ++listed;
  }
  std::string text = "\n" + table.ToString();
  const size_t left = static_cast<size_t>(rows.size()) - listed;
  if (left > 0)
    absl::StrAppend(&text, "... and ", left, " more (--all lists them)\n");
  return text;
}

std::string Balancedness(const admin::PlanResponse& plan) {
  if (plan.before().slowest() <= 0)
    return absl::StrFormat("balancedness    %.3f -> %.3f (no load is known)\n",
                           plan.before().balancedness(),
                           plan.after().balancedness());
  return absl::StrFormat(
      "balancedness    %.3f -> %.3f (the slowest worker's time %s %.1f%%)\n",
      plan.before().balancedness(), plan.after().balancedness(),
      plan.gain() < 0 ? "grows by" : "falls by", 100 * std::abs(plan.gain()));
}

}  // namespace

std::string StateName(control::v1::PlacementState state) {
  std::string name = control::v1::PlacementState_Name(state);
  const std::string prefix = "PLACEMENT_STATE_";
  if (name.rfind(prefix, 0) == 0) name.erase(0, prefix.size());
  return absl::AsciiStrToLower(name);
}

std::string ShowText(const admin::ShowResponse& show) {
  std::string text = absl::StrCat(
      "cluster ", show.cluster_id(), ", coordinator epoch ", show.epoch(),
      "\nactive version  ",
      show.active_version() == 0 ? "none" : absl::StrCat(show.active_version()),
      "\n");
  if (!show.waiting_for().empty())
    absl::StrAppend(&text, "waiting for     ", show.waiting_for(), "\n");
  if (!show.blocked().empty())
    absl::StrAppend(&text, "blocked         ", show.blocked(), "\n");
  if (show.pinned())
    absl::StrAppend(&text, "pinned          ", show.pin_reason(), "\n");
  if (show.has_load()) {
    absl::StrAppendFormat(&text, "balancedness    %.3f%s\n",
                          show.load().balancedness(),
                          show.load().slowest() > 0 ? " under the current loads"
                                                    : " (no load is known)");
  }
  absl::StrAppend(&text, "\n", VersionsText(show));
  admin::ListWorkersResponse workers;
  *workers.mutable_workers() = show.workers();
  return absl::StrCat(text, "\n", WorkersText(workers));
}

std::string HistoryText(const admin::HistoryResponse& history) {
  Table table(
      {"#", "TIME (UTC)", "VERSION", "STATE", "DETAIL"},
      {Align::kRight, Align::kLeft, Align::kRight, Align::kLeft, Align::kLeft});
  for (const admin::HistoryEntry& entry : history.entries()) {
    table.AddRow({absl::StrCat(entry.sequence()),
                  absl::FormatTime("%Y-%m-%d %H:%M:%E3S",
                                   absl::FromUnixNanos(entry.unix_nanos()),
                                   absl::UTCTimeZone()),
                  absl::StrCat(entry.version()), StateName(entry.state()),
                  entry.detail()});
  }
  return table.ToString();
}

WorkerNames NamesOf(const admin::ListWorkersResponse& workers) {
  WorkerNames names;
  for (const admin::WorkerInfo& info : workers.workers())
    names[info.worker().worker_id()] = info.worker().name();
  return names;
}

std::string PlanText(const admin::PlanResponse& plan, const WorkerNames& names,
                     size_t moves_max) {
  std::string text = absl::StrCat(
      "against version ", plan.base_version(), ": ",
      plan.worthwhile() ? "worth it" : "nothing to do", ", ", plan.reason(),
      "\nmoves           ", Copies(static_cast<uint64_t>(plan.moves_size())),
      " to load, ", Bytes(plan.moved_bytes()), "; ", Copies(plan.drops()),
      " to drop\n", Balancedness(plan), "expected time   ",
      plan.moves_size() == 0 ? "none: nothing is loaded"
      : plan.expected_seconds() > 0
          ? HumanDuration(absl::Seconds(plan.expected_seconds())) + " to load"
          : "not known: no change has been measured yet",
      "\n");
  const auto make_row = [&](const admin::Move& move) {
    const std::string sources = absl::StrJoin(
        move.source_ids(), ", ", [&](std::string* out, uint32_t worker) {
          out->append(NameOf(names, worker));
        });
    return std::vector<std::string>{
        absl::StrCat(move.layer()), absl::StrCat(move.expert()),
        move.worker().empty() ? NameOf(names, move.worker_id()) : move.worker(),
        sources.empty() ? "disk" : sources, Bytes(move.bytes())};
  };
  return text + Listed(plan.moves(), moves_max,
                       Table({"LAYER", "EXPERT", "TO", "HELD BY", "BYTES"},
                             {Align::kRight, Align::kRight, Align::kLeft,
                              Align::kLeft, Align::kRight}),
                       make_row);
}

nlohmann::ordered_json PlanJson(const admin::PlanResponse& plan) {
  nlohmann::ordered_json json = MessageJson(plan);
  json["document"] =
      nlohmann::ordered_json::parse(plan.document(), nullptr, false);
  return json;
}

std::string DiffText(const DiffReport& report, size_t moves_max) {
  const placement::PlacementDiff& diff = report.diff;
  std::string text = absl::StrCat(report.from, " -> ", report.to, ": ");
  if (diff.empty()) return text + "the same owners\n";
  absl::StrAppend(&text, Copies(diff.loads.size()), " to load, ",
                  Bytes(diff.bytes), "; ", Copies(diff.drops.size()),
                  " to drop\n");
  struct Change {
    bool load = false;
    LayerIndex layer;
    ExpertId expert;
    WorkerId worker;
    uint64_t bytes = 0;
  };
  std::vector<Change> changes;
  for (const placement::ExpertLoadMove& load : diff.loads)
    changes.push_back({true, load.layer, load.expert, load.worker, load.bytes});
  for (const placement::ExpertDrop& drop : diff.drops)
    changes.push_back({false, drop.layer, drop.expert, drop.worker, 0});
  std::stable_sort(
      changes.begin(), changes.end(), [](const Change& a, const Change& b) {
        return std::pair(a.layer, a.expert) < std::pair(b.layer, b.expert);
      });
  const auto make_row = [&](const Change& change) {
    return std::vector<std::string>{change.load ? "+" : "-",
                                    absl::StrCat(change.layer.value),
                                    absl::StrCat(change.expert.value),
                                    NameOf(report.names, change.worker.value),
                                    change.load ? Bytes(change.bytes) : ""};
  };
  return text + Listed(changes, moves_max,
                       Table({"", "LAYER", "EXPERT", "WORKER", "BYTES"},
                             {Align::kLeft, Align::kRight, Align::kRight,
                              Align::kLeft, Align::kRight}),
                       make_row);
}

nlohmann::ordered_json DiffJson(const DiffReport& report) {
  nlohmann::ordered_json json = {{"from", report.from},
                                 {"to", report.to},
                                 {"moved_bytes", report.diff.bytes}};
  json["loads"] = nlohmann::ordered_json::array();
  for (const placement::ExpertLoadMove& load : report.diff.loads) {
    nlohmann::ordered_json sources = nlohmann::ordered_json::array();
    for (const WorkerId source : load.sources) sources.push_back(source.value);
    json["loads"].push_back(
        {{"layer", load.layer.value},
         {"expert", load.expert.value},
         {"worker_id", load.worker.value},
         {"worker", NameOf(report.names, load.worker.value)},
         {"source_ids", std::move(sources)},
         {"bytes", load.bytes}});
  }
  json["drops"] = nlohmann::ordered_json::array();
  for (const placement::ExpertDrop& drop : report.diff.drops) {
    json["drops"].push_back(
        {{"layer", drop.layer.value},
         {"expert", drop.expert.value},
         {"worker_id", drop.worker.value},
         {"worker", NameOf(report.names, drop.worker.value)}});
  }
  return json;
}

}  // namespace trunkline::cli
