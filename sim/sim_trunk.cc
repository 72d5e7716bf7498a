#include "sim/sim_trunk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace trunkline::sim {

using trunk::StepRun;

namespace {

// As the expert workers' (sim_expert.cc).
constexpr char kModelDigest[] = "simulated";
constexpr char kNumericsClass[] = "portable";

control::Registration RegistrationOf(const SimModel& model,
                                     const TrunkMachine& machine) {
  control::Registration registration;
  registration.name = machine.name;
  registration.role = control::Role::kTrunk;
  registration.api_address = machine.name + ":80";
  registration.model_digest = kModelDigest;
  registration.numerics_class = kNumericsClass;
  registration.self_check_digest = "exact";
  registration.moe_layers = model.shapes();
  return registration;
}

// No layer of the simulated model keeps state but the token prefix.
std::unique_ptr<trunk::SequencePool> MakePool(
    const SimTrunk::Options& options) {
  trunk::SequencePool::Options pool;
  pool.sequences_max = options.sequences_max;
  pool.tokens_max = options.tokens_max;
  auto made = trunk::SequencePool::Create(trunk::StateLayout(), pool);
  TL_CHECK(made.ok()) << made.status();
  return *std::move(made);
}

trunk::ExpertLink::Options LinkOptions(const SimTrunk::Options& options,
                                       const Clock* clock) {
  trunk::ExpertLink::Options link = options.link;
  link.clock = clock;
  return link;
}

trunk::TrunkWorker::Options CoreOptions(const SimTrunk::Options& options) {
  trunk::TrunkWorker::Options core = options.core;
  core.vocab_size = kVocabulary;
  return core;
}

}  // namespace

SimTrunk::SimTrunk(World* world, Network* network, Fabric* fabric,
                   ControlPlane* plane, const SimModel* model,
                   const TrunkMachine* machine, const Options& options,
                   Hooks hooks, std::function<void()> on_refused)
    : world_(world),
      network_(network),
      model_(model),
      machine_(machine),
      hooks_(std::move(hooks)),
      on_refused_(std::move(on_refused)),
      clock_(world, absl::Seconds(static_cast<int64_t>(world->Below(100000)))),
      transport_(
          *new SimTransport(fabric, world, machine->place, [this] { Wake(); })),
      states_(MakePool(options)),
      link_(std::unique_ptr<transport::Transport>(&transport_),
            kernels::KernelContext{&pool_}, LinkOptions(options, &clock_)),
      core_(CoreOptions(options), states_.get(), nullptr),
      canary_(CanaryOptions(options.canary_tokens)),
      client_(world, network, plane, machine->place,
              RegistrationOf(*model, *machine),
              {.on_registered =
                   [this](const control::Identity& identity) {
                     identity_ = identity;
                   },
               .on_view =
                   [this](const control::ClusterView& view) {
                     hooks_.on_view(*this, view);
                     if (world_->has(PlantedBug::kClaimUnseenViews) &&
                         view.revision % 3 == 0)
                       return;
                     link_.UpdateView(view, identity_);
                     FollowDrain(view);
                     active_ = view.active;
                     if (!draining_) canary_.Look(active_);
                   },
               .make_report =
                   [this] {
                     control::Report report;
                     if (!world_->has(PlantedBug::kForgetStepsInFlight))
                       report.oldest_in_flight = link_.oldest_in_flight();
                     report.loads = link_.TakeLoads();
                     report.at_rest = at_rest() && mail_.empty();
                     // One that failed is begun again.
                     if (!draining_) canary_.Look(active_);
                     report.canary = canary_.result();
                     return report;
                   },
               .on_refused =
                   [this](const absl::Status& status) {
                     world_->Trace(name(), " is refused: ", status.ToString());
                     world_->After(absl::ZeroDuration(), on_refused_);
                   }}) {
  network_->SetAlive(machine_->place, true);
}

