#include "control/cluster_proto.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/measurement_proto.h"

namespace trunkline::control {
namespace {

constexpr size_t kNameBytesMax = 253;
constexpr size_t kTextBytesMax = 4096;
constexpr double kSpeedMost = 1e6;
constexpr uint32_t kExpertsMax = 1u << 20;

absl::Status Invalid(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

absl::Status ValidateText(const std::string& text, const std::string& field) {
  if (text.size() > kTextBytesMax) {
    return Invalid(field, absl::StrCat("is ", text.size(),
                                       " bytes long, at most ", kTextBytesMax));
  }
  return absl::OkStatus();
}

uint64_t VersionToWire(PlacementVersion version) {
  return version.valid() ? version.value : 0;
}

PlacementVersion VersionFromWire(uint64_t version) {
  return version == 0 ? PlacementVersion() : PlacementVersion(version);
}

absl::StatusOr<PlacementVersion> RequireVersion(uint64_t version,
                                                const std::string& field) {
  if (version == 0 || version == PlacementVersion::kNone) {
    return Invalid(field, absl::StrCat(version, " is no placement version"));
  }
  return PlacementVersion(version);
}

absl::StatusOr<WorkerId> RequireWorker(uint32_t id, const std::string& field) {
  if (id == WorkerId::kNone) return Invalid(field, "names no worker");
  return WorkerId(id);
}

absl::StatusOr<Role> RoleFromWire(int role, const std::string& field) {
  switch (role) {
    case wire::WORKER_ROLE_TRUNK:
      return Role::kTrunk;
    case wire::WORKER_ROLE_EXPERT:
      return Role::kExpert;
    default:
      return Invalid(field, absl::StrCat("unknown role ", role));
  }
}

// The wire numbers the states like the enum does.
absl::StatusOr<PlacementState> StateFromWire(int state,
                                             const std::string& field) {
  if (state < static_cast<int>(PlacementState::kProposed) ||
      state > static_cast<int>(PlacementState::kAbandoned)) {
    return Invalid(field, absl::StrCat("unknown placement state ", state));
  }
  return static_cast<PlacementState>(state);
}

absl::StatusOr<std::vector<placement::MoeLayerShape>> ShapesFromWire(
    const google::protobuf::RepeatedPtrField<wire::MoeLayerShape>& shapes,
    const std::string& field) {
  std::vector<placement::MoeLayerShape> result;
  for (int i = 0; i < shapes.size(); ++i) {
    const wire::MoeLayerShape& shape = shapes[i];
    const std::string where = absl::StrCat(field, "[", i, "]");
    if (shape.experts() < 1 || shape.experts() > kExpertsMax) {
      return Invalid(where + ".experts",
                     absl::StrCat("is ", shape.experts(), ", 1 to ",
                                  kExpertsMax, " are possible"));
    }
    if (shape.expert_bytes() >
        static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Invalid(where + ".expert_bytes",
                     absl::StrCat("is ", shape.expert_bytes()));
    }
    result.push_back(
        {.layer = LayerIndex(shape.layer()),
         .experts = shape.experts(),
         .expert_bytes = static_cast<int64_t>(shape.expert_bytes())});
  }
  if (absl::Status status = placement::ValidateShapes(result); !status.ok()) {
    return Annotate(status, field);
  }
  return result;
}

void ShapesToWire(
    const std::vector<placement::MoeLayerShape>& shapes,
    google::protobuf::RepeatedPtrField<wire::MoeLayerShape>* out) {
  for (const placement::MoeLayerShape& shape : shapes) {
    wire::MoeLayerShape* message = out->Add();
    message->set_layer(shape.layer.value);
    message->set_experts(static_cast<uint32_t>(shape.experts));
    message->set_expert_bytes(static_cast<uint64_t>(shape.expert_bytes));
  }
}

void ReportToWire(const VersionReport& report, wire::VersionReport* out) {
  out->set_version(VersionToWire(report.version));
  out->set_state(static_cast<wire::VersionReport::State>(report.state));
  out->set_error(report.error);
  out->set_bytes_loaded(report.bytes_loaded);
  out->set_bytes_total(report.bytes_total);
}

absl::StatusOr<std::vector<VersionReport>> ReportsFromWire(
    const google::protobuf::RepeatedPtrField<wire::VersionReport>& reports,
    const std::string& field) {
  std::vector<VersionReport> result;
  for (int i = 0; i < reports.size(); ++i) {
    const wire::VersionReport& message = reports[i];
    const std::string where = absl::StrCat(field, "[", i, "]");
    VersionReport report;
    TL_ASSIGN_OR_RETURN(report.version,
                        RequireVersion(message.version(), where + ".version"));
    if (message.state() < wire::VersionReport::LOADING ||
        message.state() > wire::VersionReport::FAILED) {
      return Invalid(where + ".state",
                     absl::StrCat("unknown shard state ", +message.state()));
    }
    report.state = static_cast<ShardState>(message.state());
    TL_RETURN_IF_ERROR(ValidateText(message.error(), where + ".error"));
    report.error = message.error();
    report.bytes_loaded = message.bytes_loaded();
    report.bytes_total = message.bytes_total();
    for (const VersionReport& earlier : result) {
      if (earlier.version == report.version) {
        return Invalid(where + ".version",
                       absl::StrCat(report.version.value, " reported twice"));
      }
    }
    result.push_back(std::move(report));
  }
  return result;
}

absl::StatusOr<WorkerView> WorkerFromWire(const wire::WorkerView& message,
                                          const std::string& where) {
  WorkerView worker;
  TL_ASSIGN_OR_RETURN(worker.id,
                      RequireWorker(message.worker_id(), where + ".worker_id"));
  worker.name = message.name();
  TL_ASSIGN_OR_RETURN(worker.role,
                      RoleFromWire(message.role(), where + ".role"));
  worker.incarnation = message.incarnation();
  worker.alive = message.alive();
  worker.data_address = message.data_address();
  worker.api_address = message.api_address();
  worker.metrics_address = message.metrics_address();
  worker.numerics_class = message.numerics_class();
  worker.memory_bytes = message.memory_bytes();
  worker.speed = message.speed();
  worker.failure_domain = message.failure_domain();
  TL_ASSIGN_OR_RETURN(worker.versions,
                      ReportsFromWire(message.versions(), where + ".versions"));
  worker.draining = message.draining();
  worker.drained = message.drained();
  TL_ASSIGN_OR_RETURN(worker.costs,
                      CostsFromWire(message.costs(), where + ".costs"));
  return worker;
}

void WorkerToWire(const WorkerView& worker, wire::WorkerView* out) {
  out->set_worker_id(worker.id.value);
  out->set_name(worker.name);
  out->set_role(static_cast<wire::WorkerRole>(worker.role));
  out->set_incarnation(worker.incarnation);
  out->set_alive(worker.alive);
  out->set_data_address(worker.data_address);
  out->set_api_address(worker.api_address);
  out->set_metrics_address(worker.metrics_address);
  out->set_numerics_class(worker.numerics_class);
  out->set_memory_bytes(worker.memory_bytes);
  out->set_speed(worker.speed);
  out->set_failure_domain(worker.failure_domain);
  for (const VersionReport& report : worker.versions) {
    ReportToWire(report, out->add_versions());
  }
  out->set_draining(worker.draining);
  out->set_drained(worker.drained);
  if (worker.costs.known()) CostsToWire(worker.costs, out->mutable_costs());
}

absl::StatusOr<placement::LayerPlacement> LayerFromWire(
    const wire::LayerPlacement& message, const std::string& where) {
  placement::LayerPlacement layer;
  layer.layer = LayerIndex(message.layer());
  for (int e = 0; e < message.experts_size(); ++e) {
    const wire::ExpertReplicas& expert = message.experts(e);
    if (expert.worker_ids_size() != expert.slots_size()) {
      return Invalid(absl::StrCat(where, ".experts[", e, "]"),
                     absl::StrCat(expert.worker_ids_size(), " worker_ids and ",
                                  expert.slots_size(), " slots"));
    }
    std::vector<placement::Replica> replicas;
    for (int r = 0; r < expert.slots_size(); ++r) {
      replicas.push_back(
          {.worker = WorkerId(expert.worker_ids(r)), .slot = expert.slots(r)});
    }
    layer.replicas.push_back(std::move(replicas));
  }
  return layer;
}

}  // namespace

absl::Status ValidateName(const std::string& name, const std::string& field) {
  if (name.empty()) return Invalid(field, "is empty");
  if (name.size() > kNameBytesMax) {
    return Invalid(field, absl::StrCat("is ", name.size(),
                                       " bytes long, at most ", kNameBytesMax));
  }
  for (const char c : name) {
    if (c < '!' || c > '~') {
      return Invalid(
          field, absl::StrCat("has a character (code ",
                              static_cast<int>(static_cast<unsigned char>(c)),
                              ") that is not printable ASCII"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateRegistration(const Registration& registration) {
  TL_RETURN_IF_ERROR(ValidateName(registration.name, "name"));
  if (registration.role == Role::kExpert && registration.data_address.empty()) {
    return Invalid("data_address",
                   "is empty; trunks have to dial an expert worker");
  }
  const std::pair<const char*, const std::string*> texts[] = {
      {"data_address", &registration.data_address},
      {"api_address", &registration.api_address},
      {"metrics_address", &registration.metrics_address},
      {"failure_domain", &registration.failure_domain},
      {"model_digest", &registration.model_digest},
      {"numerics_class", &registration.numerics_class},
      {"self_check_digest", &registration.self_check_digest},
      {"admission", &registration.admission}};
  for (const auto& [field, text] : texts) {
    TL_RETURN_IF_ERROR(ValidateText(*text, field));
  }
  TL_RETURN_IF_ERROR(ValidateName(registration.model_digest, "model_digest"));
  TL_RETURN_IF_ERROR(
      ValidateName(registration.numerics_class, "numerics_class"));
  TL_RETURN_IF_ERROR(
      ValidateName(registration.self_check_digest, "self_check_digest"));
  if (!(registration.speed > 0 && registration.speed <= kSpeedMost)) {
    return Invalid("speed",
                   absl::StrCat("is ", registration.speed, ", above 0 to ",
                                kSpeedMost, " is possible"));
  }
  if (registration.process == 0) return Invalid("process", "is 0");
  return Annotate(placement::ValidateShapes(registration.moe_layers),
                  "moe_layers");
}

wire::RegisterRequest ToProto(const Registration& registration) {
  wire::RegisterRequest request;
  request.set_name(registration.name);
  request.set_role(static_cast<wire::WorkerRole>(registration.role));
  request.set_data_address(registration.data_address);
  request.set_api_address(registration.api_address);
  request.set_metrics_address(registration.metrics_address);
  request.set_model_digest(registration.model_digest);
  request.set_numerics_class(registration.numerics_class);
  request.set_self_check_digest(registration.self_check_digest);
  request.set_failure_domain(registration.failure_domain);
  request.set_memory_bytes(registration.memory_bytes);
  request.set_speed(registration.speed);
  request.set_admission(registration.admission);
  request.set_process(registration.process);
  request.set_replaces(registration.replaces);
  ShapesToWire(registration.moe_layers, request.mutable_moe_layers());
  return request;
}

absl::StatusOr<Registration> FromProto(const wire::RegisterRequest& request) {
  Registration registration;
  registration.name = request.name();
  TL_ASSIGN_OR_RETURN(registration.role, RoleFromWire(request.role(), "role"));
  registration.data_address = request.data_address();
  registration.api_address = request.api_address();
  registration.metrics_address = request.metrics_address();
  registration.model_digest = request.model_digest();
  registration.numerics_class = request.numerics_class();
  registration.self_check_digest = request.self_check_digest();
  registration.failure_domain = request.failure_domain();
  registration.memory_bytes = request.memory_bytes();
  registration.admission = request.admission();
  registration.process = request.process();
  registration.replaces = request.replaces();
  registration.speed = request.speed() == 0 ? 1.0 : request.speed();
  TL_ASSIGN_OR_RETURN(registration.moe_layers,
                      ShapesFromWire(request.moe_layers(), "moe_layers"));
  TL_RETURN_IF_ERROR(ValidateRegistration(registration));
  return registration;
}

wire::HeartbeatRequest ToProto(const Heartbeat& heartbeat) {
  wire::HeartbeatRequest request;
  request.set_worker_id(heartbeat.worker.value);
  request.set_incarnation(heartbeat.incarnation);
  for (const VersionReport& report : heartbeat.report.versions) {
    ReportToWire(report, request.add_versions());
  }
  request.set_oldest_version_in_flight(
      VersionToWire(heartbeat.report.oldest_in_flight));
  for (const ExpertLoadReport& load : heartbeat.report.loads) {
    wire::ExpertLoad* message = request.add_loads();
    message->set_layer(load.layer.value);
    message->mutable_selected()->Add(load.selected.begin(),
                                     load.selected.end());
    message->mutable_executed()->Add(load.executed.begin(),
                                     load.executed.end());
  }
  request.set_cluster_id(heartbeat.cluster_id);
  request.set_view_epoch(heartbeat.view_epoch);
  request.set_view_revision(heartbeat.view_revision);
  request.set_wants_drain(heartbeat.report.wants_drain);
  request.set_at_rest(heartbeat.report.at_rest);
  if (heartbeat.report.costs.known())
    CostsToWire(heartbeat.report.costs, request.mutable_costs());
  if (heartbeat.report.canary.has_value())
    CanaryToWire(*heartbeat.report.canary, request.mutable_canary());
  return request;
}

absl::StatusOr<Heartbeat> FromProto(const wire::HeartbeatRequest& request) {
  Heartbeat heartbeat;
  TL_ASSIGN_OR_RETURN(heartbeat.worker,
                      RequireWorker(request.worker_id(), "worker_id"));
  heartbeat.incarnation = request.incarnation();
  TL_ASSIGN_OR_RETURN(heartbeat.report.versions,
                      ReportsFromWire(request.versions(), "versions"));
  heartbeat.report.oldest_in_flight =
      VersionFromWire(request.oldest_version_in_flight());
  for (int i = 0; i < request.loads_size(); ++i) {
    const wire::ExpertLoad& message = request.loads(i);
    const std::string where = absl::StrCat("loads[", i, "]");
    if (message.selected_size() != message.executed_size()) {
      return Invalid(where,
                     absl::StrCat(message.selected_size(), " selected and ",
                                  message.executed_size(), " executed"));
    }
    ExpertLoadReport load;
    load.layer = LayerIndex(message.layer());
    load.selected.assign(message.selected().begin(), message.selected().end());
    load.executed.assign(message.executed().begin(), message.executed().end());
    heartbeat.report.loads.push_back(std::move(load));
  }
  heartbeat.cluster_id = request.cluster_id();
  heartbeat.view_epoch = request.view_epoch();
  heartbeat.view_revision = request.view_revision();
  heartbeat.report.wants_drain = request.wants_drain();
  heartbeat.report.at_rest = request.at_rest();
  TL_ASSIGN_OR_RETURN(heartbeat.report.costs,
                      CostsFromWire(request.costs(), "costs"));
  if (request.has_canary()) {
    TL_ASSIGN_OR_RETURN(heartbeat.report.canary,
                        CanaryFromWire(request.canary()));
  }
  return heartbeat;
}

wire::Placement ToProto(const PlacementView& placement) {
  wire::Placement message;
  message.set_version(VersionToWire(placement.map.version));
  message.set_state(static_cast<wire::PlacementState>(placement.state));
  for (const placement::LayerPlacement& layer : placement.map.layers) {
    wire::LayerPlacement* out = message.add_layers();
    out->set_layer(layer.layer.value);
    for (const std::vector<placement::Replica>& replicas : layer.replicas) {
      wire::ExpertReplicas* expert = out->add_experts();
      for (const placement::Replica& replica : replicas) {
        expert->add_worker_ids(replica.worker.value);
        expert->add_slots(replica.slot);
      }
    }
  }
  return message;
}

absl::StatusOr<PlacementView> FromProto(const wire::Placement& message) {
  PlacementView placement;
  TL_ASSIGN_OR_RETURN(placement.map.version,
                      RequireVersion(message.version(), "version"));
  TL_ASSIGN_OR_RETURN(placement.state, StateFromWire(message.state(), "state"));
  std::vector<placement::MoeLayerShape> shapes;
  for (int l = 0; l < message.layers_size(); ++l) {
    TL_ASSIGN_OR_RETURN(
        placement::LayerPlacement layer,
        LayerFromWire(message.layers(l), absl::StrCat("layers[", l, "]")));
    shapes.push_back({.layer = layer.layer,
                      .experts = static_cast<int64_t>(layer.replicas.size()),
                      .expert_bytes = 0});
    placement.map.layers.push_back(std::move(layer));
  }
  TL_RETURN_IF_ERROR(placement::ValidatePlacement(placement.map, shapes));
  return placement;
}

wire::ClusterView ToProto(const ClusterView& view) {
  wire::ClusterView message;
  message.set_cluster_id(view.cluster_id);
  message.set_epoch(view.epoch);
  message.set_revision(view.revision);
  for (const WorkerView& worker : view.workers) {
    WorkerToWire(worker, message.add_workers());
  }
  for (const PlacementView& placement : view.placements) {
    *message.add_placements() = ToProto(placement);
  }
  message.set_active_version(VersionToWire(view.active));
  message.set_waiting_for(view.waiting_for);
  message.set_model_digest(view.model_digest);
  message.set_numerics_class(view.numerics_class);
  ShapesToWire(view.moe_layers, message.mutable_moe_layers());
  return message;
}

absl::StatusOr<ClusterView> FromProto(const wire::ClusterView& message) {
  ClusterView view;
  view.cluster_id = message.cluster_id();
  view.epoch = message.epoch();
  view.revision = message.revision();
  for (int i = 0; i < message.workers_size(); ++i) {
    const std::string where = absl::StrCat("workers[", i, "]");
    TL_ASSIGN_OR_RETURN(WorkerView worker,
                        WorkerFromWire(message.workers(i), where));
    if (!view.workers.empty() && view.workers.back().id >= worker.id) {
      return Invalid(
          where + ".worker_id",
          absl::StrCat(worker.id.value, " after ", view.workers.back().id.value,
                       "; workers ascend"));
    }
    view.workers.push_back(std::move(worker));
  }
  for (int i = 0; i < message.placements_size(); ++i) {
    const std::string where = absl::StrCat("placements[", i, "]");
    absl::StatusOr<PlacementView> placement = FromProto(message.placements(i));
    if (!placement.ok()) return Annotate(placement.status(), where);
    if (!view.placements.empty() &&
        view.placements.back().map.version >= placement->map.version) {
      return Invalid(where + ".version",
                     absl::StrCat(placement->map.version.value, " after ",
                                  view.placements.back().map.version.value,
                                  "; versions ascend"));
    }
    view.placements.push_back(*std::move(placement));
  }
  view.active = VersionFromWire(message.active_version());
  if (view.active.valid() && view.FindPlacement(view.active) == nullptr) {
    return Invalid("active_version",
                   absl::StrCat(view.active.value, " is not in placements"));
  }
  view.waiting_for = message.waiting_for();
  view.model_digest = message.model_digest();
  view.numerics_class = message.numerics_class();
  TL_ASSIGN_OR_RETURN(view.moe_layers,
                      ShapesFromWire(message.moe_layers(), "moe_layers"));
  return view;
}

}  // namespace trunkline::control
