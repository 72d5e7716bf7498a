#pragma once

// The commands' way to a coordinator's operator service.

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "control/status_to_grpc.h"
#include "proto/placement_admin.grpc.pb.h"

namespace trunkline::cli {

namespace admin = ::trunkline::admin::v1;

struct AdminFlags {
  std::string coordinator = "127.0.0.1:7070";
  bool as_json = false;
};
// --coordinator and --json.
void AddAdminFlags(CLI::App* command, AdminFlags* flags);

class AdminClient {
 public:
  using Stub = admin::PlacementAdmin::Stub;
  explicit AdminClient(const std::string& coordinator);

  const std::string& coordinator() const { return coordinator_; }

  // One call: AdminClient::Stub::Show and the like. The error names the
  // coordinator's address; one that can not be reached is UNAVAILABLE at once.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(
      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                   Response*),
      const Request& request,
      absl::Duration patience = absl::Seconds(60)) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoMilliseconds(patience));
    Response response;
    const grpc::Status status =
        (stub_.get()->*method)(&context, request, &response);
    if (status.ok()) return response;
    return absl::Status(
        control::FromGrpc(status).code(),
        absl::StrCat(coordinator_, ": ", status.error_message()));
  }

 private:
  const std::string coordinator_;
  const std::unique_ptr<Stub> stub_;
};

}  // namespace trunkline::cli
