#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "routing/residency_ledger.h"
#include "routing/route_ledger.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::routing {
namespace {

using ::testing::HasSubstr;

constexpr double kMiB = 1024.0 * 1024.0;

class LedgerFixture : public ::testing::Test {
 protected:
  LedgerFixture()
      : file_(LoadRoutingFixture("ledgers")),
        residency_(file_["sizes_and_residency"]),
        traffic_(file_["traffic_and_liveness"]) {
    const auto& c = residency_["config"];
    layer_.width = c["d_model"];
    layer_.experts = c["experts"];
    layer_.top_k = c["top_k"];
    layer_.element_bytes = c["dtype_bytes"];
    const int64_t ff = c["d_ff"];
    layer_.projections = {{"w1", ff, layer_.width},
                          {"w3", ff, layer_.width},
                          {"w2", layer_.width, ff}};
    const auto& t = traffic_["config"];
    shape_.tokens = t["T"];
    shape_.experts = t["E"];
    shape_.top_k = t["k"];
    shape_.width = t["d"];
    shape_.routes = shape_.represented = t["routes"];
    shape_.activation_bytes = t["bytes"]["activation"];
    shape_.output_bytes = t["bytes"]["output"];
    shape_.score_bytes = t["bytes"]["score"];
    shape_.gate_bytes = t["bytes"]["gate"];
    shape_.index_bytes = t["bytes"]["index"];
    shape_.count_bytes = t["bytes"]["count"];
    shape_.prefix_bytes = t["bytes"]["prefix"];
  }
  std::vector<NamedTensor> Tensors() const {
    std::vector<NamedTensor> tensors;
    for (const auto& t : residency_["moe_tensors_layer0"]) {
      tensors.push_back({t["name"], t["shape"].get<std::vector<int64_t>>()});
    }
    return tensors;
  }
  nlohmann::json file_;
  nlohmann::json residency_;
  nlohmann::json traffic_;
  RoutedLayerShape layer_;
  TrafficShape shape_;
};

TEST_F(LedgerFixture, ReproducesParametersFlopsAndResidency) {
  const auto& r = residency_;
  const ResidencyLedger l = TakeLedger(layer_);
  EXPECT_EQ(l.router_params, r["router_params"].get<int64_t>());
  EXPECT_EQ(l.expert_params, r["one_expert_params"].get<int64_t>());
  EXPECT_EQ(2 * l.expert_params,
            r["one_expert_flops_per_token"].get<int64_t>());
  EXPECT_EQ(l.all_expert_params, r["all_expert_params"].get<int64_t>());
  EXPECT_EQ(l.active_expert_params,
            r["active_expert_params_per_token"].get<int64_t>());
  EXPECT_EQ(l.stored_params,
            r["stored_router_plus_experts_params"].get<int64_t>());
  EXPECT_EQ(l.active_params,
            r["active_router_plus_experts_params"].get<int64_t>());
  EXPECT_EQ(l.active_flops, r["active_matmul_flops_per_token"].get<int64_t>());
  EXPECT_EQ(l.resident_bytes,
            r["single_process_resident_bytes"].get<int64_t>());
  EXPECT_NEAR(static_cast<double>(l.resident_bytes) / (kMiB * 1024.0),
              r["single_process_resident_gib"].get<double>(), 1e-12);
  // The experts of NemotronH have two matrices; so has this row.
  RoutedLayerShape two = layer_;
  two.projections.erase(two.projections.begin() + 1);
  EXPECT_EQ(TakeLedger(two).expert_params,
            r["two_matrix_ffn_params"].get<int64_t>());
  EXPECT_EQ(2 * TakeLedger(two).expert_params,
            r["two_matrix_flops_per_token"].get<int64_t>());
}

TEST_F(LedgerFixture, ReproducesTheBytesOfOneOfFourRanks) {
  std::vector<ResidentPart> parts;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    parts.push_back(
        {WorkerId(rank), {ExpertId(2 * rank), ExpertId(2 * rank + 1)}, true});
    EXPECT_EQ(ResidentBytes(layer_, parts.back()),
              residency_["ep4_rank_resident_bytes"].get<int64_t>());
  }
  EXPECT_NEAR(
      static_cast<double>(ResidentBytes(layer_, parts[0])) / (kMiB * 1024.0),
      residency_["ep4_rank_resident_gib"].get<double>(), 1e-12);
  EXPECT_TRUE(CheckPlacement(layer_, parts).ok());
}

TEST_F(LedgerFixture, TakesTheFixturesTensorList) {
  const std::vector<NamedTensor> tensors = Tensors();
  EXPECT_EQ(tensors.size(),
            residency_["moe_tensor_count_layer0"].get<size_t>());
  EXPECT_TRUE(CheckTensors(layer_, tensors).ok());
  int64_t params = 0;
  for (const auto& t : residency_["moe_tensors_layer0"]) {
    const auto shape = t["shape"].get<std::vector<int64_t>>();
    EXPECT_EQ(shape[0] * shape[1], t["params"].get<int64_t>());
    params += shape[0] * shape[1];
  }
  EXPECT_EQ(params, TakeLedger(layer_).stored_params);
}

