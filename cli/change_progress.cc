#include "cli/change_progress.h"

#include "absl/strings/str_cat.h"
#include "cli/format.h"
#include "cli/placement_report.h"

namespace trunkline::cli {
namespace {

constexpr int kBarWidth = 24;

bool IsOpen(control::v1::PlacementState state) {
  return state == control::v1::PLACEMENT_STATE_PROPOSED ||
         state == control::v1::PLACEMENT_STATE_STAGING ||
         state == control::v1::PLACEMENT_STATE_READY;
}

std::string Describe(const admin::VersionInfo& version) {
  return absl::StrCat("version ", version.version(), " is ",
                      StateName(version.state()), ": ", version.workers_ready(),
                      " of ", version.workers(), " workers have loaded, ",
                      HumanBytes(static_cast<int64_t>(version.bytes_loaded())),
                      " of ",
                      HumanBytes(static_cast<int64_t>(version.bytes_total())));
}

void TakeBytes(const admin::VersionInfo& version, ChangeProgress* progress) {
  progress->bytes_done = static_cast<int64_t>(version.bytes_loaded());
  progress->bytes_total = static_cast<int64_t>(version.bytes_total());
}

}  // namespace

ChangeProgress JudgeChange(const admin::ShowResponse& show, uint64_t version) {
  ChangeProgress progress;
  for (const admin::VersionInfo& info : show.versions()) {
    if (info.version() != version) continue;
    progress.text = Describe(info);
    TakeBytes(info, &progress);
    if (info.state() == control::v1::PLACEMENT_STATE_ABANDONED) {
      progress.over = true;
      progress.failure = absl::AbortedError(
          absl::StrCat("version ", version, " was abandoned: ", info.reason()));
    } else if (!IsOpen(info.state())) {
      progress.over = true;
      progress.text = absl::StrCat("version ", version, " is active");
      if (show.active_version() != version)
        absl::StrAppend(&progress.text, " no more: version ",
                        show.active_version(), " has taken over");
    }
    return progress;
  }
  progress.over = true;
  progress.failure = absl::NotFoundError(absl::StrCat(
      "the coordinator does not know version ", version, " any more"));
  return progress;
}

ChangeProgress JudgeDrain(const admin::ShowResponse& show,
                          const std::string& worker) {
  ChangeProgress progress;
  bool known = false, drained = true, draining = true, alive = false;
  uint64_t copies = 0;
  for (const admin::WorkerInfo& info : show.workers()) {
    if (info.worker().name() != worker) continue;
    known = true;
    drained = drained && info.worker().drained();
    draining = draining && info.worker().draining();
    alive = alive || info.worker().alive();
    copies += info.copies();
  }
  if (!known || !draining) {
    progress.over = true;
    progress.failure = known
                           ? absl::AbortedError(absl::StrCat(
                                 "the drain of '", worker, "' was called off"))
                           : absl::NotFoundError(absl::StrCat(
                                 "no worker is named '", worker, "'"));
    return progress;
  }
  if (drained) {
    progress.over = true;
    progress.text = absl::StrCat(worker, ": safe to stop",
                                 alive ? "" : " (it does not run)");
    return progress;
  }
  progress.blocked = show.blocked();
  progress.text = absl::StrCat(
      worker, ": ",
      copies > 0
          ? absl::StrCat("holds ", copies, copies == 1 ? " expert" : " experts")
          : std::string("what is in flight comes to its end"));
  for (const admin::VersionInfo& info : show.versions()) {
    if (!IsOpen(info.state())) continue;
    absl::StrAppend(&progress.text, "; ", Describe(info));
    TakeBytes(info, &progress);
  }
  return progress;
}

std::string ProgressText(const ChangeProgress& progress, int64_t tick) {
  return absl::StrCat(
      ProgressBar(progress.bytes_done, progress.bytes_total, kBarWidth, tick),
      " ", progress.text);
}

}  // namespace trunkline::cli
