// trunkline inspect DIR: what a checkpoint is, without loading its weights. A
// checkpoint that does not load is refused here with the same message as by a
// worker, tokenizer included.

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/inspect_placement.h"
#include "cli/inspect_report.h"
#include "common/status_macros.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"

namespace trunkline::cli {
namespace {

struct InspectFlags {
  std::string directory, placement, manifest;
  bool as_json = false;
};

absl::StatusOr<PlacementReport> ReadPlacement(
    const model::Checkpoint& checkpoint, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open())
    return absl::NotFoundError(absl::StrCat(path, ": can not be read"));
  const std::string document((std::istreambuf_iterator<char>(file)),
                             std::istreambuf_iterator<char>());
  return MakePlacementReport(checkpoint, document, path);
}

absl::Status WriteManifest(const model::Checkpoint& checkpoint,
                           const std::string& path) {
  TL_ASSIGN_OR_RETURN(const std::string text,
                      model::MakeExpertManifest(checkpoint));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) {
    return absl::UnavailableError(absl::StrCat(path, ": can not be written"));
  }
  return absl::OkStatus();
}

absl::Status Inspect(const InspectFlags& flags) {
  TL_ASSIGN_OR_RETURN(const std::shared_ptr<const model::Checkpoint> checkpoint,
                      model::Checkpoint::Open(flags.directory));
  const absl::Status tokenizer =
      model::Tokenizer::Load(flags.directory + "/tokenizer.json").status();
  // A checkpoint may come without one: it is then served by token ids.
  if (!tokenizer.ok() && !absl::IsNotFound(tokenizer)) return tokenizer;
  if (!flags.manifest.empty())
    return WriteManifest(*checkpoint, flags.manifest);
  const InspectReport report = MakeInspectReport(*checkpoint);
  nlohmann::json json = InspectJson(report);
  std::string text = InspectText(report);
  if (!flags.placement.empty()) {
    TL_ASSIGN_OR_RETURN(const PlacementReport placed,
                        ReadPlacement(*checkpoint, flags.placement));
    json["placement"] = PlacementReportJson(placed);
    text += "\n" + PlacementText(placed);
  }
  if (flags.as_json) text = json.dump(2) + "\n";
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddInspectCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "inspect", "Print a checkpoint's layers, sizes and costs");
  command->footer(
      "Examples:\n"
      "  trunkline inspect models/demo\n"
      "  trunkline inspect models/demo --json | jq .model.active_parameters\n"
      "  trunkline inspect DIR --write-manifest thin/expert_manifest.json");
  auto flags = std::make_shared<InspectFlags>();
  command
      ->add_option("DIR", flags->directory, "Hugging Face checkpoint directory")
      ->required();
  command
      ->add_option("--placement", flags->placement,
                   "Placement document: also print what each worker holds "
                   "under it")
      ->type_name("FILE");
  command
      ->add_option("--write-manifest", flags->manifest,
                   "Write the digests of all experts and nothing else; beside "
                   "a config.json, as expert_manifest.json, it stands in for "
                   "the weights of an expert worker that takes them from peers")
      ->type_name("FILE");
  command->add_flag("--json", flags->as_json,
                    "One JSON object, in bytes and plain counts");
  command->callback([selected, flags] {
    *selected = [flags]() -> int {
      const absl::Status status = Inspect(*flags);
      return status.ok() ? kExitOk : ReportFailure("inspect", status);
    };
  });
}

}  // namespace trunkline::cli
