#pragma once

// How a routing contract is written on the command line: a name, and what
// differs from its defaults, "capacity:factor=1.25,order=source". Pure.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing/contract_comparison.h"

namespace trunkline::cli {

// "name:key=value,key=value". A key may stand once.
struct Spec {
  std::string name;
  std::map<std::string, std::string> values;
};
absl::StatusOr<Spec> ParseSpec(absl::string_view text);

// What the layer that is routed again brings along.
struct SpecBase {
  routing::RoutingContract contract;
  int64_t tokens = 0;
};

// INVALID_ARGUMENT naming what is not known or does not fit. "recorded" is the
// base's own, with what the keys change.
absl::StatusOr<routing::PolicyRecord> PolicyFromSpec(const Spec& spec,
                                                     const SpecBase& base);
absl::StatusOr<routing::AdmissionPolicy> AdmissionFromSpec(
    const Spec& spec, const SpecBase& base);
absl::StatusOr<routing::RepresentationPolicy> FormFromSpec(
    const Spec& spec, const SpecBase& base);

// What a model is served with: dropless, or a capacity whose groups are of
// sequences (the scope and the order need not be written). What can not be
// served is refused with the reason.
absl::StatusOr<routing::AdmissionPolicy> ServingAdmissionFromText(
    absl::string_view text);

// The three and what is retained together, from texts; an empty one is
// "recorded".
struct ContractText {
  std::string policy, admission, form;
  std::string retain = {};  // "none", "save" or "rematerialize"
  bool empty() const {
    return policy.empty() && admission.empty() && form.empty() &&
           retain.empty();
  }
};
absl::StatusOr<routing::RoutingContract> ContractFromText(
    const ContractText& text, const SpecBase& base);

// "gshard capacity:order=source", or empty.
std::string NameOf(const ContractText& text);

// One line an axis, for people.
std::string DescribeContract(const routing::RoutingContract& contract);

// For --help.
extern const char kPolicyHelp[];
extern const char kAdmissionHelp[];
extern const char kServingAdmissionHelp[];
extern const char kFormHelp[];

}  // namespace trunkline::cli
