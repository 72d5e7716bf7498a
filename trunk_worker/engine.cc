#include "trunk_worker/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace trunkline::trunk {
namespace {

kernels::Activation ActivationOf(const model::Checkpoint& checkpoint) {
  return checkpoint.activation_dtype() == DType::kBF16
             ? kernels::Activation::kBf16
             : kernels::Activation::kF32;
}

TrunkWorker::Options CoreOptions(const Engine::Options& options,
                                 const model::ModelConfig& config) {
  TrunkWorker::Options core;
  core.batch = options.batch;
  core.waiting_max = options.waiting_max;
  core.vocab_size = config.vocab_size;
  core.unready_patience = options.unready_patience;
  return core;
}

absl::Status CheckAdmission(const routing::AdmissionPolicy& admission,
                            const model::ModelConfig& config) {
  if (admission.kind != routing::AdmissionKind::kDropless &&
      config.MoeLayers().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("admission ", routing::SpecOf(admission),
                     ": the model has no routed experts (layers ",
                     config.LayerPattern(), ")"));
  }
  for (LayerIndex layer : config.MoeLayers()) {
    TL_RETURN_IF_ERROR(routing::CheckServingAdmission(
        admission, config.layers[layer.value].moe.experts));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(
    const model::Checkpoint* checkpoint, const TrunkWeights* weights,
    const model::Tokenizer* tokenizer, std::unique_ptr<ExpertExchange> experts,
    ThreadPool* pool, Options options) {
  if (options.batch.rows_max < 2 || options.batch.prefill_chunk < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a step needs at least 2 rows and a prefill chunk at least 1; they "
        "are ",
        options.batch.rows_max, " and ", options.batch.prefill_chunk));
  }
  TL_RETURN_IF_ERROR(CheckAdmission(options.admission, checkpoint->config()));
  TL_ASSIGN_OR_RETURN(
      std::unique_ptr<SequencePool> states,
      SequencePool::Create(
          StateLayout::For(checkpoint->config(), ActivationOf(*checkpoint),
                           options.admission),
          options.state));
  return std::unique_ptr<Engine>(
      new Engine(checkpoint, weights, tokenizer, std::move(experts), pool,
                 std::move(states), std::move(options)));
}

Engine::Engine(const model::Checkpoint* checkpoint, const TrunkWeights* weights,
               const model::Tokenizer* tokenizer,
               std::unique_ptr<ExpertExchange> experts, ThreadPool* pool,
               std::unique_ptr<SequencePool> states, Options options)
    : options_(std::move(options)),
      clock_(Clock::Monotonic()),
      pool_(pool),
      experts_(std::move(experts)),
      states_(std::move(states)),
      runner_(&checkpoint->config(), weights, ActivationOf(*checkpoint),
              experts_.get(), kernels::KernelContext{pool},
              options_.batch.rows_max, options_.admission),
      core_(CoreOptions(options_, checkpoint->config()), states_.get(),
            tokenizer) {
  runner_.set_route_tap(options_.on_routes);
  PublishStats();
  thread_ = std::thread([this] { Loop(); });
}

Engine::~Engine() {
  Shutdown(absl::ZeroDuration());
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  mail_came_.notify_one();
  thread_.join();
}

absl::StatusOr<RequestId> Engine::Start(GenerationRequest request,
                                        OutputSink sink) {
  std::lock_guard lock(mutex_);
  if (mail_.size() >= options_.events_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the event queue is full: ", mail_.size(), " events"));
  }
  const RequestId id(next_request_++);
  request.id = id;
  mail_.push_back({Submit{std::move(request)}, std::move(sink)});
  idle_ = false;
  mail_came_.notify_one();
  return id;
}

// Cancellations are bounded by the requests that live, so they always fit.
void Engine::CancelRequest(RequestId id, absl::Status why) {
  std::lock_guard lock(mutex_);
  mail_.push_back({Cancel{id, std::move(why)}, nullptr});
  mail_came_.notify_one();
}

