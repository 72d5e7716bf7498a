#include "cli/replay_input.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/replay_totals.h"
#include "cli/score_matrix.h"
#include "common/status_macros.h"
#include "dispatch/expert_frame.h"
#include "dispatch/frame_layout.h"
#include "trunk_worker/route_record_file.h"

namespace trunkline::cli {
namespace {

using routing::LayerRecord;

// Of a matrix nothing is known of its rows.
constexpr int64_t kMatrixWidth = 1024;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory"));
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open())
    return absl::NotFoundError(absl::StrCat(path, ": can not be read"));
  return std::string((std::istreambuf_iterator<char>(file)),
                     std::istreambuf_iterator<char>());
}

absl::Status EachOfMatrix(
    const ReplaySource& source,
    const std::function<absl::Status(const ReplayRecord&)>& each) {
  TL_ASSIGN_OR_RETURN(const std::string text, ReadText(source.scores));
  TL_ASSIGN_OR_RETURN(const ScoreMatrix matrix,
                      ParseScoreMatrix(text, source.scores, source.draw));
  ReplayRecord r;
  r.record = &matrix.record;
  r.name = matrix.name.empty() ? "scores" : matrix.name;
  r.width = kMatrixWidth;
  r.any_transform = matrix.any_transform;
  return Annotate(each(r), source.scores);
}

