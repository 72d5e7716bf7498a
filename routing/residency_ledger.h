#pragma once

// What a routed layer stores, activates, computes and keeps resident: four
// quantities with their own units, each from its own formula. The router counts
// from experts x width, never from top_k. Pure: names and shapes, no tensors.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"

namespace trunkline::routing {

// One matrix of every expert, [rows, columns] as stored.
struct Projection {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
};
struct RoutedLayerShape {
  int64_t width = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t element_bytes = 2;
  std::vector<Projection> projections;
};

struct ResidencyLedger {
  int64_t router_params = 0;
  int64_t expert_params = 0;         // of one expert
  int64_t all_expert_params = 0;     // stored
  int64_t stored_params = 0;         // router and all experts
  int64_t active_expert_params = 0;  // of one token
  int64_t active_params = 0;         // router and the chosen experts
  int64_t active_flops = 0;          // matrix products of one token
  int64_t resident_bytes = 0;        // everything in one process
};
absl::Status ValidateShape(const RoutedLayerShape& shape);
ResidencyLedger TakeLedger(const RoutedLayerShape& shape);

// A tensor as a checkpoint names it: "gate.weight" [experts, width] and
// "experts.<id>.<projection>.weight".
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
};
// INVALID_ARGUMENT naming the tensor: a missing, surplus, repeated or misshapen
// one (transposed axes are said to be that).
absl::Status CheckTensors(const RoutedLayerShape& shape,
                          std::span<const NamedTensor> tensors);

// What one process holds under a placement.
struct ResidentPart {
  WorkerId worker;
  std::vector<ExpertId> experts;
  bool router = false;
};
// Bytes of a part.
int64_t ResidentBytes(const RoutedLayerShape& shape, const ResidentPart& part);
// INVALID_ARGUMENT: an expert that no part holds or that does not exist, one
// twice in a part, or no part with the router.
absl::Status CheckPlacement(const RoutedLayerShape& shape,
                            std::span<const ResidentPart> parts);
// INVALID_ARGUMENT naming the quantity: a stated ledger that is not this
// shape's.
absl::Status CheckStated(const RoutedLayerShape& shape,
                         const ResidencyLedger& stated);

}  // namespace trunkline::routing
