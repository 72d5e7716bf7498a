#include "cli/inspect_report.h"

#include "absl/strings/str_cat.h"
#include "cli/format.h"

namespace trunkline::cli {
namespace {

using model::LayerKind;
using model::LayerSpec;
using model::TensorInfo;
using model::TensorPart;
using model::TensorRole;
using Align = Table::Align;

std::string ShapeOf(const LayerSpec& layer) {
  switch (layer.kind) {
    case LayerKind::kMamba:
      return absl::StrCat(layer.mamba.heads, " heads of ", layer.mamba.head_dim,
                          ", ", layer.mamba.groups, " groups, state ",
                          layer.mamba.state_size, ", conv ",
                          layer.mamba.conv_kernel);
    case LayerKind::kAttention:
      return absl::StrCat(
          layer.attention.heads, " heads of ", layer.attention.head_dim, ", ",
          layer.attention.kv_heads, " kv heads",
          layer.attention.window > 0
              ? absl::StrCat(", window ", layer.attention.window)
              : "");
    case LayerKind::kMlp:
      return absl::StrCat("width ", layer.mlp.width);
    case LayerKind::kMoe:
      break;
  }
  const model::MoeShape& moe = layer.moe;
  return absl::StrCat(
      moe.experts, " experts of ", moe.width, ", top ", moe.top_k,
      moe.shared_width > 0 ? absl::StrCat(", shared ", moe.shared_width) : "",
      moe.latent > 0 ? absl::StrCat(", latent ", moe.latent) : "",
      moe.n_group > 1
          ? absl::StrCat(", ", moe.topk_group, " of ", moe.n_group, " groups")
          : "");
}

int64_t Elements(const TensorInfo& tensor) {
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= size;
  return elements;
}

// A routed expert counts for a token when it is one of its top_k; each is as
// large as the next, so the first top_k stand for any.
bool IsActive(const TensorInfo& tensor, const LayerSpec& layer) {
  return tensor.role != TensorRole::kRoutedExpert ||
         static_cast<int64_t>(tensor.expert.value) < layer.moe.top_k;
}

nlohmann::json PartJson(const model::PartCensus& part) {
  return {{"parameters", part.parameters},
          {"active_parameters", part.active_parameters},
          {"bytes", part.bytes},
          {"decode_bytes", part.decode_bytes}};
}

std::string LayerTable(const InspectReport& report) {
  Table table({"layer", "kind", "shape", "parameters", "active", "bytes"},
              {Align::kRight, Align::kLeft, Align::kLeft, Align::kRight,
               Align::kRight, Align::kRight});
  for (const InspectReport::Layer& layer : report.layers) {
    table.AddRow(
        {absl::StrCat(layer.index),
         absl::StrCat(std::string(1, model::LayerKindLetter(layer.kind)), " ",
                      model::LayerKindName(layer.kind)),
         layer.shape, HumanCount(layer.parameters),
         HumanCount(layer.active_parameters), HumanBytes(layer.bytes)});
  }
  return table.ToString();
}

std::string PartTable(const InspectReport& report) {
  Table table({"part", "parameters", "active per token", "bytes",
               "read per decode token"},
              {Align::kLeft, Align::kRight, Align::kRight, Align::kRight,
               Align::kRight});
  const auto add = [&](const std::string& name, const model::PartCensus& part) {
    table.AddRow({name, HumanCount(part.parameters),
                  HumanCount(part.active_parameters), HumanBytes(part.bytes),
                  HumanBytes(part.decode_bytes)});
  };
  for (int i = 0; i < model::kTensorParts; ++i) {
    const auto part = static_cast<TensorPart>(i);
    if (report.census.part(part).parameters == 0) continue;
    add(std::string(model::TensorPartName(part)), report.census.part(part));
  }
  add("model", report.census.model());
  if (report.census.mtp.parameters > 0) {
    add("prediction head (not run)", report.census.mtp);
    add("all that is stored", report.census.total());
  }
  return table.ToString();
}

}  // namespace

InspectReport MakeInspectReport(const model::Checkpoint& checkpoint) {
  const model::ModelConfig& config = checkpoint.config();
  InspectReport report;
  report.directory = checkpoint.directory();
  report.architecture = config.architecture;
  report.layer_pattern = config.LayerPattern();
  report.digest = checkpoint.digest();
  report.activation_dtype =
      std::string(DTypeName(checkpoint.activation_dtype()));
  report.vocab_size = config.vocab_size;
  report.hidden_size = config.hidden_size;
  report.max_positions = config.max_positions;
  report.files = static_cast<int64_t>(checkpoint.files().size());
  report.census = model::TakeCensus(checkpoint);
  for (const LayerSpec& spec : config.layers) {
    InspectReport::Layer layer;
    layer.index = static_cast<int64_t>(spec.index.value);
    layer.kind = spec.kind;
    layer.shape = ShapeOf(spec);
    report.layers.push_back(std::move(layer));
    if (spec.kind == LayerKind::kMoe) {
      report.routed_expert_count += spec.moe.experts;
    }
  }
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.role == TensorRole::kMtp) report.mtp_bytes += tensor.bytes;
    if (tensor.role == TensorRole::kTrunk) report.trunk_bytes += tensor.bytes;
    if (tensor.role == TensorRole::kRoutedExpert) {
      report.routed_expert_bytes += tensor.bytes;
    }
    if (tensor.role == TensorRole::kMtp || !tensor.layer.valid()) continue;
    InspectReport::Layer& layer = report.layers[tensor.layer.value];
    layer.parameters += Elements(tensor);
    layer.bytes += tensor.bytes;
    if (IsActive(tensor, config.layers[tensor.layer.value])) {
      layer.active_parameters += Elements(tensor);
    }
  }
  return report;
}

