#pragma once

// Strong ids of the cluster: an expert can not be passed where a worker is
// meant.
//
// An id is a plain integer with a name; it is ordered, hashable and printable,
// and never does arithmetic. kNone is the value that names nothing.

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <string>

namespace trunkline {

template <typename Tag, typename Rep>
struct StrongId {
  using rep = Rep;
  static constexpr Rep kNone = std::numeric_limits<Rep>::max();

  Rep value = kNone;

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr bool valid() const { return value != kNone; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) {
    return id.valid() ? out << +id.value : out << "none";
  }
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value);
  }
};

using ExpertId =
    StrongId<struct ExpertTag, uint32_t>;  // within one moe layer, 0..E-1
using LayerIndex =
    StrongId<struct LayerTag, uint32_t>;  // position in the model's layer table
using WorkerId =
    StrongId<struct WorkerTag, uint32_t>;  // given by the coordinator, kept
                                           // across restarts by name
using PlacementVersion = StrongId<struct PlacementTag, uint64_t>;  // only grows
using StepId = StrongId<struct StepTag, uint64_t>;  // one trunk's step counter
using RequestId =
    StrongId<struct RequestTag, uint64_t>;  // one trunk's request counter

}  // namespace trunkline

template <typename Tag, typename Rep>
struct std::hash<trunkline::StrongId<Tag, Rep>> {
  size_t operator()(trunkline::StrongId<Tag, Rep> id) const {
    return std::hash<Rep>()(id.value);
  }
};
