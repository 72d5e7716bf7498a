// The protocol core: every refusal is reached by a crafted frame, and what
// waits for one expert is computed together.

#include "expert_worker/expert_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <list>
#include <set>

#include "tests/expert_worker/dispatch_frame.h"

namespace trunkline::expert {
namespace {

using dispatch::RefusalCode;

constexpr uint64_t kCluster = 77;
constexpr uint32_t kWorker = 5;

// Layers 1 and 3 with 8 experts; versions 1 and 2 place experts 0..3 of both
// here.
class ExpertWorkerTest : public ::testing::Test {
 protected:
  ExpertWorkerTest() : core_(MakeCore(Limits())) {}

  static ExpertWorker::Limits Limits() {
    ExpertWorker::Limits limits;
    limits.queued_frames_max = 4;
    limits.held_bytes_max = 1 << 20;
    limits.batch_routes_max = 100;
    return limits;
  }

  static ExpertWorker MakeCore(const ExpertWorker::Limits& limits) {
    ExpertWorker core({{LayerIndex(1), 8, 16}, {LayerIndex(3), 8, 16}},
                      DType::kF32, limits);
    core.SetIdentity(kCluster, WorkerId(kWorker));
    std::vector<ExpertKey> owned;
    for (const uint32_t layer : {1, 3}) {
      for (uint32_t e = 0; e < 4; ++e)
        owned.push_back({LayerIndex(layer), ExpertId(e)});
    }
    core.Serve(PlacementVersion(1), owned);
    core.Serve(PlacementVersion(2), owned);
    return core;
  }

  static TestFrame GoodFrame() {
    TestFrame frame;
    frame.header.row_dtype = DType::kF32;
    frame.header.cluster_id = kCluster;
    frame.header.trunk_rank = 9;
    frame.header.worker_rank = kWorker;
    frame.header.epoch = 4;
    frame.header.placement_version = 2;
    frame.header.step_id = 1234;
    frame.header.layer = 1;
    frame.header.attempt = 2;
    frame.header.row_width = 16;
    frame.routes = {{0, 0, 1, 0, 0.5f}, {3, 1, 1, 1, 0.25f}, {3, 0, 2, 1, 1}};
    return frame;
  }

  FrameVerdict Send(ExpertWorker& core, const TestFrame& frame,
                    uint32_t peer = 0) {
    return SendBytes(core, frame.Bytes(), peer);
  }
  FrameVerdict SendBytes(ExpertWorker& core, AlignedBuffer bytes,
                         uint32_t peer = 0) {
    kept_.push_back(std::move(bytes));
    return core.OnFrame(
        {FrameKey(next_key_++), PeerKey(peer), kept_.back().bytes()}, now_);
  }
  static RefusalCode CodeOf(const FrameVerdict& verdict) {
    return verdict.refusal.has_value() ? verdict.refusal->header.refusal
                                       : RefusalCode::kNone;
  }