trunk::Canary::Options SimTrunk::CanaryOptions(int64_t prompt_tokens) {
  trunk::Canary::Options canary;
  canary.prompt_tokens = prompt_tokens;
  canary.output_tokens = 4;
  canary.vocab_size = kVocabulary;
  canary.numerics = kNumericsClass;
  canary.time_max = absl::Seconds(20);
  canary.now = [this] { return clock_.Now(); };
  canary.start = [this](trunk::GenerationRequest request,
                        trunk::OutputSink sink) {
    // No client's request has such a number.
    request.id = RequestId((uint64_t{1} << 40) + next_canary_++);
    Submit(std::move(request),
           [sink = std::move(sink)](trunk::Output output, const std::string&) {
             sink(std::move(output));
           });
    return absl::OkStatus();
  };
  canary.on_result = [this] { client_.ReportNow(); };
  return canary;
}

SimTrunk::~SimTrunk() { *alive_ = false; }

void SimTrunk::Resume() {
  client_.Resume();
  Wake();
}

// As TrunkServer::FollowDrain.
void SimTrunk::FollowDrain(const control::ClusterView& view) {
  const control::WorkerView* self = view.FindWorker(identity_.worker);
  if (self == nullptr || draining_ == self->draining) return;
  draining_ = self->draining;
  mail_.push_back(trunk::Drain{
      .on = draining_, .why = absl::UnavailableError("the trunk is drained")});
  Wake();
}

void SimTrunk::JumpClock(absl::Duration by) {
  clock_.Jump(by);
  Wake();
}

void SimTrunk::Submit(trunk::GenerationRequest request, StreamSink sink) {
  streams_.insert_or_assign(
      request.id, Stream{.sink = std::move(sink),
                         .tracker = trunk::ResumeTracker(request, kModelDigest,
                                                         kNumericsClass)});
  std::vector<int32_t>& text = texts_[request.id];
  text = request.prompt;
  text.insert(text.end(), request.delivered.begin(), request.delivered.end());
  mail_.push_back(trunk::Submit{std::move(request)});
  Wake();
}

// As trunk_worker/resume_request.cc, for a model without text.
absl::Status SimTrunk::Continue(trunk::GenerationRequest request,
                                const std::string& resume_token,
                                std::vector<int32_t> delivered,
                                StreamSink sink) {
  TL_ASSIGN_OR_RETURN(const trunk::ResumeToken token,
                      trunk::ParseResumeToken(resume_token));
  trunk::IdDigest prompt, output;
  prompt.Add(request.prompt);
  output.Add(delivered);
  if (token.model_digest != kModelDigest ||
      token.numerics_class != kNumericsClass ||
      token.prompt_tokens != request.prompt.size() ||
      token.prompt != prompt.digest() ||
      token.output_tokens != delivered.size() ||
      token.output != output.digest() ||
      token.output_tokens >= token.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the resume token covers ", token.output_tokens, " tokens of ",
        token.max_tokens, ", the client has ", delivered.size()));
  }
  request.max_tokens = token.max_tokens;
  request.sampling = token.sampling;
  request.delivered = std::move(delivered);
  request.delivered_text = token.text;
  Submit(std::move(request), std::move(sink));
  return absl::OkStatus();
}

PlacementVersion SimTrunk::version_in_use() const {
  if (!step_.has_value()) return PlacementVersion();
  // A step that was planned anew runs under a version that only the link knows.
  return link_.stats().placements_replaced == step_->replaced_before
             ? step_->version
             : link_.oldest_in_flight();
}

void SimTrunk::Cancel(RequestId request) {
  if (!streams_.contains(request)) return;
  mail_.push_back(
      trunk::Cancel{request, absl::CancelledError("the client has left")});
  Wake();
}

void SimTrunk::WakeAt(absl::Time world_time) {
  if (world_time >= wake_at_) return;
  wake_at_ = world_time;
  world_->At(world_time, [this, alive = alive_, world_time] {
    if (!*alive || wake_at_ != world_time) return;
    wake_at_ = absl::InfiniteFuture();
    if (!network_->paused(place())) Turn();
  });
}

