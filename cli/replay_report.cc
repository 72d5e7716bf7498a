#include "cli/replay_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/contract_spec.h"
#include "cli/format.h"
#include "routing/load_plot.h"

namespace trunkline::cli {
namespace {

using nlohmann::json;
using routing::ReplayResult;
using routing::RouteFate;
using routing::RouteTable;
using routing::StageBytes;

json StagesJson(const std::vector<StageBytes>& stages) {
  json all = json::array();
  for (const StageBytes& s : stages)
    all.push_back({{"stage", s.stage}, {"bytes", s.bytes}});
  return all;
}

json LoadJson(const routing::LoadSummary& load) {
  return {{"total", load.total},
          {"largest", load.largest},
          {"cv_squared", load.cv_squared},
          {"entropy", load.entropy}};
}

// What a text table calls "planned": from formulas, not from a link.
json ResultJson(const ReplayResult& r) {
  json workers = json::array();
  for (const routing::WorkerLoad& w : r.workers) {
    workers.push_back({{"worker", w.worker.value},
                       {"distinct_experts", w.distinct_experts},
                       {"routes", w.routes},
                       {"rows", w.rows},
                       {"bytes_out", w.bytes_out},
                       {"bytes_back", w.bytes_back},
                       {"measured", false}});
  }
  const routing::RouteLedger& l = r.ledger;
  return {{"tokens", l.rows},
          {"requested", l.requested},
          {"accepted", l.accepted},
          {"dropped", l.dropped},
          {"not_drawn", l.not_drawn},
          {"rerouted", l.rerouted},
          {"uncovered_tokens", l.uncovered},
          {"unused_slots", l.unused},
          {"utilization", l.utilization},
          {"selected_gate_mass", l.selected_gate_mass},
          {"executed_gate_mass", l.executed_gate_mass},
          {"selected", l.selected},
          {"executed", l.executed},
          {"selected_load", LoadJson(l.selected_load)},
          {"executed_load", LoadJson(l.executed_load)},
          {"semantic_rows", r.layout.semantic_rows},
          {"represented_rows", r.layout.represented_rows},
          {"tail_rows", r.layout.tail_rows},
          {"tied_tokens", r.record.tied_rows},
          {"workers", workers},
          {"reference_traffic", StagesJson(r.traffic)},
          {"live_payload", StagesJson(r.live)},
          {"retained_bytes", r.retained_bytes}};
}

json ContractJson(const routing::RoutingContract& contract) {
  json axes = json::object();
  for (const routing::AxisComparison& axis :
       routing::CompareContracts(contract, contract,
                                 routing::EquivalenceClaim::kForward)
           .axes)
    axes[axis.axis] = axis.a;
  return {{"policy", contract.policy.name}, {"axes", axes}};
}

routing::TextTable StageTable(const ReplayResult& r) {
  routing::TextTable table;
  table.columns = {"stage", "reference traffic bytes"};
  for (const StageBytes& s : r.traffic)
    table.rows.push_back({s.stage, absl::StrCat(s.bytes)});
  return table;
}
routing::TextTable LiveTable(const ReplayResult& r) {
  routing::TextTable table;
  table.columns = {"live in stage", "payload bytes"};
  for (const StageBytes& s : r.live)
    table.rows.push_back({s.stage, absl::StrCat(s.bytes)});
  return table;
}

std::string ExpertName(ExpertId e) { return absl::StrCat(e.value); }

// The routes of each token: all, and those that ran.
struct TokenRoutes {
  std::vector<std::string> selected, executed;
};
std::vector<TokenRoutes> RoutesByToken(const routing::LayerRecord& r) {
  std::vector<TokenRoutes> tokens(static_cast<size_t>(r.table.rows));
  for (size_t i = 0; i < r.table.token_id.size(); ++i) {
    TokenRoutes& token = tokens[r.table.token_id[i]];
    token.selected.push_back(ExpertName(r.selected_expert[i]));
    if (r.table.fate[i] == RouteFate::kAccepted)
      token.executed.push_back(ExpertName(r.table.expert_id[i]));
  }
  return tokens;
}

std::vector<std::string> ExpertNames(size_t experts) {
  std::vector<std::string> names;
  for (size_t e = 0; e < experts; ++e) names.push_back(absl::StrCat(e));
  return names;
}

}  // namespace

std::string ReplayText(const ReplayLayer& layer) {
  std::vector<std::string> names;
  std::vector<const ReplayResult*> results;
  std::string text = absl::StrCat(
      "== ", layer.name, ", ", layer.columns[0].totals.layer_steps,
      " step(s), ", layer.columns[0].totals.sum.ledger.rows, " tokens\n\n");
  for (const ReplayColumn& column : layer.columns) {
    absl::StrAppend(&text, column.name, ": ", DescribeContract(column.contract),
                    "\n");
    names.push_back(column.name);
    results.push_back(&column.totals.sum);
  }
  absl::StrAppend(&text,
                  routing::Render(routing::SummaryTable(names, results)));
  for (const ReplayColumn& column : layer.columns) {
    const ReplayResult& r = column.totals.sum;
    absl::StrAppend(&text, "\n", column.name, "\n",
                    routing::Render(routing::ExpertTable(r)));
    if (!r.workers.empty())
      absl::StrAppend(&text, "\n", routing::Render(routing::WorkerTable(r)));
    absl::StrAppend(&text, "\n", routing::Render(StageTable(r)), "\n",
                    routing::Render(LiveTable(r)));
  }
  return text;
}

json ReplayJson(const ReplayLayer& layer) {
  json columns = json::array();
  for (const ReplayColumn& column : layer.columns) {
    columns.push_back({{"name", column.name},
                       {"contract", ContractJson(column.contract)},
                       {"layer_steps", column.totals.layer_steps},
                       {"result", ResultJson(column.totals.sum)}});
  }
  return {{"layer", layer.name}, {"contracts", columns}};
}

std::string ReplaySvg(const ReplayLayer& layer) {
  std::vector<routing::Bars> series;
  size_t experts = 0;
  for (const ReplayColumn& column : layer.columns) {
    const routing::RouteLedger& ledger = column.totals.sum.ledger;
    experts = std::max(experts, ledger.selected.size());
    series.push_back({column.name + ", selected", ledger.selected});
    series.push_back({column.name + ", executed", ledger.executed});
  }
  return routing::BarPlot("Routes per expert, " + layer.name, "expert",
                          ExpertNames(experts), series);
}

std::string TokenText(const routing::LayerRecord& record) {
  routing::TextTable table;
  table.columns = {"token", "selected experts", "executed on", "degree"};
  const std::vector<TokenRoutes> tokens = RoutesByToken(record);
  std::vector<std::string> degrees, without;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const auto list = [](const std::vector<std::string>& experts) {
      return experts.empty() ? std::string("-") : absl::StrJoin(experts, " ");
    };
    degrees.push_back(absl::StrCat(tokens[t].executed.size()));
    if (tokens[t].executed.empty()) without.push_back(absl::StrCat(t));
    table.rows.push_back({absl::StrCat(t), list(tokens[t].selected),
                          list(tokens[t].executed), degrees.back()});
  }
  std::string text = absl::StrCat(
      routing::Render(table), "degrees: ", absl::StrJoin(degrees, " "),
      "\ntokens without an expert: ",
      without.empty() ? "none" : absl::StrJoin(without, " "), "\n");
  if (record.dropped_routes.empty()) return text;
  absl::StrAppend(&text, "dropped (token, slot, expert):");
  for (uint32_t route : record.dropped_routes) {
    absl::StrAppend(&text, " (", record.table.token_id[route], ", ",
                    record.table.selected_slot[route], ", ",
                    record.selected_expert[route].value, ")");
  }
  return text + "\n";
}