std::string InspectText(const InspectReport& report) {
  const model::Census& census = report.census;
  const model::PartCensus model = census.model();
  std::string text = absl::StrCat(
      report.directory, ": ", report.architecture, ", ", report.layers.size(),
      " layers ", report.layer_pattern, "\nhidden size ", report.hidden_size,
      ", vocabulary ", report.vocab_size, ", rows in ", report.activation_dtype,
      ", ", report.files, report.files == 1 ? " file" : " files", ", digest ",
      report.digest, "\n\n", LayerTable(report), "\n", PartTable(report), "\n");
  Table summary({"parameters, total", HumanCount(model.parameters)},
                {Align::kLeft, Align::kRight});
  summary.AddRow(
      {"parameters, active per token", HumanCount(model.active_parameters)});
  summary.AddRow(
      {"bytes a trunk worker holds", HumanBytes(report.trunk_bytes)});
  summary.AddRow({"bytes of routed experts, shared by the expert workers",
                  HumanBytes(report.routed_expert_bytes)});
  if (report.routed_expert_count > 0) {
    summary.AddRow(
        {"bytes of one routed expert",
         HumanBytes(report.routed_expert_bytes / report.routed_expert_count)});
  }
  if (report.mtp_bytes > 0) {
    summary.AddRow({"bytes of the prediction head, left on disk",
                    HumanBytes(report.mtp_bytes)});
  }
  summary.AddRow(
      {"weight bytes read per decode token", HumanBytes(model.decode_bytes)});
  summary.AddRow(
      {"state bytes per sequence (mamba)", HumanBytes(census.state_bytes())});
  summary.AddRow({"state bytes per token (attention)",
                  HumanBytes(census.kv_bytes_per_token)});
  return text + summary.ToString();
}

nlohmann::json InspectJson(const InspectReport& report) {
  nlohmann::json layers = nlohmann::json::array();
  for (const InspectReport::Layer& layer : report.layers) {
    layers.push_back({{"layer", layer.index},
                      {"kind", std::string(model::LayerKindName(layer.kind))},
                      {"shape", layer.shape},
                      {"parameters", layer.parameters},
                      {"active_parameters", layer.active_parameters},
                      {"bytes", layer.bytes}});
  }
  nlohmann::json parts = nlohmann::json::object();
  for (int i = 0; i < model::kTensorParts; ++i) {
    const auto part = static_cast<TensorPart>(i);
    parts[std::string(model::TensorPartName(part))] =
        PartJson(report.census.part(part));
  }
  return {{"directory", report.directory},
          {"architecture", report.architecture},
          {"layer_pattern", report.layer_pattern},
          {"digest", report.digest},
          {"activation_dtype", report.activation_dtype},
          {"vocab_size", report.vocab_size},
          {"hidden_size", report.hidden_size},
          {"max_positions", report.max_positions},
          {"files", report.files},
          {"layers", layers},
          {"parts", parts},
          {"model", PartJson(report.census.model())},
          {"prediction_head", PartJson(report.census.mtp)},
          {"trunk_bytes", report.trunk_bytes},
          {"routed_expert_bytes", report.routed_expert_bytes},
          {"routed_experts", report.routed_expert_count},
          {"conv_state_bytes_per_sequence", report.census.conv_state_bytes},
          {"scan_state_bytes_per_sequence", report.census.scan_state_bytes},
          {"state_bytes_per_sequence", report.census.state_bytes()},
          {"state_bytes_per_token", report.census.kv_bytes_per_token}};
}

}  // namespace trunkline::cli
