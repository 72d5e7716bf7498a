#pragma once

// Layers that are right in every respect, for tests that break one.

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/random.h"
#include "routing/layer_record.h"
#include "routing/route_validator.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::routing {

struct EvidenceRows {
  int64_t width = 3;
  std::vector<float> hidden, input, row_gate, output, combined;
  ExecutionEvidence View() const {
    return {width, hidden, input, row_gate, output, combined};
  }
};

struct RecordedLayer {
  LayerRecord record;
  EvidenceRows rows;
};

// Two workers, an expert on one of them; rows and answers in order.
inline void FillPhysical(LayerRecord* r) {
  r->placement_version = PlacementVersion(7);
  r->physical.clear();
  std::map<WorkerId, std::set<uint32_t>> tokens;
  std::map<WorkerId, uint32_t> answers;
  const auto worker = [&](uint32_t route) {
    return WorkerId(10 + r->table.expert_id[route].value % 2);
  };
  for (uint32_t route : r->handoff_routes) {
    tokens[worker(route)].insert(r->table.token_id[route]);
  }
  for (size_t i = 0; i < r->handoff_routes.size(); ++i) {
    const uint32_t route = r->handoff_routes[i];
    PhysicalRoute p;
    p.origin = WorkerId(1);
    p.worker = worker(route);
    const auto& own = tokens[p.worker];
    p.send_offset = static_cast<uint32_t>(
        std::distance(own.begin(), own.find(r->table.token_id[route])));
    p.receive_offset = answers[p.worker]++;
    p.local_row = r->expert_local_row[i];
    p.placement_version = r->placement_version;
    p.state = Completion::kDone;
    r->physical.push_back(p);
  }
}

inline void FillRows(const LayerRecord& r, EvidenceRows* rows) {
  const auto width = static_cast<size_t>(rows->width);
  const auto tokens = static_cast<size_t>(r.table.rows);
  RowLayout layout;
  ASSERT_TRUE(LayOutRows(r.table, r.representation, &layout).ok());
  const size_t represented = layout.route_of_row.size();
  rows->hidden.clear();
  for (size_t i = 0; i < tokens * width; ++i) {
    rows->hidden.push_back(0.25f + static_cast<float>(i) * 0.125f);
  }
  rows->input.assign(represented * width, 0.0f);
  rows->output.assign(represented * width, 0.0f);
  rows->row_gate.assign(represented, 0.0f);
  rows->combined.assign(tokens * width, 0.0f);
  for (size_t row = 0; row < represented; ++row) {
    const uint32_t route = layout.route_of_row[row];
    if (route == kPaddingRow) continue;
    rows->row_gate[row] = r.table.gate[route];
    const size_t token = r.table.token_id[route];
    const auto scale = static_cast<float>(1 + r.table.expert_id[route].value);
    for (size_t i = 0; i < width; ++i) {
      const float x = rows->hidden[token * width + i];
      rows->input[row * width + i] = x;
      rows->output[row * width + i] = scale * x - 0.1f;
      const float c = rows->row_gate[row] * rows->output[row * width + i];
      rows->combined[token * width + i] += c;
    }
  }
}

inline std::vector<float> Probabilities8x4() {
  const nlohmann::json file = LoadRoutingFixture("matrix_8x4");
  std::vector<float> p;
  for (const auto& row : file["matrix_8x4"]["probabilities"]) {
    for (const auto& x : row) p.push_back(x.get<float>());
  }
  return p;
}

inline RecordedLayer Finish(LayerRecord record) {
  RecordedLayer layer;
  layer.record = std::move(record);
  layer.record.step = StepId(12);
  layer.record.layer = LayerIndex(3);
  const int64_t rows = static_cast<int64_t>(layer.record.values.size()) /
                       layer.record.policy.experts;
  const absl::Status status = FillRecord(rows, &layer.record);
  EXPECT_TRUE(status.ok()) << status;
  FillPhysical(&layer.record);
  FillRows(layer.record, &layer.rows);
  return layer;
}

// The 8 x 4 matrix, top two, no drops, packed.
inline RecordedLayer DroplessLayer() {
  LayerRecord r;
  r.policy = SoftmaxTopKPolicy(4, 2, true);
  r.values = Probabilities8x4();
  return Finish(std::move(r));
}

// The same with room for four rows an expert, as GShard routes it: 13 run.
inline RecordedLayer CapacityLayer() {
  LayerRecord r;
  r.policy = GShardPolicy(4);
  r.values = Probabilities8x4();
  r.draws.assign(8, 0.25);
  r.admission.kind = AdmissionKind::kFixedCapacity;
  r.admission.capacity_factor = 1.0;
  r.admission.arbitration = Arbitration::kSlotToken;
  r.representation.form = RowForm::kFixed;
  r.representation.capacity = 4;
  return Finish(std::move(r));
}

inline RecordedLayer SwitchLayer() {
  LayerRecord r;
  r.policy = SwitchPolicy(4);
  r.values = Probabilities8x4();
  r.admission.kind = AdmissionKind::kFixedCapacity;
  r.admission.capacity_factor = 1.0;
  r.admission.arbitration = Arbitration::kTokenSlot;
  r.representation.form = RowForm::kFixed;
  r.representation.capacity = 2;
  return Finish(std::move(r));
}

inline RecordedLayer BlockLayer() {
  LayerRecord r;
  r.policy = SoftmaxTopKPolicy(4, 2, true);
  r.values = Probabilities8x4();
  r.representation.form = RowForm::kBlocks;
  r.representation.block_rows = 4;
  return Finish(std::move(r));
}

inline RecordedLayer ExpertChoiceLayer() {
  LayerRecord r;
  r.policy = ExpertChoicePolicy(4, 4);
  r.values = Probabilities8x4();
  return Finish(std::move(r));
}

// Logits with recorded noise.
inline RecordedLayer NoisyLayer() {
  LayerRecord r;
  r.policy = NoisyTopKPolicy(4, 2);
  r.transformed = false;
  RandomStream random(3);
  for (int i = 0; i < 32; ++i) {
    r.values.push_back(static_cast<float>(random.NextUnit() * 4 - 2));
    r.noise.push_back(static_cast<float>(random.NextUnit() - 0.5));
  }
  return Finish(std::move(r));
}

// A NemotronH layer, a token of which gets two experts of one choice in groups.
inline RecordedLayer NemotronLayer() {
  LayerRecord r;
  r.policy = NemotronHPolicy(16, 4, 4, 2, true, 2.5);
  FixtureGenerator generator(5);
  for (int i = 0; i < 16 * 6; ++i) r.values.push_back(generator.Score());
  for (int i = 0; i < 16; ++i) r.bias.push_back(generator.Bias());
  return Finish(std::move(r));
}

}  // namespace trunkline::routing
