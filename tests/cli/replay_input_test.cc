#include "cli/replay_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>

#include "cli/recording_sink.h"
#include "cli/replay_report.h"
#include "cli/replay_totals.h"
#include "cli/score_matrix.h"
#include "tests/trunk_worker/recorded_stream.h"

namespace trunkline::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

TEST(ScoreMatrix, TakesTheFixtureAndPlainMatrices) {
  std::ifstream file(TRUNKLINE_FIXTURES "/routing/matrix_8x4.json");
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  const auto fixture = ParseScoreMatrix(text, "m.json", 0.25);
  ASSERT_TRUE(fixture.ok()) << fixture.status();
  EXPECT_EQ(fixture->name, "matrix_8x4");
  EXPECT_FALSE(fixture->any_transform);
  EXPECT_THAT(fixture->record.selected_counts, ElementsAre(6, 5, 3, 2));
  EXPECT_EQ(fixture->record.draws.size(), 8u);
  const auto plain = ParseScoreMatrix(
      R"({"scores": [[0.1, 0.9, 0.5]], "top_k": 2, "bias": [0, 0, 0.5]})", "p",
      std::nullopt);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(plain->any_transform);
  EXPECT_EQ(plain->record.bias.size(), 3u);
  EXPECT_THAT(plain->record.selected_expert,
              ElementsAre(ExpertId(1), ExpertId(2)));
  const auto logits = ParseScoreMatrix(
      R"({"logits": [[-3, 4, 2], [1, 2, 3]], "top_k": 1})", "l", std::nullopt);
  ASSERT_TRUE(logits.ok()) << logits.status();
  EXPECT_FALSE(logits->record.transformed);
}

TEST(ScoreMatrix, RefusesByPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not JSON"},
      {"[]", "has no \"scores\""},
      {R"({"a": {"b": 1}})", "has no \"scores\""},
      {R"({"scores": [], "top_k": 1})", "scores"},
      {R"({"scores": [[]], "top_k": 1})", "scores"},
      {R"({"scores": [[1, 2], [3]], "top_k": 1})", "scores[1]"},
      {R"({"scores": [[1, "x"]], "top_k": 1})", "scores[0][1]"},
      {R"({"scores": [[1, 1e999]], "top_k": 1})", "m.json"},
      {R"({"scores": [[1, 1e39]], "top_k": 1})", "m.json"},
      {R"({"scores": [[1, 2]]})", "top_k"},
      {R"({"scores": [[1, 2]], "top_k": 3})", "top_k"},
      {R"({"scores": [[1, 2]], "top_k": -1})", "top_k"},
      {R"({"scores": [[1, 2]], "top_k": 1, "bias": [1]})", "bias"},
      {R"({"scores": [[1, 2]], "top_k": 1, "draws": [1, 2]})", "draws"},
      {R"({"scores": [[1, 2]], "top_k": 1, "noise": [[1]]})", "noise"},
  };
  for (const auto& [text, names] : cases) {
    const auto matrix = ParseScoreMatrix(text, "m.json", std::nullopt);
    ASSERT_FALSE(matrix.ok()) << text;
    EXPECT_THAT(Message(matrix.status()), HasSubstr(names)) << text;
  }
}

// Logits that were recovered choose the same experts, and a softmax over them
// is a softmax over the logits that there were.
TEST(RecoverLogits, UndoesTheTransform) {
  routing::LayerRecord r =
      trunk::TestRoutes(trunk::TestLayer(1, 8, 2, 1), 1, 40).record;
  const std::vector<float> scores = r.values;
  ASSERT_TRUE(RecoverLogits(&r).ok());
  EXPECT_FALSE(r.transformed);
  for (size_t i = 0; i < scores.size(); ++i)
    EXPECT_NEAR(1.0 / (1.0 + std::exp(-static_cast<double>(r.values[i]))),
                scores[i], 1e-6);
  routing::LayerRecord one =
      trunk::TestRoutes(trunk::TestLayer(1, 8, 2, 1), 1, 1).record;
  one.values[3] = 1.0f;
  EXPECT_THAT(Message(RecoverLogits(&one)), HasSubstr("expert 3"));
}

TEST(ReplayTotals, AddUpAndKeepPeaks) {
  const trunk::TestRecording recording = trunk::MakeTestRecording(4);
  ReplayTotals totals;
  int64_t requested = 0, peak = 0, worst = 0;
  for (const trunk::RecordedRoutes& routes : recording.routes) {
    if (routes.record.layer != LayerIndex(4)) continue;
    ReplayRecord r;
    r.record = &routes.record;
    r.width = 64;
    ReplayCosts costs;
    costs.workers = 2;
    const auto setup = SetupOf(routing::ContractOf(routes.record), r, costs);
    ASSERT_TRUE(setup.ok());
    const auto result = routing::Replay(routes.record, *setup);
    ASSERT_TRUE(result.ok()) << result.status();
    AddReplay(*result, &totals);
    requested += result->ledger.requested;
    for (const routing::StageBytes& s : result->live)
      peak = std::max(peak, s.bytes);
    for (const routing::WorkerLoad& w : result->workers)
      worst = std::max(worst, w.distinct_experts);
  }
  EXPECT_EQ(totals.layer_steps, 4);
  EXPECT_EQ(totals.sum.ledger.requested, requested);
  EXPECT_EQ(totals.sum.ledger.accepted, requested);
  EXPECT_EQ(totals.sum.ledger.selected_load.total, requested);
  int64_t live = 0, distinct = 0, routes = 0;
  for (const routing::StageBytes& s : totals.sum.live)
    live = std::max(live, s.bytes);
  for (const routing::WorkerLoad& w : totals.sum.workers) {
    distinct = std::max(distinct, w.distinct_experts);
    routes += w.routes;
  }
  EXPECT_EQ(live, peak);
  EXPECT_EQ(distinct, worst);
  EXPECT_EQ(routes, requested);
}

