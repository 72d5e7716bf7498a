#include "sim/admin_history.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace trunkline::sim {
namespace {

constexpr size_t kWindowMost = 63;

// Which operations have taken effect, bit by bit, and the register's value.
using State = std::pair<uint64_t, uint64_t>;

// Depth-first over the sets of operations that have taken effect. Ops that were
// never told may take effect at any time after they were asked, or never.
class Search {
 public:
  explicit Search(const std::vector<RegisterOp>& ops) : ops_(ops) {
    TL_CHECK_LE(ops.size(), kWindowMost);
  }

  // The states that may be when every told op has taken effect; empty: no order
  // explains the answers.
  std::set<State> Finals(const std::set<State>& initial) {
    for (const auto& [done, value] : initial) Visit(done, value);
    return finals_;
  }

 private:
  bool Done(uint64_t done, size_t i) const { return (done >> i & 1) != 0; }

  // When the first of the outstanding is told; one that was asked for later can
  // not take effect before it.
  absl::Time FirstTold(uint64_t done) const {
    absl::Time first = absl::InfiniteFuture();
    for (size_t i = 0; i < ops_.size(); ++i)
      if (!Done(done, i)) first = std::min(first, ops_[i].told);
    return first;
  }

  // A read that may come next and saw this value comes now: later it would
  // serve nobody better.
  uint64_t WithReads(uint64_t done, uint64_t value) const {
    for (bool more = true; more;) {
      more = false;
      const absl::Time first_told = FirstTold(done);
      for (size_t i = 0; i < ops_.size(); ++i) {
        const RegisterOp& op = ops_[i];
        if (Done(done, i) || op.is_write || op.value != value ||
            op.asked > first_told)
          continue;
        done |= uint64_t{1} << i;
        more = true;
      }
    }
    return done;
  }

  void Visit(uint64_t done_before, uint64_t value) {
    const uint64_t done = WithReads(done_before, value);
    if (!seen_.insert({done, value}).second) return;
    const absl::Time first_told = FirstTold(done);
    if (first_told == absl::InfiniteFuture()) finals_.insert({done, value});
    // Of the writes of one value that may come next, the one that was told
    // first comes first: where another stands in an order, the two may change
    // places. So the orders grow with the number of values, not of writes.
    std::map<uint64_t, size_t> next;
    for (size_t i = 0; i < ops_.size(); ++i) {
      const RegisterOp& op = ops_[i];
      if (Done(done, i) || !op.is_write || op.asked > first_told) continue;
      const auto [at, first] = next.emplace(op.value, i);
      if (!first && op.told < ops_[at->second].told) at->second = i;
    }
    for (const auto& [written, i] : next) {
      // Nobody was told of it, and it changes nothing: it may be left out.
      if (ops_[i].told == absl::InfiniteFuture() && written == value) continue;
      Visit(done | uint64_t{1} << i, written);
    }
  }

  const std::vector<RegisterOp>& ops_;
  std::set<State> seen_;
  std::set<State> finals_;
};

// The states once the window holds only what was never told.
std::set<State> WithoutTold(const std::vector<RegisterOp>& window,
                            const std::set<State>& states) {
  std::set<State> rest;
  for (const auto& [done, value] : states) {
    uint64_t kept = 0;
    size_t place = 0;
    for (size_t i = 0; i < window.size(); ++i) {
      if (window[i].told != absl::InfiniteFuture()) continue;
      kept |= (done >> i & 1) << place++;
    }
    rest.insert({kept, value});
  }
  return rest;
}

}  // namespace

std::string ExplainRegister(std::vector<RegisterOp> ops, uint64_t initial) {
  std::erase_if(ops, [](const RegisterOp& op) {
    return op.refused || (!op.is_write && op.told == absl::InfiniteFuture());
  });
  std::sort(ops.begin(), ops.end(),
            [](const auto& a, const auto& b) { return a.asked < b.asked; });
  std::set<State> states = {{0, initial}};
  std::vector<RegisterOp> window;
  const auto solve = [&] {
    states = WithoutTold(window, Search(window).Finals(states));
    // What was never told may take effect in a later window, if it has not yet.
    std::erase_if(window, [](const RegisterOp& op) {
      return op.told != absl::InfiniteFuture();
    });
  };
  absl::Time last_told = absl::InfinitePast();
  for (const RegisterOp& op : ops) {
    const bool quiet = op.asked > last_told;
    if (quiet || window.size() >= kWindowMost) {
      solve();
      if (states.empty()) {
        return absl::StrCat("no order explains the answers before ",
                            absl::FormatDuration(op.asked - absl::UnixEpoch()));
      }
    }
    window.push_back(op);
    if (op.told != absl::InfiniteFuture())
      last_told = std::max(last_told, op.told);
  }
  solve();
  return states.empty() ? "no order explains the last answers" : "";
}

size_t AdminHistory::BeginWrite(const std::string& name, uint64_t value,
                                absl::Time now) {
  RegisterOp op;
  op.asked = now;
  op.is_write = true;
  op.value = value;
  registers_[name].push_back(op);
  return registers_[name].size() - 1;
}

size_t AdminHistory::BeginRead(const std::string& name, absl::Time now) {
  RegisterOp op;
  op.asked = now;
  registers_[name].push_back(op);
  return registers_[name].size() - 1;
}

void AdminHistory::EndWrite(const std::string& name, size_t op,
                            absl::Time now) {
  registers_[name][op].told = now;
}

void AdminHistory::EndRefused(const std::string& name, size_t op,
                              absl::Time now) {
  registers_[name][op].told = now;
  registers_[name][op].refused = true;
}

void AdminHistory::EndRead(const std::string& name, size_t op, uint64_t value,
                           absl::Time now) {
  registers_[name][op].told = now;
  registers_[name][op].value = value;
}

size_t AdminHistory::BeginChange(absl::Time now) {
  Change change;
  change.asked = now;
  changes_.push_back(change);
  return changes_.size() - 1;
}

void AdminHistory::EndChange(size_t change, uint64_t version, absl::Time now) {
  changes_[change].version = version;
  changes_[change].told = now;
}

void AdminHistory::OnActiveRead(uint64_t version, absl::Time asked,
                                absl::Time told) {
  Change read;
  read.asked = asked;
  read.told = told;
  read.version = version;
  active_reads_.push_back(read);
}

std::string AdminHistory::Check() const {
  for (const auto& [name, ops] : registers_) {
    const std::string why = ExplainRegister(ops, 0);
    if (!why.empty()) return absl::StrCat(name, ": ", why);
  }
  for (const Change& a : changes_) {
    for (const Change& b : changes_) {
      if (&a == &b || a.version == 0 || b.version == 0) continue;
      if (a.version == b.version)
        return absl::StrCat("version ", a.version, " was given twice");
      if (a.told < b.asked && a.version > b.version)
        return absl::StrCat("version ", b.version, " was given after ",
                            a.version);
    }
    // A change asked for after version v was seen active is newer than v.
    for (const Change& read : active_reads_) {
      if (a.version != 0 && read.told < a.asked && a.version <= read.version)
        return absl::StrCat("version ", a.version, " was given after version ",
                            read.version, " was active");
    }
  }
  for (const Change& a : active_reads_) {
    for (const Change& b : active_reads_) {
      if (a.told < b.asked && a.version > b.version)
        return absl::StrCat("version ", b.version, " was shown active after ",
                            a.version);
    }
  }
  return "";
}

size_t AdminHistory::operations() const {
  size_t count = changes_.size() + active_reads_.size();
  for (const auto& [name, ops] : registers_) count += ops.size();
  return count;
}

}  // namespace trunkline::sim
