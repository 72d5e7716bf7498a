#pragma once

// The operators' API as a test uses it: whichever coordinator leads.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "control/ask_leader.h"
#include "proto/placement_admin.grpc.pb.h"

namespace trunkline::testing {

class PlacementAdminClient {
 public:
  using Stub = admin::v1::PlacementAdmin::Stub;

  explicit PlacementAdminClient(std::string coordinators)
      : coordinators_(std::move(coordinators)) {}

  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                 const Request&, Response*),
                    const Request& request, Response* response,
                    control::Asking asking = control::Asking::kChange) const {
    return control::AskLeader(
        coordinators_, absl::Seconds(10), asking,
        [&](const std::shared_ptr<grpc::Channel>& channel,
            grpc::ClientContext* context) {
          return (admin::v1::PlacementAdmin::NewStub(channel).get()->*method)(
              context, request, response);
        });
  }

  absl::Status Show(admin::v1::ShowResponse* response) const {
    return Call(&Stub::Show, admin::v1::ShowRequest(), response,
                control::Asking::kLook);
  }

  // Every expert moves on to the next of `experts` workers, called expert-0 and
  // so on.
  absl::Status Rotate(int experts) const {
    admin::v1::ExportResponse exported;
    const absl::Status status =
        Call(&Stub::Export, admin::v1::ExportRequest(), &exported);
    if (!status.ok()) return status;
    std::vector<std::pair<std::string, std::string>> names;
    for (int i = 0; i < experts; ++i) {
      names.emplace_back(absl::StrCat("\"expert-", i, "\""),
                         absl::StrCat("\"expert-", (i + 1) % experts, "\""));
    }
    admin::v1::ApplyRequest request;
    request.set_document(absl::StrReplaceAll(exported.document(), names));
    admin::v1::PlanResponse response;
    return Call(&Stub::Apply, request, &response);
  }

  // One version is active, everybody has it, and none is under way or still
  // draining. *version: which.
  bool Converged(uint64_t* version) const {
    admin::v1::ShowResponse show;
    if (!Show(&show).ok() || !show.waiting_for().empty()) return false;
    namespace wire = control::v1;
    int active = 0;
    for (const admin::v1::VersionInfo& info : show.versions()) {
      if (info.state() == wire::PLACEMENT_STATE_ACTIVE) {
        ++active;
        *version = info.version();
      } else if (info.state() != wire::PLACEMENT_STATE_RETIRED &&
                 info.state() != wire::PLACEMENT_STATE_ABANDONED) {
        return false;
      }
    }
    return active == 1 && *version == show.active_version();
  }

 private:
  const std::string coordinators_;
};

}  // namespace trunkline::testing
