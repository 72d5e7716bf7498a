#include "routing/route_ledger.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"

namespace trunkline::routing {

LoadSummary Summarize(std::span<const int64_t> counts) {
  LoadSummary s;
  if (counts.empty()) return s;
  for (int64_t c : counts) {
    s.total += c;
    s.largest = std::max(s.largest, c);
  }
  if (s.total == 0) return s;
  const double mean =
      static_cast<double>(s.total) / static_cast<double>(counts.size());
  double variance = 0.0;
  double entropy = 0.0;
  for (int64_t c : counts) {
    const double d = static_cast<double>(c) - mean;
    variance += d * d;
    if (c == 0) continue;
    const double share = static_cast<double>(c) / static_cast<double>(s.total);
    entropy -= share * std::log(share);
  }
  variance /= static_cast<double>(counts.size());
  s.cv_squared = variance / (mean * mean);
  s.entropy = counts.size() == 1
                  ? 1.0
                  : entropy / std::log(static_cast<double>(counts.size()));
  return s;
}

CapacityLedger ApplyCapacity(std::span<const int64_t> counts,
                             int64_t capacity) {
  CapacityLedger ledger;
  ledger.capacity = capacity;
  ledger.reserved = capacity * static_cast<int64_t>(counts.size());
  for (int64_t n : counts) {
    ledger.accepted_of_expert.push_back(std::min(n, capacity));
    ledger.overflow_of_expert.push_back(std::max<int64_t>(0, n - capacity));
    ledger.accepted += ledger.accepted_of_expert.back();
    ledger.dropped += ledger.overflow_of_expert.back();
  }
  ledger.unused = ledger.reserved - ledger.accepted;
  ledger.utilization = ledger.reserved == 0
                           ? 0.0
                           : static_cast<double>(ledger.accepted) /
                                 static_cast<double>(ledger.reserved);
  return ledger;
}

RouteLedger TakeLedger(const RouteTable& table, const AdmissionReport& report) {
  RouteLedger ledger;
  ledger.rows = table.rows;
  ledger.experts = table.experts;
  ledger.requested = table.size();
  ledger.selected.assign(static_cast<size_t>(table.experts), 0);
  ledger.executed.assign(static_cast<size_t>(table.experts), 0);
  std::vector<bool> covered(static_cast<size_t>(table.rows), false);
  for (size_t r = 0; r < table.token_id.size(); ++r) {
    ++ledger.selected[report.selected_expert[r].value];
    ledger.selected_gate_mass += static_cast<double>(report.selected_gate[r]);
    switch (table.fate[r]) {
      case RouteFate::kAccepted:
        ++ledger.accepted;
        ++ledger.executed[table.expert_id[r].value];
        ledger.executed_gate_mass += static_cast<double>(table.gate[r]);
        covered[table.token_id[r]] = true;
        if (table.expert_id[r] != report.selected_expert[r]) ++ledger.rerouted;
        break;
      case RouteFate::kDropped:
        ++ledger.dropped;
        break;
      case RouteFate::kNotDrawn:
        ++ledger.not_drawn;
        break;
    }
  }
  ledger.uncovered = std::count(covered.begin(), covered.end(), false);
  int64_t reserved = 0;
  for (const GroupAdmission& g : report.groups) {
    reserved += g.capacity * table.experts;
  }
  if (reserved > 0) {
    ledger.unused = reserved - ledger.accepted;
    ledger.utilization =
        static_cast<double>(ledger.accepted) / static_cast<double>(reserved);
  }
  ledger.selected_load = Summarize(ledger.selected);
  ledger.executed_load = Summarize(ledger.executed);
  return ledger;
}

LayoutLedger TakeLedger(const RowLayout& layout) {
  return {layout.semantic_rows(), layout.represented_rows(),
          layout.tail_rows()};
}

absl::StatusOr<std::vector<WorkerLoad>> LoadPerWorker(
    const RouteTable& table, std::span<const WorkerId> owner_of_expert,
    const LinkCosts& costs) {
  if (owner_of_expert.size() != static_cast<size_t>(table.experts)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the placement names owners of ", owner_of_expert.size(),
                     " experts, the table has ", table.experts));
  }
  struct Sets {
    std::set<uint32_t> experts;
    std::set<uint32_t> tokens;
    int64_t routes = 0;
  };
  std::map<WorkerId, Sets> workers;
  for (size_t r = 0; r < table.token_id.size(); ++r) {
    if (table.fate[r] != RouteFate::kAccepted) continue;
    Sets& sets = workers[owner_of_expert[table.expert_id[r].value]];
    sets.experts.insert(table.expert_id[r].value);
    sets.tokens.insert(table.token_id[r]);
    ++sets.routes;
  }
  std::vector<WorkerLoad> loads;
  for (const auto& [worker, sets] : workers) {
    WorkerLoad load;
    load.worker = worker;
    load.distinct_experts = static_cast<int64_t>(sets.experts.size());
    load.routes = sets.routes;
    load.rows = static_cast<int64_t>(sets.tokens.size());
    const int64_t metadata =
        costs.frame_bytes + load.routes * costs.route_bytes;
    load.bytes_out = metadata + load.rows * costs.row_bytes;
    load.bytes_back = metadata + load.routes * costs.answer_bytes;
    loads.push_back(load);
  }
  return loads;
}