absl::Status CheckLayers(const ReplaySource& source,
                         const trunk::RecordingHeader& header) {
  for (uint32_t layer : source.layers) {
    if (header.Find(LayerIndex(layer)) != nullptr) continue;
    std::vector<uint32_t> known;
    for (const trunk::RecordedLayer& l : header.layers)
      known.push_back(l.layer.value);
    return absl::InvalidArgumentError(absl::StrCat(
        source.file, ": --layers ", layer, " was not recorded; there are ",
        absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

// dispatch/'s own frame: rows of one worker, and what goes with a route.
routing::LinkCosts LinkCostsOf(int64_t width, DType dtype) {
  const auto frame = [&](dispatch::FrameKind kind) {
    return dispatch::LayoutOf(kind, 1, 1, static_cast<uint32_t>(width), dtype);
  };
  routing::LinkCosts costs;
  costs.row_bytes =
      static_cast<int64_t>(frame(dispatch::FrameKind::kDispatch).row_stride);
  costs.answer_bytes =
      static_cast<int64_t>(frame(dispatch::FrameKind::kAnswer).row_stride);
  costs.route_bytes = 4 + 2 + 4 + 4 + 4;  // token, slot, expert, row, gate
  costs.frame_bytes = static_cast<int64_t>(dispatch::kFrameHeaderBytes);
  return costs;
}

absl::StatusOr<placement::LayerPlacement> EvenPlacement(LayerIndex layer,
                                                        int64_t experts,
                                                        int64_t workers,
                                                        int64_t replicas) {
  std::vector<WorkerId> ids;
  for (int64_t w = 0; w < workers; ++w)
    ids.push_back(WorkerId(static_cast<uint32_t>(w)));
  TL_ASSIGN_OR_RETURN(
      placement::PlacementMap map,
      placement::InitialPlacement(PlacementVersion(1), {{layer, experts, 1}},
                                  std::move(ids), replicas));
  return std::move(map.layers.front());
}

}  // namespace

LayerRecord InputFor(const ReplayRecord& record,
                     const routing::RoutingContract& contract) {
  LayerRecord input = *record.record;
  if (record.any_transform) input.policy.transform = contract.policy.transform;
  return input;
}

absl::Status ForEachRecord(
    const ReplaySource& source,
    const std::function<absl::Status(const ReplayRecord&)>& each,
    trunk::RecordingHeader* header, trunk::RecordingTrailer* trailer) {
  if (!source.scores.empty()) return EachOfMatrix(source, each);
  TL_ASSIGN_OR_RETURN(const auto reader,
                      trunk::RouteRecordReader::Open(source.file));
  TL_RETURN_IF_ERROR(CheckLayers(source, reader->header()));
  bool any = false;
  trunk::RecordedRoutes routes;
  while (true) {
    TL_ASSIGN_OR_RETURN(const bool more, reader->Next(&routes));
    if (!more) break;
    const uint32_t layer = routes.record.layer.value;
    if (!source.layers.empty() &&
        std::find(source.layers.begin(), source.layers.end(), layer) ==
            source.layers.end())
      continue;
    any = true;
    if (source.recover_logits)
      TL_RETURN_IF_ERROR(Annotate(RecoverLogits(&routes.record), source.file));
    ReplayRecord r;
    r.record = &routes.record;
    r.name = absl::StrCat("layer ", layer);
    r.completed = routes.completed;
    r.width = reader->header().Find(routes.record.layer)->width;
    r.row_dtype = reader->header().row_dtype;
    TL_RETURN_IF_ERROR(Annotate(
        each(r), absl::StrCat(source.file, ": record ", reader->records())));
  }
  if (!any)
    return absl::InvalidArgumentError(
        absl::StrCat(source.file,
                     ": holds no record of these layers: nothing was served "
                     "while it was made"));
  if (header != nullptr) *header = reader->header();
  if (trailer != nullptr) *trailer = reader->trailer();
  return absl::OkStatus();
}

absl::Status RecoverLogits(LayerRecord* record) {
  if (!record->transformed) return absl::OkStatus();
  const auto experts = static_cast<size_t>(record->table.experts);
  for (size_t i = 0; i < record->values.size(); ++i) {
    const auto score = static_cast<double>(record->values[i]);
    double logit = score;
    if (record->policy.transform == routing::ScoreTransform::kSigmoid)
      logit = std::log(score) - std::log1p(-score);
    // Up to a number that is the same for all experts of a token, which changes
    // nothing.
    if (record->policy.transform == routing::ScoreTransform::kSoftmax)
      logit = std::log(score);
    if (!std::isfinite(logit))
      return absl::InvalidArgumentError(absl::StrCat(
          "step ", record->step.value, ", layer ", record->layer.value,
          ", token ", i / experts, ", expert ", i % experts, ": the score ",
          score, " is of no finite logit"));
    record->values[i] = static_cast<float>(logit);
  }
  record->transformed = false;
  return absl::OkStatus();
}

absl::Status LoadPlacement(const ReplaySource& source, ReplayCosts* costs) {
  if (costs->placement_file.empty()) return absl::OkStatus();
  if (costs->as_recorded()) {
    ReplaySource plain = source;
    plain.recover_logits = false;
    return ForEachRecord(plain, [costs](const ReplayRecord& r) {
      const LayerRecord& record = *r.record;
      for (size_t i = 0; i < record.physical.size(); ++i)
        costs->ran_on[record.layer]
                     [record.table.expert_id[record.handoff_routes[i]]] =
            record.physical[i].worker;
      return absl::OkStatus();
    });
  }
  TL_ASSIGN_OR_RETURN(const std::string text, ReadText(costs->placement_file));
  const absl::StatusOr<placement::PlacementDocument> document =
      placement::PlacementFromJson(text);
  if (!document.ok()) return Annotate(document.status(), costs->placement_file);
  costs->placement = document->map;
  return absl::OkStatus();
}

SpecBase BaseOf(const LayerRecord& record) {
  return {routing::ContractOf(record), record.table.rows};
}

namespace {

// Each expert where this record says that it ran, else where it ran last in the
// recording.
absl::StatusOr<std::vector<WorkerId>> RecordedOwners(
    const LayerRecord& record, const std::map<ExpertId, WorkerId>& ran_on,
    const routing::RouteTable& table) {
  std::vector<WorkerId> owners(static_cast<size_t>(table.experts));
  for (const auto& [expert, worker] : ran_on) owners[expert.value] = worker;
  for (size_t i = 0; i < record.physical.size(); ++i)
    owners[record.table.expert_id[record.handoff_routes[i]].value] =
        record.physical[i].worker;
  for (size_t i = 0; i < table.expert_id.size(); ++i) {
    const ExpertId expert = table.expert_id[i];
    if (table.fate[i] != routing::RouteFate::kAccepted ||
        owners[expert.value].valid())
      continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "--placement recorded: expert ", expert.value, " of layer ",
        record.layer.value, " ran on no worker in this recording",
        ran_on.empty() ? " (the experts ran in the trunk's own process)" : "",
        ", so where it is is not known: give a placement document"));
  }
  // Of no consequence: nothing is routed to them.
  for (WorkerId& owner : owners)
    if (!owner.valid()) owner = WorkerId(0);
  return owners;
}

}  // namespace

absl::StatusOr<routing::ReplaySetup> SetupOf(
    const routing::RoutingContract& contract, const ReplayRecord& r,
    const ReplayCosts& costs) {
  const routing::ScoreTransform held = r.record->policy.transform;
  if (!r.any_transform && r.record->transformed &&
      contract.policy.transform != held) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policy ", contract.policy.name, " needs logits for its transform ",
        routing::Name(contract.policy.transform), ", these are ",
        routing::Name(held), " scores (--recover-logits computes back)"));
  }
  routing::ReplaySetup setup;
  setup.contract = contract;
  setup.width = costs.width > 0 ? costs.width : r.width;
  setup.workers = costs.workers;
  setup.replicas = costs.replicas;
  setup.link = LinkCostsOf(setup.width, r.row_dtype);
  const LayerIndex layer = r.record->layer;
  if (costs.as_recorded()) {
    const auto ran_on = costs.ran_on.find(layer);
    setup.place =
        [record = *r.record, ran_on = ran_on == costs.ran_on.end()
                                          ? std::map<ExpertId, WorkerId>()
                                          : ran_on->second](
            const routing::RouteTable& table, int64_t workers,
            int64_t replicas) -> absl::StatusOr<std::vector<WorkerId>> {
      if (workers != 1 || replicas != 1)
        return absl::InvalidArgumentError(
            "--placement recorded fixes workers and replicas: sweep them "
            "without it");
      return RecordedOwners(record, ran_on, table);
    };
    return setup;
  }
  if (!costs.placement.has_value()) {
    setup.place =
        [layer](const routing::RouteTable& table, int64_t workers,
                int64_t replicas) -> absl::StatusOr<std::vector<WorkerId>> {
      TL_ASSIGN_OR_RETURN(
          const placement::LayerPlacement placed,
          EvenPlacement(layer, table.experts, workers, replicas));
      return OwnersUnder(table, placed);
    };
    return setup;
  }
  const placement::LayerPlacement* placed = costs.placement->FindLayer(layer);
  if (placed == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat(costs.placement_file, ": has no layer ", layer.value));
  if (static_cast<int64_t>(placed->replicas.size()) != r.record->table.experts)
    return absl::InvalidArgumentError(
        absl::StrCat(costs.placement_file, ": layer ", layer.value, " places ",
                     placed->replicas.size(), " experts where the layer has ",
                     r.record->table.experts));
  setup.workers = static_cast<int64_t>(costs.placement->Workers().size());
  setup.place = [placed, given = setup.workers](
                    const routing::RouteTable& table, int64_t workers,
                    int64_t replicas) -> absl::StatusOr<std::vector<WorkerId>> {
    if (workers != given || replicas != 1)
      return absl::InvalidArgumentError(
          "a placement document fixes workers and replicas: sweep them without "
          "--placement");
    return OwnersUnder(table, *placed);
  };
  return setup;
}

absl::Status CheckOneLayer(size_t layers) {
  if (layers == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--svg draws one layer and these are ", layers,
                   ": choose with --layers"));
}

}  // namespace trunkline::cli
