#pragma once

// Policies and routes that the admission tests share.

#include <set>
#include <tuple>

#include "routing/admission.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::routing {

using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  // token, slot, expert

inline AdmissionPolicy Fixed(double factor, Arbitration order) {
  AdmissionPolicy p;
  p.kind = AdmissionKind::kFixedCapacity;
  p.capacity_factor = factor;
  p.arbitration = order;
  return p;
}

inline RouteTable Matrix8x4Routes(const nlohmann::json& file) {
  RouteTable table;
  table.Clear(8, 4, 2);
  for (const auto& r : file["capacity_arbitration_8x4"]["routes"]) {
    table.Add(r["token"], r["slot"], ExpertId(r["expert"].get<uint32_t>()),
              r["gate"].get<float>());
  }
  return table;
}

inline std::set<Key> KeysOf(const RouteTable& t, RouteFate fate) {
  std::set<Key> keys;
  for (size_t r = 0; r < t.token_id.size(); ++r) {
    if (t.fate[r] == fate) {
      keys.emplace(t.token_id[r], t.selected_slot[r], t.expert_id[r].value);
    }
  }
  return keys;
}

inline std::set<Key> KeysOf(const nlohmann::json& list) {
  std::set<Key> keys;
  for (const auto& k : list) keys.emplace(k[0], k[1], k[2]);
  return keys;
}

}  // namespace trunkline::routing
