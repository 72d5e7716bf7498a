#pragma once

// One routed layer of one step, as it was: what selection saw and chose (the
// statistics record), what admission made of it and how the accepted routes
// were handed to the experts (the hand-off record), and where they ran (the
// physical plan). Plain values; a file format for them is not this folder's
// business. The logical part holds no device, no kernel name and no time.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "routing/admission.h"
#include "routing/physical_route.h"
#include "routing/policy_record.h"
#include "routing/representation.h"
#include "routing/route_table.h"

namespace trunkline::routing {

struct LayerRecord {
  StepId step;
  LayerIndex layer;

  // What decided.
  PolicyRecord policy;
  AdmissionPolicy admission;
  RepresentationPolicy representation;

  // Statistics: what selection saw and chose.
  std::vector<uint32_t> group_of_token;    // [rows] routing-group identity
  std::vector<uint32_t> request_of_token;  // [rows] whose token it is
  // [rows] its place in its sequence; empty: not known.
  std::vector<uint32_t> position_of_token;
  // Of groups that began in earlier steps (GroupScope::kSequence).
  std::vector<GroupOccupancy> occupancy;
  std::vector<uint8_t> valid_token;  // [rows] 1: a real token
  bool transformed = true;           // values are scores, not logits
  std::vector<float> values;         // [rows, experts]
  std::vector<float> bias;
  std::vector<float> noise;
  std::vector<double> draws;
  RouteTable table;                       // after admission
  std::vector<ExpertId> selected_expert;  // [routes] before admission
  std::vector<float> selected_gate;       // [routes]
  std::vector<int64_t> selected_counts;   // [experts]
  std::vector<int64_t> executed_counts;   // [experts]
  std::vector<uint32_t> dropped_routes;   // route rows, ascending
  int64_t tied_rows = 0;                  // rows whose boundary margin is zero

  // Hand-off: the accepted routes in the experts' order.
  std::vector<uint32_t> handoff_routes;    // route rows
  std::vector<uint32_t> expert_local_row;  // parallel: 0.. within its expert
  std::vector<uint32_t> expert_counts;     // [experts]
  std::vector<uint32_t> prefix_offsets;    // [experts + 1]
  int64_t represented_rows = 0;
  int64_t tail_rows = 0;
  bool replayed = false;  // routes were taken from a record, not chosen again

  // Physical plan.
  PlacementVersion placement_version;   // the newest one that was used
  std::vector<PhysicalRoute> physical;  // parallel to handoff_routes, or empty

  // What is claimed of the layer, to be held against it.
  bool claims_every_token_covered = false;
  bool claims_no_padding = false;

  RouterInput Input() const {
    RouterInput in;
    in.rows = table.rows;
    in.values = values;
    in.transformed = transformed;
    in.bias = bias;
    in.noise = noise;
    in.draws = draws;
    return in;
  }
  // The groups are named, so a batch's number of tokens decides no more.
  AdmissionPolicy NamedAdmission() const {
    AdmissionPolicy named = admission;
    if (named.scope == GroupScope::kBatch) named.group_tokens = 0;
    return named;
  }
  AdmissionInput AdmissionOf() const {
    return {values, group_of_token, occupancy};
  }
};

// The hand-off fields from a layout of the record's accepted routes.
void FillHandoff(const RowLayout& layout, LayerRecord* record);

// Routes, admits and lays out `record`'s input under its own policy, admission
// and representation, and fills everything between them and the physical plan.
// Reads: policy, admission, representation, group_of_token (empty: from
// admission), request_of_token, position_of_token, occupancy, values, bias,
// noise, draws, transformed and `rows`. INVALID_ARGUMENT when groups of a
// sequence can not be named from what there is.
absl::Status FillRecord(int64_t rows, LayerRecord* record);

}  // namespace trunkline::routing
