#include "routing/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "routing/load_plot.h"
#include "tests/routing/recorded_layer.h"

namespace trunkline::routing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Replay, ProvesThatARecordIsWhatItsPolicyMakes) {
  for (auto make : {DroplessLayer, CapacityLayer, SwitchLayer, BlockLayer,
                    ExpertChoiceLayer, NoisyLayer, NemotronLayer}) {
    const LayerRecord record = make().record;
    const absl::Status status = ProveEqual(record);
    EXPECT_TRUE(status.ok()) << record.policy.name << ": " << status;
  }
}

TEST(Replay, NamesTheFirstRouteThatIsNotWhatThePolicyMakes) {
  LayerRecord r = NemotronLayer().record;
  r.table.gate[5] = std::nextafter(r.table.gate[5], 9.0f);
  absl::Status status = ProveEqual(r);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 12, layer 3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("token 1, slot 1"));
  r = NemotronLayer().record;
  r.selected_expert[9] = ExpertId((r.selected_expert[9].value + 1) % 16);
  EXPECT_THAT(std::string(ProveEqual(r).message()),
              HasSubstr("token 2, slot 1: expert"));
  r = CapacityLayer().record;
  r.table.fate[0] = RouteFate::kDropped;
  EXPECT_THAT(std::string(ProveEqual(r).message()), HasSubstr("fate"));
  r = CapacityLayer().record;
  r.draws.clear();
  EXPECT_EQ(ProveEqual(r).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Replay, DoesNotApplyAnotherTransformToScores) {
  const auto rerouted = Reroute(NemotronLayer().record, [] {
    RoutingContract c;
    c.policy = SoftmaxTopKPolicy(16, 4, true);
    return c;
  }());
  EXPECT_EQ(rerouted.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(rerouted.status().message()),
              HasSubstr("holds sigmoid scores"));
}

ReplaySetup SetupFor(const PolicyRecord& policy) {
  ReplaySetup setup;
  setup.contract.policy = policy;
  setup.width = 64;
  setup.workers = 2;
  setup.link = {128, 128, 18, 128};
  setup.place = [](const RouteTable& table, int64_t workers,
                   int64_t replicas) -> absl::StatusOr<std::vector<WorkerId>> {
    if (replicas > workers) {
      return absl::InvalidArgumentError("more replicas than workers");
    }
    std::vector<WorkerId> owners;
    for (int64_t e = 0; e < table.experts; ++e) {
      owners.push_back(
          WorkerId(static_cast<uint32_t>(e * workers / table.experts)));
    }
    return owners;
  };
  return setup;
}

AdmissionPolicy Capacity(double factor, Arbitration order) {
  AdmissionPolicy a;
  a.kind = AdmissionKind::kFixedCapacity;
  a.capacity_factor = factor;
  a.arbitration = order;
  return a;
}

