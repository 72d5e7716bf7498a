#pragma once

// Flags that trunk workers and expert workers share.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/numerics.h"
#include "transport/transport.h"

namespace trunkline::cli {

void AddComputeFlags(CLI::App* command, int* threads, std::vector<int>* cores,
                     std::string* simd);
void AddNumericsFlag(CLI::App* command, std::string* numerics,
                     const std::string& help);
// The class that --numerics means for a model on this machine, without a
// coordinator to ask. FAILED_PRECONDITION names what stands against it.
absl::StatusOr<kernels::Numerics> NumericsForModel(const std::string& asked,
                                                   const std::string& model);
void AddTransportFlags(CLI::App* command, std::string* kind,
                       transport::Options* options);
void AddMetricsAndLogFlags(CLI::App* command, std::string* metrics_listen,
                           std::string* log_level);
// A process reaches others over the network, so not over "inprocess".
absl::Status CheckTransportBetweenProcesses(const std::string& kind);

}  // namespace trunkline::cli
