#pragma once

// The contents of a route record file as values (docs/route_records.md), and
// the way between them and the messages of proto/route_record.proto. Reading
// trusts nothing: sizes, ranges, sums and the two halves of a record are held
// against each other before a value comes out. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "common/ids.h"
#include "proto/route_record.pb.h"
#include "routing/layer_record.h"

namespace trunkline::trunk {

inline constexpr char kRouteRecordMagic[] = "trunkline-routes";
inline constexpr uint32_t kRouteRecordVersion = 1;

// What all records of one layer share.
struct RecordedLayer {
  LayerIndex layer;
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t width = 0;  // of a row that goes to an expert
  routing::PolicyRecord policy;
  routing::AdmissionPolicy admission;
  routing::RepresentationPolicy representation;
  std::vector<float> bias;  // [experts] when the policy has one
};

struct RecordingHeader {
  uint64_t recording_id = 0;
  std::string model_name, model_digest;
  std::string trunk;  // the worker's name
  DType row_dtype = DType::kBF16;
  int64_t started_unix_ms = 0;
  std::vector<RecordedLayer> layers;  // ascending

  const RecordedLayer* Find(LayerIndex layer) const;
};

struct RecordedRoutes {
  routing::LayerRecord record;
  bool completed = true;
};

enum class RecordingEnd : uint8_t {
  kTimeOver = 0,
  kStopped = 1,
  kServerStopped = 2,
  kConnectionLost = 3,
};
absl::string_view Name(RecordingEnd end);

struct RouteTotals {
  uint64_t selected = 0;
  uint64_t executed = 0;
  friend bool operator==(const RouteTotals&, const RouteTotals&) = default;
};
struct RecordedLayerTotals {
  LayerIndex layer;
  uint64_t records = 0;  // in the file
  RouteTotals routes;    // of all layers seen, also of those left out
  uint64_t records_left_out = 0;
  RouteTotals left_out;
  bool has_counters = false;
  RouteTotals at_begin, at_end;  // the Prometheus counters
};
struct RecordingTrailer {
  RecordingEnd end = RecordingEnd::kTimeOver;
  double seconds = 0.0;
  std::vector<RecordedLayerTotals> layers;  // parallel to the header's
};

// Writing.
v1::RouteRecordHeader ToProto(const RecordingHeader& header);
v1::RoutedLayer ToProto(const RecordedRoutes& routes);
v1::RouteRecordTrailer ToProto(const RecordingTrailer& trailer);

// Reading. INVALID_ARGUMENT or DATA_LOSS naming the field; the caller knows the
// record's number. UNIMPLEMENTED for a format version that is not ours.
absl::StatusOr<RecordingHeader> HeaderFromProto(
    const v1::RouteRecordHeader& header);
// The layer's shape is looked up in the header.
absl::StatusOr<RecordedRoutes> RoutesFromProto(const v1::RoutedLayer& layer,
                                               const RecordingHeader& header);
absl::StatusOr<RecordingTrailer> TrailerFromProto(
    const v1::RouteRecordTrailer& trailer, const RecordingHeader& header);

// Routes of one record as the totals count them.
RouteTotals CountRoutes(const RecordedRoutes& routes);

// Fills what follows from table, policy, admission and representation of a
// record: counts, dropped routes, ties, the hand-off. The choice itself is left
// as it is. Selected and executed experts are the same, as they are in serving;
// selected_gate is filled from the table when it is empty, which is right where
// the admission changes no gate.
absl::Status DeriveHandoff(routing::LayerRecord* record);

}  // namespace trunkline::trunk