// The numbers of the reference, each policy over the same recorded scores.
TEST(Replay, PrintsTheReferenceNumbersOfEveryPolicyOverOneRecord) {
  LayerRecord recorded = DroplessLayer().record;
  recorded.draws.assign(8, 0.25);
  const nlohmann::json file = LoadRoutingFixture("matrix_8x4");
  const nlohmann::json& v = file["variants"];

  const auto mixtral =
      Replay(recorded, SetupFor(SoftmaxTopKPolicy(4, 2, true)));
  ASSERT_TRUE(mixtral.ok()) << mixtral.status();
  EXPECT_EQ(mixtral->ledger.accepted,
            v["mixtral_dropless"]["executed_rows"].get<int64_t>());

  ReplaySetup setup = SetupFor(GShardPolicy(4));
  setup.contract.admission = Capacity(1.0, Arbitration::kSlotToken);
  const auto gshard = Replay(recorded, setup);
  ASSERT_TRUE(gshard.ok()) << gshard.status();
  EXPECT_EQ(gshard->ledger.accepted, 13);
  EXPECT_EQ(gshard->ledger.dropped, 3);
  EXPECT_EQ(gshard->ledger.unused, 3);

  setup = SetupFor(SwitchPolicy(4));
  setup.contract.admission = Capacity(1.0, Arbitration::kTokenSlot);
  const auto switched = Replay(recorded, setup);
  ASSERT_TRUE(switched.ok()) << switched.status();
  EXPECT_THAT(switched->record.dropped_routes, ElementsAre(4, 7));

  const auto choice = Replay(recorded, SetupFor(ExpertChoicePolicy(4, 4)));
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->ledger.uncovered, 1);
  EXPECT_THAT(choice->ledger.executed, ElementsAre(4, 4, 4, 4));

  setup = SetupFor(SoftmaxTopKPolicy(4, 2, true));
  const auto blocks =
      SweepOne(recorded, setup, SweepCoordinate::kBlockRows, {1, 2, 4, 8});
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  std::vector<int64_t> rows, tails;
  for (const SweepPoint& p : blocks->points) {
    rows.push_back(p.result.layout.represented_rows);
    tails.push_back(p.result.layout.tail_rows);
  }
  EXPECT_THAT(rows, ElementsAre(16, 18, 24, 32));
  EXPECT_THAT(tails, ElementsAre(0, 2, 8, 16));

  const std::string text =
      Render(SummaryTable({"mixtral", "gshard", "switch", "expert choice"},
                          {&*mixtral, &*gshard, &*switched, &*choice}));
  EXPECT_THAT(text, HasSubstr("accepted"));
  // Columns in the order of the names.
  EXPECT_THAT(text, ::testing::ContainsRegex("accepted +16 +13 +6 +16\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("uncovered tokens +0 +0 +2 +1\n"));
}

TEST(Replay, SweepsOneCoordinateAndNamesThoseThatStandStill) {
  const LayerRecord recorded = DroplessLayer().record;
  const nlohmann::json file = LoadRoutingFixture("capacity");
  ReplaySetup setup = SetupFor(SoftmaxTopKPolicy(4, 2, true));
  setup.contract.admission = Capacity(1.0, Arbitration::kGateTokenSlot);
  const auto sweep = SweepOne(recorded, setup, SweepCoordinate::kCapacityFactor,
                              {0.75, 1.0, 1.25, 1.5});
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  const auto& rows = file["capacity_factor_sweep"]["rows"];
  ASSERT_EQ(sweep->points.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const RouteLedger& l = sweep->points[i].result.ledger;
    EXPECT_EQ(l.dropped, rows[i]["dropped"].get<int64_t>());
    EXPECT_EQ(l.unused, rows[i]["unused_slots"].get<int64_t>());
    EXPECT_NEAR(l.utilization, rows[i]["utilization"].get<double>(), 1e-12);
  }
  EXPECT_THAT(
      sweep->frozen,
      ElementsAre("skew = 0", "group-tokens = all",
                  "block-rows = none (packed)", "replicas = 1", "workers = 2",
                  "policy = softmax-topk-renormalized", "width = 64"));
  const TextTable table = SweepTable(*sweep);
  EXPECT_EQ(table.rows.size(), 4u);
  EXPECT_EQ(table.columns[0], "capacity-factor");
}

TEST(Replay, SweepsWorkersSkewAndGroups) {
  const LayerRecord recorded = DroplessLayer().record;
  ReplaySetup setup = SetupFor(SoftmaxTopKPolicy(4, 2, true));
  auto sweep = SweepOne(recorded, setup, SweepCoordinate::kWorkers, {1, 2, 4});
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  std::vector<int64_t> rows_sent;
  for (const SweepPoint& p : sweep->points) {
    int64_t sent = 0;
    for (const WorkerLoad& w : p.result.workers) sent += w.rows;
    rows_sent.push_back(sent);
  }
  // 01 03 20 12 01 20 31 01: a token once a worker that owns one of its two.
  EXPECT_THAT(rows_sent, ElementsAre(8, 8 + 5, 16));

  sweep = SweepOne(recorded, setup, SweepCoordinate::kSkew, {0, 0.5, 1});
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  EXPECT_THAT(sweep->points[0].result.ledger.selected, ElementsAre(6, 5, 3, 2));
  EXPECT_THAT(sweep->points[2].result.ledger.selected, ElementsAre(8, 8, 0, 0));
  EXPECT_NEAR(sweep->points[2].result.ledger.selected_load.entropy, 0.5, 1e-12);

  setup.contract.admission = Capacity(1.0, Arbitration::kTokenSlot);
  sweep = SweepOne(recorded, setup, SweepCoordinate::kGroupTokens, {1, 4, 8});
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  // One token a group: a row an expert, and two distinct experts fit.
  EXPECT_EQ(sweep->points[0].result.ledger.dropped, 0);
  EXPECT_EQ(sweep->points[2].result.ledger.dropped, 3);

  sweep = SweepOne(recorded, setup, SweepCoordinate::kReplicas, {1, 2});
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  EXPECT_FALSE(SweepOne(recorded, setup, SweepCoordinate::kReplicas, {3}).ok());
}

TEST(Replay, RefusesCoordinatesThatHaveNoMeaning) {
  const LayerRecord recorded = DroplessLayer().record;
  const ReplaySetup setup = SetupFor(SoftmaxTopKPolicy(4, 2, true));
  const auto message = [&](SweepCoordinate c, double v) {
    return std::string(SweepOne(recorded, setup, c, {v}).status().message());
  };
  EXPECT_THAT(message(SweepCoordinate::kCapacityFactor, 1.0),
              HasSubstr("dropless"));
  EXPECT_THAT(message(SweepCoordinate::kGroupTokens, 4), HasSubstr("dropless"));
  EXPECT_THAT(message(SweepCoordinate::kSkew, 1.5), HasSubstr("[0, 1]"));
  EXPECT_THAT(message(SweepCoordinate::kBlockRows, 2.5),
              HasSubstr("not a number of rows"));
  EXPECT_THAT(message(SweepCoordinate::kWorkers, 0),
              HasSubstr("not a number of workers"));
  for (const char* name : {"capacity-factor", "skew", "group-tokens",
                           "block-rows", "replicas", "workers"}) {
    const auto c = ParseSweepCoordinate(name);
    ASSERT_TRUE(c.ok());
    EXPECT_EQ(Name(*c), name);
  }
  EXPECT_THAT(std::string(ParseSweepCoordinate("moon").status().message()),
              HasSubstr("capacity-factor, skew"));
}

// --- Contract comparison.

TEST(ContractComparison, HasTheAxesOfTheReference) {
  const nlohmann::json file = LoadRoutingFixture("matrix_8x4");
  const auto comparison = CompareContracts(RoutingContract(), RoutingContract(),
                                           EquivalenceClaim::kForward);
  const auto& axes = file["variants"]["contract_axes"];
  ASSERT_EQ(comparison.axes.size(), axes.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    EXPECT_EQ(comparison.axes[i].axis, axes[i].get<std::string>());
  }
  EXPECT_TRUE(comparison.equivalent);
}

std::vector<std::string> Differing(const ContractComparison& c) {
  std::vector<std::string> axes;
  for (const AxisComparison& a : c.axes) {
    if (a.differs) axes.push_back(a.axis);
  }
  return axes;
}

// A false equivalence claim: the same choice is not the same output, and the
// same output is not the same memory.
TEST(ContractComparison, TellsChoiceOutputAndMemoryApart) {
  RoutingContract a, b;
  a.policy = SoftmaxTopKPolicy(4, 2, true);
  b.policy = SoftmaxTopKPolicy(4, 2, false);
  EXPECT_TRUE(CompareContracts(a, b, EquivalenceClaim::kRelation).equivalent);
  const auto forward = CompareContracts(a, b, EquivalenceClaim::kForward);
  EXPECT_FALSE(forward.equivalent);
  EXPECT_THAT(Differing(forward), ElementsAre("normalization and combine"));
  EXPECT_TRUE(CompareContracts(a, b, EquivalenceClaim::kMemory).equivalent);

  // A gate-ordered admission makes the choice depend on the gates.
  a.admission = b.admission = Capacity(1.0, Arbitration::kGateTokenSlot);
  EXPECT_FALSE(CompareContracts(a, b, EquivalenceClaim::kRelation).equivalent);

  b = a;
  b.representation = {RowForm::kBlocks, 0, 16};
  EXPECT_TRUE(CompareContracts(a, b, EquivalenceClaim::kForward).equivalent);
  EXPECT_FALSE(CompareContracts(a, b, EquivalenceClaim::kMemory).equivalent);

  b = a;
  b.retained = RetainedState::kSave;
  EXPECT_TRUE(CompareContracts(a, b, EquivalenceClaim::kForward).equivalent);
  EXPECT_FALSE(CompareContracts(a, b, EquivalenceClaim::kMemory).equivalent);
}

TEST(ContractComparison, SeesEveryFieldThatDecides) {
  RoutingContract base;
  base.policy = NemotronHPolicy(16, 4, 4, 2, true, 2.5);
  base.admission = Capacity(1.0, Arbitration::kSeededRandom);
  const std::vector<void (*)(RoutingContract&)> changes = {
      [](auto& c) { c.policy.experts = 32; },
      [](auto& c) { c.policy.n_group = 2; },
      [](auto& c) { c.policy.topk_group = 3; },
      [](auto& c) { c.admission.group_tokens = 4; },
      [](auto& c) { c.policy.transform = ScoreTransform::kSoftmax; },
      [](auto& c) { c.policy.owner = SelectionOwner::kExpert; },
      [](auto& c) { c.policy.bias = false; },
      [](auto& c) { c.policy.tie = TieRule::kUnspecified; },
      [](auto& c) { c.policy.top_k = 5; },
      [](auto& c) { c.policy.gate_domain = GateDomain::kScore; },
      [](auto& c) { c.policy.epsilon = 0.0; },
      [](auto& c) { c.policy.scale = 1.0; },
      [](auto& c) { c.policy.noise = NoiseSource::kLogitNoise; },
      [](auto& c) { c.policy.precision = RouterPrecision::kF64; },
      [](auto& c) { c.admission = AdmissionPolicy(); },
      [](auto& c) { c.admission.capacity_factor = 1.25; },
      [](auto& c) { c.admission.arbitration = Arbitration::kTokenSlot; },
      [](auto& c) { c.admission.seed = 8; },
      [](auto& c) { c.admission.overflow = Overflow::kDropRenormalize; },
      [](auto& c) { c.admission.overflow = Overflow::kReroute; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    RoutingContract other = base;
    changes[i](other);
    EXPECT_FALSE(
        CompareContracts(base, other, EquivalenceClaim::kForward).equivalent)
        << i;
  }
  for (const char* name : {"relation", "forward", "memory"}) {
    EXPECT_EQ(Name(*ParseEquivalenceClaim(name)), name);
  }
  EXPECT_FALSE(ParseEquivalenceClaim("speed").ok());
  EXPECT_THAT(Render(ComparisonTable(
                  CompareContracts(base, base, EquivalenceClaim::kForward))),
              HasSubstr("scorer and selection owner"));
}

// --- The fields that the hand-off records are said to hold.

TEST(LayerRecord, HoldsEveryFieldOfTheHandoffRecords) {
  RecordedLayer layer = CapacityLayer();
  const LayerRecord& r = layer.record;
  const RouteTable& t = r.table;
  const auto size = [](const auto& v) {
    return static_cast<int64_t>(v.size());
  };
  // Field of the fixture -> how much of it the record holds.
  const std::map<std::string, int64_t> fields = {
      {"group_identity", size(r.group_of_token)},
      {"valid_token_mask", size(r.valid_token)},
      {"router_probabilities[T,E]", size(r.values)},
      {"selected_expert_ids[T,k]", size(r.selected_expert)},
      {"selected_slots[T,k]", size(t.selected_slot)},
      {"selected_gate_weights[T,k]", size(r.selected_gate)},
      {"admission_mask[T,k]", size(t.fate)},
      {"selected_counts[E]", size(r.selected_counts)},
      {"executed_counts[E]", size(r.executed_counts)},
      {"dropped_route_ids", size(r.dropped_routes)},
      {"objective_statistics", Summarize(r.selected_counts).total},
      {"tie_state", r.tied_rows},
      {"noise_random_state", size(r.draws)},
      {"token_order", t.rows},
      {"accepted_route_ids", size(r.handoff_routes)},
      {"origin_token_ids", size(t.token_id)},
      {"selected_slots", size(t.selected_slot)},
      {"logical_expert_ids", size(t.expert_id)},
      {"gate_weights", size(t.gate)},
      {"route_metadata_dtype", static_cast<int64_t>(sizeof(t.token_id[0]))},
      {"per_expert_counts", size(r.expert_counts)},
      {"prefix_offsets", size(r.prefix_offsets)},
      {"representation_policy", static_cast<int64_t>(r.representation.form)},
      {"represented_rows", r.represented_rows},
      {"block_size", r.representation.capacity},
      {"tail_rows", r.tail_rows},
      {"origin_rank", r.physical[0].origin.value},
      {"destination_rank", r.physical[0].worker.value},
      {"placement_version", static_cast<int64_t>(r.placement_version.value)},
      {"completion_state", static_cast<int64_t>(r.physical[0].state)},
      {"physical_replica", 1 + r.physical[0].replica},
      {"send_offset", 1 + r.physical[0].send_offset},
      {"receive_offset", 1 + r.physical[0].receive_offset},
      {"local_kernel_row", 1 + r.physical[0].local_row},
  };
  // Inference keeps no state for a backward pass; the contract says so.
  const std::map<std::string, std::string> in_the_contract = {
      {"backward_state_policy", std::string(Name(RoutingContract().retained))}};
  const nlohmann::json file = LoadRoutingFixture("handoff_records");
  int listed = 0;
  for (const nlohmann::json& list : {file["statistics_record_M6_2"]["fields"],
                                     file["execution_record_M6_6"]["fields"],
                                     file["physical_plan_added_by_runtime"]}) {
    for (const auto& name : list) {
      ++listed;
      const auto it = fields.find(name.get<std::string>());
      if (it == fields.end()) {
        EXPECT_TRUE(in_the_contract.contains(name.get<std::string>())) << name;
      } else {
        EXPECT_GT(it->second, 0) << name;
      }
    }
  }
  EXPECT_EQ(listed, 13 + 14 + 8);
  // The statistics record's printed number of fields.
  EXPECT_EQ(
      file["statistics_record_M6_2"]["fields"].size(),
      file["statistics_record_M6_2"]["printed_required_fields"].get<size_t>());
}

// --- Pictures.

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + 1)) {
    ++count;
  }
  return count;
}