json TokenJson(const routing::LayerRecord& record) {
  const RouteTable& t = record.table;
  json routes = json::array();
  for (size_t i = 0; i < t.token_id.size(); ++i) {
    routes.push_back({{"token", t.token_id[i]},
                      {"slot", t.selected_slot[i]},
                      {"selected_expert", record.selected_expert[i].value},
                      {"selected_gate", record.selected_gate[i]},
                      {"executed", t.fate[i] == RouteFate::kAccepted},
                      {"expert", t.expert_id[i].value},
                      {"gate", t.gate[i]}});
  }
  json degrees = json::array();
  for (const TokenRoutes& token : RoutesByToken(record))
    degrees.push_back(token.executed.size());
  return {{"routes", routes}, {"degrees", degrees}};
}

std::string SweepText(const SweptLayer& layer) {
  std::string text = absl::StrCat(
      "== ", layer.name, ", sweep of ", routing::Name(layer.sweep.coordinate),
      "\n\n", DescribeContract(layer.contract),
      "held still: ", absl::StrJoin(layer.sweep.frozen, ", "), "\n\n");
  // A point a column: there are more quantities than values.
  const routing::TextTable flat = routing::SweepTable(layer.sweep);
  routing::TextTable table;
  table.columns = {flat.columns[0]};
  for (const auto& row : flat.rows) table.columns.push_back(row[0]);
  for (size_t q = 1; q < flat.columns.size(); ++q) {
    std::vector<std::string> row = {flat.columns[q]};
    for (const auto& point : flat.rows) row.push_back(point[q]);
    table.rows.push_back(std::move(row));
  }
  return text + routing::Render(table);
}

