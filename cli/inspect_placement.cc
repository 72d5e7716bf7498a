#include "cli/inspect_placement.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/format.h"
#include "common/status_macros.h"
#include "placement/placement_json.h"
#include "routing/residency_ledger.h"

namespace trunkline::cli {
namespace {

using model::TensorInfo;
using model::TensorRole;
using routing::RoutedLayerShape;

// A layer as the ledger knows it, by its tensors rather than its configuration.
struct CheckedLayer {
  LayerIndex layer;
  RoutedLayerShape shape;
  int64_t expert_bytes = 0;
  int64_t router_bytes = 0;
};

absl::StatusOr<CheckedLayer> ReadLayer(const model::Checkpoint& checkpoint,
                                       const model::LayerSpec& spec) {
  CheckedLayer l;
  l.layer = spec.index;
  const int64_t input = spec.moe.expert_input(checkpoint.config().hidden_size);
  l.shape.width = checkpoint.config().hidden_size;
  l.shape.experts = spec.moe.experts;
  l.shape.top_k = spec.moe.top_k;
  l.shape.projections = {{"up_proj", spec.moe.width, input},
                         {"down_proj", input, spec.moe.width}};
  const std::string prefix =
      absl::StrCat("layers.", spec.index.value, ".mixer.");
  std::vector<routing::NamedTensor> tensors;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.layer != spec.index || tensor.role == TensorRole::kMtp) continue;
    absl::string_view name = tensor.name;
    if (!absl::ConsumePrefix(&name, prefix)) continue;
    if (tensor.role == TensorRole::kRoutedExpert) {
      l.expert_bytes += tensor.bytes;
      l.shape.element_bytes = DTypeBytes(tensor.dtype);
    } else if (name == "gate.weight") {
      l.router_bytes += tensor.bytes;
    } else {
      continue;
    }
    tensors.push_back({std::string(name.data(), name.size()), tensor.shape});
  }
  TL_RETURN_IF_ERROR(Annotate(
      routing::CheckTensors(l.shape, tensors),
      absl::StrCat(checkpoint.directory(), ": layer ", spec.index.value)));
  return l;
}

// The router goes with the trunk, which is no worker of a placement.
absl::Status CheckResidency(const CheckedLayer& layer,
                            const placement::LayerPlacement& placed) {
  std::map<WorkerId, routing::ResidentPart> parts;
  for (size_t e = 0; e < placed.replicas.size(); ++e) {
    for (const placement::Replica& replica : placed.replicas[e]) {
      routing::ResidentPart& part = parts[replica.worker];
      part.worker = replica.worker;
      part.experts.push_back(ExpertId(static_cast<uint32_t>(e)));
    }
  }
  std::vector<routing::ResidentPart> all;
  for (auto& [unused, part] : parts) all.push_back(std::move(part));
  routing::ResidentPart trunk;
  trunk.router = true;
  all.push_back(trunk);
  return routing::CheckPlacement(layer.shape, all);
}

void AddLayer(const CheckedLayer& checked,
              const placement::LayerPlacement& placed,
              std::map<WorkerId, PlacementReport::Worker>* workers,
              PlacementReport* report) {
  const int64_t one = checked.expert_bytes / checked.shape.experts;
  const routing::ResidencyLedger ledger = routing::TakeLedger(checked.shape);
  PlacementReport::Layer layer;
  layer.index = checked.layer.value;
  layer.experts = checked.shape.experts;
  layer.stored_parameters = ledger.stored_params;
  layer.router_parameters = ledger.router_params;
  layer.active_parameters = ledger.active_params;
  layer.active_flops = ledger.active_flops;
  layer.resident_bytes = checked.router_bytes;
  for (const std::vector<placement::Replica>& replicas : placed.replicas) {
    layer.copies += static_cast<int64_t>(replicas.size());
    for (const placement::Replica& replica : replicas) {
      PlacementReport::Worker& worker = (*workers)[replica.worker];
      worker.id = replica.worker.value;
      ++worker.experts;
      worker.expert_bytes += one;
      layer.resident_bytes += one;
    }
  }
  report->layers.push_back(layer);
}

}  // namespace

