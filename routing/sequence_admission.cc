#include "routing/sequence_admission.h"

#include <algorithm>

namespace trunkline::routing {
namespace {

// Scales the gates that are left of one token so that their sum is that of all.
// The same roundings, in the same order, as AdmitRoutes.
void Renormalize(size_t begin, size_t end, RouteTable* t) {
  float all = 0.0f, kept = 0.0f;
  for (size_t r = begin; r < end; ++r) {
    all += t->gate[r];
    if (t->fate[r] == RouteFate::kAccepted) kept += t->gate[r];
  }
  if (!(kept > 0.0f)) return;
  for (size_t r = begin; r < end; ++r) {
    if (t->fate[r] == RouteFate::kAccepted)
      t->gate[r] = t->gate[r] * (all / kept);
  }
}

}  // namespace

void AdmitSequences(const AdmissionPolicy& policy,
                    std::span<SequenceRows> sequences, RouteTable* table) {
  const auto k = static_cast<size_t>(table->top_k);
  // More than a group's tokens never ask for one expert.
  const auto capacity = static_cast<uint32_t>(
      std::min(policy.group_tokens,
               ExpertCapacity(policy.capacity_factor, policy.group_tokens,
                              table->top_k, table->experts)));
  for (SequenceRows& s : sequences) {
    s.dropped = 0;
    for (int64_t row = 0; row < s.row_count; ++row) {
      if ((s.position + row) % policy.group_tokens == 0)
        std::fill(s.used.begin(), s.used.end(), 0);
      const size_t begin = static_cast<size_t>(s.row_begin + row) * k;
      const int64_t before = s.dropped;
      for (size_t r = begin; r < begin + k; ++r) {
        uint32_t& used = s.used[table->expert_id[r].value];
        if (used < capacity) {
          ++used;
        } else {
          table->fate[r] = RouteFate::kDropped;
          ++s.dropped;
        }
      }
      if (s.dropped > before && policy.overflow == Overflow::kDropRenormalize)
        Renormalize(begin, begin + k, table);
    }
  }
}

void NameSequenceGroups(const AdmissionPolicy& policy,
                        std::span<const SequenceRows> sequences,
                        SequenceGroups* groups) {
  groups->group_of_token.clear();
  groups->occupancy.clear();
  uint32_t next = 0;
  for (const SequenceRows& s : sequences) {
    for (int64_t row = 0; row < s.row_count; ++row) {
      const bool begins = (s.position + row) % policy.group_tokens == 0;
      if (row == 0 && !begins)
        groups->occupancy.push_back({next, {s.used.begin(), s.used.end()}});
      if (row == 0 || begins) ++next;
      groups->group_of_token.push_back(next - 1);
    }
  }
}

}  // namespace trunkline::routing
