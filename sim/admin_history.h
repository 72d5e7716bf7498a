#pragma once

// What operators asked and were told, and whether one order of it all explains
// every answer: linearizability, per register (pin, and the cordon of each
// worker), by the search of Wing and Gong with memory of states seen. Pure.
//
// Versions are checked by rule: a change that was acknowledged gets a number
// above every number that anybody was told before it was asked for, and no
// number twice.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace trunkline::sim {

struct RegisterOp {
  absl::Time asked;
  absl::Time told = absl::InfiniteFuture();  // never: nobody knows if it took
  bool is_write = false;
  uint64_t value = 0;    // written, or read
  bool refused = false;  // told so for certain: it had no effect
};

// Empty when some order explains the answers; else what can not be explained.
// At most 63 operations count at once; older ones that are over are cut off at
// moments when nothing is under way.
std::string ExplainRegister(std::vector<RegisterOp> ops, uint64_t initial);

class AdminHistory {
 public:
  // Returns the operation's number.
  size_t BeginWrite(const std::string& name, uint64_t value, absl::Time now);
  size_t BeginRead(const std::string& name, absl::Time now);
  void EndWrite(const std::string& name, size_t op, absl::Time now);
  void EndRefused(const std::string& name, size_t op, absl::Time now);
  void EndRead(const std::string& name, size_t op, uint64_t value,
               absl::Time now);

  size_t BeginChange(absl::Time now);
  void EndChange(size_t change, uint64_t version, absl::Time now);
  // Somebody was shown this active version.
  void OnActiveRead(uint64_t version, absl::Time asked, absl::Time told);

  // Empty: linearizable.
  std::string Check() const;
  size_t operations() const;

 private:
  struct Change {
    absl::Time asked, told = absl::InfiniteFuture();
    uint64_t version = 0;  // 0: not told
  };
  std::map<std::string, std::vector<RegisterOp>> registers_;
  std::vector<Change> changes_;
  std::vector<Change> active_reads_;
};

}  // namespace trunkline::sim
