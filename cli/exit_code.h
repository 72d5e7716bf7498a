#pragma once

// How the program ends. Part of its interface: scripts rely on these numbers.

namespace trunkline::cli {

enum ExitCode : int {
  kExitOk = 0,             // also a server that was asked to stop
  kExitFailed = 1,         // the operation failed; stderr has code and message
  kExitUsage = 2,          // a flag, a value or an argument is wrong
  kExitInterrupted = 130,  // ctrl-C ended a client, or a second one a server
};

}  // namespace trunkline::cli
