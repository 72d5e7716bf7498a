#pragma once

// The life of a server process around its server object: flags that every role
// has, announcing, waiting for a signal, the orderly stop and its bound.

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command.h"

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

// A started server object as the life of a process sees it. `stop`:
// absl::Status(absl::Duration patience).
template <class Server, class Stop>
RunningServer Running(std::unique_ptr<Server> started, std::string address,
                      Stop stop) {
  const std::shared_ptr<Server> server = std::move(started);
  return {std::move(address), server->metrics_address(),
          [raw = server.get(), stop](absl::Duration patience) {
            return stop(raw, patience);
          },
          server};
}

// Starts, serves until SIGINT or SIGTERM, stops in order. Returns the exit
// code.
int Serve(const std::string& command, const ServeFlags& flags,
          const StartServer& start);

// Makes `command`, when it is named, check its flags (a fault is one of usage)
// and serve. `flags` lives as long as `start`.
void SelectServing(CLI::App* command, SelectedCommand* selected,
                   std::function<absl::Status()> check, const ServeFlags* flags,
                   StartServer start);

}  // namespace trunkline::cli
