#pragma once

// A test's way to the coordinator's operator service.

#include <grpcpp/create_channel.h>

#include <chrono>
#include <functional>
#include <string>

#include "proto/placement_admin.grpc.pb.h"
#include "tests/integration/eventually.h"

namespace trunkline::testing {

class PlacementAdmin {
 public:
  explicit PlacementAdmin(const std::string& coordinator)
      : stub_(admin::v1::PlacementAdmin::NewStub(grpc::CreateChannel(
            coordinator, grpc::InsecureChannelCredentials()))) {}

  admin::v1::ShowResponse Show() {
    admin::v1::ShowResponse show;
    grpc::ClientContext context;
    SetDeadline(&context);
    stub_->Show(&context, {}, &show);
    return show;
  }
  std::string Export() {
    admin::v1::ExportResponse response;
    grpc::ClientContext context;
    SetDeadline(&context);
    stub_->Export(&context, {}, &response);
    return response.document();
  }
  // The version that was started; 0 and *why when it was refused.
  uint64_t Apply(const std::string& document, std::string* why) {
    admin::v1::ApplyRequest request;
    request.set_document(document);
    admin::v1::PlanResponse response;
    grpc::ClientContext context;
    SetDeadline(&context);
    const grpc::Status status = stub_->Apply(&context, request, &response);
    *why = status.error_message();
    return status.ok() ? response.version() : 0;
  }

  // `holds` of what Show says, within the limit.
  bool Await(const std::function<bool(const admin::v1::ShowResponse&)>& holds,
             std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    return Eventually(limit, [&] { return holds(Show()); });
  }
  // A version of at least this number is active and alone.
  bool AwaitSettled(uint64_t version) {
    return Await([&](const admin::v1::ShowResponse& show) {
      if (show.active_version() < version) return false;
      for (const auto& one : show.versions()) {
        if (one.state() != control::v1::PLACEMENT_STATE_ACTIVE &&
            one.state() != control::v1::PLACEMENT_STATE_RETIRED &&
            one.state() != control::v1::PLACEMENT_STATE_ABANDONED)
          return false;
      }
      return true;
    });
  }
  // Every worker of the active version is there and has loaded it.
  bool AwaitWhole() {
    return Await([](const admin::v1::ShowResponse& show) {
      for (const auto& one : show.versions()) {
        if (one.version() == show.active_version())
          return one.workers_ready() == one.workers();
      }
      return false;
    });
  }

 private:
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::seconds(10));
  }
  const std::unique_ptr<admin::v1::PlacementAdmin::Stub> stub_;
};

}  // namespace trunkline::testing
