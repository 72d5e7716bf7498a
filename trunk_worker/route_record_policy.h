#pragma once

// Policies between their values and their messages. Pure.

#include <algorithm>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "proto/route_record.pb.h"
#include "routing/admission.h"
#include "routing/policy_record.h"
#include "routing/representation.h"

namespace trunkline::trunk {

// A message's choice is one more than the value's, so that 0 stays "not said".
template <typename Wire, typename Value>
Wire ChoiceToWire(Value value) {
  return static_cast<Wire>(static_cast<int>(value) + 1);
}
template <typename Value>
absl::StatusOr<Value> ChoiceFromWire(int wire, Value last, const char* field) {
  if (wire < 1 || wire > static_cast<int>(last) + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", wire, " is not a known choice"));
  }
  return static_cast<Value>(wire - 1);
}

v1::RouterPolicyRecord ToProto(const routing::PolicyRecord& policy);
v1::AdmissionRecord ToProto(const routing::AdmissionPolicy& admission);
v1::RepresentationRecord ToProto(
    const routing::RepresentationPolicy& representation);

// Each is well defined when it comes out.
absl::StatusOr<routing::PolicyRecord> FromProto(
    const v1::RouterPolicyRecord& wire);
absl::StatusOr<routing::AdmissionPolicy> FromProto(
    const v1::AdmissionRecord& wire, int64_t experts);
absl::StatusOr<routing::RepresentationPolicy> FromProto(
    const v1::RepresentationRecord& wire);

}  // namespace trunkline::trunk
