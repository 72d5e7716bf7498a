#include "cli/admin_client.h"

#include "cli/flags.h"
#include "control/control_channel.h"

namespace trunkline::cli {

void AddAdminFlags(CLI::App* command, AdminFlags* flags) {
  AddAddressFlag(command, "--coordinator", &flags->coordinator, Port::kDialable,
                 "The cluster's coordinator");
  command->add_flag("--json", flags->as_json,
                    "One JSON object on stdout, in bytes and plain counts");
}

AdminClient::AdminClient(const std::string& coordinator)
    : coordinator_(coordinator),
      stub_(admin::PlacementAdmin::NewStub(
          control::OpenControlChannel(coordinator))) {}

}  // namespace trunkline::cli