absl::StatusOr<PlacementReport> MakePlacementReport(
    const model::Checkpoint& checkpoint, absl::string_view text,
    const std::string& file) {
  const auto document = placement::PlacementFromJson(text);
  if (!document.ok()) return Annotate(document.status(), file);
  std::vector<CheckedLayer> checked;
  std::vector<placement::MoeLayerShape> shapes;
  for (const model::LayerSpec& spec : checkpoint.config().layers) {
    if (spec.kind != model::LayerKind::kMoe) continue;
    TL_ASSIGN_OR_RETURN(CheckedLayer layer, ReadLayer(checkpoint, spec));
    shapes.push_back({layer.layer, layer.shape.experts,
                      layer.expert_bytes / layer.shape.experts});
    checked.push_back(std::move(layer));
  }
  TL_RETURN_IF_ERROR(
      Annotate(placement::ValidatePlacement(document->map, shapes), file));
  PlacementReport report;
  report.file = file;
  report.version =
      document->map.version.valid() ? document->map.version.value : 0;
  for (const TensorInfo& tensor : checkpoint.tensors())
    if (tensor.role == TensorRole::kTrunk) report.trunk_bytes += tensor.bytes;
  std::map<WorkerId, PlacementReport::Worker> workers;
  for (const CheckedLayer& layer : checked) {
    const placement::LayerPlacement& placed =
        *document->map.FindLayer(layer.layer);
    TL_RETURN_IF_ERROR(
        Annotate(CheckResidency(layer, placed),
                 absl::StrCat(file, ": layer ", layer.layer.value)));
    AddLayer(layer, placed, &workers, &report);
  }
  for (auto& [id, worker] : workers) {
    const auto name = document->worker_names.find(id);
    if (name != document->worker_names.end()) worker.name = name->second;
    report.workers.push_back(std::move(worker));
  }
  return report;
}

std::string PlacementText(const PlacementReport& report) {
  using Align = Table::Align;
  Table workers({"worker", "name", "experts", "bytes resident"},
                {Align::kRight, Align::kLeft, Align::kRight, Align::kRight});
  for (const PlacementReport::Worker& w : report.workers)
    workers.AddRow({absl::StrCat(w.id), w.name.empty() ? "-" : w.name,
                    absl::StrCat(w.experts), HumanBytes(w.expert_bytes)});
  workers.AddRow({"trunk", "-", "-", HumanBytes(report.trunk_bytes)});
  Table layers(
      {"layer", "experts", "copies", "parameters stored", "of them router",
       "parameters active per token", "FLOPs per token", "bytes resident"},
      std::vector<Align>(8, Align::kRight));
  for (const PlacementReport::Layer& l : report.layers)
    layers.AddRow({absl::StrCat(l.index), absl::StrCat(l.experts),
                   absl::StrCat(l.copies), HumanCount(l.stored_parameters),
                   HumanCount(l.router_parameters),
                   HumanCount(l.active_parameters), HumanCount(l.active_flops),
                   HumanBytes(l.resident_bytes)});
  return absl::StrCat("placement ", report.file,
                      report.version == 0
                          ? std::string()
                          : absl::StrCat(", version ", report.version),
                      "\n\n", workers.ToString(), "\n", layers.ToString());
}

nlohmann::json PlacementReportJson(const PlacementReport& report) {
  nlohmann::json workers = nlohmann::json::array();
  for (const PlacementReport::Worker& w : report.workers)
    workers.push_back({{"worker", w.id},
                       {"name", w.name},
                       {"experts", w.experts},
                       {"resident_bytes", w.expert_bytes}});
  nlohmann::json layers = nlohmann::json::array();
  for (const PlacementReport::Layer& l : report.layers)
    layers.push_back({{"layer", l.index},
                      {"experts", l.experts},
                      {"copies", l.copies},
                      {"stored_parameters", l.stored_parameters},
                      {"router_parameters", l.router_parameters},
                      {"active_parameters", l.active_parameters},
                      {"active_flops_per_token", l.active_flops},
                      {"resident_bytes", l.resident_bytes}});
  return {{"file", report.file},
          {"version", report.version},
          {"trunk_bytes", report.trunk_bytes},
          {"workers", workers},
          {"layers", layers}};
}

}  // namespace trunkline::cli
