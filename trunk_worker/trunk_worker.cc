#include "trunk_worker/trunk_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/planted_mistake.h"
#include "common/status_macros.h"
#include "trunk_worker/output_text.h"

namespace trunkline::trunk {
namespace {

// Between a failed step and the next; doubles from the first to the most.
constexpr absl::Duration kRetryDelayFirst = absl::Milliseconds(20);
constexpr absl::Duration kRetryDelayMost = absl::Seconds(1);

}  // namespace

// One request on its way. `state` is set once it is admitted.
struct TrunkWorker::Sequence {
  Sequence(GenerationRequest r, const model::Tokenizer* tokenizer,
           absl::Time now)
      : request(std::move(r)),
        text(tokenizer, request.stop, request.stop_token_ids,
             request.include_special_tokens),
        made(request.delivered),
        submitted(now) {
    for (int32_t id : request.prompt) history.AddPrompt(id);
    for (int32_t id : made) history.AddOutput(id);
    if (!made.empty()) StartOver();
  }

  // The state is built anew, from the prompt and all that was made.
  void StartOver() {
    rebuilt = request.prompt;
    rebuilt.insert(rebuilt.end(), made.begin(), made.end());
    if (TL_PLANTED(kForgetLastDelivered) && !request.delivered.empty())
      rebuilt.pop_back();
    prompt_logprobs.clear();
  }

  int64_t prompt_size() const {
    return static_cast<int64_t>(request.prompt.size());
  }
  int64_t tokens_max() const { return prompt_size() + request.max_tokens; }
  int64_t outputs() const { return static_cast<int64_t>(made.size()); }
  // Of this stream, without what earlier ones delivered.
  int64_t fresh_outputs() const {
    return outputs() - static_cast<int64_t>(request.delivered.size());
  }
  // What the state is built from by prefill: the prompt, and for a sequence
  // that had to start over or goes on with an earlier stream also what it had
  // made by then.
  std::span<const int32_t> context() const {
    return rebuilt.empty() ? request.prompt : rebuilt;
  }
  int64_t context_left() const {
    return std::max<int64_t>(
        0, static_cast<int64_t>(context().size()) - state->length());
  }

  GenerationRequest request;
  TokenHistory history;
  OutputText text;
  std::unique_ptr<SequenceState> state;
  std::vector<int32_t> made, rebuilt;
  // Since when no step of it has succeeded; infinite future: the last one did.
  absl::Time failing_since = absl::InfiniteFuture();
  std::vector<TokenLogprobs> prompt_logprobs;
  bool in_step = false;
  bool finished = false;
  absl::Time submitted, admitted, first_token;
  RunRouteCounts routes;
};

TrunkWorker::TrunkWorker(const Options& options, SequencePool* pool,
                         const model::Tokenizer* tokenizer)
    : options_(options), pool_(pool), tokenizer_(tokenizer) {}

TrunkWorker::~TrunkWorker() = default;

void TrunkWorker::Step(Event event, absl::Time now) {
  if (auto* submit = std::get_if<Submit>(&event)) {
    OnSubmit(std::move(submit->request), now);
  } else if (auto* cancel = std::get_if<Cancel>(&event)) {
    OnCancel(*cancel, now);
  } else if (auto* readiness = std::get_if<Readiness>(&event)) {
    OnReadiness(readiness->status, now);
  } else {
    const Drain& drain = std::get<Drain>(event);
    draining_.reset();
    if (drain.on) draining_ = drain.why;
  }
}

absl::Status TrunkWorker::CheckRequest(const GenerationRequest& r) const {
  if (r.prompt.empty())
    return absl::InvalidArgumentError("prompt is empty: it has no tokens");
  for (size_t i = 0; i < r.prompt.size(); ++i) {
    if (r.prompt[i] >= 0 && r.prompt[i] < options_.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt tokens[", i, "] is ", r.prompt[i],
        "; the vocabulary has ids 0 to ", options_.vocab_size - 1));
  }
  for (size_t i = 0; i < r.stop.size(); ++i) {
    if (r.stop[i].empty())
      return absl::InvalidArgumentError(absl::StrCat("stop[", i, "] is empty"));
  }
  TL_RETURN_IF_ERROR(ValidateSampling(r.sampling));
  if (!r.stop.empty() && tokenizer_ == nullptr) {
    return absl::FailedPreconditionError(
        "stop strings need a tokenizer, and this model has none");
  }
  const int64_t prompt = static_cast<int64_t>(r.prompt.size());
  if (prompt + std::max<int64_t>(1, r.max_tokens) > pool_->tokens_max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt of ", prompt, " tokens and max_tokens ",
                     std::max<int64_t>(1, r.max_tokens), " exceed the ",
                     pool_->tokens_max(), " tokens that a sequence may have"));
  }
  return CheckDelivered(r);
}

