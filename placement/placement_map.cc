#include "placement/placement_map.h"

namespace trunkline::placement {

const LayerPlacement* PlacementMap::FindLayer(LayerIndex layer) const {
  for (const LayerPlacement& l : layers) {
    if (l.layer == layer) return &l;
  }
  return nullptr;
}

}  // namespace trunkline::placement