  std::list<AlignedBuffer> kept_;
  uint64_t next_key_ = 0;
  absl::Time now_ = absl::UnixEpoch() + absl::Seconds(10);
  ExpertWorker core_;
};

struct RefusalCase {
  const char* name;
  std::function<void(TestFrame&)> edit_frame;
  std::function<void(ExpertWorker&)> edit_worker;
  RefusalCode code;
  const char* message;  // a part of it
};

TEST_F(ExpertWorkerTest, EveryRuleThatAFrameBreaksIsNamedInItsRefusal) {
  const auto keep = [](auto&) {};
  const std::vector<RefusalCase> cases = {
      {"experts descend",
       [](TestFrame& f) { std::swap(f.routes[0], f.routes[2]); }, keep,
       RefusalCode::kMalformed, "expert_id"},
      {"a row out of range", [](TestFrame& f) { f.routes[0].row = 1; }, keep,
       RefusalCode::kMalformed, "row"},
      {"another cluster", [](TestFrame& f) { ++f.header.cluster_id; }, keep,
       RefusalCode::kWrongCluster, "cluster id 78"},
      {"another worker", [](TestFrame& f) { f.header.worker_rank = 6; }, keep,
       RefusalCode::kWrongWorker, "worker rank 6"},
      {"a version never served",
       [](TestFrame& f) { f.header.placement_version = 3; }, keep,
       RefusalCode::kUnknownVersion, "version 3 is not served"},
      {"a version retired", keep,
       [](ExpertWorker& w) {
         EXPECT_TRUE(w.Retire(PlacementVersion(2)).empty());
       },
       RefusalCode::kUnknownVersion, "serving 1"},
      {"an expert of another worker",
       [](TestFrame& f) { f.routes[2].expert = 4; }, keep,
       RefusalCode::kNotOwner, "expert 4 of layer 1"},
      {"an expert that the model lacks",
       [](TestFrame& f) { f.routes[2].expert = 4000000; }, keep,
       RefusalCode::kNotOwner, "expert 4000000"},
      {"a layer of which this version places nothing here",
       [](TestFrame& f) { f.header.placement_version = 7; },
       [](ExpertWorker& w) {
         w.Serve(PlacementVersion(7), {{LayerIndex(3), ExpertId(1)}});
       },
       RefusalCode::kNotOwner, "expert 1 of layer 1"},
      {"a layer without experts", [](TestFrame& f) { f.header.layer = 2; },
       keep, RefusalCode::kWrongShape, "layer 2"},
      {"rows too wide", [](TestFrame& f) { f.header.row_width = 32; }, keep,
       RefusalCode::kWrongShape, "row width 32"},
      {"rows of another type",
       [](TestFrame& f) { f.header.row_dtype = DType::kBF16; }, keep,
       RefusalCode::kWrongShape, "BF16"},
      {"draining", keep, [](ExpertWorker& w) { w.Drain(); },
       RefusalCode::kDraining, "draining"},
      {"answers that nobody takes", keep,
       [](ExpertWorker& w) { w.OnAnswerSent(1 << 20); },
       RefusalCode::kOverloaded, "answers"},
  };
  std::set<RefusalCode> reached;
  for (const RefusalCase& c : cases) {
    ExpertWorker worker = MakeCore(Limits());
    TestFrame frame = GoodFrame();
    c.edit_frame(frame);
    c.edit_worker(worker);
    const FrameVerdict verdict = Send(worker, frame);
    ASSERT_TRUE(verdict.refusal.has_value()) << c.name;
    const Refusal& refusal = *verdict.refusal;
    EXPECT_EQ(refusal.header.refusal, c.code)
        << c.name << ": " << refusal.message;
    EXPECT_NE(refusal.message.find(c.message), std::string::npos)
        << c.name << ": " << refusal.message;
    // The trunk finds the layer that it is about.
    EXPECT_EQ(refusal.header.kind, dispatch::FrameKind::kRefusal);
    EXPECT_EQ(refusal.header.step_id, 1234u) << c.name;
    EXPECT_EQ(refusal.header.attempt, 2u) << c.name;
    EXPECT_EQ(refusal.header.trunk_rank, 9u) << c.name;
    EXPECT_EQ(refusal.header.worker_rank, kWorker) << c.name;
    EXPECT_TRUE(worker.idle()) << c.name;
    EXPECT_EQ(worker.counters().refusals.at(c.code), 1u) << c.name;
    reached.insert(c.code);

    // What the core says can be written, and reads back.
    AlignedBuffer bytes(dispatch::RefusalFrameBytes(refusal.message.size()));
    const std::span<std::byte> span(bytes.data(), bytes.size());
    dispatch::WriteRefusalFrame(refusal.header, refusal.message, span);
    dispatch::SealFrame(span);
    const auto read = dispatch::DecodeRefusal(span);
    ASSERT_TRUE(read.ok()) << c.name << ": " << read.status();
    EXPECT_EQ(read->header.refusal, c.code);
    EXPECT_EQ(read->message, refusal.message);
  }
  // kInternal is the edge's to report; every other code was reached above.
  for (int code = 1; code < static_cast<int>(RefusalCode::kInternal); ++code)
    EXPECT_TRUE(reached.contains(static_cast<RefusalCode>(code))) << code;
}

TEST_F(ExpertWorkerTest, AGoodFrameIsNotRefused) {
  EXPECT_EQ(CodeOf(Send(core_, GoodFrame())), RefusalCode::kNone);
  EXPECT_FALSE(core_.idle());
}

TEST_F(ExpertWorkerTest, EveryFlippedBitIsFoundOut) {
  const AlignedBuffer good = GoodFrame().Bytes();
  for (size_t bit = 0; bit < good.size() * 8; bit += 7) {
    AlignedBuffer bad(good.size());
    std::memcpy(bad.data(), good.data(), good.size());
    bad.data()[bit / 8] ^= std::byte{1} << (bit % 8);
    const FrameVerdict verdict = SendBytes(core_, std::move(bad));
    EXPECT_TRUE(verdict.refusal.has_value() || verdict.dropped) << bit;
    EXPECT_TRUE(core_.idle()) << bit;
  }
}

TEST_F(ExpertWorkerTest, RubbishOfAnyLengthIsRefusedAsMalformed) {
  for (const size_t size : {0u, 1u, 127u, 128u, 129u, 4096u}) {
    AlignedBuffer rubbish(size);
    for (size_t i = 0; i < size; ++i)
      rubbish.data()[i] = static_cast<std::byte>(SplitMix64(i));
    const FrameVerdict verdict = SendBytes(core_, std::move(rubbish));
    ASSERT_EQ(CodeOf(verdict), RefusalCode::kMalformed) << size;
    EXPECT_EQ(verdict.refusal->header.worker_rank, kWorker);
    EXPECT_EQ(verdict.refusal->header.cluster_id, kCluster);
  }
}

// Two peers that refuse each other's refusals would never stop.
TEST_F(ExpertWorkerTest, ARefusalIsNeverAnsweredByARefusal) {
  dispatch::FrameHeader header = GoodFrame().header;
  header.refusal = RefusalCode::kOverloaded;
  AlignedBuffer bytes(dispatch::RefusalFrameBytes(3));
  const std::span<std::byte> span(bytes.data(), bytes.size());
  dispatch::WriteRefusalFrame(header, "why", span);
  dispatch::SealFrame(span);
  const FrameVerdict verdict = SendBytes(core_, std::move(bytes));
  EXPECT_TRUE(verdict.dropped);
  EXPECT_FALSE(verdict.refusal.has_value());
}

TEST_F(ExpertWorkerTest, BeforeItHasJoinedEveryFrameIsRefused) {
  ExpertWorker stranger({{LayerIndex(1), 8, 16}}, DType::kF32, Limits());
  EXPECT_EQ(CodeOf(Send(stranger, GoodFrame())), RefusalCode::kWrongCluster);
}

TEST_F(ExpertWorkerTest, TheQueueIsBoundedByFramesAndByBytes) {
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(CodeOf(Send(core_, GoodFrame())), RefusalCode::kNone) << i;
  EXPECT_EQ(CodeOf(Send(core_, GoodFrame())), RefusalCode::kOverloaded);
  ASSERT_TRUE(core_.NextBatch().has_value());
  EXPECT_EQ(CodeOf(Send(core_, GoodFrame())), RefusalCode::kNone);

  ExpertWorker::Limits limits = Limits();
  const size_t frame_bytes = GoodFrame().Bytes().size();
  limits.held_bytes_max = 2 * frame_bytes;
  ExpertWorker small = MakeCore(limits);
  small.OnAnswerSent(frame_bytes);
  EXPECT_EQ(CodeOf(Send(small, GoodFrame())), RefusalCode::kNone);
  EXPECT_EQ(CodeOf(Send(small, GoodFrame())), RefusalCode::kOverloaded);
  small.OnAnswerGone(frame_bytes);
  EXPECT_EQ(CodeOf(Send(small, GoodFrame())), RefusalCode::kNone);
}

// Frames of two trunks for one layer and version run as one batch, grouped by
// expert; other layers and versions do not join them.
TEST_F(ExpertWorkerTest, FramesOfOneLayerAndVersionRunTogether) {
  TestFrame other_layer = GoodFrame();
  other_layer.header.layer = 3;
  TestFrame other_version = GoodFrame();
  other_version.header.placement_version = 1;
  ASSERT_FALSE(Send(core_, GoodFrame(), 0).refusal);
  ASSERT_FALSE(Send(core_, other_layer, 0).refusal);
  ASSERT_FALSE(Send(core_, GoodFrame(), 1).refusal);
  ASSERT_FALSE(Send(core_, other_version, 1).refusal);

  const std::optional<Batch> first = core_.NextBatch();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->layer, LayerIndex(1));
  EXPECT_EQ(first->version, PlacementVersion(2));
  ASSERT_EQ(first->frames.size(), 2u);
  EXPECT_EQ(first->frames[0].peer, PeerKey(0));
  EXPECT_EQ(first->frames[1].peer, PeerKey(1));
  EXPECT_EQ(first->frames[0].received, now_);
  const std::vector<ExpertGroup> groups = {{ExpertId(1), 0, 4},
                                           {ExpertId(2), 4, 2}};
  EXPECT_EQ(first->routes.groups, groups);
  const std::vector<RouteRef> order = {{0, 0}, {0, 1}, {1, 0},
                                       {1, 1}, {0, 2}, {1, 2}};
  EXPECT_EQ(first->routes.order, order);

