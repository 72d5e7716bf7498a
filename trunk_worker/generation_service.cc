#include "trunk_worker/generation_service.h"

#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/random.h"
#include "control/status_to_grpc.h"
#include "trunk_worker/resume_token.h"

namespace trunkline::trunk {
namespace {

// The moment on the engine's clock when the caller stops waiting.
absl::Time Deadline(const grpc::CallbackServerContext& context, absl::Time now,
                    absl::Duration longest) {
  const auto wire = context.deadline();
  absl::Duration left = longest;
  if (wire != std::chrono::system_clock::time_point::max()) {
    left = std::min(left,
                    absl::FromChrono(wire - std::chrono::system_clock::now()));
  }
  return now + left;
}

uint64_t RandomSeedBase() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// What an output takes in a buffer, roughly.
int64_t BufferCost(const Output& output) {
  size_t cost = output.text.size() + 16 * output.token_ids.size();
  for (const auto* list : {&output.logprobs, &output.prompt_logprobs})
    for (const TokenLogprobs& l : *list) cost += 48 * (1 + l.top.size());
  return static_cast<int64_t>(cost);
}

}  // namespace

GenerationService::GenerationService(const ServedModel* model, Engine* engine,
                                     TrunkMetrics* metrics, Options options)
    : model_(*model),
      engine_(*engine),
      metrics_(*metrics),
      options_(std::move(options)),
      seed_base_(RandomSeedBase()) {}

// One request on its way through the engine: what both kinds of call share. The
// call lives until gRPC is done with it and the engine has made its last
// output, whichever comes later.
class GenerationService::Call {
 public:
  explicit Call(GenerationService* service)
      : service_(*service), arrived_(service->engine_.Now()) {}
  virtual ~Call() = default;

  // Calls OnOutput with a finished output once, now or later. `self` keeps the
  // call until then.
  void Begin(const grpc::CallbackServerContext& context,
             const v1::GenerateRequest& wire, std::shared_ptr<Call> self) {
    const uint64_t number = service_.arrivals_.fetch_add(1);
    absl::StatusOr<GenerationRequest> request = RequestFromWire(
        wire, service_.model_, SplitMix64(service_.seed_base_ + number));
    if (!request.ok()) return Refuse(request.status());
    seed_ = request->sampling.seed;
    if (request->name.empty()) {
      request->name = absl::StrCat(
          "r-", absl::Hex(SplitMix64(~service_.seed_base_ + number)));
    }
    name_ = request->name;
    deadline_ = Deadline(context, arrived_, service_.options_.request_time_max);
    request->deadline = deadline_;
    Follow(*request);
    absl::StatusOr<RequestId> id = service_.engine_.Start(
        *std::move(request), [this, self = std::move(self)](Output output) {
          Count(output);
          OnOutput(std::move(output));
        });
    if (!id.ok()) return Refuse(id.status());
    std::lock_guard lock(id_mutex_);
    id_ = *id;
    if (cancelled_) SendCancel();
  }

  // The client has gone: the slot is free before the next step.
  void CancelFromClient() {
    std::lock_guard lock(id_mutex_);
    cancelled_ = true;
    if (id_.valid()) SendCancel();
  }

 protected:
  virtual void OnOutput(Output output) = 0;
  // The request as the engine is about to get it.
  virtual void Follow(const GenerationRequest&) {}

  GenerationService& service_;
  uint64_t seed_ = 0;
  std::string name_;

 private:
  void Refuse(absl::Status status) {
    Output refusal;
    refusal.finished = true;
    refusal.status = std::move(status);
    Count(refusal);
    OnOutput(std::move(refusal));
  }
  // A client that gave up because its time was over cancels, too.
  void SendCancel() {
    service_.engine_.CancelRequest(
        id_, service_.engine_.Now() >= deadline_
                 ? absl::DeadlineExceededError("the client's deadline passed")
                 : absl::CancelledError("the client cancelled the request"));
  }
  void Count(Output& output) {
    if (!output.token_ids.empty() && !std::exchange(has_token_, true))
      service_.metrics_.OnFirstToken(service_.engine_.Now() - arrived_);
    if (!output.finished) return;
    if (output.retry_after > absl::ZeroDuration())
      control::SetRetryAfter(&output.status, output.retry_after);
    service_.metrics_.OnRequestEnd(output.status, output.usage);
    service_.metrics_.OnState(service_.engine_.Stats());
    TL_LOG_DEBUG("request {}: {} tokens in, {} out, {}", name_,
                 output.usage.prompt_tokens, output.usage.output_tokens,
                 output.status.ToString());
  }

