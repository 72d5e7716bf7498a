// The trunkline program: finds the sub-command and runs it.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "cli/command.h"
#include "cli/exit_code.h"

namespace trunkline::cli {
namespace {

constexpr char kExamples[] =
    "Examples:\n"
    "  trunkline up --model models/demo --experts 2\n"
    "  trunkline generate --server 127.0.0.1:7080 \"In the beginning\"\n"
    "  trunkline inspect models/demo\n"
    "  trunkline placement show --coordinator 127.0.0.1:7070\n"
    "\n"
    "Exit codes: 0 done (or stopped as asked), 1 failed (stderr has the code "
    "and the reason),\n"
    "2 wrong usage, 130 interrupted.";

// "generate", or "" when no sub-command was reached.
std::string ParsedCommand(const CLI::App& program) {
  for (const CLI::App* command : program.get_subcommands(nullptr)) {
    if (command->count_all() > 0) return command->get_name();
  }
  return "";
}

bool IsCommand(const CLI::App& program, const std::string& name) {
  for (const CLI::App* command : program.get_subcommands(nullptr)) {
    if (command->check_name(name)) return true;
  }
  return false;
}

int Main(int argc, char** argv) {
  CLI::App program(
      "Serves NemotronH mixture-of-experts models from a cluster of processes.",
      "trunkline");
  program.require_subcommand(1);
  program.footer(kExamples);
  SelectedCommand selected;
  AddUpCommand(&program, &selected);
  AddGenerateCommand(&program, &selected);
  AddInspectCommand(&program, &selected);
  AddCoordinatorCommand(&program, &selected);
  AddTrunkWorkerCommand(&program, &selected);
  AddExpertWorkerCommand(&program, &selected);
  AddPlacementCommand(&program, &selected);
  AddRebalanceCommand(&program, &selected);
  AddDrainCommands(&program, &selected);
  AddExpertsCommand(&program, &selected);
  AddReplayCommand(&program, &selected);
  AddBenchCommand(&program, &selected);
  AddSynthesizeCommand(&program, &selected);
  AddVersionCommand(&program, &selected);
  // The library would say only that a sub-command is required.
  if (argc > 1 && argv[1][0] != '-' && !IsCommand(program, argv[1])) {
    std::fprintf(stderr,
                 "trunkline: \"%s\" is not a command\n"
                 "Run \"trunkline --help\" for the commands.\n",
                 argv[1]);
    return kExitUsage;
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // help
    const std::string command = ParsedCommand(program);
    if (!command.empty()) return ReportUsage(command, error.what());
    std::fprintf(stderr,
                 "trunkline: %s\nRun \"trunkline --help\" for the commands.\n",
                 error.what());
    return kExitUsage;
  }
  return selected();
}

}  // namespace
}  // namespace trunkline::cli

int main(int argc, char** argv) {
  try {
    return trunkline::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    // Libraries throw where there is no other way out: no memory, no thread.
    std::fprintf(stderr, "trunkline: %s\n", error.what());
    return trunkline::cli::kExitFailed;
  }
}
