#include <cstdio>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/exit_code.h"

namespace trunkline::cli {

int ReportFailure(const std::string& command, const absl::Status& status) {
  const std::string line = absl::StrCat("trunkline ", command, ": ",
                                        absl::StatusCodeToString(status.code()),
                                        ": ", status.message(), "\n");
  std::fputs(line.c_str(), stderr);
  return kExitFailed;
}

int ReportUsage(const std::string& command, const std::string& message) {
  const std::string line =
      absl::StrCat("trunkline ", command, ": ", message, "\nRun \"trunkline ",
                   command, " --help\" for the flags.\n");
  std::fputs(line.c_str(), stderr);
  return kExitUsage;
}

}  // namespace trunkline::cli
