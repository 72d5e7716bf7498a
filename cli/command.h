#pragma once

// The program's sub-commands. Each lives in a file of its own and adds itself
// to the command line; main only picks the one that was asked for.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace trunkline::cli {

// Set by the sub-command that the command line names; returns an exit code.
using SelectedCommand = std::function<int()>;

void AddUpCommand(CLI::App* program, SelectedCommand* selected);
void AddGenerateCommand(CLI::App* program, SelectedCommand* selected);
void AddInspectCommand(CLI::App* program, SelectedCommand* selected);
void AddCoordinatorCommand(CLI::App* program, SelectedCommand* selected);
void AddTrunkWorkerCommand(CLI::App* program, SelectedCommand* selected);
void AddExpertWorkerCommand(CLI::App* program, SelectedCommand* selected);
void AddExpertsCommand(CLI::App* program, SelectedCommand* selected);
// start, stop and dump under `experts record`.
void AddLoadRecordCommands(CLI::App* record, SelectedCommand* selected);
void AddPlacementCommand(CLI::App* program, SelectedCommand* selected);
void AddRebalanceCommand(CLI::App* program, SelectedCommand* selected);
// drain, undrain and workers.
void AddDrainCommands(CLI::App* program, SelectedCommand* selected);
void AddReplayCommand(CLI::App* program, SelectedCommand* selected);
void AddBenchCommand(CLI::App* program, SelectedCommand* selected);
void AddSynthesizeCommand(CLI::App* program, SelectedCommand* selected);
void AddVersionCommand(CLI::App* program, SelectedCommand* selected);

// "trunkline inspect: NOT_FOUND: ..." on stderr; kExitFailed.
int ReportFailure(const std::string& command, const absl::Status& status);
// The same for a fault of the command line, with a hint; kExitUsage.
int ReportUsage(const std::string& command, const std::string& message);

}  // namespace trunkline::cli
