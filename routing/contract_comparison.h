#pragma once

// Whether two ways of routing agree on what a claim needs. Two policies that
// choose the same experts may still weigh them differently; two that compute
// the same may need other memory. Pure.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "routing/admission.h"
#include "routing/policy_record.h"
#include "routing/representation.h"

namespace trunkline::routing {

// What a forward pass keeps for a backward one.
enum class RetainedState : uint8_t {
  kNone = 0,  // inference
  kSave = 1,
  kRematerialize = 2,
};
absl::string_view Name(RetainedState v);

// All that turns scores into executed rows.
struct RoutingContract {
  PolicyRecord policy;
  AdmissionPolicy admission;
  RepresentationPolicy representation;
  RetainedState retained = RetainedState::kNone;
};

enum class EquivalenceClaim : uint8_t {
  kRelation = 0,  // the same tokens go to the same experts
  kForward = 1,   // and the layer's output has the same bits
  kMemory = 2,    // the same rows are materialised and kept
};
absl::string_view Name(EquivalenceClaim v);
// "relation", "forward" or "memory".
absl::StatusOr<EquivalenceClaim> ParseEquivalenceClaim(absl::string_view name);

struct AxisComparison {
  std::string axis;
  std::string a;
  std::string b;
  bool needed = false;  // by the claim
  bool differs = false;
};
struct ContractComparison {
  std::vector<AxisComparison> axes;
  bool equivalent = false;  // no needed axis differs
};
ContractComparison CompareContracts(const RoutingContract& a,
                                    const RoutingContract& b,
                                    EquivalenceClaim claim);

}  // namespace trunkline::routing
