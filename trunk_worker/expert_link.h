#pragma once

// The trunk's end of the data plane: an ExpertExchange over a Transport. Holds
// the connections to the expert workers of the cluster's view, pins a placement
// version per step, sends each layer's routes to their owners and takes the
// answers back. What happens to a route is decided by dispatch::LayerExchange;
// this class moves its bytes, keeps its time and remembers its peers.
//
// A layer ends with every accepted route executed exactly once, or with a typed
// error that names worker, layer and expert. Every wait has a deadline.
//
// Thread safety: the ExpertExchange methods and Poll from the engine thread;
// the rest from any thread. call.rows, call.routes and call.combined stay as
// they are from Begin to the end of Finish (a retry sends rows again).

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "control/cluster_view.h"
#include "control/coordinator_client.h"
#include "dispatch/combine_plan.h"
#include "dispatch/expert_frame.h"
#include "dispatch/layer_exchange.h"
#include "kernels/combine_rows.h"
#include "kernels/kernel_context.h"
#include "transport/transport.h"
#include "trunk_worker/expert_exchange.h"
#include "trunk_worker/expert_link_peers.h"
#include "trunk_worker/expert_link_stats.h"

namespace trunkline::trunk {

class ExpertLink final : public ExpertExchange {
 public:
  struct Options {
    dispatch::LayerExchange::Limits limits;
    // How long a layer waits for a newer view after a worker has refused its
    // placement version and no other worker serves it.
    absl::Duration newer_view_wait = absl::Seconds(5);
    ExpertPeers::Options peers;
    // Outlives the link. With a simulated one a wait must not be entered: see
    // Settled.
    const Clock* clock = &Clock::Monotonic();
  };

  ExpertLink(std::unique_ptr<transport::Transport> transport,
             const kernels::KernelContext& context, const Options& options);
  ~ExpertLink() override;

  // The engine thread follows this view from its next call on; a wait under way
  // ends early. `identity` is this trunk's.
  void UpdateView(const control::ClusterView& view,
                  const control::Identity& identity);
  // The oldest placement version that a step in flight runs under; invalid when
  // none is in flight.
  PlacementVersion oldest_in_flight() const;
  ExchangeStats stats() const { return recorder_.stats(); }
  std::vector<control::ExpertLoadReport> TakeLoads() {
    return recorder_.TakeLoads();
  }

  // Lets connections make progress while no step runs, up to max_wait.
  void Poll(absl::Duration max_wait) { Pump(max_wait); }
  // For a caller that must not block: between Begin and Finish of a call it
  // polls whenever the transport has something or NextWake() has come; once the
  // call is settled, Finish returns without waiting.
  bool Settled(const MoeCall& call) const;
  absl::Time NextWake() const;

  absl::Status Ready() override;
  absl::StatusOr<PlacementVersion> BeginStep(StepId step) override;
  void EndStep(StepId step) override;
  absl::Status Begin(const MoeCall& call) override;
  absl::Status Finish(const MoeCall& call) override;

 private:
  // A placement version and the view that keeps it in memory.
  struct Pin {
    std::shared_ptr<const control::ClusterView> view;
    const placement::PlacementMap* map = nullptr;
  };
  struct Flight {
    WorkerId worker;
    uint16_t attempt = 0;
    absl::Time planned;  // the worker's deadline counts from here
    absl::Time sent;
    bool open = true;
  };
  // One call between its Begin and its Finish.
  struct Call {
    MoeCall moe;
    uint16_t micro_batch = 0;
    Pin pin;
    // What the exchange was begun under, should its plan be replaced.
    std::vector<Pin> earlier_pins;
    dispatch::LayerExchange exchange;
    std::vector<Flight> flights;
    std::vector<transport::Message> answers;  // numbered for the exchange
    std::vector<dispatch::AnswerFrameView> views;
    absl::Status failure;
    // Since when it waits for a placement newer than its pin; who refused.
    std::optional<absl::Time> waiting_since;
    std::string refused_by;
    LayerTiming timing;
    absl::Time begun;
  };

  void Pump(absl::Duration max_wait);
  void ApplyPendingView();
  bool HasPendingView();
  std::optional<Pin> ActivePin() const;
  void TickCalls();
  absl::Time NextDeadline(const Call& call) const;
  static bool Over(const Call& call) {
    return call.exchange.done() || !call.failure.ok();
  }

  void Handle(transport::Event event);
  void OnReceived(transport::Event event);
  absl::Status OnAnswer(WorkerId worker, transport::Message* message);
  absl::Status OnRefusal(WorkerId worker, std::span<const std::byte> frame);
  void OnUnknownVersion(Call& call, WorkerId worker,
                        const dispatch::RefusalFrameView& refusal);
  absl::Status CheckSender(const dispatch::FrameHeader& header) const;
  void OnLoss(const ExpertPeers::Loss& loss);
  void HangUp(WorkerId worker, const std::string& why);

  // What the exchange made of an event at `now`: sends, or the call's failure.
  void Take(Call& call, absl::Time now,
            absl::StatusOr<std::vector<dispatch::SendAction>> actions);
  void SendShare(Call& call, absl::Time now,
                 const dispatch::SendAction& action);
  void TryReplace(Call& call);
  bool OthersServe(const Call& call, WorkerId worker) const;
  void CheckWaiting(Call& call);
  absl::Status Combine(Call& call);
  void GiveBack(Call& call);
  std::string FirstPending(const Call& call) const;
  std::string Suspects(const Call& call) const;

  Call* FindCall(StepId step, LayerIndex layer, uint16_t micro_batch) const;
  std::unique_ptr<Call> TakeCall();
  void PublishOldest();

  const std::unique_ptr<transport::Transport> transport_;
  const kernels::KernelContext context_;
  const Options options_;
  const Clock& clock_;
  ExchangeRecorder recorder_;

  // The engine thread's own.
  ExpertPeers peers_;
  std::shared_ptr<const control::ClusterView> view_;  // null: none yet
  control::Identity identity_;
  std::map<StepId, Pin> steps_;
  StepId newest_step_;
  std::vector<std::unique_ptr<Call>> calls_;  // under way
  std::vector<std::unique_ptr<Call>> spare_;  // memory of earlier ones
  std::vector<transport::Event> events_;
  std::vector<dispatch::WorkerCost> costs_;  // by the view
  dispatch::CombinePlan combine_plan_;
  std::vector<kernels::Contribution> contributions_;
  uint64_t next_send_ = 0;
  // Ready's last answer, and what it was computed from.
  absl::Status reachable_;
  uint64_t reachable_generation_ = UINT64_MAX;

  std::atomic<uint64_t> oldest_in_flight_{PlacementVersion::kNone};
  std::mutex mutex_;
  // By mutex_: the newest view that the engine has not applied.
  std::shared_ptr<const control::ClusterView> pending_view_;
  control::Identity pending_identity_;
};

}  // namespace trunkline::trunk
