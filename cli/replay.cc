// trunkline replay: routes recorded layers again, with the policy they were
// recorded under or with another one.

#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/command.h"
#include "cli/contract_spec.h"
#include "cli/exit_code.h"
#include "cli/replay_input.h"
#include "cli/replay_report.h"
#include "common/status_macros.h"
#include "routing/route_validator.h"

namespace trunkline::cli {
namespace {

using nlohmann::json;
using routing::LayerRecord;

struct ReplayFlags {
  ReplaySource source;
  ContractText contract, against;
  ReplayCosts costs;
  std::string sweep, claim, svg;
  bool as_json = false;
};

// What a run prints, and whether it found what was claimed.
struct Outcome {
  std::string text;
  json value;
  std::string svg;
  bool holds = true;
};

struct SweepRequest {
  routing::SweepCoordinate coordinate;
  std::vector<double> values;
};

absl::StatusOr<SweepRequest> ParseSweep(const std::string& text) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  std::string name = parts[0];
  if (name == "group-size") name = "group-tokens";
  if (name == "block-size") name = "block-rows";
  SweepRequest request;
  TL_ASSIGN_OR_RETURN(request.coordinate, routing::ParseSweepCoordinate(name));
  const std::vector<std::string> items =
      absl::StrSplit(parts.size() == 2 ? parts[1] : "", ',');
  for (const std::string& item : items) {
    double value = 0;
    if (!absl::SimpleAtod(item, &value))
      return absl::InvalidArgumentError(
          absl::StrCat("\"", item, "\" is not a value of ", name));
    request.values.push_back(value);
  }
  return request;
}

template <typename Layer>
Outcome PerLayer(const std::map<LayerIndex, Layer>& layers,
                 std::string (*text)(const Layer&),
                 json (*value)(const Layer&)) {
  Outcome outcome;
  outcome.value = json::array();
  for (const auto& [unused, layer] : layers) {
    absl::StrAppend(&outcome.text, outcome.text.empty() ? "" : "\n",
                    text(layer));
    outcome.value.push_back(value(layer));
  }
  return outcome;
}

absl::StatusOr<Outcome> ProveRecording(const ReplayFlags& flags) {
  ProvenRecording proven;
  const absl::Status read = ForEachRecord(
      flags.source,
      [&](const ReplayRecord& r) -> absl::Status {
        TL_RETURN_IF_ERROR(routing::ProveEqual(*r.record));
        if (r.completed) {
          const absl::Status valid = routing::ValidateLayer(*r.record);
          if (!valid.ok())
            return Annotate(valid, absl::StrCat("step ", r.record->step.value,
                                                ", ", r.name));
        }
        AddPhysical(*r.record, &proven);
        ++proven.records;
        proven.incomplete += r.completed ? 0 : 1;
        proven.routes += r.record->table.size();
        return absl::OkStatus();
      },
      &proven.header, &proven.trailer);
  TL_RETURN_IF_ERROR(read);
  return Outcome{ProvenText(flags.source.file, proven),
                 ProvenJson(flags.source.file, proven), "", true};
}

// A fixed number of rows is what these coordinates are about; without an
// admission that has one they would say nothing.
bool NeedsCapacity(const SweepRequest& request) {
  return request.coordinate == routing::SweepCoordinate::kCapacityFactor ||
         request.coordinate == routing::SweepCoordinate::kGroupTokens;
}

absl::StatusOr<Outcome> RunSweep(const ReplayFlags& flags) {
  TL_ASSIGN_OR_RETURN(const SweepRequest request, ParseSweep(flags.sweep));
  ContractText text = flags.contract;
  if (text.admission.empty() && NeedsCapacity(request))
    text.admission = "capacity";
  std::map<LayerIndex, SweptLayer> layers;
  const absl::Status read =
      ForEachRecord(flags.source, [&](const ReplayRecord& r) -> absl::Status {
        TL_ASSIGN_OR_RETURN(const routing::RoutingContract contract,
                            ContractFromText(text, BaseOf(*r.record)));
        TL_ASSIGN_OR_RETURN(const routing::ReplaySetup setup,
                            SetupOf(contract, r, flags.costs));
        TL_ASSIGN_OR_RETURN(
            const routing::Sweep sweep,
            routing::SweepOne(InputFor(r, contract), setup, request.coordinate,
                              request.values));
        SweptLayer& layer = layers[r.record->layer];
        layer.name = r.name;
        layer.contract = contract;
        AddSweep(sweep, &layer.sweep);
        return absl::OkStatus();
      });
  TL_RETURN_IF_ERROR(read);
  Outcome outcome = PerLayer(layers, SweepText, SweepJson);
  for (const auto& [unused, layer] : layers) outcome.svg = SweepSvg(layer);
  if (!flags.svg.empty()) TL_RETURN_IF_ERROR(CheckOneLayer(layers.size()));
  return outcome;
}

absl::StatusOr<Outcome> RunClaim(const ReplayFlags& flags) {
  TL_ASSIGN_OR_RETURN(const routing::EquivalenceClaim claim,
                      routing::ParseEquivalenceClaim(flags.claim));
  std::map<LayerIndex, ComparedLayer> layers;
  const absl::Status read =
      ForEachRecord(flags.source, [&](const ReplayRecord& r) -> absl::Status {
        if (layers.count(r.record->layer) > 0) return absl::OkStatus();
        const SpecBase base = BaseOf(*r.record);
        TL_ASSIGN_OR_RETURN(const routing::RoutingContract first,
                            ContractFromText(flags.contract, base));
        TL_ASSIGN_OR_RETURN(const routing::RoutingContract second,
                            ContractFromText(flags.against, base));
        layers[r.record->layer] = {
            r.name, claim, routing::CompareContracts(first, second, claim)};
        return absl::OkStatus();
      });
  TL_RETURN_IF_ERROR(read);
  Outcome outcome = PerLayer(layers, ComparisonText, ComparisonJson);
  for (const auto& [unused, layer] : layers)
    outcome.holds = outcome.holds && layer.comparison.equivalent;
  return outcome;
}

absl::Status AddColumn(const ReplayRecord& r,
                       const routing::RoutingContract& contract,
                       const ReplayCosts& costs, const std::string& name,
                       size_t index, ReplayLayer* layer,
                       LayerRecord* last = nullptr) {
  TL_ASSIGN_OR_RETURN(const routing::ReplaySetup setup,
                      SetupOf(contract, r, costs));
  TL_ASSIGN_OR_RETURN(const routing::ReplayResult result,
                      routing::Replay(InputFor(r, contract), setup));
  if (layer->columns.size() <= index)
    layer->columns.push_back({name, contract, {}});
  AddReplay(result, &layer->columns[index].totals);
  if (last != nullptr) *last = result.record;
  return absl::OkStatus();
}

// The base beside what it is compared with; of a matrix also its tokens.
absl::StatusOr<Outcome> RunComparison(const ReplayFlags& flags) {
  const bool matrix = !flags.source.scores.empty();
  std::map<LayerIndex, ReplayLayer> layers;
  LayerRecord last;
  const absl::Status read =
      ForEachRecord(flags.source, [&](const ReplayRecord& r) -> absl::Status {
        ReplayLayer& layer = layers[r.record->layer];
        layer.name = r.name;
        const SpecBase base = BaseOf(*r.record);
        if (!matrix)
          TL_RETURN_IF_ERROR(
              AddColumn(r, base.contract, flags.costs, "recorded", 0, &layer));
        // Costs alone: the recorded contract under another placement.
        if (!matrix && flags.contract.empty()) return absl::OkStatus();
        TL_ASSIGN_OR_RETURN(const routing::RoutingContract contract,
                            ContractFromText(flags.contract, base));
        const std::string name = flags.contract.empty()
                                     ? contract.policy.name
                                     : NameOf(flags.contract);
        return AddColumn(r, contract, flags.costs, name, matrix ? 0 : 1, &layer,
                         &last);
      });
  TL_RETURN_IF_ERROR(read);
  Outcome outcome = PerLayer(layers, ReplayText, ReplayJson);
  for (const auto& [unused, layer] : layers) outcome.svg = ReplaySvg(layer);
  if (matrix) {
    absl::StrAppend(&outcome.text, "\n", TokenText(last));
    outcome.value[0]["tokens"] = TokenJson(last);
  }
  if (!flags.svg.empty()) TL_RETURN_IF_ERROR(CheckOneLayer(layers.size()));
  return outcome;
}

absl::StatusOr<Outcome> Run(const ReplayFlags& flags) {
  if (!flags.claim.empty()) return RunClaim(flags);
  if (!flags.sweep.empty()) return RunSweep(flags);
  if (flags.source.scores.empty() && flags.contract.empty() &&
      !flags.costs.given())
    return ProveRecording(flags);
  return RunComparison(flags);
}

absl::Status CheckFlags(const ReplayFlags& f) {
  const auto bad = [](absl::string_view why) {
    return absl::InvalidArgumentError(why);
  };
  if (f.source.file.empty() == f.source.scores.empty())
    return bad("give either FILE or --scores");
  if (!f.claim.empty() && f.against.empty())
    return bad("--equivalent-for compares with --against");
  if (f.claim.empty() && !f.against.empty())
    return bad("--against belongs to --equivalent-for");
  if (!f.claim.empty() && (!f.sweep.empty() || !f.svg.empty()))
    return bad("--equivalent-for has nothing to sweep or to draw");
  if (!f.costs.placement_file.empty() &&
      (f.costs.workers > 1 || f.costs.replicas > 1))
    return bad("--placement says itself how many workers and replicas are");
  if (!f.source.scores.empty() && f.costs.as_recorded())
    return bad("--placement recorded belongs to a recording");
  if (f.source.scores.empty() && f.source.draw.has_value())
    return bad("--draw belongs to --scores: a record has its own");
  if (!f.source.scores.empty() && f.source.recover_logits)
    return bad("--recover-logits belongs to a recording");
  if (f.source.recover_logits && f.contract.policy.empty())
    return bad("--recover-logits is for another --policy");
  if (!f.source.scores.empty() && !f.source.layers.empty())
    return bad("--layers chooses among the layers of a recording");
  if (f.sweep.empty() && f.source.scores.empty() && f.contract.empty() &&
      !f.costs.given() && !f.svg.empty())
    return bad("--svg draws a comparison or a sweep");
  return absl::OkStatus();
}

int Replay(ReplayFlags flags) {
  absl::Status valid = CheckFlags(flags);
  if (!valid.ok()) return ReportUsage("replay", std::string(valid.message()));
  const absl::Status placed = LoadPlacement(flags.source, &flags.costs);
  if (!placed.ok()) return ReportFailure("replay", placed);
  const absl::StatusOr<Outcome> outcome = Run(flags);
  if (!outcome.ok()) return ReportFailure("replay", outcome.status());
  if (!flags.svg.empty()) {
    std::ofstream file(flags.svg, std::ios::binary | std::ios::trunc);
    file << outcome->svg;
    file.close();
    if (!file.good())
      return ReportFailure("replay", absl::UnavailableError(absl::StrCat(
                                         flags.svg, ": can not be written")));
  }
  const std::string text =
      flags.as_json ? outcome->value.dump(2) + "\n" : outcome->text;
  std::fputs(text.c_str(), stdout);
  return outcome->holds ? kExitOk : kExitFailed;
}

void AddContractFlags(CLI::App* command, ReplayFlags* flags) {
  command->add_option("--policy", flags->contract.policy, kPolicyHelp)
      ->type_name("SPEC");
  command->add_option("--admission", flags->contract.admission, kAdmissionHelp)
      ->type_name("SPEC");
  command->add_option("--form", flags->contract.form, kFormHelp)
      ->type_name("SPEC");
  command
      ->add_option("--retain", flags->contract.retain,
                   "What a forward pass keeps for a backward one: none (as "
                   "served), save or rematerialize")
      ->type_name("STATE");
  command
      ->add_option("--equivalent-for", flags->claim,
                   "Whether the policy agrees with --against on all that this "
                   "claim needs: relation, forward or memory")
      ->type_name("CLAIM");
  command->add_option("--against", flags->against.policy, "As --policy")
      ->type_name("SPEC");
  command
      ->add_option("--against-admission", flags->against.admission,
                   "As --admission")
      ->type_name("SPEC");
  command->add_option("--against-form", flags->against.form, "As --form")
      ->type_name("SPEC");
  command->add_option("--against-retain", flags->against.retain, "As --retain")
      ->type_name("STATE");
}

void AddCostFlags(CLI::App* command, ReplayFlags* flags) {
  command
      ->add_option("--placement", flags->costs.placement_file,
                   "Placement document: which worker has which expert; or "
                   "recorded: where the recording says they ran")
      ->type_name("FILE|recorded");
  command
      ->add_option("--workers", flags->costs.workers,
                   "Spread the experts evenly over so many workers")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  command->add_option("--replicas", flags->costs.replicas, "Copies an expert")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  command
      ->add_option("--width", flags->costs.width,
                   "Numbers of a row (default: as recorded; 1024 for --scores)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
}

void AddSourceFlags(CLI::App* command, ReplaySource* source) {
  command->add_option("FILE", source->file,
                      "Recording made by trunkline experts record");
  command
      ->add_option("--scores", source->scores,
                   "Plain matrix of scores instead of a recording")
      ->type_name("FILE");
  command
      ->add_option("--layers", source->layers,
                   "Layers of the recording (default: all)")
      ->type_name("N,N")
      ->delimiter(',');
  command
      ->add_option("--draw", source->draw,
                   "The random number of every token's second route")
      ->type_name("U")
      ->check(CLI::Range(0.0, 1.0));
  command->add_flag("--recover-logits", source->recover_logits,
                    "For a policy with another transform than the recorded "
                    "one: compute logits back from the scores");
}

}  // namespace

void AddReplayCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "replay", "Route a recording again: prove it, compare, sweep");
  command->footer(
      "Without a policy, admission or form: proves that the recorded routes "
      "are what the recorded\npolicy makes of the recorded scores, bit for "
      "bit.\n"
      "Examples:\n"
      "  trunkline replay routes.tlrec\n"
      "  trunkline replay routes.tlrec --admission capacity:factor=1.25 "
      "--workers 4\n"
      "  trunkline replay --scores scores.json --policy gshard --draw 0.25 "
      "--admission capacity:order=first-choices\n"
      "  trunkline replay routes.tlrec --layers 4 --sweep "
      "capacity-factor=0.75,1.0,1.25 --svg sweep.svg\n"
      "  trunkline replay routes.tlrec --equivalent-for forward --form "
      "blocks:rows=8 --against recorded\n"
      "Exit codes: 0 equal or equivalent, 1 not (or failed), 2 wrong usage.");
  auto flags = std::make_shared<ReplayFlags>();
  AddSourceFlags(command, &flags->source);
  AddContractFlags(command, flags.get());
  AddCostFlags(command, flags.get());
  command
      ->add_option("--sweep", flags->sweep,
                   "One coordinate at a time: capacity-factor, skew, "
                   "group-size, block-size, replicas or workers")
      ->type_name("NAME=V,V");
  command->add_option("--svg", flags->svg, "Draw the loads or the sweep")
      ->type_name("FILE");
  command->add_flag("--json", flags->as_json, "JSON instead of tables");
  command->callback(
      [selected, flags] { *selected = [flags] { return Replay(*flags); }; });
}

}  // namespace trunkline::cli
