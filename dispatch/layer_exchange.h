#pragma once

// One moe layer of one step, from the first frame sent to the last route
// answered: the trunk's protocol state machine. Pure: events in, things to do
// out; no clock of its own, no bytes, no sockets.
//
// Guarantees (promise 2): every accepted route completes exactly once or the
// exchange fails with a typed error. An answer that does not match (wrong step,
// layer, attempt, worker, route set, or already answered) never completes
// anything: a late one is dropped and counted, a lying one fails its worker.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "dispatch/dispatch_plan.h"
#include "dispatch/expert_frame.h"
#include "placement/placement_map.h"
#include "routing/physical_route.h"
#include "routing/route_table.h"

namespace trunkline::dispatch {

enum class RouteState : uint8_t { kPlanned, kSent, kDone, kFailed, kRetried };

// A frame the edge must send now. The share stays valid until the exchange is
// begun again.
struct SendAction {
  uint16_t attempt = 0;
  PlacementVersion version;
  const WorkerShare* share = nullptr;
};

// Where a completed route's row lies: the answer's number as the edge gave it,
// and its row there.
struct RouteAnswer {
  uint32_t answer = UINT32_MAX;
  uint32_t row = 0;
};

// Of one exchange: zero at Begin.
struct ExchangeCounters {
  uint64_t routes_sent = 0, routes_done = 0, routes_retried = 0;
  uint64_t late_answers = 0, refusals = 0, workers_failed = 0,
           deadlines_missed = 0;
};

// Where and how a completed route ran.
struct RouteExecution {
  WorkerId worker;
  uint16_t attempt = 0;  // of the frame that it was answered for; > 0: a retry
  PlacementVersion version;  // under which it was planned
  uint32_t replica = 0;  // among its expert's replicas; UINT32_MAX: the worker
                         // is none of the placement's any more
  uint32_t send_offset = 0;     // row of the frame
  uint32_t receive_offset = 0;  // row of the answer
  uint32_t local_row = 0;       // among the frame's rows of its expert
};
// The same as the routing contracts see it; `origin` is the trunk.
routing::PhysicalRoute PhysicalOf(WorkerId origin, const RouteExecution& e);

class LayerExchange {
 public:
  struct Limits {
    absl::Duration worker_deadline =
        absl::Seconds(10);  // from the send to a worker to its answer
    absl::Duration step_deadline =
        absl::Seconds(60);  // from Begin to the last answer, retries included
    uint16_t attempts_max = 8;
  };

  // What the workers' shares cost, ascending by worker (dispatch_plan.h); for
  // every plan from now on.
  void UseCosts(std::span<const WorkerCost> costs) {
    costs_.assign(costs.begin(), costs.end());
  }
  // table, placement: outlive the exchange's use until done. live: ascending.
  // Begins anew, whatever was under way; memory of the last exchange is kept.
  absl::StatusOr<std::vector<SendAction>> Begin(
      StepId step, uint16_t micro_batch, const routing::RouteTable* table,
      const placement::LayerPlacement* placement, PlacementVersion version,
      std::vector<WorkerId> live, const Limits& limits, absl::Time now);

  // `answer_number` is the edge's name for the message; it keeps the bytes
  // while done() is false and until it has combined. Returns true when the
  // answer was used (keep it), false when it was late (give it back). An error
  // means that the answer lies: the caller treats the worker as down.
  absl::StatusOr<bool> OnAnswer(WorkerId from, const AnswerFrameView& answer,
                                uint32_t answer_number);

  // The worker is gone, or refused, or lied: its unanswered routes go to other
  // live replicas now, under the same or (after Replace) a newer placement.
  // UNAVAILABLE naming worker, layer and expert when one has none.
  absl::StatusOr<std::vector<SendAction>> OnWorkerDown(WorkerId worker,
                                                       const std::string& why,
                                                       absl::Time now);
  // kUnknownVersion: FAILED_PRECONDITION unless Replace gave a newer placement;
  // the edge fetches it and calls Replace. Other codes: as OnWorkerDown for
  // this exchange.
  absl::StatusOr<std::vector<SendAction>> OnRefused(
      WorkerId worker, const RefusalFrameView& refusal, absl::Time now);
  // A newer placement version: unanswered routes of workers that refused are
  // planned again under it.
  absl::StatusOr<std::vector<SendAction>> Replace(
      const placement::LayerPlacement* placement, PlacementVersion version,
      std::vector<WorkerId> live, absl::Time now);
  // Deadlines. DEADLINE_EXCEEDED naming worker and layer when the step's is
  // missed and nothing is left.
  absl::StatusOr<std::vector<SendAction>> Tick(absl::Time now);