absl::Status TrunkWorker::CheckDelivered(const GenerationRequest& r) const {
  if (r.delivered.empty()) return absl::OkStatus();
  for (size_t i = 0; i < r.delivered.size(); ++i) {
    if (r.delivered[i] >= 0 && r.delivered[i] < options_.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "delivered tokens[", i, "] is ", r.delivered[i],
        "; the vocabulary has ids 0 to ", options_.vocab_size - 1));
  }
  if (static_cast<int64_t>(r.delivered.size()) >= r.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(r.delivered.size(), " tokens are delivered of at most ",
                     r.max_tokens, ": nothing is left to make"));
  }
  return absl::OkStatus();
}

// Whether the request can start at once; it never overtakes one that waits.
absl::Status TrunkWorker::CheckCapacity(const GenerationRequest& r) const {
  TL_RETURN_IF_ERROR(readiness_);
  if (!waiting_.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(waiting_.size(), " requests wait for memory already"));
  }
  return pool_->CanAdmit(static_cast<int64_t>(r.prompt.size()) + r.max_tokens);
}

void TrunkWorker::OnSubmit(GenerationRequest request, absl::Time now) {
  absl::Status status =
      draining_.has_value() ? *draining_ : CheckRequest(request);
  if (status.ok() && request.deadline <= now) {
    status = absl::DeadlineExceededError(
        "the deadline had passed when the request arrived");
  }
  if (request.max_tokens == 0) {
    request.max_tokens =
        pool_->tokens_max() - static_cast<int64_t>(request.prompt.size());
  }
  auto sequence =
      std::make_unique<Sequence>(std::move(request), tokenizer_, now);
  if (draining_.has_value()) {
    Output output;
    output.request = sequence->request.id;
    output.status = std::move(status);
    output.retry_after = options_.drain_retry_after;
    return Finish(*sequence, std::move(output), now);
  }
  if (!status.ok()) return FinishWith(*sequence, status, now);
  // Its text so far, so that what is held back and what might stop it stand as
  // they did.
  for (int32_t id : sequence->request.delivered) {
    const absl::Status appended = sequence->text.Append(id).status();
    if (!appended.ok()) return FinishWith(*sequence, appended, now);
  }
  status = CheckCapacity(sequence->request);
  if (status.ok()) return Admit(std::move(sequence), now);
  if (!sequence->request.wait_for_capacity)
    return FinishWith(*sequence, status, now);
  const auto callers = static_cast<size_t>(std::count_if(
      waiting_.begin(), waiting_.end(),
      [](const auto& waiting) { return !waiting->request.background; }));
  if (!sequence->request.background && callers >= options_.waiting_max) {
    return FinishWith(*sequence,
                      absl::ResourceExhaustedError(absl::StrCat(
                          "the queue is full: ", callers, " requests wait")),
                      now);
  }
  waiting_.push_back(std::move(sequence));
}

void TrunkWorker::Admit(std::unique_ptr<Sequence> sequence, absl::Time now) {
  sequence->state = pool_->Admit(sequence->tokens_max());
  sequence->admitted = now;
  running_.push_back(std::move(sequence));
}

void TrunkWorker::AdmitWaiting(absl::Time now) {
  if (!readiness_.ok()) return;
  while (!waiting_.empty() &&
         pool_->CanAdmit(waiting_.front()->tokens_max()).ok()) {
    std::unique_ptr<Sequence> sequence = std::move(waiting_.front());
    waiting_.pop_front();
    Admit(std::move(sequence), now);
  }
}

void TrunkWorker::OnCancel(const Cancel& cancel, absl::Time now) {
  TL_CHECK(!cancel.why.ok());
  // A request that ended a moment ago is not an error: the two crossed.
  Sequence* sequence = Find(cancel.request);
  if (sequence == nullptr || sequence->finished) return;
  FinishWith(*sequence, cancel.why, now);
  DropFinished();
}

void TrunkWorker::OnReadiness(const absl::Status& status, absl::Time now) {
  readiness_ = status;
  if (status.ok()) {
    unready_since_ = absl::InfiniteFuture();
  } else if (unready_since_ == absl::InfiniteFuture()) {
    unready_since_ = now;
  }
}

