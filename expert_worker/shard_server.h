#pragma once

// Gives other expert workers the weights of experts that are loaded here, some
// rows at a time. Keeps no state of a transfer: whoever asks, asks again. Not
// thread-safe; called by the thread that owns the transport. Never reads a
// file.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "expert_worker/shard_frame.h"
#include "kernels/mlp.h"
#include "transport/transport.h"

namespace trunkline::expert {

class ShardServer {
 public:
  struct Held {
    const kernels::MlpWeights* weights = nullptr;  // valid during the call
    ExpertDigest digest{};
  };
  // Nothing: the expert is not loaded here.
  using Find = std::function<std::optional<Held>(ExpertKey)>;

  // bytes_under_way_max: rows that were sent and not yet handed on, over all
  // askers; more are refused as busy.
  ShardServer(Find find, size_t bytes_under_way_max)
      : find_(std::move(find)), bytes_under_way_max_(bytes_under_way_max) {}

  void SetCluster(uint64_t cluster_id) { cluster_id_ = cluster_id; }

  struct Answer {
    transport::Message message;
    size_t rows_bytes = 0;  // count them in until they are gone
    bool refused = false;
  };
  // The answer to a message that IsShardFrame; nothing when none is due (it is
  // itself an answer).
  std::optional<Answer> Handle(std::span<const std::byte> request,
                               transport::Transport& transport) const;
  void OnSent(size_t rows_bytes) { bytes_under_way_ += rows_bytes; }
  void OnGone(size_t rows_bytes) { bytes_under_way_ -= rows_bytes; }

 private:
  const Find find_;
  const size_t bytes_under_way_max_;
  std::optional<uint64_t> cluster_id_;
  size_t bytes_under_way_ = 0;
};

}  // namespace trunkline::expert
