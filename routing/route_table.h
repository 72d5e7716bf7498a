#pragma once

// The logical half of a layer's routes (architecture.md, "The route record"):
// what routing decided, and nothing of where it runs. Structure of arrays; one
// entry a route, in (token_id, selected_slot) order, which is the stable key.

#include <cstdint>
#include <vector>

#include "common/ids.h"

namespace trunkline::routing {

enum class RouteFate : uint8_t {
  kAccepted = 0,
  kDropped = 1,   // its expert had no room
  kNotDrawn = 2,  // the policy's recorded draw declined it
};

struct RouteTable {
  int64_t rows = 0;  // tokens of the step
  int64_t experts = 0;
  int64_t top_k = 0;
  std::vector<uint32_t> token_id;       // row in this step
  std::vector<uint16_t> selected_slot;  // rank of the choice, 0 = best
  std::vector<ExpertId> expert_id;
  std::vector<float> gate;
  std::vector<RouteFate> fate;

  int64_t size() const { return static_cast<int64_t>(token_id.size()); }
  void Clear(int64_t new_rows, int64_t new_experts, int64_t new_top_k) {
    rows = new_rows;
    experts = new_experts;
    top_k = new_top_k;
    token_id.clear();
    selected_slot.clear();
    expert_id.clear();
    gate.clear();
    fate.clear();
  }
  void Add(uint32_t token, uint16_t slot, ExpertId expert, float g,
           RouteFate f = RouteFate::kAccepted) {
    token_id.push_back(token);
    selected_slot.push_back(slot);
    expert_id.push_back(expert);
    gate.push_back(g);
    fate.push_back(f);
  }
};

}  // namespace trunkline::routing
