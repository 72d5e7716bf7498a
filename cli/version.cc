// trunkline version: what this build is and what it can do here.

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "kernels/kernel_context.h"

namespace trunkline::cli {
namespace {

std::vector<std::string> NumericsNames() {
  std::vector<std::string> names;
  for (const kernels::Numerics numerics : kernels::SupportedNumerics())
    names.push_back(kernels::NumericsName(numerics));
  return names;
}

nlohmann::json Describe() {
  return {{"version", TRUNKLINE_VERSION},
          {"build", TRUNKLINE_BUILD_TYPE},
          {"compiler", absl::StrCat(TRUNKLINE_COMPILER)},
          {"simd_targets", kernels::SupportedTargets()},
          {"numerics_classes", NumericsNames()},
          {"grpc", grpc::Version()},
          {"protobuf",
           google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)}};
}

int PrintVersion(bool as_json) {
  const nlohmann::json about = Describe();
  if (as_json) {
    std::printf("%s\n", about.dump().c_str());
    return kExitOk;
  }
  const std::string text =
      absl::StrCat("trunkline ", about["version"].get<std::string>(), "\n",
                   "build       ", about["build"].get<std::string>(), ", ",
                   about["compiler"].get<std::string>(), "\n", "simd        ",
                   absl::StrJoin(kernels::SupportedTargets(), ", "),
                   " (this machine, best first)\n", "numerics    ",
                   absl::StrJoin(NumericsNames(), ", "), "\n",
                   "libraries   gRPC ", about["grpc"].get<std::string>(),
                   ", protobuf ", about["protobuf"].get<std::string>(), "\n");
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

}  // namespace

void AddVersionCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "version", "Print the version and what it runs on");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "One JSON object");
  command->callback([selected, as_json] {
    *selected = [as_json] { return PrintVersion(*as_json); };
  });
}

}  // namespace trunkline::cli
