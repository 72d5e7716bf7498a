#include "expert_worker/expert_metrics.h"

#include <string>
#include <vector>

#include "common/metric_registry.h"

namespace trunkline::expert {

namespace {

// A layer takes tens of microseconds to seconds.
const std::vector<double>& SecondsBuckets() {
  static const std::vector<double> buckets = {
      1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3};
  return buckets;
}

// "unknown placement version" -> "unknown_placement_version".
std::string LabelOf(dispatch::RefusalCode code) {
  std::string label(dispatch::RefusalName(code));
  for (char& c : label) {
    if (c == ' ') c = '_';
  }
  return label;
}

constexpr char kShardPieces[] = "trunkline_expert_shard_pieces_total";
constexpr char kShardPiecesHelp[] = "Requests of peers for weights by result";
constexpr char kLoaded[] = "trunkline_expert_experts_loaded";
constexpr char kLoadedHelp[] = "Experts loaded since the start by source";
constexpr char kLoadedBytes[] = "trunkline_expert_bytes_loaded";
constexpr char kLoadedBytesHelp[] =
    "Bytes of experts loaded since the start by source";

}  // namespace

ExpertMetrics::ExpertMetrics(prometheus::Registry& registry)
    : frames_received(AddCounter(registry,
                                 "trunkline_expert_frames_received_total",
                                 "Messages received from trunks")),
      frames_answered(AddCounter(registry,
                                 "trunkline_expert_frames_answered_total",
                                 "Dispatch frames computed and answered")),
      frames_dropped(AddCounter(
          registry, "trunkline_expert_frames_dropped_total",
          "Messages that are no dispatch frame, or whose trunk went away")),
      routes_executed(AddCounter(registry, "trunkline_routes_executed_total",
                                 "Routes run through their expert")),
      routes_returned(AddCounter(registry, "trunkline_routes_returned_total",
                                 "Routes whose output was sent to a trunk")),
      rows_received(AddCounter(registry, "trunkline_expert_rows_received_total",
                               "Rows received in accepted dispatch frames")),
      batches(AddCounter(registry, "trunkline_expert_batches_total",
                         "Grouped products run")),
      answer_bytes(AddCounter(registry, "trunkline_expert_answer_bytes_total",
                              "Bytes of answers sent")),
      answers_lost(
          AddCounter(registry, "trunkline_expert_answers_lost_total",
                     "Answers whose trunk was gone when they were sent")),
      shard_pieces_sent(AddCounter(registry, kShardPieces, kShardPiecesHelp,
                                   {{"result", "sent"}})),
      shard_pieces_refused(AddCounter(registry, kShardPieces, kShardPiecesHelp,
                                      {{"result", "refused"}})),
      shard_bytes_sent(
          AddCounter(registry, "trunkline_expert_shard_bytes_sent_total",
                     "Bytes of weights that peers took from here")),
      experts_loaded_disk(
          AddGauge(registry, kLoaded, kLoadedHelp, {{"source", "disk"}})),
      experts_loaded_peer(
          AddGauge(registry, kLoaded, kLoadedHelp, {{"source", "peer"}})),
      expert_bytes_loaded_disk(AddGauge(
          registry, kLoadedBytes, kLoadedBytesHelp, {{"source", "disk"}})),
      expert_bytes_loaded_peer(AddGauge(
          registry, kLoadedBytes, kLoadedBytesHelp, {{"source", "peer"}})),
      peer_pieces_refused(AddGauge(
          registry, "trunkline_expert_peer_pieces_refused",
          "Pieces of weights from peers that were damaged or not asked for")),
      peers_left(AddGauge(
          registry, "trunkline_expert_peers_left",
          "Transfers that were given up: the peer was gone, silent or had "
          "damaged weights")),
      queue_seconds(
          AddHistogram(registry, "trunkline_expert_queue_seconds",
                       "From a frame's receipt to the start of its batch",
                       SecondsBuckets())),
      compute_seconds(AddHistogram(registry, "trunkline_expert_compute_seconds",
                                   "Duration of a batch", SecondsBuckets())),
      peers(AddGauge(registry, "trunkline_expert_peers", "Connected trunks")),
      placement_version(AddGauge(registry, "trunkline_placement_version",
                                 "Newest placement version served")),
      experts_bytes(AddGauge(registry, "trunkline_expert_loaded_bytes",
                             "Bytes of packed experts in memory")),
      memory_limit_bytes(AddGauge(registry,
                                  "trunkline_expert_memory_limit_bytes",
                                  "Limit for packed experts, 0: none")),
      read_cost_seconds(AddGauge(
          registry, "trunkline_expert_read_cost_seconds",
          "Measured time that a batch takes for each distinct expert")),
      row_cost_seconds(AddGauge(registry, "trunkline_expert_row_cost_seconds",
                                "Measured time that a batch takes for each "
                                "route")) {
  refusals_[0] = nullptr;
  for (size_t code = 1; code < kCodes; ++code)
    refusals_[code] = &AddCounter(
        registry, "trunkline_expert_refusals_total",
        "Dispatch frames refused, by reason",
        {{"reason", LabelOf(static_cast<dispatch::RefusalCode>(code))}});
}

void ExpertMetrics::OnRefused(dispatch::RefusalCode code) {
  if (prometheus::Counter* counter = refusals_[static_cast<size_t>(code)])
    counter->Increment();
}

void ExpertMetrics::OnAnswered(uint64_t routes, uint64_t bytes,
                               absl::Duration queue_time) {
  frames_answered.Increment();
  routes_returned.Increment(static_cast<double>(routes));
  answer_bytes.Increment(static_cast<double>(bytes));
  queue_seconds.Observe(absl::ToDoubleSeconds(queue_time));
}

}  // namespace trunkline::expert
