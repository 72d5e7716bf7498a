#pragma once

// The life of a server process around its server object: flags that every role
// has, announcing, waiting for a signal, the orderly stop and its bound.

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trunkline::cli {

struct ServeFlags {
  absl::Duration drain_timeout = absl::Seconds(30);
  bool exit_with_parent = false;
  std::string address_file;
  int announce_fd = -1;
};
void AddServeFlags(CLI::App* command, ServeFlags* flags);

struct RunningServer {
  std::string address, metrics_address;
  std::function<absl::Status(absl::Duration patience)> shutdown;
  std::shared_ptr<void> server;
};

// What a server may tell while it starts and runs.
struct ServeHooks {
  std::function<void(int64_t bytes_done, int64_t bytes_total)> on_loading;
  // The coordinator has refused this worker for good: the process ends with
  // exit code 1. From any thread.
  std::function<void(const absl::Status&)> on_refused;
};
using StartServer =
    std::function<absl::StatusOr<RunningServer>(const ServeHooks&)>;

// Starts, serves until SIGINT or SIGTERM, stops in order. Returns the exit
// code.
int Serve(const std::string& command, const ServeFlags& flags,
          const StartServer& start);

}  // namespace trunkline::cli