void TrunkWorker::Tick(absl::Time now) {
  const bool given_up =
      !readiness_.ok() && now >= unready_since_ + options_.unready_patience;
  auto check = [&](Sequence& sequence, const char* where) {
    if (sequence.finished) return;
    if (sequence.request.deadline <= now) {
      FinishWith(sequence,
                 absl::DeadlineExceededError(absl::StrCat(
                     "the deadline passed while the request ", where)),
                 now);
    } else if (given_up && sequence.state != nullptr) {
      FinishWith(sequence, readiness_, now);
    }
  };
  for (auto& sequence : running_) check(*sequence, "ran");
  for (auto& sequence : waiting_) check(*sequence, "waited for capacity");
  DropFinished();
}

absl::Time TrunkWorker::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& sequence : running_)
    next = std::min(next, sequence->request.deadline);
  for (const auto& sequence : waiting_)
    next = std::min(next, sequence->request.deadline);
  if (!readiness_.ok() && !running_.empty())
    next = std::min(next, unready_since_ + options_.unready_patience);
  return next;
}

absl::Time TrunkWorker::NextStep() const {
  return running_.empty() || !readiness_.ok() ? absl::InfiniteFuture()
                                              : retry_at_;
}

const StepPlan& TrunkWorker::PlanStep(absl::Time now) {
  TL_CHECK(!step_under_way_) << "a step is under way";
  plan_.runs.clear();
  plan_.rows = 0;
  AdmitWaiting(now);
  if (NextStep() > now) return plan_;
  context_left_.clear();
  for (const auto& sequence : running_)
    context_left_.push_back(sequence->context_left());
  PlanBatch(options_.batch, context_left_, rotation_, &batch_);
  for (const BatchRun& run : batch_) PlanRun(run);
  plan_.step = StepId(next_step_++);
  step_under_way_ = true;
  return plan_;
}

void TrunkWorker::PlanRun(const BatchRun& batch) {
  Sequence& sequence = *running_[batch.sequence];
  const GenerationRequest& request = sequence.request;
  sequence.in_step = true;
  StepRun run;
  run.request = request.id;
  run.rows.state = sequence.state.get();
  run.spec = {&request.sampling, &sequence.history,
              static_cast<uint64_t>(sequence.outputs()), request.logprobs};
  if (batch.decode) {
    ++rotation_;
    run.rows.tokens = {&sequence.made.back(), 1};
    run.sample = true;
    run.rows.logits = LogitRows::kLast;
  } else {
    const std::span<const int32_t> context = sequence.context();
    const int64_t begin = sequence.state->length();
    run.rows.tokens = context.subspan(begin, batch.rows);
    run.sample = batch.rows == sequence.context_left();
    run.rows.logits = run.sample ? LogitRows::kLast : LogitRows::kNone;
    // They came with the first token; a sequence that starts over later has
    // delivered them.
    if (request.prompt_logprobs && sequence.outputs() == 0) {
      run.rows.logits = LogitRows::kAll;
      const int64_t left = sequence.prompt_size() - begin - 1;
      run.following = context.subspan(begin + 1, std::min(batch.rows, left));
    }
  }
  if (request.on_logits) {
    run.on_logits = &request.on_logits;
    run.rows.logits = LogitRows::kAll;
  }
  plan_.rows += batch.rows;
  plan_.runs.push_back(run);
}

void TrunkWorker::OnStepResult(const StepResult& result, absl::Time now) {
  TL_CHECK(step_under_way_) << "no step is under way";
  step_under_way_ = false;
  if (result.status.ok()) TL_CHECK_EQ(result.runs.size(), plan_.runs.size());
  retry_delay_ =
      result.status.ok()
          ? absl::ZeroDuration()
          : std::clamp(retry_delay_ * 2, kRetryDelayFirst, kRetryDelayMost);
  retry_at_ = now + retry_delay_;
  for (size_t i = 0; i < plan_.runs.size(); ++i) {
    Sequence* sequence = Find(plan_.runs[i].request);
    TL_CHECK(sequence != nullptr);
    sequence->in_step = false;
    if (sequence->finished) continue;  // cancelled while the step ran
    if (!result.started) continue;
    if (!result.status.ok()) {
      OnFailedStep(*sequence, result.status, now);
    } else {
      sequence->failing_since = absl::InfiniteFuture();
      TakeRunResult(plan_.runs[i], result.runs[i], result.version, now);
    }
  }
  DropFinished();
}

