#pragma once

// Fixed capacity while serving: routes are admitted in source order into groups
// of so many positions of their own sequence (GroupScope::kSequence), so a
// token's fate is a function of its sequence up to itself: not of the batch,
// the prefill chunks, the placement or the number of workers. The counts that
// make it so travel with the sequence. The same fates and gate bits as
// AdmitRoutes, at the speed of a step. Pure.

#include <cstdint>
#include <span>
#include <vector>

#include "routing/admission.h"
#include "routing/route_table.h"

namespace trunkline::routing {

// Rows of a step that are consecutive positions of one sequence.
struct SequenceRows {
  int64_t row_begin = 0;
  int64_t row_count = 0;
  int64_t position = 0;  // of the first row
  // [experts] rows that the group of `position` has given away; carried on.
  // Whatever it holds when the group begins here is forgotten.
  std::span<uint32_t> used;
  int64_t dropped = 0;  // written
};

// policy passed CheckServingAdmission and is kFixedCapacity; the table is
// SelectRoutes' own and the sequences cover its rows in order.
void AdmitSequences(const AdmissionPolicy& policy,
                    std::span<SequenceRows> sequences, RouteTable* table);

// What a record says of the groups, from the state before AdmitSequences.
// Identities count the groups of the step in the order of its rows.
struct SequenceGroups {
  std::vector<uint32_t> group_of_token;
  std::vector<GroupOccupancy> occupancy;
};
void NameSequenceGroups(const AdmissionPolicy& policy,
                        std::span<const SequenceRows> sequences,
                        SequenceGroups* groups);

}  // namespace trunkline::routing
