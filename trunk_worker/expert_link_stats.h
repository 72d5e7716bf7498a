#pragma once

// What the data plane did, for reports, metrics and the benchmark. Sums since
// the start; nothing here influences a step.
//
// Thread safety: all methods from any thread.

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "control/coordinator_client.h"
#include "dispatch/layer_exchange.h"
#include "routing/route_table.h"

namespace trunkline::trunk {

// Sums over the calls of one layer.
struct LayerTiming {
  uint64_t calls = 0;
  absl::Duration encode;    // rows into frames, Send included
  absl::Duration exchange;  // first frame sent to last answer received
  absl::Duration blocked;   // of that, spent waiting in Finish
  absl::Duration combine;
  // Of the answer that came last: the parts of its round trip. The worker's own
  // clock measures queue and compute, wire is the rest.
  absl::Duration queue, compute, wire;
};

struct ExchangeStats {
  dispatch::ExchangeCounters routes;  // summed over all calls
  uint64_t calls = 0, calls_failed = 0;
  uint64_t frames_sent = 0, bytes_sent = 0;
  uint64_t answers_received = 0, bytes_received = 0;
  // Answers and refusals of steps that are over.
  uint64_t late_answers = 0;
  // Workers hung up on for messages that can not be: wrong cluster, a step that
  // was never begun, an answer that was not asked for.
  uint64_t workers_lied = 0;
  uint64_t connections_up = 0, connections_down = 0;
  uint64_t placements_replaced = 0;  // steps moved to a newer version
  std::map<LayerIndex, LayerTiming> layers;
};

class ExchangeRecorder {
 public:
  // edit(ExchangeStats&), under the mutex.
  template <typename Edit>
  void Change(const Edit& edit) {
    std::lock_guard<std::mutex> lock(mutex_);
    edit(stats_);
  }
  // A call is over: every route was selected, `executed` says which were run.
  void CountRoutes(LayerIndex layer, const routing::RouteTable& table,
                   const dispatch::ExchangeCounters& counters, bool executed);

  ExchangeStats stats() const;
  // Selected and executed routes per expert since the last call, layers without
  // any left out.
  std::vector<control::ExpertLoadReport> TakeLoads();

 private:
  mutable std::mutex mutex_;
  ExchangeStats stats_;                                    // by mutex_
  std::map<LayerIndex, control::ExpertLoadReport> loads_;  // by mutex_
};

}  // namespace trunkline::trunk
