#pragma once

// A small recording as values, for tests of its file and its readers.

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/random.h"
#include "trunk_worker/route_record_file.h"

namespace trunkline::trunk {

inline RecordedLayer TestLayer(uint32_t index, int64_t experts, int64_t top_k,
                               uint64_t seed) {
  RandomStream random(seed);
  RecordedLayer layer;
  layer.layer = LayerIndex(index);
  layer.experts = experts;
  layer.top_k = top_k;
  layer.width = 64;
  layer.policy = routing::NemotronHPolicy(experts, top_k, 1, 1, true, 2.5);
  for (int64_t e = 0; e < experts; ++e)
    layer.bias.push_back(static_cast<float>(random.NextBelow(1024)) / 16384.0f);
  return layer;
}

inline RecordingHeader TestHeader() {
  RecordingHeader header;
  header.recording_id = 7;
  header.model_name = "demo";
  header.model_digest = "0123456789abcdef0123456789abcdef";
  header.trunk = "trunk-0";
  header.row_dtype = DType::kBF16;
  header.started_unix_ms = 1700000000000;
  header.layers = {TestLayer(1, 8, 2, 1), TestLayer(4, 16, 4, 2)};
  return header;
}

// `rows` random tokens, routed as the layer says, each expert on worker
// expert % 3 + 1.
inline RecordedRoutes TestRoutes(const RecordedLayer& layer, uint64_t step,
                                 int64_t rows) {
  RandomStream random(step * 1000 + layer.layer.value);
  RecordedRoutes routes;
  routing::LayerRecord& r = routes.record;
  r.step = StepId(step);
  r.layer = layer.layer;
  r.policy = layer.policy;
  r.admission = layer.admission;
  r.representation = layer.representation;
  r.bias = layer.bias;
  for (int64_t i = 0; i < rows * layer.experts; ++i)
    r.values.push_back(static_cast<float>(1 + random.NextBelow(65534)) /
                       65536.0f);
  TL_CHECK(routing::FillRecord(rows, &r).ok());
  r.placement_version = PlacementVersion(3);
  std::map<uint32_t, std::map<uint32_t, uint32_t>> frame_rows;
  for (uint32_t route : r.handoff_routes)
    frame_rows[r.table.expert_id[route].value % 3 + 1][r.table.token_id[route]];
  for (auto& [worker, tokens] : frame_rows) {
    uint32_t next = 0;
    for (auto& [token, row] : tokens) row = next++;
  }
  std::map<uint32_t, uint32_t> answers;
  for (size_t i = 0; i < r.handoff_routes.size(); ++i) {
    const uint32_t route = r.handoff_routes[i];
    routing::PhysicalRoute p;
    p.origin = WorkerId(9);
    p.worker = WorkerId(r.table.expert_id[route].value % 3 + 1);
    p.send_offset = frame_rows[p.worker.value][r.table.token_id[route]];
    p.receive_offset = answers[p.worker.value]++;
    p.local_row = r.expert_local_row[i];
    p.placement_version = PlacementVersion(3);
    p.state = routing::Completion::kDone;
    r.physical.push_back(p);
  }
  return routes;
}

struct TestRecording {
  RecordingHeader header = TestHeader();
  std::vector<RecordedRoutes> routes;
  RecordingTrailer trailer;
};
inline TestRecording MakeTestRecording(int steps) {
  TestRecording recording;
  for (const RecordedLayer& layer : recording.header.layers) {
    RecordedLayerTotals totals;
    totals.layer = layer.layer;
    totals.has_counters = true;
    totals.at_begin = {100, 90};
    totals.at_end = totals.at_begin;
    recording.trailer.layers.push_back(totals);
  }
  recording.trailer.seconds = 1.5;
  for (int step = 1; step <= steps; ++step) {
    for (size_t l = 0; l < recording.header.layers.size(); ++l) {
      recording.routes.push_back(TestRoutes(recording.header.layers[l],
                                            static_cast<uint64_t>(step),
                                            1 + step % 5));
      RecordedLayerTotals& totals = recording.trailer.layers[l];
      const RouteTotals routes = CountRoutes(recording.routes.back());
      ++totals.records;
      totals.routes.selected += routes.selected;
      totals.routes.executed += routes.executed;
      totals.at_end.selected += routes.selected;
      totals.at_end.executed += routes.executed;
    }
  }
  return recording;
}

inline std::vector<v1::RouteRecordEntry> EntriesOf(
    const TestRecording& recording) {
  std::vector<v1::RouteRecordEntry> entries;
  *entries.emplace_back().mutable_header() = ToProto(recording.header);
  for (const RecordedRoutes& routes : recording.routes)
    *entries.emplace_back().mutable_layer() = ToProto(routes);
  *entries.emplace_back().mutable_trailer() = ToProto(recording.trailer);
  return entries;
}

inline absl::Status WriteEntries(const std::string& path,
                                 const std::vector<v1::RouteRecordEntry>& all) {
  auto writer = RouteRecordWriter::Create(path);
  if (!writer.ok()) return writer.status();
  for (const v1::RouteRecordEntry& entry : all) {
    const absl::Status status = (*writer)->Append(entry);
    if (!status.ok()) return status;
  }
  return (*writer)->Finish();
}

// The file's bytes, by way of a file that goes away again.
inline std::string PackEntries(const std::vector<v1::RouteRecordEntry>& all) {
  const std::string path =
      absl::StrCat(std::filesystem::temp_directory_path().string(),
                   "/trunkline-record-", getpid(), ".tlrec");
  TL_CHECK(WriteEntries(path, all).ok());
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)),
                    std::istreambuf_iterator<char>());
  std::filesystem::remove(path);
  return bytes;
}

// Reads everything; the first error, or how many records there are.
inline absl::StatusOr<int64_t> ReadAll(const std::string& bytes,
                                       std::vector<RecordedRoutes>* all) {
  auto reader = RouteRecordReader::Read(
      std::make_unique<std::istringstream>(bytes), "r.tlrec");
  if (!reader.ok()) return reader.status();
  RecordedRoutes routes;
  while (true) {
    const absl::StatusOr<bool> more = (*reader)->Next(&routes);
    if (!more.ok()) return more.status();
    if (!*more) return (*reader)->records();
    if (all != nullptr) all->push_back(routes);
  }
}

}  // namespace trunkline::trunk
