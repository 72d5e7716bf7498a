#include "sim/admin_history.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trunkline::sim {
namespace {

constexpr size_t kWindowMost = 63;

// Depth-first over the sets of operations that have taken effect. `open` ops
// (never told) may take effect at any time after they were asked, or never.
class Search {
 public:
  Search(const std::vector<RegisterOp>& ops, std::set<uint64_t> initial)
      : ops_(ops), initial_(std::move(initial)) {}

  // The values that the register may have when every told op has taken effect;
  // empty: no order explains the answers.
  std::set<uint64_t> FinalValues() {
    for (const uint64_t value : initial_) Visit(0, value);
    return finals_;
  }

 private:
  void Visit(uint64_t done, uint64_t value) {
    if (!seen_.insert({done, value}).second) return;
    bool all_told = true;
    absl::Time first_told = absl::InfiniteFuture();
    for (size_t i = 0; i < ops_.size(); ++i) {
      if ((done >> i & 1) != 0) continue;
      if (ops_[i].told != absl::InfiniteFuture()) all_told = false;
      first_told = std::min(first_told, ops_[i].told);
    }
    if (all_told) finals_.insert(value);
    for (size_t i = 0; i < ops_.size(); ++i) {
      // The next to take effect was asked before anybody outstanding was told.
      if ((done >> i & 1) != 0 || ops_[i].asked > first_told) continue;
      const RegisterOp& op = ops_[i];
      if (!op.is_write && op.value != value) continue;
      if (op.told == absl::InfiniteFuture() && !WorthTrying(i, done, value))
        continue;
      Visit(done | uint64_t{1} << i, op.is_write ? op.value : value);
    }
  }

  // A write that nobody was told of may be left out. Of several that write the
  // same, the one that was asked for first will do; and one that changes
  // nothing is worth nothing.
  bool WorthTrying(size_t which, uint64_t done, uint64_t value) const {
    if (ops_[which].value == value) return false;
    for (size_t i = 0; i < which; ++i) {
      if ((done >> i & 1) == 0 && ops_[i].is_write &&
          ops_[i].told == absl::InfiniteFuture() &&
          ops_[i].value == ops_[which].value)
        return false;
    }
    return true;
  }

  const std::vector<RegisterOp>& ops_;
  const std::set<uint64_t> initial_;
  std::set<std::pair<uint64_t, uint64_t>> seen_;
  std::set<uint64_t> finals_;
};

}  // namespace

std::string ExplainRegister(std::vector<RegisterOp> ops, uint64_t initial) {
  std::erase_if(ops, [](const RegisterOp& op) {
    return op.refused || (!op.is_write && op.told == absl::InfiniteFuture());
  });
  std::sort(ops.begin(), ops.end(),
            [](const auto& a, const auto& b) { return a.asked < b.asked; });
  std::set<uint64_t> values = {initial};
  std::vector<RegisterOp> window;
  const auto solve = [&] {
    values = Search(window, values).FinalValues();
    // What was never told may take effect in a later window too.
    std::erase_if(window, [](const RegisterOp& op) {
      return op.told != absl::InfiniteFuture();
    });
  };
  absl::Time last_told = absl::InfinitePast();
  for (const RegisterOp& op : ops) {
    const bool quiet = op.asked > last_told;
    if (quiet || window.size() >= kWindowMost) {
      solve();
      if (values.empty()) {
        return absl::StrCat("no order explains the answers before ",
                            absl::FormatDuration(op.asked - absl::UnixEpoch()));
      }
    }
    window.push_back(op);
    if (op.told != absl::InfiniteFuture())
      last_told = std::max(last_told, op.told);
  }
  solve();
  return values.empty() ? "no order explains the last answers" : "";
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
