// The half of ExpertLink that reacts: transport events, refusals, deadlines.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "trunk_worker/expert_link.h"
#include "trunk_worker/expert_link_frames.h"

namespace trunkline::trunk {

void ExpertLink::Pump(absl::Duration max_wait) {
  ApplyPendingView();
  peers_.Dial(clock_.Now());
  events_.clear();
  transport_->Poll(max_wait, &events_);
  for (transport::Event& event : events_) Handle(std::move(event));
  ApplyPendingView();
  TickCalls();
}

void ExpertLink::TickCalls() {
  const absl::Time now = clock_.Now();
  // A worker that is connected and does not answer in time is hung up on, so
  // that later layers do not wait for it again.
  std::vector<WorkerId> overdue;
  for (const std::unique_ptr<Call>& call : calls_) {
    if (Over(*call)) continue;
    for (const Flight& flight : call->flights) {
      if (flight.open &&
          now >= flight.planned + options_.limits.worker_deadline)
        overdue.push_back(flight.worker);
    }
  }
  for (const WorkerId worker : overdue)
    HangUp(worker,
           absl::StrCat("no answer within ",
                        absl::FormatDuration(options_.limits.worker_deadline)));
  for (const std::unique_ptr<Call>& call : calls_) {
    if (Over(*call)) continue;
    Take(*call, now, call->exchange.Tick(now));
    CheckWaiting(*call);
  }
}

void ExpertLink::Handle(transport::Event event) {
  switch (event.kind) {
    case transport::Event::Kind::kAccepted:
      return;  // this side does not listen
    case transport::Event::Kind::kConnected:
      peers_.OnConnected(event.connection);
      recorder_.Change([](ExchangeStats& stats) { ++stats.connections_up; });
      return;
    case transport::Event::Kind::kReceived:
      OnReceived(std::move(event));
      return;
    case transport::Event::Kind::kSendDone:
      // What was not sent will not be answered.
      if (const auto worker = peers_.WorkerOf(event.connection);
          !event.status.ok() && worker.has_value())
        HangUp(*worker, absl::StrCat("a frame was not sent: ",
                                     std::string(event.status.message())));
      return;
    case transport::Event::Kind::kPeerDown:
      if (const auto loss =
              peers_.OnDown(event.connection, event.status, clock_.Now()))
        OnLoss(*loss);
      return;
  }
}

void ExpertLink::OnLoss(const ExpertPeers::Loss& loss) {
  TL_LOG_WARN("expert worker {}", loss.why);
  recorder_.Change([](ExchangeStats& stats) { ++stats.connections_down; });
  const absl::Time now = clock_.Now();
  for (const std::unique_ptr<Call>& call : calls_) {
    if (Over(*call)) continue;
    for (Flight& flight : call->flights) {
      if (flight.worker == loss.worker) flight.open = false;
    }
    Take(*call, now, call->exchange.OnWorkerDown(loss.worker, loss.why, now));
  }
}

void ExpertLink::HangUp(WorkerId worker, const std::string& why) {
  if (const auto loss = peers_.HangUp(worker, why, clock_.Now())) OnLoss(*loss);
}

void ExpertLink::OnReceived(transport::Event event) {
  const std::optional<WorkerId> worker = peers_.WorkerOf(event.connection);
  if (!worker.has_value()) {  // hung up on; whatever it says is too late
    transport_->Release(std::move(event.message));
    return;
  }
  const std::span<const std::byte> frame(event.message.data(),
                                         event.message.size);
  recorder_.Change([&](ExchangeStats& stats) {
    ++stats.answers_received;
    stats.bytes_received += frame.size();
  });
  const absl::StatusOr<dispatch::FrameKind> kind = dispatch::PeekKind(frame);
  absl::Status status = kind.status();
  if (kind.ok()) {
    switch (*kind) {
      case dispatch::FrameKind::kAnswer:
        status = OnAnswer(*worker, &event.message);
        break;
      case dispatch::FrameKind::kRefusal:
        status = OnRefusal(*worker, frame);
        break;
      case dispatch::FrameKind::kDispatch:
        status = absl::InvalidArgumentError("it sent a dispatch frame");
        break;
    }
  }
  if (event.message.size > 0) transport_->Release(std::move(event.message));
  if (status.ok()) return;
  recorder_.Change([](ExchangeStats& stats) { ++stats.workers_lied; });
  HangUp(*worker, std::string(status.message()));
}

absl::Status ExpertLink::CheckSender(
    const dispatch::FrameHeader& header) const {
  if (header.cluster_id != identity_.cluster_id)
    return absl::InvalidArgumentError(
        absl::StrCat("it answers for cluster ", header.cluster_id,
                     ", this is cluster ", identity_.cluster_id));
  if (header.trunk_rank != identity_.worker.value)
    return absl::InvalidArgumentError(
        absl::StrCat("it answers trunk ", header.trunk_rank, ", this is trunk ",
                     identity_.worker.value));
  if (!newest_step_.valid() || header.step_id > newest_step_.value)
    return absl::InvalidArgumentError(absl::StrCat(
        "it answers step ", header.step_id, ", which has not begun"));
  return absl::OkStatus();
}

// Takes the message when it is kept; an error means that the worker lies.
absl::Status ExpertLink::OnAnswer(WorkerId worker,
                                  transport::Message* message) {
  TL_ASSIGN_OR_RETURN(const dispatch::AnswerFrameView view,
                      dispatch::DecodeAnswer({message->data(), message->size}));
  TL_RETURN_IF_ERROR(CheckSender(view.header));
  Call* call = FindCall(StepId(view.header.step_id),
                        LayerIndex(view.header.layer), view.header.micro_batch);
  if (call == nullptr || !call->failure.ok()) {
    recorder_.Change([](ExchangeStats& stats) { ++stats.late_answers; });
    return absl::OkStatus();
  }
  TL_RETURN_IF_ERROR(CheckAnswerRows(call->moe, view.header));
  TL_ASSIGN_OR_RETURN(
      const bool used,
      call->exchange.OnAnswer(worker, view,
                              static_cast<uint32_t>(call->answers.size())));
  if (!used) {
    recorder_.Change([](ExchangeStats& stats) { ++stats.late_answers; });
    return absl::OkStatus();
  }
  call->views.push_back(view);
  // The bytes stay where they are while the message moves.
  call->answers.push_back(std::move(*message));
  message->size = 0;
  peers_.OnGoodAnswer(worker);

  const absl::Time now = clock_.Now();
  for (Flight& flight : call->flights) {
    if (flight.worker != worker || flight.attempt != view.header.attempt)
      continue;
    flight.open = false;
    // The worker's clock is believed only as far as ours allows.
    const absl::Duration trip = now - flight.sent;
    const absl::Duration compute =
        std::min(trip, absl::Nanoseconds(std::min<uint64_t>(
                           view.header.compute_ns, INT64_MAX)));
    const absl::Duration queue = std::min(
        trip - compute,
        absl::Nanoseconds(std::min<uint64_t>(view.header.queue_ns, INT64_MAX)));
    call->timing.exchange = now - call->begun;
    call->timing.compute = compute;
    call->timing.queue = queue;
    call->timing.wire = trip - compute - queue;
  }
  return absl::OkStatus();
}

absl::Status ExpertLink::OnRefusal(WorkerId worker,
                                   std::span<const std::byte> frame) {
  TL_ASSIGN_OR_RETURN(const dispatch::RefusalFrameView refusal,
                      dispatch::DecodeRefusal(frame));
  const dispatch::FrameHeader& header = refusal.header;
  if (header.refusal == dispatch::RefusalCode::kMalformed &&
      header.trunk_rank != identity_.worker.value)
    // It could not even read whose frame it was, so nobody knows which.
    return absl::DataLossError(
        absl::StrCat("it could not read a frame: ", refusal.message));
  TL_RETURN_IF_ERROR(CheckSender(header));
  Call* call = FindCall(StepId(header.step_id), LayerIndex(header.layer),
                        header.micro_batch);
  const absl::Time now = clock_.Now();
  if (header.refusal == dispatch::RefusalCode::kUnknownVersion)
    peers_.OnVersionRefused(worker, PlacementVersion(header.placement_version),
                            now);
  if (call == nullptr || !call->failure.ok()) {
    recorder_.Change([](ExchangeStats& stats) { ++stats.late_answers; });
    return absl::OkStatus();
  }
  const auto flight = std::find_if(
      call->flights.begin(), call->flights.end(), [&](const Flight& f) {
        return f.open && f.worker == worker && f.attempt == header.attempt;
      });
  if (flight == call->flights.end()) {
    Take(*call, now, call->exchange.OnRefused(worker, refusal, now));
    return absl::OkStatus();
  }
  flight->open = false;
  TL_LOG_WARN(
      "expert worker {} refused a frame: {}: {}", peers_.Describe(worker),
      std::string(dispatch::RefusalName(header.refusal)), refusal.message);
  if (header.refusal == dispatch::RefusalCode::kUnknownVersion)
    OnUnknownVersion(*call, worker, refusal);
  else
    Take(*call, now, call->exchange.OnRefused(worker, refusal, now));
  return absl::OkStatus();
}

// Either the plan is out of date (a newer version is or will be known), or the
// worker alone is: it came back empty and loads. Then others may serve.
void ExpertLink::OnUnknownVersion(Call& call, WorkerId worker,
                                  const dispatch::RefusalFrameView& refusal) {
  const absl::Time now = clock_.Now();
  const std::optional<Pin> active = ActivePin();
  const bool newer_known =
      active.has_value() && active->map->version > call.pin.map->version;
  if (!newer_known && OthersServe(call, worker)) {
    for (Flight& flight : call.flights) {
      if (flight.worker == worker) flight.open = false;
    }
    Take(
        call, now,
        call.exchange.OnWorkerDown(
            worker,
            absl::StrCat(peers_.Describe(worker), ": ", refusal.message), now));
    return;
  }
  absl::StatusOr<std::vector<dispatch::SendAction>> actions =
      call.exchange.OnRefused(worker, refusal, now);
  if (!absl::IsFailedPrecondition(actions.status())) {
    Take(call, now, std::move(actions));
    return;
  }
  call.refused_by =
      absl::StrCat(peers_.Describe(worker), ": ", refusal.message);
  if (!call.waiting_since.has_value()) call.waiting_since = now;
  TryReplace(call);
}

// Whether every expert that the placement has on this worker is live elsewhere.
bool ExpertLink::OthersServe(const Call& call, WorkerId worker) const {
  const placement::LayerPlacement* layer =
      call.pin.map->FindLayer(call.moe.layer);
  std::vector<WorkerId> live =
      peers_.LiveFor(*layer, call.pin.map->version, clock_.Now());
  std::erase(live, worker);
  for (const std::vector<placement::Replica>& replicas : layer->replicas) {
    bool here = false;
    bool elsewhere = false;
    for (const placement::Replica& replica : replicas) {
      here = here || replica.worker == worker;
      elsewhere = elsewhere ||
                  std::binary_search(live.begin(), live.end(), replica.worker);
    }
    if (here && !elsewhere) return false;
  }
  return true;
}

void ExpertLink::TryReplace(Call& call) {
  std::optional<Pin> active = ActivePin();
  if (!call.failure.ok() || !active.has_value() ||
      active->map->version <= call.pin.map->version)
    return;
  const placement::LayerPlacement* layer =
      active->map->FindLayer(call.moe.layer);
  if (layer == nullptr) return;  // the wait for a better one goes on
  const absl::Time now = clock_.Now();
  std::vector<WorkerId> live =
      peers_.LiveFor(*layer, active->map->version, now);
  call.waiting_since.reset();
  call.earlier_pins.push_back(std::move(call.pin));
  call.pin = *active;
  // The layers after this one follow.
  Pin& step = steps_.at(call.moe.step);
  if (step.map->version < active->map->version) step = *std::move(active);
  PublishOldest();
  recorder_.Change([](ExchangeStats& stats) { ++stats.placements_replaced; });
  Take(call, now,
       call.exchange.Replace(layer, call.pin.map->version, std::move(live),
                             now));
}

void ExpertLink::CheckWaiting(Call& call) {
  if (!call.failure.ok() || !call.waiting_since.has_value() ||
      clock_.Now() < *call.waiting_since + options_.newer_view_wait)
    return;
  call.failure = absl::UnavailableError(absl::StrCat(
      "step ", call.moe.step.value, ", ", FirstPending(call),
      ": placement version ", call.pin.map->version.value,
      " was refused and no newer one came within ",
      absl::FormatDuration(options_.newer_view_wait), "; ", call.refused_by));
}

}  // namespace trunkline::trunk
