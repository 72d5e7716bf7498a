#pragma once

// A placement as a file for people and programs. The schema stands in
// docs/placement_format.md. Worker ids mean something in one cluster only, so a
// document may name its workers; an import goes by the names when they are
// there. Pure: text in, text out.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/placement_map.h"

namespace trunkline::placement {

struct PlacementDocument {
  PlacementMap map;
  std::map<WorkerId, std::string> worker_names;  // may be empty
};

// Stable: equal documents give equal text. Ends with a newline.
std::string PlacementToJson(const PlacementDocument& document);

// INVALID_ARGUMENT names the place in the document ("layers[2].experts[7]") for
// syntax errors, unknown, missing, repeated or mistyped fields and numbers out
// of range. The map is not checked against a model: ValidatePlacement does
// that.
absl::StatusOr<PlacementDocument> PlacementFromJson(absl::string_view text);

// The document's map with the ids that this cluster gave to the names. Workers
// without a name keep their id. NOT_FOUND names a worker this cluster lacks.
absl::StatusOr<PlacementMap> ResolveWorkers(
    const PlacementDocument& document,
    const std::map<std::string, WorkerId>& cluster);

}  // namespace trunkline::placement