// The failure list of the fixture, one refusal each.
TEST_F(LedgerFixture, RefusesEveryResidencyMutation) {
  const auto tensors_with =
      [&](const std::function<void(std::vector<NamedTensor>&)>& change) {
        std::vector<NamedTensor> tensors = Tensors();
        change(tensors);
        return CheckTensors(layer_, tensors);
      };
  const auto layer_with =
      [&](const std::function<void(RoutedLayerShape&)>& change) {
        RoutedLayerShape layer = layer_;
        change(layer);
        return CheckTensors(layer, Tensors());
      };
  const auto stated_with =
      [&](const std::function<void(ResidencyLedger&)>& change) {
        ResidencyLedger stated = TakeLedger(layer_);
        change(stated);
        return CheckStated(layer_, stated);
      };
  std::vector<ResidentPart> no_router = {{WorkerId(0), {}, false}};
  for (uint32_t e = 0; e < 8; ++e) no_router[0].experts.push_back(ExpertId(e));
  const std::vector<std::tuple<std::string, absl::Status, std::string>> table =
      {
          {"missing down projection",
           tensors_with([](auto& t) { t.erase(t.begin() + 3); }),
           "experts.0.w2.weight is missing"},
          {"swapped axes of down projection", tensors_with([](auto& t) {
             std::swap(t[3].shape[0], t[3].shape[1]);
           }),
           "its axes are swapped"},
          {"missing expert id",
           tensors_with([](auto& t) { t.resize(t.size() - 3); }), "experts.7"},
          {"duplicate expert id",
           tensors_with([](auto& t) { t[4].name = t[1].name; }),
           "experts.0.w1.weight occurs twice"},
          {"config and index disagree",
           layer_with([](auto& l) { l.experts = 7; }), "gate.weight"},
          {"top_k used for E in the router count",
           tensors_with([](auto& t) { t[0].shape[0] = 2; }), "top_k rows"},
          {"top_k used for E in the router count",
           stated_with([&](auto& s) { s.router_params = 2 * 4096; }),
           "router_params"},
          {"active bytes used as resident bytes",
           stated_with([](auto& s) { s.resident_bytes = 2 * s.active_params; }),
           "resident_bytes"},
          {"top_k > E", layer_with([](auto& l) { l.top_k = 9; }), "top_k = 9"},
          {"placement record without the resident router",
           CheckPlacement(layer_, no_router), "router"},
      };
  for (const auto& [mutation, status, names] : table) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << mutation;
    EXPECT_THAT(std::string(status.message()), HasSubstr(names)) << mutation;
  }
  // All that the file lists are here.
  for (const auto& listed : residency_["negative_mutations"]) {
    EXPECT_TRUE(std::any_of(table.begin(), table.end(), [&](const auto& row) {
      return std::get<0>(row) == listed.template get<std::string>();
    })) << listed;
  }
}

TEST_F(LedgerFixture, RefusesPlacementsThatHoldTooLittleOrTooMuch) {
  std::vector<ResidentPart> parts = {{WorkerId(0), {}, true}};
  for (uint32_t e = 0; e < 8; ++e) parts[0].experts.push_back(ExpertId(e));
  EXPECT_TRUE(CheckPlacement(layer_, parts).ok());
  parts[0].experts.push_back(ExpertId(3));
  EXPECT_THAT(std::string(CheckPlacement(layer_, parts).message()),
              HasSubstr("expert 3 twice"));
  parts[0].experts.back() = ExpertId(8);
  EXPECT_FALSE(CheckPlacement(layer_, parts).ok());
  parts[0].experts.resize(7);
  EXPECT_THAT(std::string(CheckPlacement(layer_, parts).message()),
              HasSubstr("no worker holds expert 7"));
}

TEST_F(LedgerFixture, ReproducesReferenceTraffic) {
  int64_t total = 0;
  const auto stages = ReferenceTraffic(shape_);
  EXPECT_EQ(stages.size(), traffic_["traffic_bytes"].size());
  for (const StageBytes& s : stages) {
    EXPECT_EQ(s.bytes, traffic_["traffic_bytes"][s.stage].get<int64_t>())
        << s.stage;
    EXPECT_NEAR(static_cast<double>(s.bytes) / kMiB,
                traffic_["traffic_mib"][s.stage].get<double>(), 1e-12);
    total += s.bytes;
  }
  EXPECT_NEAR(static_cast<double>(total) / kMiB,
              traffic_["traffic_total_mib"].get<double>(), 1e-9);
}

