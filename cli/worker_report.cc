#include "cli/worker_report.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/format.h"

namespace trunkline::cli {
namespace {

using Align = Table::Align;
using control::v1::WorkerView;

bool IsTrunk(const WorkerView& worker) {
  return worker.role() == control::v1::WORKER_ROLE_TRUNK;
}

std::string MemoryText(const WorkerView& worker) {
  if (IsTrunk(worker)) return "";
  return worker.memory_bytes() == 0
             ? "no limit"
             : HumanBytes(static_cast<int64_t>(worker.memory_bytes()));
}

}  // namespace

std::string WorkerState(const WorkerView& worker) {
  if (worker.drained()) return "safe to stop";
  if (!worker.alive()) return "lost";
  return worker.draining() ? "draining" : "serving";
}

std::string WorkersText(const admin::ListWorkersResponse& workers) {
  Table table({"ID", "WORKER", "ROLE", "STATE", "COPIES", "SHARDS", "MEMORY",
               "LOAD", "DOMAIN", "ADDRESS"},
              {Align::kRight, Align::kLeft, Align::kLeft, Align::kLeft,
               Align::kRight, Align::kRight, Align::kRight, Align::kRight,
               Align::kLeft, Align::kLeft});
  for (const admin::WorkerInfo& info : workers.workers()) {
    const WorkerView& worker = info.worker();
    const bool trunk = IsTrunk(worker);
    table.AddRow(
        {absl::StrCat(worker.worker_id()), worker.name(),
         trunk ? "trunk" : "expert", WorkerState(worker),
         trunk ? "" : absl::StrCat(info.copies()),
         trunk ? "" : HumanBytes(static_cast<int64_t>(info.shard_bytes())),
         MemoryText(worker),
         trunk ? "" : absl::StrFormat("%.1f%%", 100 * info.load_share()),
         worker.failure_domain(),
         trunk ? worker.api_address() : worker.data_address()});
  }
  std::string text = table.ToString();
  if (!workers.blocked().empty())
    absl::StrAppend(&text, "\nblocked: ", workers.blocked(), "\n");
  return text;
}

std::string LoadsText(const admin::RecordLoadsResponse& loads) {
  std::string text =
      absl::StrCat(loads.running() ? "recording for " : "recorded ",
                   HumanDuration(absl::Seconds(loads.seconds())), "\n");
  Table table({"LAYER", "SELECTED", "EXECUTED", "EXPERTS USED", "HOTTEST",
               "ITS SHARE", "BALANCEDNESS"},
              {Align::kRight, Align::kRight, Align::kRight, Align::kRight,
               Align::kRight, Align::kRight, Align::kRight});
  for (const control::v1::ExpertLoad& load : loads.loads()) {
    const auto& selected = load.selected();
    const uint64_t rows =
        std::accumulate(selected.begin(), selected.end(), uint64_t{0});
    const uint64_t executed = std::accumulate(
        load.executed().begin(), load.executed().end(), uint64_t{0});
    const auto hottest = std::max_element(selected.begin(), selected.end());
    const int64_t used =
        std::count_if(selected.begin(), selected.end(),
                      [](uint64_t count) { return count > 0; });
    const double most = rows == 0 ? 0 : static_cast<double>(*hottest);
    table.AddRow(
        {absl::StrCat(load.layer()), absl::StrCat(rows), absl::StrCat(executed),
         absl::StrCat(used, " of ", selected.size()),
         rows == 0 ? "" : absl::StrCat(hottest - selected.begin()),
         rows == 0 ? ""
                   : absl::StrFormat("%.1f%%",
                                     100 * most / static_cast<double>(rows)),
         rows == 0 ? ""
                   : absl::StrFormat("%.3f", static_cast<double>(rows) / most /
                                                 selected.size())});
  }
  if (loads.loads_size() > 0) text += "\n" + table.ToString();
  return text;
}

}  // namespace trunkline::cli
