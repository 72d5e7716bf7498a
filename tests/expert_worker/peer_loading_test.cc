// A worker without the experts on its disk takes them from workers that have
// them loaded: exactly the checkpoint's bytes, whatever peers do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "expert_worker/expert_engine.h"
#include "expert_worker/expert_store.h"
#include "kernels/kernel_context.h"
#include "model/expert_manifest.h"
#include "tests/model/checkpoint_builder.h"
#include "transport/transport_factory.h"

namespace trunkline::expert {
namespace {

using testing::HasSubstr;

constexpr uint64_t kCluster = 77;
constexpr uint32_t kExperts = 6;
const PlacementVersion kVersion(3);

std::unique_ptr<transport::Transport> MakeTransport() {
  auto made = transport::MakeTransport("inprocess", transport::Options());
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

StageProgress Load(ExpertStore& store, std::vector<ExpertKey> experts) {
  std::mutex mutex;
  std::condition_variable changed;
  StageProgress end;
  store.Stage(kVersion, std::move(experts), [&](const StageProgress& progress) {
    const std::lock_guard<std::mutex> lock(mutex);
    end = progress;
    changed.notify_all();
  });
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait_for(lock, std::chrono::seconds(60),
                   [&] { return end.state != StageState::kLoading; });
  return end;
}

// A peer that does to each request what the test wants, on its own thread.
class PuppetPeer {
 public:
  using OnRequest = std::function<void(transport::Transport&, transport::Event&,
                                       ShardServer::Answer)>;
  PuppetPeer(const std::string& name, std::shared_ptr<const Shard> shard,
             ExpertDigests& digests, OnRequest on_request)
      : shard_(std::move(shard)),
        server_(
            [this,
             &digests](ExpertKey key) -> std::optional<ShardServer::Held> {
              return ShardServer::Held{.weights = shard_->Find(key),
                                       .digest = *digests.Find(key)};
            },
            size_t{1} << 30),
        on_request_(std::move(on_request)),
        transport_(MakeTransport()) {
    server_.SetCluster(kCluster);
    address_ = *transport_->Listen(name);
    thread_ = std::thread([this] { Run(); });
  }
  ~PuppetPeer() {
    stop_ = true;
    transport_->Wake();
    thread_.join();
  }
  const std::string& address() const { return address_; }
  int requests() const { return requests_; }

 private:
  void Run() {
    std::vector<transport::Event> events;
    while (!stop_) {
      events.clear();
      transport_->Poll(absl::Milliseconds(50), &events);
      for (transport::Event& event : events) {
        if (event.kind != transport::Event::Kind::kReceived) continue;
        ++requests_;
        auto answer = server_.Handle({event.message.data(), event.message.size},
                                     *transport_);
        ASSERT_TRUE(answer.has_value());
        on_request_(*transport_, event, *std::move(answer));
      }
    }
  }

  const std::shared_ptr<const Shard> shard_;
  ShardServer server_;
  const OnRequest on_request_;
  std::unique_ptr<transport::Transport> transport_;
  std::string address_;
  std::atomic<bool> stop_{false};
  std::atomic<int> requests_{0};
  std::thread thread_;
};

class PeerLoadingTest : public testing::Test {
 protected:
  PeerLoadingTest() {
    model::SmallModel small;
    small.pattern = "EME";
    small.moe.experts = kExperts;
    small.moe.top_k = 2;
    small.moe.width = 40;  // the last panel is padded
    model::SynthesisSpec spec;
    spec.config = model::SmallConfig(small);
    spec.dtype = DType::kBF16;
    const std::string full = model::BuildCheckpoint(spec, directory_);
    checkpoint_ = *model::Checkpoint::Open(full);
    thin_path_ = directory_.path() + "/thin";
    std::filesystem::create_directory(thin_path_);
    std::filesystem::copy_file(full + "/config.json",
                               thin_path_ + "/config.json");
    auto manifest = model::MakeExpertManifest(*checkpoint_);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    model::WriteFile(thin_path_ + "/expert_manifest.json", *manifest);
    auto thin = model::Checkpoint::Open(thin_path_);
    EXPECT_TRUE(thin.ok()) << thin.status();
    thin_ = *std::move(thin);

    // Worker 1 has everything loaded.
    ExpertStore::Options options;
    options.digests = full_digests_;
    full_store_ = std::make_unique<ExpertStore>(checkpoint_, options);
    loaded_ = Load(*full_store_, AllExperts());
    EXPECT_EQ(loaded_.state, StageState::kReady) << loaded_.status;
  }

  static std::vector<ExpertKey> AllExperts() {
    std::vector<ExpertKey> experts;
    for (const uint32_t layer : {0u, 2u}) {
      for (uint32_t e = 0; e < kExperts; ++e) {
        experts.push_back({LayerIndex(layer), ExpertId(e)});
      }
    }
    return experts;
  }

  // Every worker of `addresses` holds every expert; worker 0 is the one that
  // asks.
  void SetPeers(const std::vector<std::string>& addresses) {
    control::ClusterView view;
    view.cluster_id = kCluster;
    control::PlacementView placement;
    placement.map.version = kVersion;
    placement.state = control::PlacementState::kActive;
    for (const uint32_t layer : {0u, 2u}) {
      placement::LayerPlacement& placed = placement.map.layers.emplace_back();
      placed.layer = LayerIndex(layer);
      placed.replicas.resize(kExperts);
    }
    for (uint32_t i = 0; i <= addresses.size(); ++i) {
      control::WorkerView& worker = view.workers.emplace_back();
      worker.id = WorkerId(i);
      worker.name = "worker-" + std::to_string(i);
      worker.alive = true;
      worker.data_address = i == 0 ? "inprocess://self" : addresses[i - 1];
      worker.versions = {{.version = kVersion,
                          .state = control::ShardState::kReady,
                          .error = "",
                          .bytes_loaded = 0,
                          .bytes_total = 0}};
      for (placement::LayerPlacement& layer : placement.map.layers) {
        for (auto& replicas : layer.replicas) {
          replicas.push_back({.worker = WorkerId(i), .slot = 0});
        }
      }
    }
    view.placements.push_back(std::move(placement));
    peers_.Update(view, WorkerId(0));
  }

  std::unique_ptr<ExpertStore> ThinStore(bool with_manifest = true) {
    ExpertStore::Options options;
    options.digests = std::make_shared<ExpertDigests>();
    if (with_manifest) {
      for (const model::ExpertChecksum& expert : thin_->expert_checksums()) {
        options.digests->Set({expert.layer, expert.expert}, expert.digest);
      }
    }
    PeerLoader::Options loader;
    loader.peer_patience = patience_;
    options.peers = std::make_shared<PeerLoader>(
        [] { return transport::MakeTransport("inprocess", {}); }, &peers_,
        loader);
    return std::make_unique<ExpertStore>(thin_, options);
  }

  void ExpectTheCheckpointsWeights(const StageProgress& got) {
    ASSERT_EQ(got.state, StageState::kReady) << got.status;
    for (const ExpertKey key : AllExperts()) {
      const kernels::MlpWeights* a = got.shard->Find(key);
      const kernels::MlpWeights* b = loaded_.shard->Find(key);
      ASSERT_NE(a, nullptr);
      for (const auto& [x, y] :
           {std::pair(&a->up, &b->up), std::pair(&a->down, &b->down)}) {
        ASSERT_EQ(x->n(), y->n());
        ASSERT_EQ(x->k(), y->k());
        ASSERT_EQ(x->bytes(), y->bytes());
        ASSERT_EQ(std::memcmp(x->panel(0), y->panel(0),
                              static_cast<size_t>(x->bytes())),
                  0);
      }
    }
  }

  // An honest answer to every request.
  static void Serve(transport::Transport& transport, transport::Event& event,
                    ShardServer::Answer answer) {
    transport.Send(event.connection, std::move(answer.message), 1);
  }

  model::TempDirectory directory_;
  std::string thin_path_;
  std::shared_ptr<const model::Checkpoint> checkpoint_, thin_;
  std::shared_ptr<ExpertDigests> full_digests_ =
      std::make_shared<ExpertDigests>();
  std::unique_ptr<ExpertStore> full_store_;
  StageProgress loaded_;
  PeerDirectory peers_;
  absl::Duration patience_ = absl::Seconds(20);
};

TEST_F(PeerLoadingTest, ARealWorkerGivesTheCheckpointsOwnWeights) {
  prometheus::Registry registry;
  ExpertMetrics metrics(registry);
  auto transport = MakeTransport();
  const std::string address = *transport->Listen("giver");
  ExpertEngine::Options options;
  options.layers = {{LayerIndex(0), kExperts, 64},
                    {LayerIndex(2), kExperts, 64}};
  options.digest_of = [digests = full_digests_](ExpertKey key) {
    return digests->Find(key);
  };
  ExpertEngine engine(options, std::move(transport), &metrics);
  engine.SetIdentity(kCluster, WorkerId(1));
  engine.Serve(kVersion, loaded_.shard, nullptr);
  SetPeers({address});
  const auto store = ThinStore();
  ExpectTheCheckpointsWeights(Load(*store, AllExperts()));
  const ExpertStore::Sources sources = store->sources();
  EXPECT_EQ(sources.disk_experts, 0u);
  EXPECT_EQ(sources.peers.experts, 2u * kExperts);
  EXPECT_EQ(sources.peers.bytes, 2u * kExperts * 2 * 64 * 40 * 2);
  EXPECT_EQ(metrics.shard_bytes_sent.Value(),
            static_cast<double>(sources.peers.bytes));
  // Another cluster's worker, and one that does not hold it, refuse.
  engine.SetIdentity(kCluster + 1, WorkerId(1));
  ASSERT_TRUE(engine.WaitIdle(absl::Seconds(10)));
  const StageProgress refused = Load(*ThinStore(), AllExperts());
  EXPECT_EQ(refused.state, StageState::kFailed);
  EXPECT_THAT(std::string(refused.status.message()),
              HasSubstr("wrong cluster"));
  engine.SetIdentity(kCluster, WorkerId(1));
  engine.Retire(kVersion);
  ASSERT_TRUE(engine.WaitIdle(absl::Seconds(10)));
  const StageProgress gone = Load(*ThinStore(), AllExperts());
  EXPECT_EQ(gone.state, StageState::kFailed);
  EXPECT_THAT(std::string(gone.status.message()), HasSubstr("not held"));
}

TEST_F(PeerLoadingTest, ADiskThatHasTheExpertsAsksNobody) {
  ExpertStore::Options options;
  options.peers = std::make_shared<PeerLoader>(
      []() -> absl::StatusOr<std::unique_ptr<transport::Transport>> {
        ADD_FAILURE() << "asked";
        return absl::InternalError("asked");
      },
      &peers_, PeerLoader::Options());
  ExpertStore store(checkpoint_, options);
  ExpectTheCheckpointsWeights(Load(store, AllExperts()));
  EXPECT_EQ(store.sources().disk_experts, 2u * kExperts);
  EXPECT_EQ(store.sources().disk_bytes, 2u * kExperts * 2 * 64 * 40 * 2);
}

TEST_F(PeerLoadingTest, WithoutAHolderTheErrorNamesTheExpert) {
  SetPeers({});
  const StageProgress end = Load(*ThinStore(), AllExperts());
  EXPECT_EQ(end.state, StageState::kFailed);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(end.status.message()), HasSubstr("layer 0 expert 0"));
  EXPECT_THAT(std::string(end.status.message()), HasSubstr(thin_path_));
}

// The first peer damages what it sends, on the way or in its memory; the second
// is honest.
TEST_F(PeerLoadingTest, DamagedWeightsAreRefusedAndAnotherPeerIsAsked) {
  for (const bool reseal : {false, true}) {
    SCOPED_TRACE(reseal ? "damaged in memory" : "damaged on the way");
    PuppetPeer bad(
        "bad", loaded_.shard, *full_digests_,
        [reseal](transport::Transport& transport, transport::Event& event,
                 ShardServer::Answer answer) {
          std::byte* bytes = answer.message.data();
          bytes[answer.message.size - 1] ^= std::byte{1};
          if (reseal) SealShardFrame({bytes, answer.message.size});
          Serve(transport, event, std::move(answer));
        });
    PuppetPeer good("good", loaded_.shard, *full_digests_, Serve);
    SetPeers({bad.address()});
    const StageProgress alone = Load(*ThinStore(), AllExperts());
    EXPECT_EQ(alone.state, StageState::kFailed);
    EXPECT_EQ(alone.status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(alone.status.message()), HasSubstr("worker-1"));
    SetPeers({bad.address(), good.address()});
    const auto store = ThinStore();
    ExpectTheCheckpointsWeights(Load(*store, AllExperts()));
    EXPECT_GT(bad.requests(), 0);
    EXPECT_GT(store->sources().peers.peers_left, 0u);
    // Without a manifest the digest that the peer states is what counts.
    ExpectTheCheckpointsWeights(Load(*ThinStore(false), AllExperts()));
  }
}

// A peer whose weights are whole but another model's.
TEST_F(PeerLoadingTest, TheManifestsDigestIsTheLastWord) {
  ExpertDigests wrong;
  for (const ExpertKey key : AllExperts()) {
    ExpertDigest digest = *full_digests_->Find(key);
    digest[0] ^= std::byte{1};
    wrong.Set(key, digest);
  }
  PuppetPeer peer("peer", loaded_.shard, wrong, Serve);
  SetPeers({peer.address()});
  ExpectTheCheckpointsWeights(Load(*ThinStore(), AllExperts()));
  EXPECT_EQ(Load(*ThinStore(false), AllExperts()).status.code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(PeerLoadingTest, APeerThatDiesOrFallsSilentInMidTransferIsLeft) {
  patience_ = absl::Milliseconds(300);
  for (const bool dies : {true, false}) {
    SCOPED_TRACE(dies ? "dies" : "falls silent");
    std::atomic<int> answered{0};
    PuppetPeer failing(
        "failing", loaded_.shard, *full_digests_,
        [&](transport::Transport& transport, transport::Event& event,
            ShardServer::Answer answer) {
          if (answered++ == 0) {
            Serve(transport, event, std::move(answer));
          } else if (dies) {
            transport.Disconnect(event.connection);
          }
        });
    PuppetPeer good("good", loaded_.shard, *full_digests_, Serve);
    SetPeers({failing.address(), good.address()});
    const auto store = ThinStore();
    ExpectTheCheckpointsWeights(Load(*store, {AllExperts()}));
    EXPECT_GT(store->sources().peers.peers_left, 0u);
    EXPECT_GT(answered, 1);
    // Nobody else has it: an error that says what happened, in time.
    answered = 0;
    SetPeers({failing.address()});
    const StageProgress alone = Load(*ThinStore(), AllExperts());
    EXPECT_EQ(alone.state, StageState::kFailed);
    EXPECT_EQ(alone.status.code(), dies ? absl::StatusCode::kUnavailable
                                        : absl::StatusCode::kDeadlineExceeded)
        << alone.status;
  }
}

TEST_F(PeerLoadingTest, ABusyPeerIsAskedAgain) {
  std::atomic<int> refused{0};
  PuppetPeer busy(
      "busy", loaded_.shard, *full_digests_,
      [&](transport::Transport& transport, transport::Event& event,
          ShardServer::Answer answer) {
        if (refused >= 5) {
          Serve(transport, event, std::move(answer));
          return;
        }
        ++refused;
        ShardHeader header =
            DecodeShardFrame({event.message.data(), event.message.size})
                ->header;
        header.kind = ShardFrameKind::kRefusal;
        header.refusal = ShardRefusalCode::kBusy;
        transport::Message message = transport.Allocate(ShardFrameBytes(0));
        BeginShardFrame(header, {message.data(), message.size});
        SealShardFrame({message.data(), message.size});
        transport.Send(event.connection, std::move(message), 1);
      });
  SetPeers({busy.address()});
  ExpectTheCheckpointsWeights(Load(*ThinStore(), AllExperts()));
  EXPECT_EQ(refused, 5);
}

TEST_F(PeerLoadingTest, AnAnswerToAnotherQuestionIsNotTaken) {
  PuppetPeer liar("liar", loaded_.shard, *full_digests_,
                  [](transport::Transport& transport, transport::Event& event,
                     ShardServer::Answer answer) {
                    const std::span<std::byte> bytes(answer.message.data(),
                                                     answer.message.size);
                    ShardHeader header = DecodeShardFrame(bytes)->header;
                    header.key.expert = ExpertId(header.key.expert.value + 1);
                    BeginShardFrame(header, bytes);
                    SealShardFrame(bytes);
                    Serve(transport, event, std::move(answer));
                  });
  SetPeers({liar.address()});
  const StageProgress end = Load(*ThinStore(), AllExperts());
  EXPECT_EQ(end.status.code(), absl::StatusCode::kDataLoss) << end.status;
}

TEST(PeerDirectory, OnlyLiveWorkersThatAreReadyHoldAnExpert) {
  control::ClusterView view;
  view.cluster_id = kCluster;
  control::PlacementView placement;
  placement.map.version = kVersion;
  placement.map.layers.resize(1);
  placement.map.layers[0].layer = LayerIndex(0);
  placement.map.layers[0].replicas.resize(2);
  for (uint32_t i = 0; i < 5; ++i) {
    control::WorkerView& worker = view.workers.emplace_back();
    worker.id = WorkerId(i);
    worker.name = std::to_string(i);
    worker.alive = i != 1;  // 1 is gone
    worker.data_address = "inprocess://w" + std::to_string(i);
    if (i != 2) {  // 2 has not loaded it
      worker.versions = {{.version = kVersion,
                          .state = control::ShardState::kReady,
                          .error = "",
                          .bytes_loaded = 0,
                          .bytes_total = 0}};
    }
    placement.map.layers[0].replicas[0].push_back(
        {.worker = WorkerId(i), .slot = 0});
  }
  view.placements.push_back(placement);
  PeerDirectory peers;
  peers.Update(view, WorkerId(0));
  std::vector<std::string> names;
  for (const Peer& peer : peers.HoldersOf({LayerIndex(0), ExpertId(0)})) {
    names.push_back(peer.name);
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("3", "4"));
  EXPECT_TRUE(peers.HoldersOf({LayerIndex(0), ExpertId(1)}).empty());
  EXPECT_TRUE(peers.HoldersOf({LayerIndex(0), ExpertId(7)}).empty());
  EXPECT_TRUE(peers.HoldersOf({LayerIndex(9), ExpertId(0)}).empty());
}

}  // namespace
}  // namespace trunkline::expert