// Every element is closed, in order.
bool WellFormed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = xml.find('<'); at != std::string::npos;
       at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.empty() || tag.find('<') != std::string::npos) return false;
    if (tag.back() == '/') continue;
    if (tag[0] != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else if (open.empty() || open.back() != tag.substr(1)) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

TEST(LoadPlot, DrawsABarForEveryValueInProportion) {
  const std::string svg =
      BarPlot("load <per> \"expert\" & more", "expert", {"0", "1", "2", "3"},
              {{"selected", {6, 5, 3, 2}}, {"executed", {4, 4, 3, 0}}});
  EXPECT_TRUE(WellFormed(svg));
  EXPECT_EQ(Count(svg, "class=\"bar\""), 8u);
  EXPECT_EQ(Count(svg, "class=\"key\""), 2u);
  EXPECT_THAT(svg, HasSubstr("load &lt;per&gt; &quot;expert&quot; &amp; more"));
  EXPECT_THAT(svg, HasSubstr("<title>3, executed: 0</title>"));
  std::vector<double> heights;
  for (size_t at = svg.find("class=\"bar\""); at != std::string::npos;
       at = svg.find("class=\"bar\"", at + 1)) {
    heights.push_back(std::stod(svg.substr(svg.find("height=\"", at) + 8)));
  }
  // selected and executed of an expert stand side by side.
  EXPECT_NEAR(heights[0] / heights[1], 6.0 / 4.0, 1e-3);
  EXPECT_NEAR(heights[0] / heights[4], 6.0 / 3.0, 1e-3);
  EXPECT_EQ(heights[7], 0.0);
}

TEST(LoadPlot, DrawsAPointForEveryValueOfEveryLine) {
  const std::string svg =
      LinePlot("sweep", "capacity-factor", {0.75, 1, 1.25, 1.5},
               {{"dropped", {5, 3, 1, 0}}});
  EXPECT_TRUE(WellFormed(svg));
  EXPECT_EQ(Count(svg, "<circle"), 4u);
  EXPECT_EQ(Count(svg, "<polyline"), 1u);
  // Nothing to draw is drawn as nothing.
  EXPECT_TRUE(WellFormed(LinePlot("t", "x", {}, {})));
  EXPECT_TRUE(WellFormed(LinePlot("t", "x", {2}, {{"l", {0}}})));
  EXPECT_TRUE(WellFormed(BarPlot("t", "x", {}, {})));
  EXPECT_TRUE(WellFormed(BarPlot("t", "x", {"a"}, {{"s", {0}}})));
}

TEST(TextTable, AlignsNamesLeftAndNumbersRight) {
  TextTable t;
  t.columns = {"expert", "n"};
  t.rows = {{"0", "12"}, {"10", "3"}};
  EXPECT_EQ(Render(t), "expert   n\n0       12\n10       3\n");
}

}  // namespace
}  // namespace trunkline::routing