// As Engine::Loop, but a step that waits for its experts ends the turn.
void SimTrunk::Turn() {
  if (!step_.has_value()) {
    TakeMail();
    LookAtExperts();
    core_.Tick(clock_.Now());
    Deliver();
    BeginStep();
    Deliver();
  }
  while (step_.has_value() && AdvanceStep()) {
  }
  absl::Time next = link_.NextWake();
  if (!step_.has_value()) {
    if (!mail_.empty()) WakeAt(world_->now() + absl::Microseconds(10));
    next = std::min({next, core_.NextDeadline(), core_.NextStep()});
  } else if (!step_->exchanging) {
    WakeAt(step_->next_layer_at);
    return;
  }
  if (next != absl::InfiniteFuture()) {
    WakeAt(
        std::max(clock_.ToWorld(next), world_->now() + absl::Microseconds(10)));
  }
}

void SimTrunk::TakeMail() {
  std::vector<trunk::Event> mail;
  mail.swap(mail_);
  for (trunk::Event& event : mail) core_.Step(std::move(event), clock_.Now());
}

void SimTrunk::LookAtExperts() {
  const absl::Status now = link_.Ready();
  if (now == readiness_) return;
  readiness_ = now;
  core_.Step(trunk::Readiness{now}, clock_.Now());
}

void SimTrunk::Deliver() {
  for (trunk::Output& output : core_.TakeOutputs()) {
    const auto stream = streams_.find(output.request);
    TL_CHECK(stream != streams_.end()) << "an output for nobody";
    std::vector<int32_t>& text = texts_[output.request];
    text.insert(text.end(), output.token_ids.begin(), output.token_ids.end());
    stream->second.tracker.Delivered(output);
    const std::string token = stream->second.tracker.Token();
    if (!output.finished) {
      stream->second.sink(std::move(output), token);
      continue;
    }
    const StreamSink last = std::move(stream->second.sink);
    streams_.erase(stream);
    texts_.erase(output.request);
    last(std::move(output), token);
  }
}

void SimTrunk::BeginStep() {
  const trunk::StepPlan& plan = core_.PlanStep(clock_.Now());
  if (plan.runs.empty()) return;
  const auto version = link_.BeginStep(plan.step);
  if (!version.ok()) {
    trunk::StepResult result;
    result.started = false;
    result.status = version.status();
    core_.OnStepResult(result, clock_.Now());
    return;
  }
  hooks_.on_step(*this, *version);
  step_.emplace();
  step_->plan = plan;
  step_->version = *version;
  step_->replaced_before = link_.stats().placements_replaced;
  step_->next_layer_at = world_->now();
  PrepareRows();
}

void SimTrunk::PrepareRows() {
  for (const StepRun& run : step_->plan.runs) {
    const std::vector<int32_t>& text = texts_.at(run.request);
    const auto begin = static_cast<size_t>(run.rows.state->length());
    for (size_t i = 0; i < run.rows.tokens.size(); ++i) {
      std::vector<int32_t> prefix(
          text.begin(),
          text.begin() + static_cast<std::ptrdiff_t>(begin + i + 1));
      TL_CHECK_EQ(prefix.back(), run.rows.tokens[i]);
      step_->rows.push_back(SimModel::Embed(prefix));
      step_->prefixes.push_back(std::move(prefix));
    }
    run.rows.state->BeginStep(static_cast<int64_t>(run.rows.tokens.size()));
  }
}

