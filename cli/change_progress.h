#pragma once

// Where a placement change or a drain stands, from what the coordinator shows.
// Pure.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/placement_admin.pb.h"

namespace trunkline::cli {

namespace admin = ::trunkline::admin::v1;

struct ChangeProgress {
  bool over = false;
  absl::Status failure;  // when over: why it came to nothing
  std::string text;      // one line, without an end
  // Of what its workers load; a total of 0: not known.
  int64_t bytes_done = 0, bytes_total = 0;
  // What is in the way for now, for people; it may go away.
  std::string blocked;
};

// Over when `version` has become active (whatever came after), or was
// abandoned: ABORTED with the reason.
ChangeProgress JudgeChange(const admin::ShowResponse& show, uint64_t version);

// Over when every worker of that name is safe to stop; NOT_FOUND when there is
// none; ABORTED when somebody has called the drain off.
ChangeProgress JudgeDrain(const admin::ShowResponse& show,
                          const std::string& worker);

// "[####....]  50% version 4 is staging: ..."
std::string ProgressText(const ChangeProgress& progress, int64_t tick);

}  // namespace trunkline::cli
