#pragma once

// The accuracy gate: whether the cluster's answer is still the one that it gave
// before. After each activation every trunk generates a canary prompt and
// reports a digest of all its tokens and logits. By "one row, one answer" no
// placement may change it, so a version that does holds an expert that is not
// the checkpoint's. Pure.
//
// The answer to compare with is the first one that was given; a trunk reports
// its answer under the version before as well, so that a coordinator that
// starts anew does not take a wrong answer for the first.

#include <map>
#include <optional>
#include <set>
#include <string>

#include "control/coordinator_client.h"

namespace trunkline::coordinator {

class AccuracyGate {
 public:
  struct Mismatch {
    PlacementVersion bad, good;  // good: the last one with the expected answer
    std::string detail;          // names trunk, versions and digests
  };

  // What a trunk reports. A mismatch is told once per version; results under a
  // version other than the active one are only ever taken as the answer before.
  std::optional<Mismatch> OnResult(const std::string& trunk,
                                   const control::CanaryResult& result,
                                   PlacementVersion active);

  // For people: empty while no canary has run.
  std::string Describe(PlacementVersion active) const;
  bool verified(PlacementVersion version) const {
    return verified_.count(version) != 0;
  }

 private:
  struct Answer {
    std::string digest;
    PlacementVersion version;  // the newest that gave it
  };
  // By what was asked: trunks may be told to ask differently.
  std::map<std::string, Answer> answers_;
  std::set<PlacementVersion> condemned_, verified_;
  std::string last_mismatch_;
};

}  // namespace trunkline::coordinator