bool SimTrunk::AdvanceStep() {
  Step& step = *step_;
  if (!step.exchanging) {
    if (world_->now() < step.next_layer_at) return false;
    if (step.layer == model_->shapes().size()) {
      EndStep(absl::OkStatus());
      return false;
    }
    BeginLayer();
    return step_.has_value();
  }
  link_.Poll(absl::ZeroDuration());
  if (!link_.Settled(step.call)) return false;
  absl::Status status = link_.Finish(step.call);
  step.exchanging = false;
  if (!status.ok() && world_->has(PlantedBug::kMaskDeadExperts)) {
    std::fill(step.output.begin(), step.output.end(), 0.0f);
    step.executed.routes.clear();
    status = absl::OkStatus();
  }
  if (!status.ok()) {
    EndStep(status);
    return false;
  }
  if (world_->has(PlantedBug::kAnswersByArrival) && step.rows.size() > 1) {
    std::rotate(step.output.begin(), step.output.begin() + kWidth,
                step.output.end());
  }
  hooks_.on_combined(*this, step.call, step.rows);
  for (size_t r = 0; r < step.rows.size(); ++r) {
    Row combined;
    for (int i = 0; i < kWidth; ++i)
      combined[i] = static_cast<int32_t>(step.output[r * kWidth + i]);
    step.rows[r] = SimModel::Residual(step.rows[r], combined);
  }
  ++step.layer;
  step.next_layer_at =
      world_->now() +
      world_->Between(absl::Microseconds(5), machine_->layer_time_most);
  return false;
}

void SimTrunk::BeginLayer() {
  Step& step = *step_;
  const LayerIndex layer = model_->shapes()[step.layer].layer;
  const auto rows = static_cast<int64_t>(step.rows.size());
  step.routes.Clear(rows, model_->experts(), model_->top_k());
  step.input.clear();
  step.output.assign(static_cast<size_t>(rows * kWidth), -1.0f);
  for (int64_t r = 0; r < rows; ++r) {
    const Row& row = step.rows[static_cast<size_t>(r)];
    for (const int32_t v : row) step.input.push_back(static_cast<float>(v));
    uint16_t slot = 0;
    for (const SimModel::Choice& choice : model_->Route(layer, row)) {
      step.routes.Add(static_cast<uint32_t>(r), slot++, ExpertId(choice.expert),
                      static_cast<float>(choice.gate));
    }
  }
  step.call = trunk::MoeCall();
  step.call.step = step.plan.step;
  step.call.layer = layer;
  step.call.routes = &step.routes;
  step.call.rows = step.input.data();
  step.call.row_stride = kWidth;
  step.call.width = kWidth;
  step.call.combined = step.output.data();
  step.call.combined_stride = kWidth;
  step.call.executed = &step.executed;
  const absl::Status status = link_.Begin(step.call);
  if (!status.ok()) {
    EndStep(status);
    return;
  }
  step.exchanging = true;
}

// A row of the last layer is what this model has of logits.
void SimTrunk::ShowLogits(const StepRun& run, size_t first_row) const {
  if (run.on_logits == nullptr) return;
  for (size_t i = 0; i < run.rows.tokens.size(); ++i) {
    const Row& row = step_->rows[first_row + i];
    const std::vector<float> logits(row.begin(), row.end());
    (*run.on_logits)(step_->version,
                     run.rows.state->length() + static_cast<int64_t>(i),
                     logits);
  }
}

void SimTrunk::EndStep(const absl::Status& status) {
  link_.EndStep(step_->plan.step);
  if (!status.ok()) hooks_.on_step_failed(*this, status);
  trunk::StepResult result;
  result.status = status;
  result.version = step_->version;
  size_t row = 0;
  for (const StepRun& run : step_->plan.runs) {
    row += run.rows.tokens.size();
    if (!status.ok()) continue;
    ShowLogits(run, row - run.rows.tokens.size());
    run.rows.state->CommitStep();
    trunk::RunResult one;
    if (run.sample) {
      one.token.id =
          SimModel::Token(step_->rows[row - 1], step_->prefixes[row - 1]);
    }
    result.runs.push_back(std::move(one));
  }
  core_.OnStepResult(result, clock_.Now());
  step_.reset();
  Deliver();
  WakeAt(world_->now() + absl::Microseconds(10));
}

}  // namespace trunkline::sim