json SweepJson(const SweptLayer& layer) {
  json points = json::array();
  for (const routing::SweepPoint& point : layer.sweep.points)
    points.push_back(
        {{"value", point.value}, {"result", ResultJson(point.result)}});
  const absl::string_view name = routing::Name(layer.sweep.coordinate);
  return {{"layer", layer.name},
          {"coordinate", std::string(name.data(), name.size())},
          {"contract", ContractJson(layer.contract)},
          {"held_still", layer.sweep.frozen},
          {"points", points}};
}

std::string SweepSvg(const SweptLayer& layer) {
  std::vector<double> x;
  std::vector<routing::Line> lines = {{"accepted", {}},
                                      {"dropped", {}},
                                      {"unused slots", {}},
                                      {"represented rows", {}},
                                      {"largest expert", {}}};
  for (const routing::SweepPoint& point : layer.sweep.points) {
    const ReplayResult& r = point.result;
    const int64_t values[] = {r.ledger.accepted, r.ledger.dropped,
                              r.ledger.unused, r.layout.represented_rows,
                              r.ledger.executed_load.largest};
    x.push_back(point.value);
    for (size_t i = 0; i < lines.size(); ++i)
      lines[i].y.push_back(static_cast<double>(values[i]));
  }
  const absl::string_view name = routing::Name(layer.sweep.coordinate);
  return routing::LinePlot("Sweep, " + layer.name,
                           std::string(name.data(), name.size()), x, lines);
}

std::string ComparisonText(const ComparedLayer& layer) {
  std::vector<std::string> broken;
  for (const routing::AxisComparison& axis : layer.comparison.axes)
    if (axis.needed && axis.differs) broken.push_back(axis.axis);
  return absl::StrCat(
      "== ", layer.name, "\n\n",
      routing::Render(routing::ComparisonTable(layer.comparison)), "\n",
      layer.comparison.equivalent ? "equivalent for " : "not equivalent for ",
      routing::Name(layer.claim),
      broken.empty() ? "" : ": " + absl::StrJoin(broken, "; "), "\n");
}

json ComparisonJson(const ComparedLayer& layer) {
  json axes = json::array();
  for (const routing::AxisComparison& axis : layer.comparison.axes)
    axes.push_back({{"axis", axis.axis},
                    {"needed", axis.needed},
                    {"differs", axis.differs},
                    {"first", axis.a},
                    {"second", axis.b}});
  const absl::string_view claim = routing::Name(layer.claim);
  return {{"layer", layer.name},
          {"claim", std::string(claim.data(), claim.size())},
          {"equivalent", layer.comparison.equivalent},
          {"axes", axes}};
}

void AddPhysical(const routing::LayerRecord& record, ProvenRecording* p) {
  for (const routing::PhysicalRoute& route : record.physical) {
    ProvenRecording::Worker& worker = p->workers[route.worker];
    ++worker.routes;
    worker.retried += route.state == routing::Completion::kRetried ? 1 : 0;
    worker.replicas += route.replica > 0 ? 1 : 0;
    p->versions.insert(route.placement_version);
  }
}