absl::StatusOr<Completion> Engine::Generate(GenerationRequest request) {
  std::mutex mutex;
  std::condition_variable ended;
  bool finished = false;
  absl::Status status;
  Completion all;
  auto sink = [&](Output part) {
    std::lock_guard lock(mutex);
    all.text += part.text;
    auto append = [](auto& to, auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(all.token_ids, part.token_ids);
    append(all.logprobs, part.logprobs);
    append(all.prompt_logprobs, part.prompt_logprobs);
    if (!part.finished) return;
    status = part.status;
    all.reason = part.reason;
    all.stop = part.stop;
    all.usage = part.usage;
    finished = true;
    ended.notify_one();
  };
  TL_RETURN_IF_ERROR(Start(std::move(request), sink).status());
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return finished; });
  TL_RETURN_IF_ERROR(status);
  return all;
}

void Engine::SetDraining(bool draining, absl::Status why) {
  std::lock_guard lock(mutex_);
  mail_.push_back({Drain{draining, std::move(why)}, nullptr});
  draining_ = draining;
  mail_came_.notify_one();
}

bool Engine::AtRest() const {
  std::lock_guard lock(mutex_);
  return draining_ && idle_ && mail_.empty();
}

void Engine::Shutdown(absl::Duration patience) {
  std::unique_lock lock(mutex_);
  mail_.push_back({Drain{}, nullptr});
  mail_came_.notify_one();
  auto idle = [&] { return idle_ && mail_.empty(); };
  // The standard library's clocks overflow on an infinite wait.
  const auto limit =
      absl::ToChronoMilliseconds(std::min(patience, absl::Hours(24 * 365)));
  if (became_idle_.wait_for(lock, limit, idle)) return;
  mail_.push_back({Cancel{RequestId(), absl::UnavailableError(
                                           "the server is shutting down")},
                   nullptr});
  mail_came_.notify_one();
  became_idle_.wait(lock, idle);
}

EngineStats Engine::Stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Engine::Loop() {
  pool_->AdoptCaller();
  while (true) {
    TakeMail();
    LookAtExperts();
    core_.Tick(clock_.Now());
    Deliver();
    ReportHold();
    RunPlannedStep();
    Deliver();
    PublishStats();
    std::unique_lock lock(mutex_);
    if (stop_) return;
    if (!mail_.empty()) continue;
    idle_ = core_.idle();
    if (idle_) became_idle_.notify_all();
    const absl::Time now = clock_.Now();
    if (core_.NextStep() <= now) continue;
    const absl::Time next = std::min(core_.NextDeadline(), core_.NextStep());
    const absl::Duration wait = std::clamp(
        next - now, absl::ZeroDuration(),
        readiness_.ok() ? options_.idle_poll : options_.unready_poll);
    mail_came_.wait_for(lock, absl::ToChronoNanoseconds(wait),
                        [&] { return !mail_.empty() || stop_; });
  }
}

void Engine::TakeMail() {
  std::deque<Mail> mail;
  {
    std::lock_guard lock(mutex_);
    mail.swap(mail_);
    if (!mail.empty()) idle_ = false;
  }
  for (Mail& item : mail) {
    if (auto* submit = std::get_if<Submit>(&item.event)) {
      sinks_.emplace(submit->request.id, std::move(item.sink));
    } else if (auto* cancel = std::get_if<Cancel>(&item.event);
               cancel != nullptr && !cancel->request.valid()) {
      // No id: everybody.
      std::vector<RequestId> all;
      for (const auto& [id, sink] : sinks_) all.push_back(id);
      for (RequestId id : all)
        core_.Step(Cancel{id, cancel->why}, clock_.Now());
      continue;
    }
    core_.Step(std::move(item.event), clock_.Now());
  }
}

void Engine::LookAtExperts() {
  absl::Status now = experts_->Ready();
  if (now == readiness_) return;
  readiness_ = now;
  core_.Step(Readiness{now}, clock_.Now());
  if (options_.on_readiness) options_.on_readiness(now);
}

void Engine::ReportHold() {
  const size_t held = readiness_.ok() ? 0 : core_.running() + core_.waiting();
  if (held == held_) return;
  held_ = held;
  if (options_.on_hold) options_.on_hold(held);
}

