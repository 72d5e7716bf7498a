#pragma once

// One routed expert of one layer: what a placement places and a store loads.

#include <compare>
#include <utility>

#include "common/ids.h"

namespace trunkline::expert {

struct ExpertKey {
  LayerIndex layer;
  ExpertId expert;

  friend constexpr auto operator<=>(ExpertKey, ExpertKey) = default;
  template <typename H>
  friend H AbslHashValue(H h, ExpertKey key) {
    return H::combine(std::move(h), key.layer, key.expert);
  }
};

}  // namespace trunkline::expert
