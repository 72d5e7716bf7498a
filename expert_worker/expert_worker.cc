#include "expert_worker/expert_worker.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/planted_mistake.h"

namespace trunkline::expert {

using dispatch::FrameHeader;
using dispatch::FrameKind;
using dispatch::RefusalCode;

ExpertWorker::ExpertWorker(std::vector<MoeLayer> layers, DType row_dtype,
                           const Limits& limits)
    : layers_(std::move(layers)), row_dtype_(row_dtype), limits_(limits) {}

void ExpertWorker::SetIdentity(uint64_t cluster_id, WorkerId worker) {
  cluster_id_ = cluster_id;
  worker_ = worker;
}

void ExpertWorker::Serve(PlacementVersion version,
                         const std::vector<ExpertKey>& owned) {
  OwnedLayers layers;
  for (const ExpertKey key : owned) {
    const MoeLayer* layer = FindLayer(key.layer.value);
    TL_CHECK(layer != nullptr && key.expert.value < layer->experts)
        << "layer " << key.layer << " expert " << key.expert;
    std::vector<bool>& bits = layers[key.layer];
    bits.resize(layer->experts, false);
    bits[key.expert.value] = true;
  }
  versions_[version] = std::move(layers);
}

std::vector<Refusal> ExpertWorker::Retire(PlacementVersion version) {
  versions_.erase(version);
  std::vector<Refusal> refusals;
  std::deque<Waiting> kept;
  for (Waiting& waiting : queue_) {
    if (waiting.version != version) {
      kept.push_back(std::move(waiting));
      continue;
    }
    queued_bytes_ -= waiting.bytes;
    refusals.push_back(
        Refuse(waiting.frame.key, waiting.frame.peer, waiting.frame.view.header,
               {RefusalCode::kUnknownVersion,
                absl::StrCat("placement version ", version.value,
                             " was retired; serving ", ServedVersions())}));
  }
  queue_ = std::move(kept);
  return refusals;
}

FrameVerdict ExpertWorker::OnFrame(const ReceivedFrame& frame, absl::Time now) {
  ++counters_.frames_received;
  FrameVerdict verdict;
  const auto refuse = [&](const FrameHeader& header, Fault fault) {
    verdict.refusal = Refuse(frame.key, frame.peer, header, std::move(fault));
    return verdict;
  };

  const absl::StatusOr<FrameKind> kind = dispatch::PeekKind(frame.bytes);
  if (kind.ok() && *kind != FrameKind::kDispatch) {
    // Refusing a refusal would make two confused peers talk for ever.
    ++counters_.frames_dropped;
    verdict.dropped = true;
    return verdict;
  }
  absl::StatusOr<dispatch::DispatchFrameView> view =
      dispatch::DecodeDispatch(frame.bytes);
  if (!view.ok()) {
    // A header that does not hold by itself names no step: its fields can't be
    // trusted.
    const absl::StatusOr<FrameHeader> header =
        dispatch::DecodeHeader(frame.bytes);
    return refuse(
        header.ok() ? *header : FrameHeader(),
        {RefusalCode::kMalformed, std::string(view.status().message())});
  }
  if (TL_PLANTED(kServeAnotherVersion) && !versions_.empty() &&
      !versions_.contains(PlacementVersion(view->header.placement_version)))
    view->header.placement_version = versions_.rbegin()->first.value;
  const FrameHeader& header = view->header;
  if (auto fault = CheckAddress(header)) return refuse(header, *fault);
  if (auto fault = CheckShape(header)) return refuse(header, *fault);
  if (auto fault = CheckRoutes(*view)) return refuse(header, *fault);
  if (auto fault = CheckRoom(frame.bytes.size())) return refuse(header, *fault);

  counters_.rows_received += header.row_count;
  queued_bytes_ += frame.bytes.size();
  const PlacementVersion version(header.placement_version);
  const LayerIndex layer(header.layer);
  queue_.push_back({{frame.key, frame.peer, *std::move(view), now},
                    version,
                    layer,
                    frame.bytes.size()});
  return verdict;
}

std::optional<ExpertWorker::Fault> ExpertWorker::CheckAddress(
    const FrameHeader& header) const {
  if (!cluster_id_.has_value())
    return Fault{RefusalCode::kWrongCluster,
                 "this worker has not joined a cluster yet"};
  if (header.cluster_id != *cluster_id_)
    return Fault{RefusalCode::kWrongCluster,
                 absl::StrCat("cluster id ", header.cluster_id,
                              "; this worker is in cluster ", *cluster_id_)};
  if (header.worker_rank != worker_.value)
    return Fault{RefusalCode::kWrongWorker,
                 absl::StrCat("worker rank ", header.worker_rank,
                              "; this is worker ", worker_.value)};
  if (draining_)
    return Fault{RefusalCode::kDraining,
                 absl::StrCat("worker ", worker_.value,
                              " is draining and takes no new work")};
  if (!versions_.contains(PlacementVersion(header.placement_version)))
    return Fault{RefusalCode::kUnknownVersion,
                 absl::StrCat("placement version ", header.placement_version,
                              " is not served by worker ", worker_.value,
                              "; serving ", ServedVersions())};
  return std::nullopt;
}

std::optional<ExpertWorker::Fault> ExpertWorker::CheckShape(
    const FrameHeader& header) const {
  const MoeLayer* layer = FindLayer(header.layer);
  if (layer == nullptr)
    return Fault{RefusalCode::kWrongShape,
                 absl::StrCat("layer ", header.layer,
                              " has no routed experts in this model")};
  if (header.row_width != layer->row_width)
    return Fault{
        RefusalCode::kWrongShape,
        absl::StrCat("row width ", header.row_width, "; experts of layer ",
                     header.layer, " take rows of ", layer->row_width)};
  if (header.row_dtype != row_dtype_)
    return Fault{
        RefusalCode::kWrongShape,
        absl::StrCat("rows of type ", DTypeName(header.row_dtype),
                     "; this model's rows are ", DTypeName(row_dtype_))};
  return std::nullopt;
}

std::optional<ExpertWorker::Fault> ExpertWorker::CheckRoutes(
    const dispatch::DispatchFrameView& view) const {
  const LayerIndex layer(view.header.layer);
  const PlacementVersion version(view.header.placement_version);
  const OwnedLayers& layers = versions_.at(version);
  const auto owned = layers.find(layer);
  for (size_t i = 0; i < view.expert_id.size(); ++i) {
    const uint32_t expert = view.expert_id[i];
    if (owned != layers.end() && expert < owned->second.size() &&
        owned->second[expert])
      continue;
    return Fault{
        RefusalCode::kNotOwner,
        absl::StrCat("route ", i, " names expert ", expert, " of layer ",
                     layer.value, ", which placement version ", version.value,
                     " does not place on worker ", worker_.value)};
  }
  return std::nullopt;
}

std::optional<ExpertWorker::Fault> ExpertWorker::CheckRoom(
    size_t frame_bytes) const {
  if (queue_.size() >= limits_.queued_frames_max)
    return Fault{RefusalCode::kOverloaded,
                 absl::StrCat(queue_.size(), " frames wait; the limit is ",
                              limits_.queued_frames_max)};
  const size_t held = queued_bytes_ + answer_bytes_;
  if (held + frame_bytes > limits_.held_bytes_max)
    return Fault{RefusalCode::kOverloaded,
                 absl::StrCat(queued_bytes_, " bytes wait and ", answer_bytes_,
                              " bytes of answers are on their way; a frame of ",
                              frame_bytes, " bytes would pass the limit of ",
                              limits_.held_bytes_max)};
  return std::nullopt;
}

Refusal ExpertWorker::Refuse(FrameKey frame, PeerKey peer,
                             const FrameHeader& header, Fault fault) {
  ++counters_.frames_refused;
  ++counters_.refusals[fault.code];
  if (fault.message.size() > dispatch::kRefusalMessageMax)
    fault.message.resize(dispatch::kRefusalMessageMax);
  Refusal refusal;
  refusal.frame = frame;
  refusal.peer = peer;
  refusal.header = header;
  refusal.header.kind = FrameKind::kRefusal;
  refusal.header.refusal = fault.code;
  refusal.header.gated = false;
  refusal.header.row_count = 0;
  refusal.header.route_count = 0;
  // Who refuses, even when the frame was meant for somebody else.
  if (worker_.valid()) refusal.header.worker_rank = worker_.value;
  if (header.cluster_id == 0 && cluster_id_.has_value())
    refusal.header.cluster_id = *cluster_id_;
  refusal.message = std::move(fault.message);
  return refusal;
}

Refusal ExpertWorker::RefuseInternal(const BatchFrame& frame, std::string why) {
  return Refuse(frame.key, frame.peer, frame.view.header,
                {RefusalCode::kInternal, std::move(why)});
}

std::vector<FrameKey> ExpertWorker::OnPeerDown(PeerKey peer) {
  std::vector<FrameKey> forgotten;
  std::deque<Waiting> kept;
  for (Waiting& waiting : queue_) {
    if (waiting.frame.peer != peer) {
      kept.push_back(std::move(waiting));
      continue;
    }
    queued_bytes_ -= waiting.bytes;
    forgotten.push_back(waiting.frame.key);
  }
  queue_ = std::move(kept);
  counters_.frames_forgotten += forgotten.size();
  return forgotten;
}

std::optional<Batch> ExpertWorker::NextBatch() {
  if (queue_.empty()) return std::nullopt;
  Batch batch;
  batch.version = queue_.front().version;
  batch.layer = queue_.front().layer;
  const MoeLayer* layer = FindLayer(batch.layer.value);
  TL_CHECK(layer != nullptr);
  batch.row_width = layer->row_width;

  size_t routes = 0;
  bool full = false;
  std::deque<Waiting> kept;
  for (Waiting& waiting : queue_) {
    const size_t more = waiting.frame.view.expert_id.size();
    const bool same =
        waiting.version == batch.version && waiting.layer == batch.layer;
    // Once one of them does not fit, later ones must not overtake it.
    if (same && !batch.frames.empty() &&
        routes + more > limits_.batch_routes_max)
      full = true;
    if (!same || full) {
      kept.push_back(std::move(waiting));
      continue;
    }
    routes += more;
    queued_bytes_ -= waiting.bytes;
    batch.frames.push_back(std::move(waiting.frame));
  }
  queue_ = std::move(kept);

  std::vector<std::span<const uint32_t>> experts;
  experts.reserve(batch.frames.size());
  for (const BatchFrame& frame : batch.frames)
    experts.push_back(frame.view.expert_id);
  batch.routes = GroupByExpert(experts, layer->experts);
  ++counters_.batches;
  counters_.frames_batched += batch.frames.size();
  counters_.routes_batched += routes;
  return batch;
}

std::vector<PlacementVersion> ExpertWorker::versions() const {
  std::vector<PlacementVersion> versions;
  for (const auto& [version, unused] : versions_) versions.push_back(version);
  return versions;
}

const MoeLayer* ExpertWorker::FindLayer(uint32_t layer) const {
  const auto found = std::lower_bound(
      layers_.begin(), layers_.end(), LayerIndex(layer),
      [](const MoeLayer& a, LayerIndex b) { return a.layer < b; });
  return found == layers_.end() || found->layer != LayerIndex(layer) ? nullptr
                                                                     : &*found;
}

std::string ExpertWorker::ServedVersions() const {
  if (versions_.empty()) return "none";
  return absl::StrJoin(versions_, ", ", [](std::string* out, const auto& v) {
    absl::StrAppend(out, v.first.value);
  });
}

}  // namespace trunkline::expert