void TrunkWorker::OnFailedStep(Sequence& sequence, const absl::Status& status,
                               absl::Time now) {
  sequence.failing_since = std::min(sequence.failing_since, now);
  const bool experts_were_missing =
      absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  if (!experts_were_missing ||
      now - sequence.failing_since >= options_.unready_patience)
    return FinishWith(sequence, status, now);
  // Its mamba state is half advanced, so it is computed anew. The old one goes
  // first: what it gives back is what the new one needs.
  sequence.state.reset();
  sequence.state = pool_->Admit(sequence.tokens_max());
  sequence.StartOver();
  sequence.routes = {};  // each row is counted once: as it is computed again
  ++recomputed_;
}

void TrunkWorker::TakeRunResult(const StepRun& run, const RunResult& result,
                                PlacementVersion version, absl::Time now) {
  Sequence& sequence = *Find(run.request);
  sequence.routes.selected += result.routes.selected;
  sequence.routes.dropped += result.routes.dropped;
  if (!result.status.ok()) return FinishWith(sequence, result.status, now);
  sequence.prompt_logprobs.insert(sequence.prompt_logprobs.end(),
                                  result.prompt_logprobs.begin(),
                                  result.prompt_logprobs.end());
  if (run.sample) TakeToken(sequence, result, version, now);
}

void TrunkWorker::TakeToken(Sequence& sequence, const RunResult& result,
                            PlacementVersion version, absl::Time now) {
  const GenerationRequest& request = sequence.request;
  const int32_t token = result.token.id;
  Output output;
  output.request = request.id;
  output.placement_version = version;
  output.token_ids.push_back(token);
  if (request.logprobs > 0) output.logprobs.push_back(result.token.logprobs);
  if (sequence.fresh_outputs() == 0) {
    sequence.first_token = now;
    output.prompt_logprobs = std::move(sequence.prompt_logprobs);
  }
  sequence.made.push_back(token);
  sequence.history.AddOutput(token);

  absl::StatusOr<OutputText::Piece> piece = sequence.text.Append(token);
  if (!piece.ok()) return FinishWith(sequence, piece.status(), now);
  output.text = std::move(piece->text);
  output.stop = std::move(piece->stop);
  if (piece->stop_token || !output.stop.empty()) {
    output.reason = FinishReason::kStop;
  } else if (sequence.outputs() >= request.max_tokens) {
    output.reason = FinishReason::kLength;
  }
  if (output.reason == FinishReason::kNone) {
    output.usage = UsageOf(sequence, now);
    outputs_.push_back(std::move(output));
  } else {
    if (output.stop.empty()) {
      // What was held back may complete a stop string (text_stream.h).
      OutputText::Piece rest = sequence.text.Finish();
      output.text += rest.text;
      output.stop = std::move(rest.stop);
      if (!output.stop.empty()) output.reason = FinishReason::kStop;
    }
    Finish(sequence, std::move(output), now);
  }
}

Usage TrunkWorker::UsageOf(const Sequence& sequence, absl::Time now) {
  Usage usage = sequence.request.spent;
  usage.prompt_tokens = sequence.prompt_size();
  usage.output_tokens = sequence.outputs();
  usage.routes_selected = sequence.routes.selected;
  usage.routes_dropped = sequence.routes.dropped;
  usage.resumed_tokens = sequence.outputs() - sequence.fresh_outputs();
  const bool admitted = sequence.state != nullptr;
  usage.queued += (admitted ? sequence.admitted : now) - sequence.submitted;
  if (sequence.fresh_outputs() > 0) {
    usage.prefill += sequence.first_token - sequence.admitted;
    usage.decode += now - sequence.first_token;
  }
  return usage;
}

void TrunkWorker::Finish(Sequence& sequence, Output output, absl::Time now) {
  TL_CHECK(!sequence.finished);
  sequence.finished = true;
  output.finished = true;
  output.usage = UsageOf(sequence, now);
  outputs_.push_back(std::move(output));
}

void TrunkWorker::FinishWith(Sequence& sequence, absl::Status status,
                             absl::Time now) {
  Output output;
  output.request = sequence.request.id;
  output.status = std::move(status);
  Finish(sequence, std::move(output), now);
}

void TrunkWorker::DropFinished() {
  auto gone = [](const std::unique_ptr<Sequence>& sequence) {
    return sequence->finished && !sequence->in_step;
  };
  std::erase_if(running_, gone);
  std::erase_if(waiting_, gone);
}

TrunkWorker::Sequence* TrunkWorker::Find(RequestId id) {
  for (auto& sequence : running_)
    if (sequence->request.id == id) return sequence.get();
  for (auto& sequence : waiting_)
    if (sequence->request.id == id) return sequence.get();
  return nullptr;
}

std::vector<Output> TrunkWorker::TakeOutputs() {
  return std::exchange(outputs_, {});
}

}  // namespace trunkline::trunk