  // Every accepted route has its answer. An error returned above is final: the
  // exchange never becomes done, and later calls return that error again
  // (FAILED_PRECONDITION of OnRefused excepted, which asks for Replace).
  bool done() const { return outstanding_ == 0; }
  // Workers that this exchange no longer uses: down, refused, lied or too late.
  std::span<const WorkerId> excluded() const { return excluded_; }
  absl::Time next_deadline() const;
  // Valid when done: [route rows of the table]; routes that were not accepted
  // have answer UINT32_MAX.
  std::span<const RouteAnswer> answers() const { return answers_; }
  std::span<const RouteState> states() const { return states_; }
  const ExchangeCounters& counters() const { return counters_; }
  // For records, when done: one entry a route row of the table; those that were
  // not accepted have no worker. Reuses the vector's memory.
  void DescribeExecution(std::vector<RouteExecution>* executions) const;
  // M11: accepted = done, each once. The broken contract "completion"
  // (INTERNAL) naming the first route that breaks it.
  absl::Status CheckConservation() const;

 private:
  // One share under way, or that was. Flights live until the next Begin, so
  // that an answer to a closed one is known to be late and not made up.
  struct Flight {
    WorkerShare share;
    uint16_t attempt = 0;
    PlacementVersion version;
    absl::Time sent;
    bool open = false;
    bool answered = false;
    uint32_t answer_number = UINT32_MAX;
  };
  enum class Match : uint8_t { kCurrent, kLate, kLie };

  Match MatchHeader(WorkerId from, const FrameHeader& header,
                    uint32_t* flight_index, std::string* why) const;
  Match MatchFlight(WorkerId from, const FrameHeader& header,
                    uint32_t* flight_index, std::string* why) const;
  absl::Status MatchRoutes(const AnswerFrameView& answer,
                           uint32_t flight_index);
  uint32_t FindRoute(uint32_t token, uint16_t slot) const;
  absl::StatusOr<std::vector<SendAction>> PlanAndSend(
      std::vector<uint32_t> routes, absl::Time now);
  // Closes the worker's open flights and appends their unanswered routes.
  void CloseFlights(WorkerId worker, std::vector<uint32_t>* routes);
  void Exclude(WorkerId worker, const std::string& why);
  absl::Status Fail(absl::Status status);
  std::string Where() const;  // "step 3, layer 5"

  StepId step_;
  uint16_t micro_batch_ = 0;
  const routing::RouteTable* table_ = nullptr;
  const placement::LayerPlacement* placement_ = nullptr;
  PlacementVersion version_;
  std::vector<WorkerId> live_;      // ascending, without excluded_
  std::vector<WorkerId> excluded_;  // down, refused or lied in this exchange
  Limits limits_;
  absl::Time begun_;
  uint16_t next_attempt_ = 0;
  int64_t outstanding_ = 0;
  // The first flights_used_ are this exchange's; the rest is memory to reuse.
  std::vector<std::unique_ptr<Flight>> flights_;
  size_t flights_used_ = 0;
  std::vector<RouteState> states_;
  std::vector<RouteAnswer> answers_;
  std::vector<uint32_t> flight_of_route_;  // the last flight that carried it
  std::vector<uint32_t> matched_;  // route rows of the answer being judged
  std::vector<uint32_t> mark_;     // [routes] == mark_now_: already in matched_
  uint32_t mark_now_ = 0;
  std::vector<uint32_t> waiting_for_placement_;
  std::vector<WorkerCost> costs_;
  std::string last_failure_;
  absl::Status failure_;  // sticky: the first error ends the exchange
  ExchangeCounters counters_;
  DispatchPlanner planner_;
  DispatchPlan plan_;
};

}  // namespace trunkline::dispatch