// Experts of a placement run on the replica that dispatch would choose.
TEST(OwnersUnder, SpreadsChosenExpertsOverTheirReplicas) {
  routing::RouteTable table;
  table.Clear(2, 3, 2);
  table.Add(0, 0, ExpertId(0), 1.0f);
  table.Add(0, 1, ExpertId(1), 1.0f);
  placement::LayerPlacement placed;
  placed.replicas = {{{WorkerId(4), 0}, {WorkerId(7), 0}},
                     {{WorkerId(4), 1}, {WorkerId(7), 1}},
                     {{WorkerId(7), 2}}};
  const auto owners = OwnersUnder(table, placed);
  ASSERT_TRUE(owners.ok()) << owners.status();
  EXPECT_NE((*owners)[0], (*owners)[1]);
  EXPECT_EQ((*owners)[2], WorkerId(7));
}

class RecordingFile : public ::testing::Test {
 protected:
  std::string path_ =
      absl::StrCat(::testing::TempDir(), "/replay-input-", getpid(), ".tlrec");
  void TearDown() override { std::filesystem::remove(path_); }
};

TEST_F(RecordingFile, GivesTheWantedLayersInOrder) {
  ASSERT_TRUE(
      trunk::WriteEntries(path_, trunk::EntriesOf(trunk::MakeTestRecording(3)))
          .ok());
  ReplaySource source;
  source.file = path_;
  source.layers = {4};
  std::vector<uint64_t> steps;
  const absl::Status read =
      ForEachRecord(source, [&](const ReplayRecord& r) -> absl::Status {
        EXPECT_EQ(r.name, "layer 4");
        EXPECT_EQ(r.width, 64);
        steps.push_back(r.record->step.value);
        return absl::OkStatus();
      });
  EXPECT_TRUE(read.ok()) << read;
  EXPECT_THAT(steps, ElementsAre(1, 2, 3));
  source.layers = {2};
  EXPECT_THAT(Message(ForEachRecord(
                  source, [](const auto&) { return absl::OkStatus(); })),
              HasSubstr("--layers 2 was not recorded; there are 1, 4"));
}

// A stream that breaks off leaves a file that can be read to its end.
TEST_F(RecordingFile, OfABrokenStreamIsWholeAndSaysSo) {
  const std::vector<v1::RouteRecordEntry> entries =
      trunk::EntriesOf(trunk::MakeTestRecording(3));
  {
    RecordingSink sink(path_);
    v1::RecordChunk chunk;
    for (size_t i = 0; i < 4; ++i) *chunk.add_entries() = entries[i];
    ASSERT_TRUE(sink.Add(chunk).ok());
    ASSERT_TRUE(sink.Finish().ok());
    EXPECT_EQ(sink.records(), 3);
  }
  ReplaySource source;
  source.file = path_;
  ProvenRecording proven;
  const absl::Status read = ForEachRecord(
      source, [](const auto&) { return absl::OkStatus(); }, &proven.header,
      &proven.trailer);
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_EQ(proven.trailer.end, trunk::RecordingEnd::kConnectionLost);
  EXPECT_EQ(proven.trailer.layers[0].records, 2u);
  EXPECT_THAT(ProvenText(path_, proven), HasSubstr("the connection was lost"));
}

TEST_F(RecordingFile, TakesNoStreamWithoutOrder) {
  const std::vector<v1::RouteRecordEntry> entries =
      trunk::EntriesOf(trunk::MakeTestRecording(1));
  const auto add = [&](std::vector<size_t> order) {
    RecordingSink sink(path_);
    v1::RecordChunk chunk;
    for (size_t i : order) *chunk.add_entries() = entries[i];
    return sink.Add(chunk);
  };
  EXPECT_TRUE(add({0, 1, 2, 3}).ok());
  EXPECT_THAT(Message(add({1, 0})), HasSubstr("header"));
  EXPECT_THAT(Message(add({0, 1, 3, 2})), HasSubstr("after its trailer"));
  EXPECT_FALSE(add({0, 0}).ok());
}

TEST(Placement, OfAnotherModelIsRefused) {
  const trunk::RecordedRoutes routes =
      trunk::TestRoutes(trunk::TestLayer(4, 16, 4, 2), 1, 3);
  ReplayRecord r;
  r.record = &routes.record;
  r.width = 64;
  ReplayCosts costs;
  costs.placement_file = "p.json";
  costs.placement.emplace();
  const auto contract = routing::ContractOf(routes.record);
  EXPECT_THAT(Message(SetupOf(contract, r, costs).status()),
              HasSubstr("p.json: has no layer 4"));
  costs.placement->layers = {{LayerIndex(4), {{{WorkerId(0), 0}}}}};
  EXPECT_THAT(Message(SetupOf(contract, r, costs).status()),
              HasSubstr("places 1 experts where the layer has 16"));
}

}  // namespace
}  // namespace trunkline::cli