  const absl::Time arrived_;
  absl::Time deadline_ = absl::InfiniteFuture();
  bool has_token_ = false;
  std::mutex id_mutex_;
  RequestId id_;
  bool cancelled_ = false;
};

class GenerationService::UnaryCall final : public Call,
                                           public grpc::ServerUnaryReactor {
 public:
  UnaryCall(GenerationService* service, v1::GenerateResponse* response)
      : Call(service), response_(response) {}

  void Hold(std::shared_ptr<UnaryCall> self) { self_ = std::move(self); }
  void OnCancel() override { CancelFromClient(); }
  void OnDone() override { const auto last = std::move(self_); }

 private:
  void OnOutput(Output output) override {
    chunk_.Clear();
    AppendToChunk(output, service_.model_, &chunk_);
    AppendToResponse(chunk_, response_);
    if (!output.finished) return;
    response_->set_seed(seed_);
    response_->set_request_id(name_);
    Finish(control::ToGrpc(output.status));
  }

  v1::GenerateResponse* const response_;
  v1::GenerateChunk chunk_;
  std::shared_ptr<UnaryCall> self_;
};

// One write is under way at a time; what is made meanwhile gathers in one
// pending chunk.
class GenerationService::StreamCall final
    : public Call,
      public grpc::ServerWriteReactor<v1::GenerateChunk> {
 public:
  explicit StreamCall(GenerationService* service) : Call(service) {}

  void Hold(std::shared_ptr<StreamCall> self) { self_ = std::move(self); }
  void OnCancel() override { CancelFromClient(); }
  void OnDone() override {
    std::shared_ptr<StreamCall> last;
    {
      // Ordered after whatever another of gRPC's threads did here last.
      std::lock_guard lock(mutex_);
      last = std::move(self_);
    }
  }
  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      // The stream is broken: OnCancel follows, and nobody reads the rest.
      if (!ok) {
        broken_ = true;
        has_pending_ = false;
        pending_.Clear();
      }
    }
    Advance();
  }

 private:
  void OnOutput(Output output) override {
    {
      std::lock_guard lock(mutex_);
      const bool carries =
          !output.token_ids.empty() || (output.finished && output.status.ok());
      if (carries && !broken_ && !overflowed_) Append(output);
      if (output.finished) {
        ended_ = true;
        status_ = std::move(output.status);
      } else if (buffered_ > service_.options_.stream_buffer_bytes &&
                 !std::exchange(overflowed_, true)) {
        service_.engine_.CancelRequest(
            output.request, absl::ResourceExhaustedError(absl::StrCat(
                                "the client does not read its stream: ",
                                buffered_, " bytes of output wait for it")));
      }
    }
    Advance();
  }

  void Append(const Output& output) {
    AppendToChunk(output, service_.model_, &pending_);
    if (!std::exchange(introduced_, true)) {
      pending_.set_seed(seed_);
      pending_.set_request_id(name_);
    }
    if (tracker_.has_value()) tracker_->Delivered(output);
    has_pending_ = true;
    buffered_ += BufferCost(output);
  }

  void Follow(const GenerationRequest& request) override {
    std::lock_guard lock(mutex_);
    tracker_.emplace(request, service_.model_.checkpoint->digest(),
                     NumericsOf(service_.model_));
  }

  // A request that never began has nothing to go on with.
  absl::Status FailureDetails(absl::Status status) {
    if (status.ok() || !tracker_.has_value() || absl::IsInvalidArgument(status))
      return status;
    v1::StreamFailure failure;
    failure.set_output_tokens(tracker_->output_tokens());
    failure.set_resume_token(tracker_->Token());
    control::SetDetail(&status, failure);
    return status;
  }

  // Starts what can be started. The gRPC call is made without the lock, since
  // it may call back.
  void Advance() {
    enum { kNothing, kWrite, kFinish } next = kNothing;
    {
      std::lock_guard lock(mutex_);
      if (writing_ || finish_called_) return;
      if (has_pending_) {
        current_.Clear();
        current_.Swap(&pending_);
        if (tracker_.has_value() &&
            current_.finish_reason() == v1::FINISH_REASON_UNSPECIFIED)
          current_.set_resume_token(tracker_->Token());
        has_pending_ = false;
        buffered_ = 0;
        writing_ = true;
        next = kWrite;
      } else if (ended_) {
        finish_called_ = true;
        status_ = FailureDetails(std::move(status_));
        next = kFinish;
      }
    }
    if (next == kWrite) StartWrite(&current_);
    if (next == kFinish) Finish(control::ToGrpc(status_));
  }

  std::mutex mutex_;           // guards all below but current_
  v1::GenerateChunk current_;  // gRPC reads it while writing_
  v1::GenerateChunk pending_;
  std::optional<ResumeTracker> tracker_;
  bool has_pending_ = false;
  int64_t buffered_ = 0;
  bool introduced_ = false;
  bool writing_ = false;
  bool broken_ = false;
  bool overflowed_ = false;
  bool ended_ = false;
  bool finish_called_ = false;
  absl::Status status_;
  std::shared_ptr<StreamCall> self_;
};

grpc::ServerUnaryReactor* GenerationService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request,
    v1::GenerateResponse* response) {
  auto call = std::make_shared<UnaryCall>(this, response);
  call->Hold(call);
  call->Begin(*context, *request, call);
  return call.get();
}

grpc::ServerWriteReactor<v1::GenerateChunk>* GenerationService::GenerateStream(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto call = std::make_shared<StreamCall>(this);
  call->Hold(call);
  call->Begin(*context, *request, call);
  return call.get();
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(
    grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
    v1::TokenizeResponse* response) {
  auto result = trunk::Tokenize(*request, model_);
  if (result.ok()) *response = *std::move(result);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(control::ToGrpc(result.status()));
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(
    grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
    v1::DetokenizeResponse* response) {
  auto result = trunk::Detokenize(*request, model_);
  if (result.ok()) *response = *std::move(result);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(control::ToGrpc(result.status()));
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::GetModel(
    grpc::CallbackServerContext* context, const v1::GetModelRequest*,
    v1::GetModelResponse* response) {
  *response = DescribeModel(model_);
  const PlacementVersion active = options_.active_version();
  const EngineStats stats = engine_.Stats();
  response->set_placement_version(active.valid() ? active.value : 0);
  response->set_sequence_slots(static_cast<uint32_t>(stats.sequences_max));
  response->set_sequence_slots_used(static_cast<uint32_t>(stats.running));
  response->set_state_bytes_total(
      static_cast<uint64_t>(stats.state_bytes_total));
  response->set_state_bytes_used(static_cast<uint64_t>(stats.state_bytes_used));
  response->set_queued_requests(static_cast<uint32_t>(stats.waiting));
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace trunkline::trunk
