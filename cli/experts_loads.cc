// trunkline experts record start, stop and dump: the coordinator counts, per
// layer and expert, what the cluster's trunks ask for.

#include <cstdio>
#include <memory>
#include <string>

#include "cli/admin_client.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/message_json.h"
#include "cli/worker_report.h"
#include "common/status_macros.h"

namespace trunkline::cli {
namespace {

absl::Status RecordLoads(const AdminFlags& flags,
                         admin::RecordLoadsRequest::Action action) {
  const AdminClient client(flags.coordinator);
  admin::RecordLoadsRequest request;
  request.set_action(action);
  TL_ASSIGN_OR_RETURN(const admin::RecordLoadsResponse loads,
                      client.Call(&AdminClient::Stub::RecordLoads, request));
  const std::string text =
      flags.as_json ? MessageJson(loads).dump(2) + "\n" : LoadsText(loads);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddLoadRecordCommands(CLI::App* record, SelectedCommand* selected) {
  struct Command {
    const char* name;
    const char* help;
    admin::RecordLoadsRequest::Action action;
  };
  const auto flags = std::make_shared<AdminFlags>();
  for (const Command& one :
       {Command{"start", "The coordinator counts expert loads from zero",
                admin::RecordLoadsRequest::START},
        Command{"stop", "It stops, and the counts are printed",
                admin::RecordLoadsRequest::STOP},
        Command{"dump", "The counts so far; it goes on",
                admin::RecordLoadsRequest::DUMP}}) {
    CLI::App* command = record->add_subcommand(one.name, one.help);
    AddAdminFlags(command, flags.get());
    const std::string full = std::string("experts record ") + one.name;
    command->callback([selected, flags, full, action = one.action] {
      *selected = [flags, full, action]() -> int {
        const absl::Status status = RecordLoads(*flags, action);
        return status.ok() ? kExitOk : ReportFailure(full, status);
      };
    });
  }
}

}  // namespace trunkline::cli
