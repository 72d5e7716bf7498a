#include "trunk_worker/route_recorder_service.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"

namespace trunkline::trunk {
namespace {

constexpr double kSecondsMax = 86400.0;
constexpr uint64_t kBufferBytesMax = uint64_t{4} << 30;
// Of one chunk, roughly: well below what a gRPC client takes by default.
constexpr size_t kChunkBytes = size_t{1} << 20;

RecordedLayer LayerOf(const model::LayerSpec& spec, int64_t hidden,
                      const MoeWeights& weights) {
  RecordedLayer layer;
  layer.layer = spec.index;
  layer.experts = spec.moe.experts;
  layer.top_k = spec.moe.top_k;
  layer.width = spec.moe.expert_input(hidden);
  layer.bias = weights.correction_bias;
  layer.policy =
      routing::RecordOf(RouterPolicyOf(spec.moe), !layer.bias.empty());
  return layer;
}

absl::Status CheckRequest(const v1::RecordRequest& request) {
  if (!std::isfinite(request.seconds()) || request.seconds() <= 0 ||
      request.seconds() > kSecondsMax)
    return absl::InvalidArgumentError(absl::StrCat(
        "seconds: ", request.seconds(), " is not in (0, ", kSecondsMax, "]"));
  if (request.buffer_bytes() > kBufferBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("buffer_bytes: ", request.buffer_bytes(), " is more than ",
                     kBufferBytesMax));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RecordingHeader> MakeRecordingHeader(
    const model::Checkpoint& checkpoint, const TrunkWeights& weights,
    const routing::AdmissionPolicy& admission,
    const std::vector<LayerIndex>& layers) {
  const model::ModelConfig& config = checkpoint.config();
  std::vector<LayerIndex> chosen = layers;
  if (chosen.empty()) chosen = config.MoeLayers();
  if (chosen.empty())
    return absl::FailedPreconditionError(
        absl::StrCat("the model has no routed experts (layers ",
                     config.LayerPattern(), ")"));
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  RecordingHeader header;
  for (LayerIndex layer : chosen) {
    if (layer.value >= config.layers.size() ||
        config.layers[layer.value].kind != model::LayerKind::kMoe)
      return absl::InvalidArgumentError(absl::StrCat("layers: ", layer.value,
                                                     " is no moe layer of ",
                                                     config.LayerPattern()));
    header.layers.push_back(
        LayerOf(config.layers[layer.value], config.hidden_size,
                std::get<MoeWeights>(weights.layers()[layer.value].mixer)));
    header.layers.back().admission = admission;
  }
  header.model_digest = checkpoint.digest();
  header.row_dtype = checkpoint.activation_dtype();
  return header;
}

// Lives until gRPC is done with it. Its thread writes, waiting for each write
// to be taken, so a slow client fills the recording's bounded queue and no
// other memory.
class RouteRecorderService::RecordCall final
    : public grpc::ServerWriteReactor<v1::RecordChunk> {
 public:
  RecordCall(RouteRecorder* recorder, RecordingHeader header,
             std::shared_ptr<Recording> recording, absl::Duration length)
      : recorder_(*recorder),
        header_(std::move(header)),
        recording_(std::move(recording)),
        until_(Clock::Monotonic().Now() + length),
        thread_([this] { Run(); }) {}
  ~RecordCall() override { thread_.join(); }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      broken_ = broken_ || !ok;
    }
    written_.notify_one();
  }
  // The client has gone.
  void OnCancel() override {
    recorder_.Stop(recording_->id(), RecordingEnd::kConnectionLost);
  }
  void OnDone() override { delete this; }

 private:
  void Run() {
    *chunk_.add_entries()->mutable_header() = ToProto(header_);
    Send();
    std::vector<CapturedLayer> captured;
    while (recording_->Take(until_, &captured)) {
      for (CapturedLayer& layer : captured) {
        if (status_.ok()) status_ = Append(std::move(layer));
        if (chunk_bytes_ > kChunkBytes) Send();
      }
      Send();
      if (!status_.ok())
        recorder_.Stop(recording_->id(), RecordingEnd::kStopped);
      if (Clock::Monotonic().Now() >= until_) {
        until_ = absl::InfiniteFuture();
        recorder_.Stop(recording_->id(), RecordingEnd::kTimeOver);
      }
    }
    *chunk_.add_entries()->mutable_trailer() = ToProto(recording_->Trailer());
    if (status_.ok()) Send();
    Finish(control::ToGrpc(status_));
  }

