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
#include "control/ask_leader.h"
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
  // coordinator: "host:port", or several with commas between, of which the one
  // that leads is asked.
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
    if (stub_ == nullptr) return CallLeader(method, request, patience);
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
  template <typename Request, typename Response>
  absl::StatusOr<Response> CallLeader(
      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                   Response*),
      const Request& request, absl::Duration patience) const {
    Response response;
    const absl::Status status = control::AskLeader(
        coordinator_, patience, control::Asking::kChange,
        [&](const std::shared_ptr<grpc::Channel>& channel,
            grpc::ClientContext* context) {
          return (admin::PlacementAdmin::NewStub(channel).get()->*method)(
              context, request, &response);
        });
    if (!status.ok()) return status;
    return response;
  }

  const std::string coordinator_;
  const std::unique_ptr<Stub> stub_;  // null: there are several
};

}  // namespace trunkline::cli
