// The numbers of a replay, laid out for people.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "routing/replay.h"

namespace trunkline::routing {
namespace {

std::string Fixed(double v) { return absl::StrFormat("%.6f", v); }

int64_t LargestDistinct(const ReplayResult& r) {
  int64_t largest = 0;
  for (const WorkerLoad& w : r.workers) {
    largest = std::max(largest, w.distinct_experts);
  }
  return largest;
}

int64_t LinkBytes(const ReplayResult& r) {
  int64_t bytes = 0;
  for (const WorkerLoad& w : r.workers) bytes += w.bytes_out + w.bytes_back;
  return bytes;
}

int64_t Total(const std::vector<StageBytes>& stages) {
  int64_t bytes = 0;
  for (const StageBytes& s : stages) bytes += s.bytes;
  return bytes;
}

int64_t Peak(const std::vector<StageBytes>& stages) {
  int64_t bytes = 0;
  for (const StageBytes& s : stages) bytes = std::max(bytes, s.bytes);
  return bytes;
}

// One quantity of a replay: its name and its text.
struct Quantity {
  const char* name;
  std::string (*text)(const ReplayResult&);
};
constexpr Quantity kQuantities[] = {
    {"requested",
     [](const ReplayResult& r) { return absl::StrCat(r.ledger.requested); }},
    {"accepted",
     [](const ReplayResult& r) { return absl::StrCat(r.ledger.accepted); }},
    {"dropped",
     [](const ReplayResult& r) { return absl::StrCat(r.ledger.dropped); }},
    {"not drawn",
     [](const ReplayResult& r) { return absl::StrCat(r.ledger.not_drawn); }},
    {"rerouted",
     [](const ReplayResult& r) { return absl::StrCat(r.ledger.rerouted); }},
    {"uncovered tokens",
     [](const ReplayResult& r) { return absl::StrCat(r.ledger.uncovered); }},
    {"unused slots",
     [](const ReplayResult& r) { return absl::StrCat(r.ledger.unused); }},
    {"utilization",
     [](const ReplayResult& r) { return Fixed(r.ledger.utilization); }},
    {"selected CV^2",
     [](const ReplayResult& r) {
       return Fixed(r.ledger.selected_load.cv_squared);
     }},
    {"selected entropy",
     [](const ReplayResult& r) {
       return Fixed(r.ledger.selected_load.entropy);
     }},
    {"largest expert",
     [](const ReplayResult& r) {
       return absl::StrCat(r.ledger.executed_load.largest);
     }},
    {"represented rows",
     [](const ReplayResult& r) {
       return absl::StrCat(r.layout.represented_rows);
     }},
    {"tail rows",
     [](const ReplayResult& r) { return absl::StrCat(r.layout.tail_rows); }},
    {"tied rows",
     [](const ReplayResult& r) { return absl::StrCat(r.record.tied_rows); }},
    {"distinct experts, worst worker",
     [](const ReplayResult& r) { return absl::StrCat(LargestDistinct(r)); }},
    {"link bytes (planned)",
     [](const ReplayResult& r) { return absl::StrCat(LinkBytes(r)); }},
    {"reference traffic bytes",
     [](const ReplayResult& r) { return absl::StrCat(Total(r.traffic)); }},
    {"peak live bytes",
     [](const ReplayResult& r) { return absl::StrCat(Peak(r.live)); }},
    {"retained bytes",
     [](const ReplayResult& r) { return absl::StrCat(r.retained_bytes); }},
};

}  // namespace

std::string Render(const TextTable& table) {
  std::vector<size_t> width;
  for (const std::string& c : table.columns) width.push_back(c.size());
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size() && i < width.size(); ++i) {
      width[i] = std::max(width[i], row[i].size());
    }
  }
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (size_t i = 0; i < cells.size() && i < width.size(); ++i) {
      if (i > 0) out += "  ";
      const std::string pad(width[i] - cells[i].size(), ' ');
      // Names to the left, numbers to the right.
      out += i == 0 ? cells[i] + pad : pad + cells[i];
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    absl::StrAppend(&text, out, "\n");
  };
  line(table.columns);
  for (const auto& row : table.rows) line(row);
  return text;
}

TextTable SummaryTable(const std::vector<std::string>& names,
                       const std::vector<const ReplayResult*>& results) {
  TextTable table;
  table.columns.push_back("quantity");
  for (const std::string& name : names) table.columns.push_back(name);
  for (const Quantity& q : kQuantities) {
    std::vector<std::string> row = {q.name};
    for (const ReplayResult* r : results) row.push_back(q.text(*r));
    table.rows.push_back(std::move(row));
  }
  return table;
}

TextTable ExpertTable(const ReplayResult& r) {
  TextTable table;
  table.columns = {"expert", "selected", "executed"};
  for (size_t e = 0; e < r.ledger.selected.size(); ++e) {
    table.rows.push_back({absl::StrCat(e), absl::StrCat(r.ledger.selected[e]),
                          absl::StrCat(r.ledger.executed[e])});
  }
  return table;
}

TextTable WorkerTable(const ReplayResult& r) {
  TextTable table;
  table.columns = {"worker", "distinct experts",    "routes",
                   "rows",   "bytes out (planned)", "bytes back (planned)"};
  for (const WorkerLoad& w : r.workers) {
    table.rows.push_back(
        {absl::StrCat(w.worker.value), absl::StrCat(w.distinct_experts),
         absl::StrCat(w.routes), absl::StrCat(w.rows),
         absl::StrCat(w.bytes_out), absl::StrCat(w.bytes_back)});
  }
  return table;
}

TextTable SweepTable(const Sweep& sweep) {
  TextTable table;
  table.columns.push_back(std::string(Name(sweep.coordinate)));
  for (const Quantity& q : kQuantities) table.columns.push_back(q.name);
  for (const SweepPoint& p : sweep.points) {
    std::vector<std::string> row = {absl::StrCat(p.value)};
    for (const Quantity& q : kQuantities) row.push_back(q.text(p.result));
    table.rows.push_back(std::move(row));
  }
  return table;
}

TextTable ComparisonTable(const ContractComparison& comparison) {
  TextTable table;
  table.columns = {"axis", "needed", "differs", "first", "second"};
  for (const AxisComparison& a : comparison.axes) {
    table.rows.push_back(
        {a.axis, a.needed ? "yes" : "no", a.differs ? "yes" : "no", a.a, a.b});
  }
  return table;
}

}  // namespace trunkline::routing