  absl::Status Append(CapturedLayer captured) {
    const RecordedLayer& layer = *header_.Find(captured.layer);
    TL_ASSIGN_OR_RETURN(const RecordedRoutes routes,
                        RecordOf(std::move(captured), layer));
    *chunk_.add_entries()->mutable_layer() = ToProto(routes);
    chunk_bytes_ += chunk_.entries(chunk_.entries_size() - 1).ByteSizeLong();
    return absl::OkStatus();
  }

  void Send() {
    if (chunk_.entries_size() == 0) return;
    bool broken = false;
    {
      std::lock_guard lock(mutex_);
      broken = broken_;
      writing_ = !broken;
    }
    if (!broken) {
      StartWrite(&chunk_);
      std::unique_lock lock(mutex_);
      written_.wait(lock, [this] { return !writing_; });
    }
    chunk_.Clear();
    chunk_bytes_ = 0;
  }

  RouteRecorder& recorder_;
  const RecordingHeader header_;
  const std::shared_ptr<Recording> recording_;

  // The thread's own.
  absl::Time until_;
  v1::RecordChunk chunk_;  // gRPC reads it while writing_
  size_t chunk_bytes_ = 0;
  absl::Status status_;

  std::mutex mutex_;  // guards the next two
  bool writing_ = false;
  bool broken_ = false;
  std::condition_variable written_;
  std::thread thread_;  // last: starts when everything else stands
};

RouteRecorderService::RouteRecorderService(const model::Checkpoint* checkpoint,
                                           const TrunkWeights* weights,
                                           routing::AdmissionPolicy admission,
                                           RouteRecorder* recorder,
                                           std::string model_name,
                                           std::string trunk_name)
    : checkpoint_(*checkpoint),
      weights_(*weights),
      admission_(std::move(admission)),
      recorder_(*recorder),
      model_name_(std::move(model_name)),
      trunk_name_(std::move(trunk_name)) {}

absl::StatusOr<RecordingHeader> RouteRecorderService::HeaderFor(
    const v1::RecordRequest& request) {
  TL_RETURN_IF_ERROR(CheckRequest(request));
  std::vector<LayerIndex> layers;
  for (uint32_t layer : request.layers()) layers.push_back(LayerIndex(layer));
  TL_ASSIGN_OR_RETURN(
      RecordingHeader header,
      MakeRecordingHeader(checkpoint_, weights_, admission_, layers));
  header.model_name = model_name_;
  header.trunk = trunk_name_;
  header.started_unix_ms = absl::ToUnixMillis(absl::Now());
  return header;
}

grpc::ServerWriteReactor<v1::RecordChunk>* RouteRecorderService::Record(
    grpc::CallbackServerContext*, const v1::RecordRequest* request) {
  // Ends with an error and nothing else.
  class Refusal final : public grpc::ServerWriteReactor<v1::RecordChunk> {
   public:
    explicit Refusal(const absl::Status& why) { Finish(control::ToGrpc(why)); }
    void OnDone() override { delete this; }
  };
  absl::StatusOr<RecordingHeader> header = HeaderFor(*request);
  if (!header.ok()) return new Refusal(header.status());
  Recording::Options options;
  for (const RecordedLayer& layer : header->layers)
    options.layers.push_back(layer.layer);
  if (request->buffer_bytes() > 0)
    options.buffer_bytes = static_cast<int64_t>(request->buffer_bytes());
  auto recording = recorder_.Start(std::move(options));
  if (!recording.ok()) return new Refusal(recording.status());
  header->recording_id = (*recording)->id();
  TL_LOG_INFO("recording {} of {} layers for {} s", header->recording_id,
              header->layers.size(), request->seconds());
  return new RecordCall(&recorder_, *std::move(header), *std::move(recording),
                        absl::Seconds(request->seconds()));
}

grpc::ServerUnaryReactor* RouteRecorderService::StopRecording(
    grpc::CallbackServerContext* context,
    const v1::StopRecordingRequest* request, v1::StopRecordingResponse*) {
  absl::Status status;
  if (!recorder_.Stop(request->recording_id(), RecordingEnd::kStopped))
    status = absl::NotFoundError(absl::StrCat(
        "recording_id: ", request->recording_id(), " does not run"));
  auto* reactor = context->DefaultReactor();
  reactor->Finish(control::ToGrpc(status));
  return reactor;
}

}  // namespace trunkline::trunk