TEST_F(LedgerFixture, ReproducesBuffersAndLivePayload) {
  for (const BufferLife& b : LayerBuffers(shape_)) {
    EXPECT_EQ(b.bytes, traffic_["buffers_bytes"][b.name].get<int64_t>())
        << b.name;
    const auto& life = traffic_["lifetimes_stage_index"][b.name];
    EXPECT_EQ(b.first_stage, life[0].get<int>());
    EXPECT_EQ(b.last_stage, life[1].get<int>());
  }
  const auto live = LivePayload(shape_);
  ASSERT_EQ(live.size(), traffic_["stages"].size());
  for (size_t i = 0; i < live.size(); ++i) {
    EXPECT_EQ(live[i].stage, traffic_["stages"][i].get<std::string>());
    EXPECT_EQ(live[i].bytes, traffic_["live_bytes"][i].get<int64_t>());
    EXPECT_NEAR(static_cast<double>(live[i].bytes) / kMiB,
                traffic_["live_mib"][i].get<double>(), 1e-12);
  }
  const StageBytes peak = PeakPayload(shape_);
  EXPECT_EQ(peak.stage, traffic_["peak_stage"].get<std::string>());
  EXPECT_NEAR(static_cast<double>(peak.bytes) / kMiB,
              traffic_["peak_mib"].get<double>(), 1e-12);
}

TEST_F(LedgerFixture, ReproducesRetentionAndTheTransientSchedule) {
  const Retention r = RetainedBytes(shape_);
  const auto& expected = traffic_["retention"];
  EXPECT_NEAR(static_cast<double>(r.save_bytes) / kMiB,
              expected["save_state_mib"].get<double>(), 1e-9);
  EXPECT_NEAR(static_cast<double>(r.rematerialize_bytes) / kMiB,
              expected["rematerialize_mib"].get<double>(), 1e-9);
  EXPECT_NEAR(static_cast<double>(r.save_bytes - r.rematerialize_bytes) / kMiB,
              expected["avoided_mib"].get<double>(), 1e-9);
  const std::pair<std::string, std::string> names[] = {{"Z", "router_logits"},
                                                       {"I", "expert_ids"},
                                                       {"G", "gates"},
                                                       {"Xp", "packed_in"},
                                                       {"Up", "packed_out"}};
  int64_t total = 0;
  for (const auto& [buffer, name] : names) {
    for (const BufferLife& b : LayerBuffers(shape_)) {
      if (b.name != buffer) continue;
      EXPECT_EQ(
          b.bytes,
          residency_["transient_teaching_schedule_bytes"][name].get<int64_t>());
      total += b.bytes;
    }
  }
  EXPECT_EQ(total, residency_["transient_total_bytes"].get<int64_t>());
  EXPECT_NEAR(static_cast<double>(total) / kMiB,
              residency_["transient_total_mib"].get<double>(), 1e-12);
}

TEST(RouteLedger, CountsDistinctExpertsAndBytesPerWorker) {
  RouteTable t;
  t.Clear(3, 4, 2);
  t.Add(0, 0, ExpertId(0), 0.5f);
  t.Add(0, 1, ExpertId(1), 0.5f);
  t.Add(1, 0, ExpertId(0), 0.5f);
  t.Add(1, 1, ExpertId(3), 0.5f);
  t.Add(2, 0, ExpertId(2), 0.5f, RouteFate::kDropped);
  t.Add(2, 1, ExpertId(1), 0.5f);
  const std::vector<WorkerId> owner = {WorkerId(4), WorkerId(4), WorkerId(4),
                                       WorkerId(9)};
  const auto loads = LoadPerWorker(t, owner,
                                   {.row_bytes = 100,
                                    .answer_bytes = 10,
                                    .route_bytes = 2,
                                    .frame_bytes = 1000});
  ASSERT_TRUE(loads.ok());
  ASSERT_EQ(loads->size(), 2u);
  const WorkerLoad& a = (*loads)[0];
  EXPECT_EQ(a.worker, WorkerId(4));
  EXPECT_EQ(a.distinct_experts, 2);
  EXPECT_EQ(a.routes, 4);
  EXPECT_EQ(a.rows, 3);  // token 0 once for its two experts
  EXPECT_EQ(a.bytes_out, 1000 + 4 * 2 + 3 * 100);
  EXPECT_EQ(a.bytes_back, 1000 + 4 * 2 + 4 * 10);
  EXPECT_EQ((*loads)[1].routes, 1);
  EXPECT_FALSE(LoadPerWorker(t, std::vector<WorkerId>(3), {}).ok());
}

TEST(RouteLedger, SummarizesEmptyAndSingleLoads) {
  EXPECT_EQ(Summarize({}).total, 0);
  const std::vector<int64_t> none = {0, 0};
  EXPECT_EQ(Summarize(none).cv_squared, 0.0);
  EXPECT_EQ(Summarize(none).entropy, 0.0);
  const std::vector<int64_t> one = {7};
  EXPECT_EQ(Summarize(one).entropy, 1.0);
  EXPECT_EQ(Summarize(one).largest, 7);
}

}  // namespace
}  // namespace trunkline::routing