  const std::optional<Batch> second = core_.NextBatch();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->layer, LayerIndex(3));
  const std::optional<Batch> third = core_.NextBatch();
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->version, PlacementVersion(1));
  EXPECT_FALSE(core_.NextBatch().has_value());
  EXPECT_TRUE(core_.idle());
}

TEST_F(ExpertWorkerTest, ABatchStopsGrowingAtItsLimitAndKeepsTheOrder) {
  ExpertWorker::Limits limits = Limits();
  limits.batch_routes_max = 7;  // two frames of three routes
  ExpertWorker core = MakeCore(limits);
  for (uint32_t i = 0; i < 4; ++i)
    ASSERT_FALSE(Send(core, GoodFrame(), i).refusal);
  const std::optional<Batch> first = core.NextBatch();
  const std::optional<Batch> second = core.NextBatch();
  ASSERT_TRUE(first.has_value() && second.has_value());
  ASSERT_EQ(first->frames.size(), 2u);
  ASSERT_EQ(second->frames.size(), 2u);
  EXPECT_EQ(first->frames[1].peer, PeerKey(1));
  EXPECT_EQ(second->frames[0].peer, PeerKey(2));

  limits.batch_routes_max = 1;  // smaller than any frame: still one at a time
  ExpertWorker tight = MakeCore(limits);
  ASSERT_FALSE(Send(tight, GoodFrame()).refusal);
  EXPECT_TRUE(tight.NextBatch().has_value());
}

