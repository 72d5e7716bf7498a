#pragma once

// Takes an expert's weights from a peer that has them loaded: row by row in
// bounded pieces, a few requests under way at a time, every piece and the whole
// checked. Peers are tried one after the other. Used by one thread, the
// store's loader; owns a transport of its own that is made when it is first
// needed.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/dtype.h"
#include "expert_worker/peer_directory.h"
#include "expert_worker/shard_frame.h"
#include "transport/transport.h"

namespace trunkline::expert {

// One matrix of an expert as the checkpoint stores it: row-major, no gaps.
struct PartShape {
  int64_t rows = 0, columns = 0;
  DType dtype = DType::kF32;
  size_t bytes() const {
    return static_cast<size_t>(rows * columns * DTypeBytes(dtype));
  }
};

struct FetchedExpert {
  std::vector<std::byte> parts[kShardParts];  // by ShardPart
  ExpertDigest digest{};
};

struct ExpertRequest {
  ExpertKey key;
  PartShape parts[kShardParts];
  // What it must be; nothing: what the peer says it is.
  std::optional<ExpertDigest> digest;
};

class PeerLoader {
 public:
  using MakeTransport =
      std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>()>;
  struct Options {
    // A peer that sends nothing of what was asked for so long is left.
    absl::Duration peer_patience = absl::Seconds(5);
    // For one expert, over all peers.
    absl::Duration expert_patience = absl::Seconds(60);
    int requests_under_way_max = 4;
    const Clock* clock = &Clock::Monotonic();
  };
  struct Counts {
    uint64_t experts = 0, bytes = 0;
    uint64_t pieces_refused = 0;  // damaged, or not what was asked for
    uint64_t peers_left = 0;      // gone, silent, or with damaged weights
  };

  PeerLoader(MakeTransport make_transport, const PeerDirectory* peers,
             const Options& options)
      : make_transport_(std::move(make_transport)),
        peers_(peers),
        options_(options) {}
  ~PeerLoader();

  // NOT_FOUND: no live worker holds the expert. DATA_LOSS: what came was not
  // what it must be. UNAVAILABLE, DEADLINE_EXCEEDED: no peer gave it. CANCELLED
  // as soon as `cancelled` says so. The message lists what each peer did.
  absl::StatusOr<FetchedExpert> Fetch(const ExpertRequest& request,
                                      const std::function<bool()>& cancelled);
  const Counts& counts() const { return counts_; }

 private:
  struct Transfer;
  absl::StatusOr<FetchedExpert> FetchFrom(
      const Peer& peer, const ExpertRequest& request, absl::Time deadline,
      const std::function<bool()>& cancelled);
  absl::StatusOr<transport::ConnectionId> Connect(const Peer& peer);
  void ForgetIfDown(const transport::Event& event);
  absl::Time Now() const { return options_.clock->Now(); }
  void Ask(Transfer& transfer);
  absl::Status Take(Transfer& transfer, transport::Event& event);
  absl::Status TakeRows(Transfer& transfer, const ShardFrame& frame);

  const MakeTransport make_transport_;
  const PeerDirectory* const peers_;
  const Options options_;
  std::unique_ptr<transport::Transport> transport_;
  std::map<std::string, transport::ConnectionId> connections_;  // by address
  uint64_t next_request_ = 1;
  Counts counts_;
};

}  // namespace trunkline::expert
