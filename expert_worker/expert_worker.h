#pragma once

// The protocol core of an expert worker: decides what happens to a dispatch
// frame. Pure: frames and `now` in, things to do out; no socket, thread, clock,
// weight or log. The edge (expert_engine.h) keeps each frame's bytes under a
// FrameKey until the core has refused it, forgotten it or handed it out in a
// batch that has been computed.
//
// Every field of a frame is checked before it is used. What does not hold is
// answered with a typed refusal and counted; nothing a peer sends ends the
// process or runs an expert that this worker does not own in that version.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/dtype.h"
#include "common/ids.h"
#include "dispatch/expert_frame.h"
#include "expert_worker/expert_key.h"
#include "expert_worker/token_batcher.h"

namespace trunkline::expert {

// The edge's name for a received message. Never reused.
using FrameKey = StrongId<struct FrameTag, uint64_t>;
// The edge's name for a connection. Never reused.
using PeerKey = StrongId<struct PeerTag, uint64_t>;

struct MoeLayer {
  LayerIndex layer;
  uint32_t experts = 0;
  uint32_t row_width = 0;  // elements: hidden size, or the latent width
};

struct ReceivedFrame {
  FrameKey key;
  PeerKey peer;
  std::span<const std::byte> bytes;  // valid until the edge lets go of the key
};

// Answer the frame with this refusal and let go of it.
struct Refusal {
  FrameKey frame;
  PeerKey peer;
  dispatch::FrameHeader header;  // ready for WriteRefusalFrame
  std::string message;
};

// What OnFrame decided. Queued: neither is set. Dropped: not a frame that an
// answer could follow (somebody else's answer or refusal); let go of it.
struct FrameVerdict {
  std::optional<Refusal> refusal;
  bool dropped = false;
};

struct BatchFrame {
  FrameKey key;
  PeerKey peer;
  dispatch::DispatchFrameView view;
  absl::Time received;
};

// Compute this: all routes of `frames`, expert by expert. Each frame gets its
// own answer.
struct Batch {
  PlacementVersion version;
  LayerIndex layer;
  uint32_t row_width = 0;
  std::vector<BatchFrame> frames;  // in order of arrival, at least one
  GroupedRoutes routes;
};

struct WorkerCounters {
  uint64_t frames_received = 0, frames_refused = 0, frames_dropped = 0,
           frames_forgotten = 0, batches = 0, frames_batched = 0,
           routes_batched = 0, rows_received = 0;
  std::map<dispatch::RefusalCode, uint64_t> refusals;
};

class ExpertWorker {
 public:
  struct Limits {
    size_t queued_frames_max = 1024;
    // Bytes of waiting frames and of answers that peers have not taken yet.
    size_t held_bytes_max = size_t{2} << 30;
    // A batch takes waiting frames until it holds this many routes; a single
    // frame may be larger.
    size_t batch_routes_max = 16384;
  };

  // layers: the model's moe layers. row_dtype: what rows must come in as.
  ExpertWorker(std::vector<MoeLayer> layers, DType row_dtype,
               const Limits& limits);

  // Who this worker is, from the coordinator. Until then every frame is
  // refused.
  void SetIdentity(uint64_t cluster_id, WorkerId worker);
  // From now on frames of this version are computed.
  void Serve(PlacementVersion version, const std::vector<ExpertKey>& owned);
  // From now on they are refused; so are those that still wait.
  std::vector<Refusal> Retire(PlacementVersion version);
  // From now on every new frame is refused; waiting ones are computed.
  void Drain() { draining_ = true; }

  FrameVerdict OnFrame(const ReceivedFrame& frame, absl::Time now);
  // The frames of a peer that is gone; nobody wants their answers.
  std::vector<FrameKey> OnPeerDown(PeerKey peer);
  // The layer whose oldest frame has waited longest, with every other frame of
  // the same layer and version that waits; nothing when none waits.
  std::optional<Batch> NextBatch();

  // The edge could not compute this frame of a batch.
  Refusal RefuseInternal(const BatchFrame& frame, std::string why);

  // Answers on their way count against held_bytes_max.
  void OnAnswerSent(size_t bytes) { answer_bytes_ += bytes; }
  void OnAnswerGone(size_t bytes) { answer_bytes_ -= bytes; }

  bool idle() const { return queue_.empty(); }
  bool draining() const { return draining_; }
  size_t queued_frames() const { return queue_.size(); }
  std::vector<PlacementVersion> versions() const;  // ascending
  const WorkerCounters& counters() const { return counters_; }

 private:
  struct Waiting {
    BatchFrame frame;
    PlacementVersion version;
    LayerIndex layer;
    size_t bytes = 0;
  };
  // Whether this worker owns expert e of a layer, one bit each.
  using OwnedLayers = std::map<LayerIndex, std::vector<bool>>;

  struct Fault {
    dispatch::RefusalCode code;
    std::string message;
  };
  std::optional<Fault> CheckAddress(const dispatch::FrameHeader& header) const;
  std::optional<Fault> CheckShape(const dispatch::FrameHeader& header) const;
  std::optional<Fault> CheckRoutes(
      const dispatch::DispatchFrameView& view) const;
  std::optional<Fault> CheckRoom(size_t frame_bytes) const;
  Refusal Refuse(FrameKey frame, PeerKey peer,
                 const dispatch::FrameHeader& header, Fault fault);
  const MoeLayer* FindLayer(uint32_t layer) const;
  std::string ServedVersions() const;

  const std::vector<MoeLayer> layers_;  // ascending
  const DType row_dtype_;
  const Limits limits_;

  std::optional<uint64_t> cluster_id_;
  WorkerId worker_;
  std::map<PlacementVersion, OwnedLayers> versions_;
  bool draining_ = false;
  std::deque<Waiting> queue_;  // in order of arrival
  size_t queued_bytes_ = 0;
  size_t answer_bytes_ = 0;
  WorkerCounters counters_;
};

}  // namespace trunkline::expert
