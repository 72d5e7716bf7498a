#include "trunk_worker/expert_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "trunk_worker/expert_link_frames.h"

namespace trunkline::trunk {

namespace {

// MoeCall carries no micro-batch: the trunk runs one at a time. Everything
// below takes the number as a key, so a second one needs a field there only.
constexpr uint16_t kOnlyMicroBatch = 0;

}  // namespace

ExpertLink::ExpertLink(std::unique_ptr<transport::Transport> transport,
                       const kernels::KernelContext& context,
                       const Options& options)
    : transport_(std::move(transport)),
      context_(context),
      options_(options),
      clock_(*options.clock),
      peers_(transport_.get(), options.peers) {}

ExpertLink::~ExpertLink() = default;

void ExpertLink::UpdateView(const control::ClusterView& view,
                            const control::Identity& identity) {
  auto copy = std::make_shared<const control::ClusterView>(view);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pending_view_ = std::move(copy);
    pending_identity_ = identity;
  }
  transport_->Wake();
}

PlacementVersion ExpertLink::oldest_in_flight() const {
  return PlacementVersion(oldest_in_flight_.load());
}

void ExpertLink::ApplyPendingView() {
  std::shared_ptr<const control::ClusterView> view;
  control::Identity identity;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pending_view_ == nullptr) return;
    view = std::move(pending_view_);
    pending_view_ = nullptr;
    identity = pending_identity_;
  }
  const absl::Time now = clock_.Now();
  std::vector<ExpertPeers::Loss> losses;
  if (view_ != nullptr && view->cluster_id != view_->cluster_id)
    losses = peers_.Clear("this trunk has joined another cluster");
  view_ = std::move(view);
  identity_ = identity;
  reachable_generation_ = UINT64_MAX;
  std::vector<dispatch::MeasuredCost> measured;
  for (const control::WorkerView& worker : view_->workers) {
    if (worker.role == control::Role::kExpert)
      measured.push_back(
          {worker.id, worker.costs.read_seconds, worker.costs.row_seconds});
  }
  costs_ = dispatch::CostsFrom(measured);
  for (ExpertPeers::Loss& loss : peers_.ApplyView(*view_, now))
    losses.push_back(std::move(loss));
  for (const ExpertPeers::Loss& loss : losses) OnLoss(loss);
  for (const std::unique_ptr<Call>& call : calls_) {
    if (call->waiting_since.has_value()) TryReplace(*call);
  }
}

bool ExpertLink::HasPendingView() {
  std::lock_guard<std::mutex> lock(mutex_);
  return pending_view_ != nullptr;
}

std::optional<ExpertLink::Pin> ExpertLink::ActivePin() const {
  if (view_ == nullptr || !view_->active.valid()) return std::nullopt;
  const control::PlacementView* placement = view_->FindPlacement(view_->active);
  if (placement == nullptr) return std::nullopt;
  return Pin{view_, &placement->map};
}

absl::Status ExpertLink::Ready() {
  Pump(absl::ZeroDuration());
  if (reachable_generation_ == peers_.generation()) return reachable_;
  reachable_generation_ = peers_.generation();
  const std::optional<Pin> pin = ActivePin();
  if (view_ == nullptr) {
    reachable_ = absl::UnavailableError("no view of the cluster yet");
  } else if (!pin.has_value()) {
    reachable_ = absl::UnavailableError(absl::StrCat(
        "no placement version is active",
        view_->waiting_for.empty() ? "" : ": ", view_->waiting_for));
  } else {
    reachable_ = peers_.CheckReachable(*pin->map);
  }
  return reachable_;
}

absl::StatusOr<PlacementVersion> ExpertLink::BeginStep(StepId step) {
  TL_CHECK(!steps_.contains(step)) << "step " << step << " has begun";
  PlacementVersion version;
  do {
    steps_.erase(step);
    PublishOldest();
    TL_RETURN_IF_ERROR(Ready());
    std::optional<Pin> pin = ActivePin();
    version = pin->map->version;
    steps_[step] = *std::move(pin);
    PublishOldest();
    // Whoever delivered a view may report, as soon as UpdateView has returned,
    // that no older version will be used: the pin has to be visible before we
    // look for the last time.
  } while (HasPendingView());
  newest_step_ = newest_step_.valid() ? std::max(newest_step_, step) : step;
  return version;
}

void ExpertLink::EndStep(StepId step) {
  // A step that failed elsewhere may leave a layer behind.
  for (size_t i = calls_.size(); i-- > 0;) {
    if (calls_[i]->moe.step != step) continue;
    GiveBack(*calls_[i]);
    spare_.push_back(std::move(calls_[i]));
    calls_.erase(calls_.begin() + static_cast<int64_t>(i));
  }
  steps_.erase(step);
  PublishOldest();
}

void ExpertLink::PublishOldest() {
  PlacementVersion oldest;
  const auto take = [&](const Pin& pin) {
    oldest = std::min(oldest, pin.map->version);  // invalid is the largest
  };
  for (const auto& [unused, pin] : steps_) take(pin);
  for (const std::unique_ptr<Call>& call : calls_) take(call->pin);
  oldest_in_flight_ = oldest.value;
}

