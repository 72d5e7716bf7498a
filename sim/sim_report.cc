#include "sim/sim_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trunkline::sim {
namespace {

std::string DescribeWork(const RunResult& r) {
  const SimClients::Outcomes& o = r.outcomes;
  std::string errors;
  for (const auto& [code, count] : o.errors)
    absl::StrAppend(&errors, errors.empty() ? " (" : ", ",
                    absl::StatusCodeToString(code), " ", count);
  if (!errors.empty()) errors += ")";
  return absl::StrCat(
      r.actions, " events, ", r.faults, " faults, ", r.admin_operations,
      " operator calls, ", r.commits, " transactions (", r.torn_writes,
      " torn, ", r.fenced_writes, " fenced)\nrequests: ", o.asked, " asked, ",
      o.finished, " finished, ", o.failed, " failed, ", o.cancelled,
      " cancelled, ", o.cut_off, " lost with their trunk, ", o.resumed,
      " streams went on elsewhere", errors, "; checked: ", o.tokens,
      " tokens, ", r.rows, " combined rows, ", r.answers,
      " answers; experts asked of peers: ", r.from_peers, " taken, ",
      r.not_from_peers, " not");
}

}  // namespace

std::string DescribeRun(const RunResult& result) {
  return absl::StrCat(
      "seed ", result.seed, ": ", DescribeWork(result), "\nsimulated ",
      absl::FormatDuration(
          absl::Trunc(result.simulated, absl::Milliseconds(1))),
      ", settled ",
      absl::FormatDuration(
          absl::Trunc(result.settled_after, absl::Milliseconds(1))),
      " after the storm\ntrace digest ",
      absl::StrFormat("%016x", result.digest), "\n",
      result.violation.empty() ? "no violation"
                               : "VIOLATION " + result.violation);
}

void SimTotals::Add(const RunResult& result) {
  ++seeds_;
  sum_.actions += result.actions;
  sum_.faults += result.faults;
  sum_.admin_operations += result.admin_operations;
  sum_.commits += result.commits;
  sum_.torn_writes += result.torn_writes;
  sum_.fenced_writes += result.fenced_writes;
  sum_.rows += result.rows;
  sum_.answers += result.answers;
  sum_.from_peers += result.from_peers;
  sum_.not_from_peers += result.not_from_peers;
  sum_.simulated += result.simulated;
  SimClients::Outcomes& o = sum_.outcomes;
  o.asked += result.outcomes.asked;
  o.finished += result.outcomes.finished;
  o.failed += result.outcomes.failed;
  o.cancelled += result.outcomes.cancelled;
  o.cut_off += result.outcomes.cut_off;
  o.resumed += result.outcomes.resumed;
  o.tokens += result.outcomes.tokens;
  for (const auto& [code, count] : result.outcomes.errors)
    o.errors[code] += count;
  if (result.settled_after > settled_most_) {
    settled_most_ = result.settled_after;
    settled_most_seed_ = result.seed;
  }
  if (!result.violation.empty()) failed_seeds_.push_back(result.seed);
}

std::string SimTotals::Describe() const {
  std::string failed;
  for (const uint64_t seed : failed_seeds_)
    absl::StrAppend(&failed, failed.empty() ? ": " : ", ", seed);
  return absl::StrCat(
      seeds_, " seeds, ",
      absl::FormatDuration(absl::Trunc(sum_.simulated, absl::Seconds(1))),
      " of simulated time: ", DescribeWork(sum_), "\nslowest to settle: seed ",
      settled_most_seed_, ", ",
      absl::FormatDuration(absl::Trunc(settled_most_, absl::Milliseconds(1))),
      "\nseeds with a violation: ", failed_seeds_.size(), failed);
}

}  // namespace trunkline::sim
