// The store: what is loaded, when it is shared, when it goes, and what the
// limit counts.

#include "expert_worker/expert_store.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <vector>

#include "common/bfloat16.h"
#include "tests/model/checkpoint_builder.h"

namespace trunkline::expert {
namespace {

// Collects progress and waits for a version's end.
class Progress {
 public:
  ExpertStore::OnProgress Callback() {
    return [this](const StageProgress& progress) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        seen_.push_back(progress);
      }
      changed_.notify_all();
    };
  }
  StageProgress WaitForEnd(PlacementVersion version) {
    std::unique_lock<std::mutex> lock(mutex_);
    StageProgress end;
    const bool ended = changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      for (const StageProgress& progress : seen_) {
        if (progress.version != version ||
            progress.state == StageState::kLoading)
          continue;
        end = progress;
        return true;
      }
      return false;
    });
    EXPECT_TRUE(ended) << "version " << version;
    return end;
  }
  std::vector<StageProgress> Seen() {
    std::lock_guard<std::mutex> lock(mutex_);
    return seen_;
  }
  // The shards in the collected events keep their weights.
  void Forget() {
    std::lock_guard<std::mutex> lock(mutex_);
    seen_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<StageProgress> seen_;
};

class ExpertStoreTest : public ::testing::Test {
 protected:
  ExpertStoreTest() {
    model::SmallModel small;
    small.pattern = "EME";
    small.moe.experts = 8;
    small.moe.top_k = 2;
    small.moe.width = 40;  // pads to 64 outputs
    model::SynthesisSpec spec;
    spec.config = model::SmallConfig(small);
    spec.dtype = DType::kBF16;
    path_ = model::BuildCheckpoint(spec, directory_);
    auto opened = model::Checkpoint::Open(path_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }

  static std::vector<ExpertKey> Experts(uint32_t layer, uint32_t begin,
                                        uint32_t end) {
    std::vector<ExpertKey> experts;
    for (uint32_t e = begin; e < end; ++e)
      experts.push_back({LayerIndex(layer), ExpertId(e)});
    return experts;
  }
  static ExpertStore::Options Options(int64_t limit = 0) {
    ExpertStore::Options options;
    options.memory_limit_bytes = limit;
    options.release_patience = absl::Milliseconds(50);
    return options;
  }
  // 64 x 64 up and 64 x 64 down, two bytes each.
  static constexpr int64_t kExpertBytes = (64 * 64 + 64 * 40) * 2;

  model::TempDirectory directory_;
  std::string path_;
  std::shared_ptr<const model::Checkpoint> checkpoint_;
  Progress progress_;
};

TEST_F(ExpertStoreTest, LoadsWhatIsAskedForAndReportsEveryExpert) {
  ExpertStore store(checkpoint_, Options());
  ASSERT_EQ(store.PackedBytes({LayerIndex(0), ExpertId(0)}).value(),
            kExpertBytes);
  store.Stage(PlacementVersion(1), Experts(0, 0, 3), progress_.Callback());
  const StageProgress end = progress_.WaitForEnd(PlacementVersion(1));
  ASSERT_EQ(end.state, StageState::kReady) << end.status;
  EXPECT_EQ(end.bytes_loaded, 3 * kExpertBytes);
  EXPECT_EQ(end.bytes_total, 3 * kExpertBytes);
  EXPECT_EQ(store.held_bytes(), 3 * kExpertBytes);
  EXPECT_EQ(end.shard->Experts(), Experts(0, 0, 3));
  EXPECT_EQ(end.shard->Find({LayerIndex(0), ExpertId(3)}), nullptr);
  EXPECT_EQ(end.shard->Find({LayerIndex(2), ExpertId(0)}), nullptr);

  std::vector<int64_t> loaded;
  for (const StageProgress& p : progress_.Seen()) {
    EXPECT_EQ(p.bytes_total, 3 * kExpertBytes);
    loaded.push_back(p.bytes_loaded);
  }
  const std::vector<int64_t> expected = {kExpertBytes, 2 * kExpertBytes,
                                         3 * kExpertBytes, 3 * kExpertBytes};
  EXPECT_EQ(loaded, expected);
}

TEST_F(ExpertStoreTest, TheWeightsAreTheCheckpoints) {
  ExpertStore store(checkpoint_, Options());
  store.Stage(PlacementVersion(1), Experts(2, 5, 6), progress_.Callback());
  const StageProgress end = progress_.WaitForEnd(PlacementVersion(1));
  ASSERT_EQ(end.state, StageState::kReady) << end.status;
  const kernels::MlpWeights* weights =
      end.shard->Find({LayerIndex(2), ExpertId(5)});
  ASSERT_NE(weights, nullptr);
  const model::SyntheticTensor up(0, "layers.2.mixer.experts.5.up_proj.weight",
                                  {40, 64});
  const model::SyntheticTensor down(
      0, "layers.2.mixer.experts.5.down_proj.weight", {64, 40});
  ASSERT_EQ(weights->up.n(), 40);
  ASSERT_EQ(weights->down.n(), 64);
  for (int64_t n = 0; n < 40; ++n) {
    for (int64_t k = 0; k < 64; ++k) {
      EXPECT_EQ(weights->up.At(n, k), RoundToBf16(up.At(n * 64 + k)));
      EXPECT_EQ(weights->down.At(k, n), RoundToBf16(down.At(k * 40 + n)));
    }
  }
}

TEST_F(ExpertStoreTest, VersionsShareWhatBothPlaceHereAndFreeTheRest) {
  ExpertStore store(checkpoint_, Options());
  store.Stage(PlacementVersion(1), Experts(0, 0, 4), progress_.Callback());
  const kernels::MlpWeights* shared =
      progress_.WaitForEnd(PlacementVersion(1))
          .shard->Find({LayerIndex(0), ExpertId(3)});
  store.Stage(PlacementVersion(2), Experts(0, 3, 6), progress_.Callback());
  const StageProgress second = progress_.WaitForEnd(PlacementVersion(2));
  ASSERT_EQ(second.state, StageState::kReady) << second.status;
  EXPECT_EQ(second.shard->Find({LayerIndex(0), ExpertId(3)}), shared);
  EXPECT_EQ(store.held_bytes(), 6 * kExpertBytes);

  progress_.Forget();
  store.Retire(PlacementVersion(1));
  EXPECT_EQ(store.held_bytes(), 3 * kExpertBytes);
  ASSERT_EQ(store.Versions().size(), 1u);
  EXPECT_EQ(store.Versions()[0].version, PlacementVersion(2));
  store.Retire(PlacementVersion(2));
  // A step that runs keeps what it uses.
  EXPECT_EQ(store.held_bytes(), 3 * kExpertBytes);
}

TEST_F(ExpertStoreTest, WhatDoesNotFitIsRefusedWithItsBytesAndCanBeTriedAgain) {
  ExpertStore store(checkpoint_, Options(4 * kExpertBytes));
  store.Stage(PlacementVersion(1), Experts(0, 0, 3), progress_.Callback());
  ASSERT_EQ(progress_.WaitForEnd(PlacementVersion(1)).state,
            StageState::kReady);
  store.Stage(PlacementVersion(2), Experts(0, 2, 5), progress_.Callback());
  const StageProgress failed = progress_.WaitForEnd(PlacementVersion(2));
  ASSERT_EQ(failed.state, StageState::kFailed);
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(failed.status.message());
  for (const int64_t bytes :
       {2 * kExpertBytes, 3 * kExpertBytes, 4 * kExpertBytes})
    EXPECT_NE(message.find(std::to_string(bytes)), std::string::npos)
        << message;
  EXPECT_EQ(store.held_bytes(), 3 * kExpertBytes) << "nothing of it was loaded";

  progress_.Forget();
  store.Retire(PlacementVersion(1));
  store.Stage(PlacementVersion(2), Experts(0, 2, 5), progress_.Callback());
  EXPECT_EQ(progress_.WaitForEnd(PlacementVersion(2)).state,
            StageState::kReady);
}

// The engine may compute with a retired version for a moment: the next one
// waits for that memory instead of failing.
TEST_F(ExpertStoreTest, ANewVersionWaitsForMemoryThatAStepStillUses) {
  ExpertStore::Options options = Options(3 * kExpertBytes);
  options.release_patience = absl::Seconds(20);
  ExpertStore store(checkpoint_, options);
  store.Stage(PlacementVersion(1), Experts(0, 0, 3), progress_.Callback());
  std::shared_ptr<const Shard> in_use =
      progress_.WaitForEnd(PlacementVersion(1)).shard;
  progress_.Forget();
  store.Retire(PlacementVersion(1));
  store.Stage(PlacementVersion(2), Experts(2, 0, 3), progress_.Callback());
  in_use = nullptr;
  EXPECT_EQ(progress_.WaitForEnd(PlacementVersion(2)).state,
            StageState::kReady);
  EXPECT_EQ(store.held_bytes(), 3 * kExpertBytes);
}

TEST_F(ExpertStoreTest, AnExpertThatTheModelLacksFailsTheVersionByName) {
  ExpertStore store(checkpoint_, Options());
  store.Stage(PlacementVersion(1), Experts(0, 7, 9), progress_.Callback());
  const StageProgress end = progress_.WaitForEnd(PlacementVersion(1));
  ASSERT_EQ(end.state, StageState::kFailed);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(end.status.message()).find("expert 8 of layer 0"),
            std::string::npos)
      << end.status;
}

TEST_F(ExpertStoreTest, AVersionRetiredWhileItLoadsLeavesNothingBehind) {
  ExpertStore store(checkpoint_, Options());
  // Retired from the first report of its own loading.
  store.Stage(PlacementVersion(1), Experts(0, 0, 8),
              [&](const StageProgress& p) {
                if (p.state == StageState::kLoading)
                  store.Retire(PlacementVersion(1));
              });
  // The loader takes versions in turn, so this one ends after that one.
  store.Stage(PlacementVersion(2), Experts(2, 0, 1), progress_.Callback());
  ASSERT_EQ(progress_.WaitForEnd(PlacementVersion(2)).state,
            StageState::kReady);
  EXPECT_EQ(store.held_bytes(), kExpertBytes);
  EXPECT_EQ(store.Versions().size(), 1u);
}

}  // namespace
}  // namespace trunkline::expert
