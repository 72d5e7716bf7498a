#pragma once

// The backend for peers in one process: a message's memory moves from the
// sender to the receiver, nothing is copied. Addresses: inprocess://name; a
// name that ends in ":0" gets a number of its own, as a port would.
//
// A message counts as handed on when the receiver's Poll takes it, so what lies
// in a receiver's inbox is bounded by its senders' Options::queue_bytes_max.
// A peer can not hang or be cut off here, so there is no heartbeat: it is down
// when it disconnects or its transport is destroyed.

#include <memory>

#include "transport/transport.h"

namespace trunkline::transport {

// `options` must have passed ValidateOptions.
std::unique_ptr<Transport> MakeInprocessTransport(const Options& options);

}  // namespace trunkline::transport