std::vector<StageBytes> ReferenceTraffic(const TrafficShape& s) {
  const int64_t activations = s.tokens * s.width * s.activation_bytes;
  const int64_t scores = s.tokens * s.experts * s.score_bytes;
  const int64_t choices = s.tokens * s.top_k;
  return {
      {"score", activations + scores},
      {"select", scores + choices * (s.index_bytes + s.gate_bytes)},
      {"count_prefix", choices * s.index_bytes + 2 * s.experts * s.count_bytes +
                           (s.experts + 1) * s.prefix_bytes},
      {"pack", s.routes * s.width * s.activation_bytes +
                   3 * s.routes * s.index_bytes +
                   s.represented * s.width * s.activation_bytes},
      {"expert_output_handoff", s.represented * s.width * s.output_bytes},
      {"combine", s.routes * s.width * s.output_bytes +
                      s.routes * (s.gate_bytes + 2 * s.index_bytes) +
                      s.tokens * s.width * s.output_bytes},
  };
}

namespace {
constexpr const char* kStages[] = {"input", "score",  "select",  "count_prefix",
                                   "pack",  "expert", "combine", "return"};
constexpr int kInput = 0, kScore = 1, kSelect = 2, kCount = 3, kPack = 4,
              kExpert = 5, kCombine = 6, kReturn = 7;
}  // namespace

std::vector<BufferLife> LayerBuffers(const TrafficShape& s) {
  const int64_t choices = s.tokens * s.top_k;
  return {
      {"H", s.tokens * s.width * s.activation_bytes, kInput, kPack},
      {"Z", s.tokens * s.experts * s.score_bytes, kScore, kSelect},
      {"I", choices * s.index_bytes, kSelect, kPack},
      {"G", choices * s.gate_bytes, kSelect, kCombine},
      {"counts", s.experts * s.count_bytes, kCount, kPack},
      {"offsets", (s.experts + 1) * s.prefix_bytes, kCount, kPack},
      {"map_token", s.routes * s.index_bytes, kPack, kCombine},
      {"map_choice", s.routes * s.index_bytes, kPack, kCombine},
      {"Xp", s.represented * s.width * s.activation_bytes, kPack, kExpert},
      {"Up", s.represented * s.width * s.output_bytes, kExpert, kCombine},
      {"Y", s.tokens * s.width * s.output_bytes, kCombine, kReturn},
  };
}

std::vector<StageBytes> LivePayload(const TrafficShape& shape) {
  std::vector<StageBytes> live;
  for (const char* stage : kStages) live.push_back({stage, 0});
  for (const BufferLife& b : LayerBuffers(shape)) {
    for (int stage = b.first_stage; stage <= b.last_stage; ++stage) {
      live[static_cast<size_t>(stage)].bytes += b.bytes;
    }
  }
  return live;
}

StageBytes PeakPayload(const TrafficShape& shape) {
  const std::vector<StageBytes> live = LivePayload(shape);
  return *std::max_element(live.begin(), live.end(),
                           [](const StageBytes& a, const StageBytes& b) {
                             return a.bytes < b.bytes;
                           });
}

Retention RetainedBytes(const TrafficShape& shape) {
  const std::set<std::string> saved = {
      "H", "I", "G", "offsets", "map_token", "map_choice", "Xp", "Up"};
  const std::set<std::string> decisions = {"H", "I", "G"};
  Retention r;
  for (const BufferLife& b : LayerBuffers(shape)) {
    if (saved.contains(b.name)) r.save_bytes += b.bytes;
    if (decisions.contains(b.name)) r.rematerialize_bytes += b.bytes;
  }
  return r;
}

}  // namespace trunkline::routing