std::unique_ptr<ExpertLink::Call> ExpertLink::TakeCall() {
  if (spare_.empty()) return std::make_unique<Call>();
  std::unique_ptr<Call> call = std::move(spare_.back());
  spare_.pop_back();
  call->flights.clear();
  call->answers.clear();
  call->views.clear();
  call->failure = absl::OkStatus();
  call->waiting_since.reset();
  call->refused_by.clear();
  call->timing = LayerTiming{};
  return call;
}

absl::Status ExpertLink::Begin(const MoeCall& moe) {
  const auto step = steps_.find(moe.step);
  TL_CHECK(step != steps_.end()) << "step " << moe.step << " has not begun";
  TL_CHECK(FindCall(moe.step, moe.layer, kOnlyMicroBatch) == nullptr);
  TL_RETURN_IF_ERROR(CheckMoeCall(moe));
  Pump(absl::ZeroDuration());

  const placement::LayerPlacement* layer =
      step->second.map->FindLayer(moe.layer);
  if (layer == nullptr ||
      static_cast<int64_t>(layer->replicas.size()) != moe.routes->experts)
    return absl::InternalError(
        absl::StrCat("layer ", moe.layer.value, ": placement version ",
                     step->second.map->version.value, " places ",
                     layer == nullptr ? 0 : layer->replicas.size(),
                     " experts, the model has ", moe.routes->experts));

  calls_.push_back(TakeCall());
  Call& call = *calls_.back();
  call.moe = moe;
  call.micro_batch = kOnlyMicroBatch;
  call.pin = step->second;
  call.begun = clock_.Now();
  call.exchange.UseCosts(costs_);
  Take(call, call.begun,
       call.exchange.Begin(
           moe.step, call.micro_batch, moe.routes, layer, call.pin.map->version,
           peers_.LiveFor(*layer, call.pin.map->version, call.begun),
           options_.limits, call.begun));
  call.timing.encode = clock_.Now() - call.begun;
  if (call.failure.ok()) return absl::OkStatus();

  const absl::Status failure = call.failure;
  recorder_.CountRoutes(moe.layer, *moe.routes, call.exchange.counters(),
                        false);
  GiveBack(call);
  spare_.push_back(std::move(calls_.back()));
  calls_.pop_back();
  return failure;
}

absl::Status ExpertLink::Finish(const MoeCall& moe) {
  Call* call = FindCall(moe.step, moe.layer, kOnlyMicroBatch);
  TL_CHECK(call != nullptr) << "Finish without Begin, layer " << moe.layer;
  EnterPhase(moe, StepPhase::kExperts);
  const absl::Time waited_from = clock_.Now();
  while (!Over(*call)) {
    const absl::Time now = clock_.Now();
    Pump(std::max(absl::ZeroDuration(),
                  std::min(NextDeadline(*call), peers_.next_dial()) - now));
  }
  call->timing.blocked = clock_.Now() - waited_from;

  absl::Status status = call->failure;
  if (status.ok()) status = call->exchange.CheckConservation();
  if (status.ok()) status = Combine(*call);
  if (status.ok() && moe.executed != nullptr) {
    moe.executed->origin = identity_.worker;
    call->exchange.DescribeExecution(&moe.executed->routes);
  }
  recorder_.CountRoutes(moe.layer, *moe.routes, call->exchange.counters(),
                        status.ok());
  if (status.ok()) {
    recorder_.Change([&](ExchangeStats& stats) {
      LayerTiming& sum = stats.layers[moe.layer];
      const LayerTiming& one = call->timing;
      ++sum.calls;
      sum.encode += one.encode;
      sum.exchange += one.exchange;
      sum.blocked += one.blocked;
      sum.combine += one.combine;
      sum.queue += one.queue;
      sum.compute += one.compute;
      sum.wire += one.wire;
    });
  }
  GiveBack(*call);
  const auto at = std::find_if(calls_.begin(), calls_.end(),
                               [&](const auto& c) { return c.get() == call; });
  spare_.push_back(std::move(*at));
  calls_.erase(at);
  PublishOldest();
  return status;
}

absl::Status ExpertLink::Combine(Call& call) {
  EnterPhase(call.moe, StepPhase::kCombine);
  const absl::Time start = clock_.Now();
  dispatch::PlanCombine(*call.moe.routes, &combine_plan_);
  FillContributions(*call.moe.routes, combine_plan_, call.exchange.answers(),
                    call.views, &contributions_);
  kernels::CombineArgs args;
  args.offsets = combine_plan_.offsets;
  args.contributions = contributions_;
  args.width = call.moe.width;
  args.y = call.moe.combined;
  args.y_stride = call.moe.combined_stride;
  args.out = call.moe.activation;
  kernels::CombineRows(context_, args);
  ReportContributions(call.moe, combine_plan_, contributions_);
  call.timing.combine = clock_.Now() - start;
  return absl::OkStatus();
}