void Engine::RunPlannedStep() {
  const absl::Time begin = clock_.Now();
  const StepPlan& plan = core_.PlanStep(begin);
  if (plan.runs.empty()) return;
  Execute(plan);
  const absl::Time end = clock_.Now();
  ReportStep(plan, result_, end - begin);
  const uint64_t recomputed = core_.recomputed();
  core_.OnStepResult(result_, end);
  if (core_.recomputed() > recomputed && options_.on_recompute)
    options_.on_recompute(core_.recomputed() - recomputed);
}

void Engine::Execute(const StepPlan& plan) {
  StepResult& result = result_;
  result.started = true;
  result.status = absl::OkStatus();
  result.version = PlacementVersion();
  result.runs.clear();
  const absl::StatusOr<PlacementVersion> version =
      experts_->BeginStep(plan.step);
  if (!version.ok()) {
    result.started = false;
    result.status = version.status();
    return;
  }
  result.version = *version;
  {
    std::lock_guard lock(mutex_);
    stats_.version = *version;
  }
  row_runs_.clear();
  for (const StepRun& run : plan.runs) row_runs_.push_back(run.rows);
  std::vector<LayerObserver*> observers;
  for (StepObserver* observer : options_.observers) {
    LayerObserver* layers = observer->BeginStep(plan, *version);
    if (layers != nullptr) observers.push_back(layers);
  }
  runner_.set_observers(std::move(observers));
  result.status = runner_.RunStep(plan.step, row_runs_, &logits_);
  experts_->EndStep(plan.step);
  if (!result.status.ok()) return;
  ShowLogits(plan, *version);
  SampleStep(plan, logits_, *pool_, &scratch_, &result);
  for (size_t i = 0; i < result.runs.size(); ++i)
    result.runs[i].routes = runner_.run_route_counts()[i];
}

void Engine::ShowLogits(const StepPlan& plan, PlacementVersion version) {
  for (size_t i = 0; i < logits_.rows.size(); ++i) {
    const auto [run, row] = logits_.rows[i];
    const LogitSink* sink = plan.runs[run].on_logits;
    if (sink == nullptr && !options_.on_logits) continue;
    const RowRun& rows = row_runs_[run];
    const int64_t position =
        rows.state->length() - static_cast<int64_t>(rows.tokens.size()) + row;
    if (sink != nullptr) (*sink)(version, position, logits_[i]);
    if (options_.on_logits)
      options_.on_logits(plan.runs[run].request, position, logits_[i]);
  }
}

void Engine::ReportStep(const StepPlan& plan, const StepResult& result,
                        absl::Duration time) {
  StepStats stats;
  stats.time = time;
  stats.rows = plan.rows;
  for (const StepRun& run : plan.runs) {
    if (run.sample && run.rows.tokens.size() == 1 &&
        run.spec.output_position > 0)
      ++stats.decode_rows;
  }
  stats.version = result.version;
  stats.failed = !result.status.ok();
  stats.broken_contract = routing::BrokenContractOf(result.status);
  if (result.started) {
    stats.routes = runner_.route_counts();
    stats.layer_routes = runner_.layer_route_counts();
  }
  if (stats.failed) {
    TL_LOG_WARN("step {} of {} rows failed: {}", plan.step.value, plan.rows,
                result.status.ToString());
  }
  if (options_.on_step) options_.on_step(stats);
  if (!result.started) return;
  for (StepObserver* observer : options_.observers) observer->EndStep();
}

void Engine::Deliver() {
  for (Output& output : core_.TakeOutputs()) {
    auto sink = sinks_.find(output.request);
    TL_CHECK(sink != sinks_.end());
    if (output.finished) {
      // The slot counts as free before the caller hears of the end.
      PublishStats();
      OutputSink last = std::move(sink->second);
      sinks_.erase(sink);
      last(std::move(output));
    } else {
      sink->second(std::move(output));
    }
  }
}

void Engine::PublishStats() {
  std::lock_guard lock(mutex_);
  stats_.running = core_.running();
  stats_.waiting = core_.waiting();
  stats_.sequences_max = states_->sequences_max();
  stats_.state_bytes_total = states_->bytes_total();
  stats_.state_bytes_used = states_->bytes_used();
  stats_.readiness = readiness_;
}

}  // namespace trunkline::trunk
