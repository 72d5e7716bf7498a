#include "coordinator/placement_record_proto.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "proto/placement_store.pb.h"

namespace trunkline::coordinator {
namespace {

namespace pb = trunkline::store::v1;

absl::Status Damaged(const std::string& what) {
  return absl::DataLossError(what);
}

template <typename Message>
absl::StatusOr<Message> Parse(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) {
    return Damaged("is no " + message.GetDescriptor()->full_name());
  }
  return message;
}

absl::StatusOr<placement::VersionState> ReadState(uint32_t state) {
  if (state < static_cast<uint32_t>(placement::VersionState::kProposed) ||
      state > static_cast<uint32_t>(placement::VersionState::kAbandoned)) {
    return Damaged(absl::StrCat("has placement state ", state));
  }
  return static_cast<placement::VersionState>(state);
}

void EncodeModel(const ClusterModel& model, pb::Model* out) {
  out->set_model_digest(model.model_digest);
  out->set_numerics_class(model.numerics_class);
  out->set_self_check_digest(model.self_check_digest);
  out->set_registered_by(model.registered_by);
  out->set_sizes_from_expert(model.sizes_from_expert);
  for (const placement::MoeLayerShape& shape : model.moe_layers) {
    pb::MoeLayer* layer = out->add_moe_layers();
    layer->set_layer(shape.layer.value);
    layer->set_experts(shape.experts);
    layer->set_expert_bytes(shape.expert_bytes);
  }
}

ClusterModel DecodeModel(const pb::Model& model) {
  ClusterModel out;
  out.model_digest = model.model_digest();
  out.numerics_class = model.numerics_class();
  out.self_check_digest = model.self_check_digest();
  out.registered_by = model.registered_by();
  out.sizes_from_expert = model.sizes_from_expert();
  for (const pb::MoeLayer& layer : model.moe_layers()) {
    out.moe_layers.push_back({.layer = LayerIndex(layer.layer()),
                              .experts = layer.experts(),
                              .expert_bytes = layer.expert_bytes()});
  }
  return out;
}

absl::Status DecodeLayer(const pb::LayerMap& layer,
                         placement::LayerPlacement* out) {
  if (layer.workers_size() != layer.slots_size()) {
    return Damaged(absl::StrCat("layer ", layer.layer(), " has ",
                                layer.workers_size(), " workers and ",
                                layer.slots_size(), " slots"));
  }
  out->layer = LayerIndex(layer.layer());
  int next = 0;
  for (const uint32_t copies : layer.copies()) {
    std::vector<placement::Replica>& replicas = out->replicas.emplace_back();
    for (uint32_t copy = 0; copy < copies; ++copy, ++next) {
      if (next >= layer.workers_size()) {
        return Damaged(absl::StrCat("layer ", layer.layer(),
                                    " counts more copies than it lists"));
      }
      replicas.push_back(
          {.worker = WorkerId(layer.workers(next)), .slot = layer.slots(next)});
    }
  }
  if (next == layer.workers_size()) return absl::OkStatus();
  return Damaged(absl::StrCat("layer ", layer.layer(), " lists ",
                              layer.workers_size(), " copies and counts ",
                              next));
}

}  // namespace

std::string EncodeCluster(const ClusterRecord& cluster) {
  pb::Cluster out;
  out.set_cluster_id(cluster.cluster_id);
  out.set_next_worker(cluster.next_worker);
  out.set_next_version(cluster.next_version);
  out.set_next_history(cluster.next_history);
  out.set_pinned(cluster.pinned);
  out.set_pin_reason(cluster.pin_reason);
  if (cluster.model) EncodeModel(*cluster.model, out.mutable_model());
  return out.SerializeAsString();
}

absl::StatusOr<ClusterRecord> DecodeCluster(const std::string& bytes) {
  TL_ASSIGN_OR_RETURN(const pb::Cluster in, Parse<pb::Cluster>(bytes));
  ClusterRecord cluster;
  cluster.cluster_id = in.cluster_id();
  cluster.next_worker = in.next_worker();
  cluster.next_version = in.next_version();
  cluster.next_history = in.next_history();
  cluster.pinned = in.pinned();
  cluster.pin_reason = in.pin_reason();
  if (in.has_model()) cluster.model = DecodeModel(in.model());
  return cluster;
}

std::string EncodeWorker(const WorkerRecord& worker) {
  const control::Registration& registration = worker.registration;
  pb::Worker out;
  out.set_name(registration.name);
  out.set_role(static_cast<uint32_t>(registration.role));
  out.set_incarnation(worker.incarnation);
  out.set_alive(worker.alive);
  out.set_has_left(worker.left);
  out.set_cordoned(worker.cordoned);
  out.set_leaving(worker.leaving);
  out.set_data_address(registration.data_address);
  out.set_api_address(registration.api_address);
  out.set_metrics_address(registration.metrics_address);
  out.set_model_digest(registration.model_digest);
  out.set_numerics_class(registration.numerics_class);
  out.set_self_check_digest(registration.self_check_digest);
  out.set_failure_domain(registration.failure_domain);
  out.set_memory_bytes(registration.memory_bytes);
  out.set_speed(registration.speed);
  out.set_process(registration.process);
  out.mutable_replaced()->Add(worker.replaced.begin(), worker.replaced.end());
  for (const control::VersionReport& report : worker.versions) {
    pb::WorkerVersion* version = out.add_versions();
    version->set_version(report.version.value);
    version->set_state(static_cast<uint32_t>(report.state));
    version->set_error(report.error);
  }
  return out.SerializeAsString();
}