void ExpertLink::GiveBack(Call& call) {
  for (transport::Message& message : call.answers)
    transport_->Release(std::move(message));
  call.answers.clear();
  call.views.clear();
  call.pin = Pin{};
  call.earlier_pins.clear();
}

// A call's own deadlines, and that of its wait for a newer view.
absl::Time ExpertLink::NextDeadline(const Call& call) const {
  absl::Time next = call.exchange.next_deadline();
  if (call.waiting_since.has_value())
    next = std::min(next, *call.waiting_since + options_.newer_view_wait);
  return next;
}

bool ExpertLink::Settled(const MoeCall& moe) const {
  const Call* call = FindCall(moe.step, moe.layer, kOnlyMicroBatch);
  TL_CHECK(call != nullptr) << "no call of layer " << moe.layer;
  return Over(*call);
}

absl::Time ExpertLink::NextWake() const {
  absl::Time next = peers_.next_dial();
  for (const std::unique_ptr<Call>& call : calls_)
    next = std::min(next, NextDeadline(*call));
  return next;
}

void ExpertLink::Take(
    Call& call, absl::Time now,
    absl::StatusOr<std::vector<dispatch::SendAction>> actions) {
  if (actions.ok()) {
    for (const dispatch::SendAction& action : *actions)
      SendShare(call, now, action);
    return;
  }
  if (!call.failure.ok()) return;  // the first error is the one to tell
  const std::string suspects = Suspects(call);
  call.failure =
      absl::Status(actions.status().code(),
                   absl::StrCat(std::string(actions.status().message()),
                                suspects.empty() ? "" : "; ", suspects));
}

void ExpertLink::SendShare(Call& call, absl::Time now,
                           const dispatch::SendAction& action) {
  const std::optional<transport::ConnectionId> connection =
      peers_.ConnectionOf(action.share->worker);
  if (!connection.has_value()) {
    // Several workers went at once and this one's turn comes next: its loss
    // plans these routes again.
    call.flights.push_back(
        {action.share->worker, action.attempt, now, now, true});
    return;
  }
  dispatch::FrameHeader header;
  header.cluster_id = identity_.cluster_id;
  header.trunk_rank = identity_.worker.value;
  header.worker_rank = action.share->worker.value;
  header.epoch = view_->epoch;
  header.placement_version = action.version.value;
  header.step_id = call.moe.step.value;
  header.layer = call.moe.layer.value;
  header.micro_batch = call.micro_batch;
  header.attempt = action.attempt;
  transport::Message message =
      transport_->Allocate(ShareBytes(call.moe, *action.share));
  WriteShare(header, call.moe, *action.share, {message.data(), message.size});
  const size_t bytes = message.size;
  call.flights.push_back(
      {action.share->worker, action.attempt, now, clock_.Now(), true});
  transport_->Send(*connection, std::move(message), next_send_++);
  recorder_.Change([&](ExchangeStats& stats) {
    ++stats.frames_sent;
    stats.bytes_sent += bytes;
  });
}

// Layer and expert of the first route that nobody has answered, for errors.
std::string ExpertLink::FirstPending(const Call& call) const {
  const routing::RouteTable& table = *call.moe.routes;
  const std::span<const dispatch::RouteState> states = call.exchange.states();
  for (int64_t r = 0; r < table.size(); ++r) {
    if (table.fate[r] == routing::RouteFate::kAccepted &&
        states[r] != dispatch::RouteState::kDone)
      return absl::StrCat("layer ", call.moe.layer.value, ", expert ",
                          table.expert_id[r].value);
  }
  return absl::StrCat("layer ", call.moe.layer.value);
}

// The workers that a failure is about, by name: those of the layer's placement
// that can't be planned on, and those that owe an answer.
std::string ExpertLink::Suspects(const Call& call) const {
  const placement::LayerPlacement* layer =
      call.pin.map->FindLayer(call.moe.layer);
  const std::vector<WorkerId> live =
      peers_.LiveFor(*layer, call.pin.map->version, clock_.Now());
  std::vector<WorkerId> suspects;
  for (const std::vector<placement::Replica>& replicas : layer->replicas) {
    for (const placement::Replica& replica : replicas) {
      if (!std::binary_search(live.begin(), live.end(), replica.worker))
        suspects.push_back(replica.worker);
    }
  }
  for (const Flight& flight : call.flights) {
    if (flight.open) suspects.push_back(flight.worker);
  }
  std::sort(suspects.begin(), suspects.end());
  suspects.erase(std::unique(suspects.begin(), suspects.end()), suspects.end());
  return absl::StrJoin(suspects, "; ", [this](std::string* out, WorkerId w) {
    absl::StrAppend(out, peers_.Describe(w));
  });
}

ExpertLink::Call* ExpertLink::FindCall(StepId step, LayerIndex layer,
                                       uint16_t micro_batch) const {
  for (const std::unique_ptr<Call>& call : calls_) {
    if (call->moe.step == step && call->moe.layer == layer &&
        call->micro_batch == micro_batch)
      return call.get();
  }
  return nullptr;
}

}  // namespace trunkline::trunk
