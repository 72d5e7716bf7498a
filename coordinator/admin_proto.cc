#include "coordinator/admin_proto.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/cluster_proto.h"
#include "coordinator/readiness.h"
#include "placement/placement_json.h"

namespace trunkline::coordinator {
namespace {

uint64_t ToWire(PlacementVersion version) {
  return version.valid() ? version.value : 0;
}

admin::Prediction ToWire(const placement::Prediction& prediction) {
  admin::Prediction message;
  message.set_slowest(prediction.slowest);
  message.set_ideal(prediction.ideal);
  message.set_balancedness(prediction.balancedness());
  return message;
}

std::map<WorkerId, std::string> NamesOf(const Coordinator& core) {
  std::map<WorkerId, std::string> names;
  for (const auto& [id, member] : core.membership().members()) {
    if (member.is(control::Role::kExpert)) names[id] = member.name();
  }
  return names;
}

struct Held {
  uint64_t copies = 0, bytes = 0;
  double rows = 0;
};

// Per worker, of the active version under the current loads.
std::map<WorkerId, Held> HeldByWorker(const Coordinator& core) {
  std::map<WorkerId, Held> held;
  const PlacementRecord* active = core.driver().Active();
  if (active == nullptr) return held;
  const auto loads = core.loads().Averages();
  const auto& shapes = core.cluster().model->moe_layers;
  for (size_t l = 0; l < shapes.size(); ++l) {
    const placement::LayerLoad* load =
        placement::FindLoad(loads, shapes[l].layer);
    const auto& experts = active->map.layers[l].replicas;
    for (size_t e = 0; e < experts.size(); ++e) {
      for (const placement::Replica& replica : experts[e]) {
        Held& worker = held[replica.worker];
        ++worker.copies;
        worker.bytes += static_cast<uint64_t>(shapes[l].expert_bytes);
        if (load != nullptr) {
          worker.rows += load->load[e] / static_cast<double>(experts[e].size());
        }
      }
    }
  }
  return held;
}

template <typename Repeated>
void AddWorkers(const Coordinator& core, absl::Time now, Repeated* out) {
  const std::map<WorkerId, Held> held = HeldByWorker(core);
  double rows = 0;
  for (const auto& [id, worker] : held) rows += worker.rows;
  const control::wire::ClusterView view = control::ToProto(core.View());
  for (const control::wire::WorkerView& worker : view.workers()) {
    const WorkerId id(worker.worker_id());
    const Member* member = core.membership().Find(id);
    admin::WorkerInfo* info = out->Add();
    *info->mutable_worker() = worker;
    if (const auto found = held.find(id); found != held.end()) {
      info->set_copies(found->second.copies);
      info->set_shard_bytes(found->second.bytes);
      info->set_load_share(rows > 0 ? found->second.rows / rows : 0);
    }
    info->set_oldest_in_flight(ToWire(member->oldest_in_flight));
    info->set_lease_seconds_left(
        member->alive() ? absl::ToDoubleSeconds(member->lease_end - now) : 0);
  }
}

admin::VersionInfo DescribeVersion(const Coordinator& core,
                                   const PlacementRecord& record) {
  admin::VersionInfo info;
  info.set_version(record.map.version.value);
  info.set_state(static_cast<control::wire::PlacementState>(record.state));
  info.set_origin(record.origin);
  info.set_reason(record.reason);
  info.set_replaces(ToWire(record.replaces));
  uint64_t copies = 0;
  for (const placement::LayerPlacement& layer : record.map.layers) {
    for (const auto& replicas : layer.replicas) copies += replicas.size();
  }
  info.set_copies(copies);
  const std::vector<WorkerId> workers = record.map.Workers();
  info.set_workers(static_cast<uint32_t>(workers.size()));
  uint64_t loaded = 0, total = 0;
  uint32_t ready = 0;
  for (const WorkerId worker : workers) {
    const Member* member = core.membership().Find(worker);
    if (member == nullptr) continue;
    if (member->ready(record.map.version)) ++ready;
    if (const auto* report = member->FindReport(record.map.version)) {
      loaded += report->bytes_loaded;
      total += report->bytes_total;
    }
  }
  info.set_bytes_loaded(loaded);
  info.set_bytes_total(total);
  info.set_workers_ready(ready);
  return info;
}

}  // namespace

admin::ShowResponse DescribePlacements(const Coordinator& core,
                                       absl::Time now) {
  admin::ShowResponse response;
  const PlacementRecord* active = core.driver().Active();
  response.set_waiting_for(
      WaitingFor(core.cluster(), core.membership(), core.driver()));
  response.set_blocked(core.driver().blocked());
  response.set_accuracy(core.accuracy().Describe(
      active != nullptr ? active->map.version : PlacementVersion()));
  response.set_pinned(core.cluster().pinned);
  response.set_pin_reason(core.cluster().pin_reason);
  response.set_cluster_id(core.cluster().cluster_id);
  response.set_epoch(core.cluster().epoch);
  for (const auto& [version, record] : core.driver().records()) {
    *response.add_versions() = DescribeVersion(core, record);
  }
  if (active != nullptr) {
    response.set_active_version(active->map.version.value);
    *response.mutable_load() =
        ToWire(placement::Predict(active->map, core.loads().Averages(),
                                  core.membership().UsableExperts()));
  }
  AddWorkers(core, now, response.mutable_workers());
  return response;
}

admin::ListWorkersResponse DescribeWorkers(const Coordinator& core,
                                           absl::Time now) {
  admin::ListWorkersResponse response;
  AddWorkers(core, now, response.mutable_workers());
  response.set_blocked(core.driver().blocked());
  return response;
}

admin::HistoryResponse DescribeHistory(const Coordinator& core,
                                       uint32_t limit) {
  admin::HistoryResponse response;
  const std::vector<HistoryRecord>& history = core.driver().history();
  const size_t first =
      limit == 0 || limit >= history.size() ? 0 : history.size() - limit;
  for (size_t i = first; i < history.size(); ++i) {
    admin::HistoryEntry* entry = response.add_entries();
    entry->set_sequence(history[i].sequence);
    entry->set_unix_nanos(absl::ToUnixNanos(history[i].at));
    entry->set_version(history[i].version.value);
    entry->set_state(
        static_cast<control::wire::PlacementState>(history[i].state));
    entry->set_detail(history[i].detail);
  }
  return response;
}

admin::PlanResponse DescribePlan(const RebalanceSnapshot& snapshot,
                                 const placement::BalancePlan& plan) {
  admin::PlanResponse response;
  response.set_base_version(snapshot.current.version.value);
  response.set_worthwhile(plan.worthwhile);
  response.set_reason(plan.reason);
  *response.mutable_before() = ToWire(plan.before);
  *response.mutable_after() = ToWire(plan.after);
  response.set_gain(plan.gain());
  response.set_moved_bytes(plan.diff.bytes);
  for (const placement::ExpertLoadMove& load : plan.diff.loads) {
    admin::Move* move = response.add_moves();
    move->set_layer(load.layer.value);
    move->set_expert(load.expert.value);
    move->set_worker_id(load.worker.value);
    const auto name = snapshot.names.find(load.worker);
    if (name != snapshot.names.end()) move->set_worker(name->second);
    for (const WorkerId source : load.sources) {
      move->add_source_ids(source.value);
    }
    move->set_bytes(load.bytes);
  }
  response.set_drops(plan.diff.drops.size());
  response.set_expected_seconds(
      absl::ToDoubleSeconds(ExpectedLoadTime(snapshot, plan.diff)));
  response.set_document(placement::PlacementToJson(
      {.map = plan.map, .worker_names = snapshot.names}));
  return response;
}

void DescribeRecording(const LoadLedger::Recording& recording, bool with_loads,
                       admin::RecordLoadsResponse* response) {
  response->set_running(recording.running);
  response->set_seconds(absl::ToDoubleSeconds(recording.length));
  if (!with_loads) return;
  for (const control::ExpertLoadReport& count : recording.counts) {
    control::wire::ExpertLoad* load = response->add_loads();
    load->set_layer(count.layer.value);
    load->mutable_selected()->Add(count.selected.begin(), count.selected.end());
    load->mutable_executed()->Add(count.executed.begin(), count.executed.end());
  }
}

absl::StatusOr<std::string> ExportDocument(const Coordinator& core,
                                           PlacementVersion version) {
  const PlacementRecord* record =
      version.valid() ? core.driver().Find(version) : core.driver().Active();
  if (record == nullptr) {
    return absl::NotFoundError(
        version.valid() ? absl::StrCat("placement version ", version.value,
                                       " is not known, or too old to be kept")
                        : "no placement is active");
  }
  return placement::PlacementToJson(
      {.map = record->map, .worker_names = NamesOf(core)});
}

absl::StatusOr<RebalanceOptions> OptionsFrom(
    const admin::PlanRequest& request) {
  RebalanceOptions options;
  if (!request.policy().empty()) {
    TL_ASSIGN_OR_RETURN(options.policy,
                        placement::ParseBalancePolicy(request.policy()));
  }
  options.replicas = request.replicas();
  options.slots_per_worker = request.slots_per_worker();
  options.max_moved_bytes = request.max_moved_bytes();
  if (request.has_min_gain()) {
    options.min_gain = request.min_gain();
    if (!(options.min_gain >= 0 && options.min_gain < 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "min_gain: is ", options.min_gain, ", 0 to below 1 is possible"));
    }
  }
  options.num_groups = std::max<int64_t>(1, request.num_groups());
  options.num_nodes = std::max<int64_t>(1, request.num_nodes());
  return options;
}

}  // namespace trunkline::coordinator