absl::StatusOr<WorkerRecord> DecodeWorker(const std::string& bytes) {
  TL_ASSIGN_OR_RETURN(const pb::Worker in, Parse<pb::Worker>(bytes));
  WorkerRecord worker;
  control::Registration& registration = worker.registration;
  registration.name = in.name();
  registration.role = static_cast<control::Role>(in.role());
  if (registration.role != control::Role::kTrunk &&
      registration.role != control::Role::kExpert) {
    return Damaged(absl::StrCat("has role ", in.role()));
  }
  worker.incarnation = in.incarnation();
  worker.alive = in.alive();
  worker.left = in.has_left();
  worker.cordoned = in.cordoned();
  worker.leaving = in.leaving();
  registration.data_address = in.data_address();
  registration.api_address = in.api_address();
  registration.metrics_address = in.metrics_address();
  registration.model_digest = in.model_digest();
  registration.numerics_class = in.numerics_class();
  registration.self_check_digest = in.self_check_digest();
  registration.failure_domain = in.failure_domain();
  registration.memory_bytes = in.memory_bytes();
  registration.speed = in.speed();
  registration.process = in.process();
  worker.replaced.assign(in.replaced().begin(), in.replaced().end());
  for (const pb::WorkerVersion& version : in.versions()) {
    if (version.state() <
            static_cast<uint32_t>(control::ShardState::kLoading) ||
        version.state() > static_cast<uint32_t>(control::ShardState::kFailed)) {
      return Damaged(absl::StrCat("has shard state ", version.state()));
    }
    control::VersionReport& report = worker.versions.emplace_back();
    report.version = PlacementVersion(version.version());
    report.state = static_cast<control::ShardState>(version.state());
    report.error = version.error();
  }
  return worker;
}

std::string EncodePlacement(const PlacementRecord& placement) {
  pb::Placement out;
  out.set_state(static_cast<uint32_t>(placement.state));
  out.set_origin(placement.origin);
  out.set_reason(placement.reason);
  if (placement.replaces.valid()) out.set_replaces(placement.replaces.value);
  return out.SerializeAsString();
}

absl::StatusOr<PlacementRecord> DecodePlacement(const std::string& bytes) {
  TL_ASSIGN_OR_RETURN(const pb::Placement in, Parse<pb::Placement>(bytes));
  PlacementRecord placement;
  TL_ASSIGN_OR_RETURN(placement.state, ReadState(in.state()));
  placement.origin = in.origin();
  placement.reason = in.reason();
  if (in.replaces() != 0) placement.replaces = PlacementVersion(in.replaces());
  return placement;
}

std::string EncodeMap(const placement::PlacementMap& map) {
  pb::Map out;
  for (const placement::LayerPlacement& from : map.layers) {
    pb::LayerMap* layer = out.add_layers();
    layer->set_layer(from.layer.value);
    for (const std::vector<placement::Replica>& replicas : from.replicas) {
      layer->add_copies(static_cast<uint32_t>(replicas.size()));
      for (const placement::Replica& replica : replicas) {
        layer->add_workers(replica.worker.value);
        layer->add_slots(replica.slot);
      }
    }
  }
  return out.SerializeAsString();
}

absl::StatusOr<placement::PlacementMap> DecodeMap(const std::string& bytes) {
  TL_ASSIGN_OR_RETURN(const pb::Map in, Parse<pb::Map>(bytes));
  placement::PlacementMap map;
  for (const pb::LayerMap& layer : in.layers()) {
    TL_RETURN_IF_ERROR(DecodeLayer(layer, &map.layers.emplace_back()));
  }
  return map;
}

std::string EncodeHistory(const HistoryRecord& entry) {
  pb::History out;
  out.set_at_ns(absl::ToUnixNanos(entry.at));
  out.set_version(entry.version.value);
  out.set_state(static_cast<uint32_t>(entry.state));
  out.set_detail(entry.detail);
  return out.SerializeAsString();
}

absl::StatusOr<HistoryRecord> DecodeHistory(const std::string& bytes) {
  TL_ASSIGN_OR_RETURN(const pb::History in, Parse<pb::History>(bytes));
  HistoryRecord entry;
  entry.at = absl::FromUnixNanos(in.at_ns());
  entry.version = PlacementVersion(in.version());
  TL_ASSIGN_OR_RETURN(entry.state, ReadState(in.state()));
  entry.detail = in.detail();
  return entry;
}

}  // namespace trunkline::coordinator
