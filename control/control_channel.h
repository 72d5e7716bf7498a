#pragma once

// How both ends of the control plane set up gRPC, so that client and server
// agree on keepalive: without it a peer that is stopped or cut off looks alive
// for as long as nothing is sent.

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

namespace trunkline::control {

// A connection of its own per channel, reconnecting within a second.
std::shared_ptr<grpc::Channel> OpenControlChannel(const std::string& address);

// Accepts the client's keepalive pings, which gRPC would otherwise answer with
// GOAWAY too_many_pings, and sends its own.
void ConfigureControlServer(grpc::ServerBuilder* builder);

}  // namespace trunkline::control