TEST_F(ExpertWorkerTest, RetiringAVersionRefusesWhatStillWaitsForIt) {
  TestFrame old = GoodFrame();
  old.header.placement_version = 1;
  ASSERT_FALSE(Send(core_, old).refusal);
  ASSERT_FALSE(Send(core_, GoodFrame()).refusal);
  const std::vector<Refusal> refusals = core_.Retire(PlacementVersion(1));
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].frame, FrameKey(0));
  EXPECT_EQ(refusals[0].header.refusal, RefusalCode::kUnknownVersion);
  const std::optional<Batch> batch = core_.NextBatch();
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(batch->version, PlacementVersion(2));
  EXPECT_TRUE(core_.idle());
}

TEST_F(ExpertWorkerTest, DrainingFinishesWhatWaitsAndTakesNothingNew) {
  ASSERT_FALSE(Send(core_, GoodFrame()).refusal);
  core_.Drain();
  EXPECT_EQ(CodeOf(Send(core_, GoodFrame())), RefusalCode::kDraining);
  EXPECT_TRUE(core_.NextBatch().has_value());
}

TEST_F(ExpertWorkerTest, FramesOfAPeerThatIsGoneAreForgotten) {
  ASSERT_FALSE(Send(core_, GoodFrame(), 0).refusal);
  ASSERT_FALSE(Send(core_, GoodFrame(), 1).refusal);
  ASSERT_FALSE(Send(core_, GoodFrame(), 0).refusal);
  const std::vector<FrameKey> forgotten = {FrameKey(0), FrameKey(2)};
  EXPECT_EQ(core_.OnPeerDown(PeerKey(0)), forgotten);
  const std::optional<Batch> batch = core_.NextBatch();
  ASSERT_TRUE(batch.has_value());
  ASSERT_EQ(batch->frames.size(), 1u);
  EXPECT_EQ(batch->frames[0].peer, PeerKey(1));
  // Their bytes count no more.
  EXPECT_EQ(core_.counters().frames_forgotten, 2u);
}

TEST_F(ExpertWorkerTest, AnInternalFaultIsRefusedByNameAndCutToTheFormat) {
  ASSERT_FALSE(Send(core_, GoodFrame()).refusal);
  const std::optional<Batch> batch = core_.NextBatch();
  ASSERT_TRUE(batch.has_value());
  const Refusal refusal =
      core_.RefuseInternal(batch->frames[0], std::string(5000, 'x'));
  EXPECT_EQ(refusal.header.refusal, RefusalCode::kInternal);
  EXPECT_EQ(refusal.message.size(), dispatch::kRefusalMessageMax);
}

TEST(TokenBatcher, EveryRouteStandsOnceUnderItsExpert) {
  RandomStream random(7);
  for (int round = 0; round < 200; ++round) {
    const auto experts = static_cast<uint32_t>(1 + random.NextBelow(40));
    std::vector<std::vector<uint32_t>> frames(1 + random.NextBelow(5));
    size_t total = 0;
    for (std::vector<uint32_t>& frame : frames) {
      frame.resize(random.NextBelow(30));
      for (uint32_t& e : frame)
        e = static_cast<uint32_t>(random.NextBelow(experts));
      total += frame.size();
    }
    const std::vector<std::span<const uint32_t>> spans(frames.begin(),
                                                       frames.end());
    const GroupedRoutes grouped = GroupByExpert(spans, experts);
    // The plain way: for each expert, walk everything.
    std::vector<RouteRef> order;
    std::vector<ExpertGroup> groups;
    for (uint32_t e = 0; e < experts; ++e) {
      const auto begin = static_cast<uint32_t>(order.size());
      for (uint32_t f = 0; f < frames.size(); ++f) {
        for (uint32_t r = 0; r < frames[f].size(); ++r) {
          if (frames[f][r] == e) order.push_back({f, r});
        }
      }
      const auto count = static_cast<uint32_t>(order.size()) - begin;
      if (count > 0) groups.push_back({ExpertId(e), begin, count});
    }
    ASSERT_EQ(order.size(), total);
    EXPECT_EQ(grouped.order, order);
    EXPECT_EQ(grouped.groups, groups);
  }
}

}  // namespace
}  // namespace trunkline::expert
