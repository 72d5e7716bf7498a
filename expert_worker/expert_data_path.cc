#include "expert_worker/expert_data_path.h"

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/log.h"

namespace trunkline::expert {

namespace {

transport::ConnectionId ConnectionOf(PeerKey peer) {
  return transport::ConnectionId(peer.value);
}

}  // namespace

ExpertDataPath::ExpertDataPath(const Options& options,
                               const kernels::KernelContext& context,
                               transport::Transport* transport,
                               ExpertMetrics* metrics, const Clock* clock)
    : transport_(transport),
      metrics_(metrics),
      clock_(*clock),
      digest_of_(options.digest_of),
      core_(options.layers,
            options.activation == kernels::Activation::kBf16 ? DType::kBF16
                                                             : DType::kF32,
            options.limits),
      shard_server_([this](ExpertKey key) { return FindLoaded(key); },
                    options.shard_bytes_under_way_max),
      runner_(context, options.activation, options.answer, clock) {}

void ExpertDataPath::Serve(PlacementVersion version,
                           std::shared_ptr<const Shard> shard) {
  core_.Serve(version, shard->Experts());
  shards_[version] = std::move(shard);
  metrics_->placement_version.Set(
      static_cast<double>(shards_.rbegin()->first.value));
}

void ExpertDataPath::Retire(PlacementVersion version) {
  for (const Refusal& refusal : core_.Retire(version)) SendRefusal(refusal);
  shards_.erase(version);
  metrics_->placement_version.Set(
      shards_.empty() ? 0 : static_cast<double>(shards_.rbegin()->first.value));
}

void ExpertDataPath::Poll(absl::Duration max_wait) {
  events_.clear();
  transport_->Poll(core_.idle() ? max_wait : absl::ZeroDuration(), &events_);
}

void ExpertDataPath::Work() {
  for (transport::Event& event : events_) Handle(std::move(event));
  if (const std::optional<Batch> batch = core_.NextBatch()) RunBatch(*batch);
}

void ExpertDataPath::Handle(transport::Event event) {
  switch (event.kind) {
    case transport::Event::Kind::kAccepted:
      metrics_->peers.Increment();
      return;
    case transport::Event::Kind::kConnected:
      return;  // this side never connects
    case transport::Event::Kind::kReceived:
      OnReceived(std::move(event));
      return;
    case transport::Event::Kind::kSendDone: {
      const auto found = sends_.find(event.token);
      TL_CHECK(found != sends_.end()) << "token " << event.token;
      core_.OnAnswerGone(found->second.answer_bytes);
      shard_server_.OnGone(found->second.shard_bytes);
      sends_.erase(found);
      if (!event.status.ok()) {
        metrics_->answers_lost.Increment();
        TL_LOG_DEBUG("an answer was not sent: {}",
                     std::string(event.status.message()));
        // The trunk waits for it. Hanging up tells it at once.
        transport_->Disconnect(event.connection);
      }
      return;
    }
    case transport::Event::Kind::kPeerDown: {
      metrics_->peers.Decrement();
      TL_LOG_INFO("trunk connection {} ended: {}", event.connection.value,
                  std::string(event.status.message()));
      for (const FrameKey frame :
           core_.OnPeerDown(PeerKey(event.connection.value))) {
        metrics_->frames_dropped.Increment();
        LetGo(frame);
      }
      return;
    }
  }
}

std::optional<ShardServer::Held> ExpertDataPath::FindLoaded(
    ExpertKey key) const {
  for (const auto& [version, shard] : shards_) {
    const kernels::MlpWeights* weights = shard->Find(key);
    if (weights == nullptr || digest_of_ == nullptr) continue;
    const std::optional<ExpertDigest> digest = digest_of_(key);
    if (!digest.has_value()) continue;
    return ShardServer::Held{.weights = weights, .digest = *digest};
  }
  return std::nullopt;
}

void ExpertDataPath::OnShardRequest(transport::Event event) {
  std::optional<ShardServer::Answer> answer = shard_server_.Handle(
      {event.message.data(), event.message.size}, *transport_);
  transport_->Release(std::move(event.message));
  if (!answer.has_value()) {
    metrics_->frames_dropped.Increment();
    return;
  }
  (answer->refused ? metrics_->shard_pieces_refused
                   : metrics_->shard_pieces_sent)
      .Increment();
  metrics_->shard_bytes_sent.Increment(static_cast<double>(answer->rows_bytes));
  const uint64_t token = next_send_++;
  sends_[token].shard_bytes = answer->rows_bytes;
  shard_server_.OnSent(answer->rows_bytes);
  transport_->Send(event.connection, std::move(answer->message), token);
}

void ExpertDataPath::OnReceived(transport::Event event) {
  if (IsShardFrame({event.message.data(), event.message.size})) {
    OnShardRequest(std::move(event));
    return;
  }
  metrics_->frames_received.Increment();
  ReceivedFrame frame;
  frame.key = FrameKey(next_frame_++);
  frame.peer = PeerKey(event.connection.value);
  frame.bytes = {event.message.data(), event.message.size};
  // The bytes stay where they are while the message moves.
  frames_.emplace(frame.key, std::move(event.message));
  const FrameVerdict verdict = core_.OnFrame(frame, clock_.Now());
  if (verdict.refusal.has_value()) {
    SendRefusal(*verdict.refusal);
  } else if (verdict.dropped) {
    metrics_->frames_dropped.Increment();
    LetGo(frame.key);
  }
}

void ExpertDataPath::RunBatch(const Batch& batch) {
  std::vector<transport::Message> answers;
  std::vector<std::span<std::byte>> spans;
  answers.reserve(batch.frames.size());
  for (const BatchFrame& frame : batch.frames) {
    answers.push_back(transport_->Allocate(runner_.AnswerBytes(frame)));
    spans.emplace_back(answers.back().data(), answers.back().size);
  }
  const absl::Time start = clock_.Now();
  const absl::Status status =
      runner_.Run(batch, *shards_.at(batch.version), spans);
  metrics_->batches.Increment();
  if (!status.ok()) {
    TL_LOG_ERROR("batch failed: {}", std::string(status.message()));
    for (size_t i = 0; i < batch.frames.size(); ++i) {
      transport_->Release(std::move(answers[i]));
      SendRefusal(
          core_.RefuseInternal(batch.frames[i], std::string(status.message())));
    }
    return;
  }
  metrics_->routes_executed.Increment(
      static_cast<double>(batch.routes.order.size()));
  metrics_->compute_seconds.Observe(
      absl::ToDoubleSeconds(runner_.last_compute()));
  costs_.Add(batch.routes.groups.size(), batch.routes.order.size(),
             runner_.last_compute());
  for (size_t i = 0; i < batch.frames.size(); ++i) {
    const BatchFrame& frame = batch.frames[i];
    metrics_->rows_received.Increment(frame.view.header.row_count);
    metrics_->OnAnswered(frame.view.header.route_count, answers[i].size,
                         start - frame.received);
    Send(frame.peer, std::move(answers[i]));
    LetGo(frame.key);
  }
}

void ExpertDataPath::SendRefusal(const Refusal& refusal) {
  metrics_->OnRefused(refusal.header.refusal);
  LogRefusal(refusal);
  transport::Message message =
      transport_->Allocate(dispatch::RefusalFrameBytes(refusal.message.size()));
  const std::span<std::byte> bytes(message.data(), message.size);
  dispatch::WriteRefusalFrame(refusal.header, refusal.message, bytes);
  dispatch::SealFrame(bytes);
  Send(refusal.peer, std::move(message));
  LetGo(refusal.frame);
}

// A peer that sends rubbish all day must not fill the disk.
void ExpertDataPath::LogRefusal(const Refusal& refusal) {
  const absl::Time now = clock_.Now();
  if (now < last_refusal_log_ + absl::Seconds(1)) {
    ++refusals_not_logged_;
    return;
  }
  TL_LOG_WARN(
      "refused a frame of connection {}: {}: {} ({} more since the last "
      "line)",
      refusal.peer.value,
      std::string(dispatch::RefusalName(refusal.header.refusal)),
      refusal.message, refusals_not_logged_);
  last_refusal_log_ = now;
  refusals_not_logged_ = 0;
}

void ExpertDataPath::Send(PeerKey peer, transport::Message message) {
  const uint64_t token = next_send_++;
  sends_[token].answer_bytes = message.size;
  core_.OnAnswerSent(message.size);
  transport_->Send(ConnectionOf(peer), std::move(message), token);
}

void ExpertDataPath::LetGo(FrameKey frame) {
  const auto found = frames_.find(frame);
  TL_CHECK(found != frames_.end()) << "frame " << frame;
  transport::Message message = std::move(found->second);
  frames_.erase(found);
  transport_->Release(std::move(message));
}

}  // namespace trunkline::expert
