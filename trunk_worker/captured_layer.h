#pragma once

// A routed layer of a step as the engine's thread copies it, and the record
// that follows from the copy. Used by those who record layers and by those who
// validate them. Pure.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "routing/route_table.h"
#include "routing/sequence_admission.h"
#include "trunk_worker/layer_observer.h"
#include "trunk_worker/route_record.h"

namespace trunkline::trunk {

// Whose the rows of a step are.
struct StepRows {
  PlacementVersion version;
  std::vector<uint32_t> request_of_row;   // low half of the request's number
  std::vector<uint32_t> position_of_row;  // in its sequence

  void Take(const StepPlan& plan, PlacementVersion placement_version);
};

struct CapturedLayer {
  StepId step;
  LayerIndex layer;
  PlacementVersion version;
  routing::RouteTable routes;
  std::vector<float> scores;
  RoutesExecuted executed;  // without contributions
  std::vector<uint32_t> request_of_row, position_of_row;
  // Under fixed capacity: the gates before admission, and the groups.
  std::vector<float> selected_gates;
  routing::SequenceGroups groups;
  bool completed = false;

  int64_t bytes() const;
};
CapturedLayer CaptureLayer(const ObservedLayer& seen, const StepRows& rows);

// With everything that follows from it. `layer` is the header's.
absl::StatusOr<RecordedRoutes> RecordOf(CapturedLayer captured,
                                        const RecordedLayer& layer);

}  // namespace trunkline::trunk