namespace {

Table WorkersOf(const ProvenRecording& p) {
  Table table({"worker", "routes", "retried", "not on first replica"},
              std::vector<Table::Align>(4, Table::Align::kRight));
  for (const auto& [worker, ran] : p.workers)
    table.AddRow({absl::StrCat(worker.value), absl::StrCat(ran.routes),
                  absl::StrCat(ran.retried), absl::StrCat(ran.replicas)});
  return table;
}

std::string VersionsOf(const ProvenRecording& p) {
  const uint64_t first = p.versions.begin()->value;
  const uint64_t last = p.versions.rbegin()->value;
  return first == last ? absl::StrCat("version ", first)
                       : absl::StrCat("versions ", first, " to ", last);
}

}  // namespace

std::string ProvenText(const std::string& file, const ProvenRecording& p) {
  const absl::string_view end = trunk::Name(p.trailer.end);
  std::string text = absl::StrCat(
      file, ": ", p.header.model_name, " (digest ", p.header.model_digest,
      "), recorded from ", p.header.trunk, " for ",
      HumanDuration(absl::Seconds(p.trailer.seconds)), "; ", end, "\n\n");
  Table table({"layer", "records", "selected", "executed", "left out",
               "counter, selected", "counter, executed"},
              std::vector<Table::Align>(7, Table::Align::kRight));
  for (const trunk::RecordedLayerTotals& l : p.trailer.layers) {
    const auto counter = [&](uint64_t end_value, uint64_t begin) {
      return l.has_counters ? absl::StrCat("+", end_value - begin)
                            : std::string("?");
    };
    table.AddRow({absl::StrCat(l.layer.value), absl::StrCat(l.records),
                  absl::StrCat(l.routes.selected),
                  absl::StrCat(l.routes.executed),
                  absl::StrCat(l.records_left_out),
                  counter(l.at_end.selected, l.at_begin.selected),
                  counter(l.at_end.executed, l.at_begin.executed)});
  }
  absl::StrAppend(&text, table.ToString());
  if (p.incomplete > 0)
    absl::StrAppend(&text, p.incomplete,
                    " records are of layers where their step failed\n");
  if (!p.workers.empty())
    absl::StrAppend(&text, "\n", WorkersOf(p).ToString(), "under placement ",
                    VersionsOf(p), "\n");
  return absl::StrCat(text, "\n", p.routes, " routes equal\n");
}

json ProvenJson(const std::string& file, const ProvenRecording& p) {
  json layers = json::array();
  for (const trunk::RecordedLayerTotals& l : p.trailer.layers) {
    json layer = {{"layer", l.layer.value},
                  {"records", l.records},
                  {"selected", l.routes.selected},
                  {"executed", l.routes.executed},
                  {"records_left_out", l.records_left_out},
                  {"selected_left_out", l.left_out.selected},
                  {"executed_left_out", l.left_out.executed}};
    if (l.has_counters)
      layer["counters"] = {{"selected_at_begin", l.at_begin.selected},
                           {"selected_at_end", l.at_end.selected},
                           {"executed_at_begin", l.at_begin.executed},
                           {"executed_at_end", l.at_end.executed}};
    layers.push_back(layer);
  }
  json workers = json::array(), versions = json::array();
  for (const auto& [worker, ran] : p.workers)
    workers.push_back({{"worker", worker.value},
                       {"routes", ran.routes},
                       {"retried", ran.retried},
                       {"not_on_first_replica", ran.replicas}});
  for (PlacementVersion version : p.versions) versions.push_back(version.value);
  const absl::string_view end = trunk::Name(p.trailer.end);
  return {{"file", file},
          {"model", p.header.model_name},
          {"model_digest", p.header.model_digest},
          {"trunk", p.header.trunk},
          {"seconds", p.trailer.seconds},
          {"end", std::string(end.data(), end.size())},
          {"records", p.records},
          {"incomplete_records", p.incomplete},
          {"routes_equal", p.routes},
          {"workers", workers},
          {"placement_versions", versions},
          {"layers", layers}};
}

}  // namespace trunkline::cli
