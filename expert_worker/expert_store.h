#pragma once

// The routed experts that this process holds, packed for the kernels and shared
// between placement versions: an expert that versions 3 and 4 both place here
// is in memory once and goes away with the last version that uses it.
//
// Reads only the experts it is told to stage; every other byte of the
// checkpoint stays on disk. Knows no network and no engine.
//
// Thread safety: all methods from any thread. Loading and the progress
// callbacks happen on the store's own loader thread, never under its mutex.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/thread_pool.h"
#include "expert_worker/expert_digests.h"
#include "expert_worker/expert_key.h"
#include "expert_worker/peer_loader.h"
#include "kernels/mlp.h"
#include "model/checkpoint.h"

namespace trunkline::expert {

// What one placement version places on this worker, loaded. Immutable; whoever
// holds it may compute with its weights.
class Shard {
 public:
  using Entries =
      absl::flat_hash_map<ExpertKey,
                          std::shared_ptr<const kernels::MlpWeights>>;
  explicit Shard(Entries entries) : entries_(std::move(entries)) {}

  // Null when this version does not place the expert here.
  const kernels::MlpWeights* Find(ExpertKey key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : found->second.get();
  }
  std::vector<ExpertKey> Experts() const;  // ascending
  int64_t bytes() const;

 private:
  Entries entries_;
};

// Bytes of packed experts that exist, counted from their making to their
// destruction, so an entry that a running step still uses counts although its
// version is gone.
class MemoryAccount {
 public:
  void Add(int64_t bytes);
  void Subtract(int64_t bytes);
  int64_t held() const;
  // Waits until held() <= limit or the time is over; true when it is.
  bool WaitUntilAtMost(int64_t limit, absl::Duration patience) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable fell_;
  int64_t held_ = 0;
};

enum class StageState : uint8_t { kLoading, kReady, kFailed };

struct StageProgress {
  PlacementVersion version;
  StageState state = StageState::kLoading;
  absl::Status status;       // why it failed
  int64_t bytes_loaded = 0;  // of this version, entries shared with others
  int64_t bytes_total = 0;   // included
  std::shared_ptr<const Shard> shard;  // when ready
};

// Whoever loads what versions place here, as the placement follower sees it.
class ShardSource {
 public:
  using OnProgress = std::function<void(const StageProgress&)>;
  virtual ~ShardSource() = default;
  // Returns at once. on_progress is called, never from inside this call, while
  // the version loads and once with kReady or kFailed.
  virtual void Stage(PlacementVersion version, std::vector<ExpertKey> experts,
                     OnProgress on_progress) = 0;
  virtual void Retire(PlacementVersion version) = 0;
  virtual std::vector<StageProgress> Versions() const = 0;  // ascending
};

class ExpertStore final : public ShardSource {
 public:
  struct Options {
    int64_t memory_limit_bytes = 0;  // for packed experts; 0: no limit
    ThreadPool::Options threads;     // that pack
    kernels::Numerics numerics = kernels::Numerics::kPortable;  // packed for
    // How long a stage that does not fit waits for entries of retired versions
    // that running steps still use.
    absl::Duration release_patience = absl::Seconds(10);
    // Asked for experts that the checkpoint can not give. Null: then they are
    // an error.
    std::shared_ptr<PeerLoader> peers;
    // What experts have to be; what is loaded is added. Null: starts empty.
    std::shared_ptr<ExpertDigests> digests;
  };
  // Where experts came from, since the start.
  struct Sources {
    uint64_t disk_experts = 0, disk_bytes = 0;
    PeerLoader::Counts peers;
  };

  ExpertStore(std::shared_ptr<const model::Checkpoint> checkpoint,
              const Options& options);
  ~ExpertStore() override;
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Loads what of `experts` is not loaded yet. on_progress is called after each
  // expert and once with kReady or kFailed: RESOURCE_EXHAUSTED naming the bytes
  // when it does not fit, NOT_FOUND naming layer and expert when the checkpoint
  // has no such expert, or the checkpoint's own error. A version that was
  // staged before and has not failed is left alone.
  void Stage(PlacementVersion version, std::vector<ExpertKey> experts,
             OnProgress on_progress) override;
  // Forgets the version, also while it loads. Entries that no version and no
  // holder of a Shard uses any more are freed.
  void Retire(PlacementVersion version) override;

  std::vector<StageProgress> Versions() const override;
  Sources sources() const;
  int64_t held_bytes() const { return account_->held(); }
  int64_t memory_limit_bytes() const { return options_.memory_limit_bytes; }
  // Bytes that one expert takes once packed; what the limit counts. NOT_FOUND
  // when the checkpoint has no such expert.
  absl::StatusOr<int64_t> PackedBytes(ExpertKey key) const;

 private:
  struct StagedVersion;
  void LoaderLoop();
  void Load(StagedVersion& stage);
  absl::Status LoadMissing(StagedVersion& stage, Shard::Entries* entries);
  absl::Status CheckRoom(const StagedVersion& stage, int64_t missing_bytes,
                         size_t missing_count) const;
  absl::StatusOr<std::shared_ptr<const kernels::MlpWeights>> LoadExpert(
      StagedVersion& stage, ExpertKey key);
  absl::Status LoadFromDisk(ExpertKey key, kernels::MlpWeights* weights);
  absl::Status LoadFromPeer(StagedVersion& stage, ExpertKey key,
                            kernels::MlpWeights* weights);
  absl::Status Pack(const TensorView& up, const TensorView& down,
                    kernels::MlpWeights* weights);
  bool Abandoned(const StagedVersion& stage) const;
  void Publish(StagedVersion& stage,
               const std::function<void(StageProgress&)>& edit);

  const std::shared_ptr<const model::Checkpoint> checkpoint_;
  const Options options_;
  const std::shared_ptr<MemoryAccount> account_;
  const std::shared_ptr<ExpertDigests> digests_;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::map<PlacementVersion, std::shared_ptr<StagedVersion>>
      stages_;                                        // by mutex_
  std::deque<std::shared_ptr<StagedVersion>> queue_;  // by mutex_
  bool stop_ = false;                                 // by mutex_
  Sources sources_;                                   // by mutex_

  // The loader thread's own.
  ThreadPool pool_;
  absl::flat_hash_map<ExpertKey, std::weak_ptr<const kernels::MlpWeights>>
      loaded_;
  std::thread loader_;
};

}  // namespace trunkline::expert
