#pragma once

// The backend for peers in other processes and on other machines: UCX active
// messages over whatever UCX finds between the two (RDMA, shared memory, tcp).
// Addresses: ucx://host:port, ucx://[v6]:port; host names are looked up.
//
// One mutex serialises all use of the UCX worker. The engine's Poll drives it;
// while the engine is away a keeper thread does, so that heartbeats go out and
// large messages move during a computation. docs/gotchas.md says what UCX 1.13
// does and does not do, and why the settings of ucx_context.cc are as they are.
//
// Trust: the data plane has no authentication. Bytes that are not this protocol
// end their own connection and nothing else, but the network must be one whose
// hosts are trusted.

#include <memory>

#include "absl/status/statusor.h"
#include "transport/transport.h"

namespace trunkline::transport {

// `options` must have passed ValidateOptions. UNAVAILABLE when UCX finds no
// usable device.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(
    const Options& options);

}  // namespace trunkline::transport
