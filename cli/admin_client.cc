#include "cli/admin_client.h"

#include "cli/flags.h"
#include "control/control_channel.h"

namespace trunkline::cli {

void AddAdminFlags(CLI::App* command, AdminFlags* flags) {
  AddAddressListFlag(command, "--coordinator", &flags->coordinator,
                     "The cluster's coordinator, or all of them");
  command->add_flag("--json", flags->as_json,
                    "One JSON object on stdout, in bytes and plain counts");
}

AdminClient::AdminClient(const std::string& coordinator)
    : coordinator_(coordinator),
      stub_(coordinator.find(',') != std::string::npos
                ? nullptr
                : admin::PlacementAdmin::NewStub(
                      control::OpenControlChannel(coordinator))) {}

}  // namespace trunkline::cli
