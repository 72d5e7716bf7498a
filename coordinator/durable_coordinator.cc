#include "coordinator/durable_coordinator.h"

#include "absl/strings/str_cat.h"
#include "common/planted_mistake.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"

namespace trunkline::coordinator {
namespace {

// While the store does not answer, it is asked again so often.
constexpr absl::Duration kRecoverPeriod = absl::Milliseconds(500);

// The core relies on placements that fit the model; a store is input.
absl::Status CheckContents(const StoreContents& contents) {
  int active = 0, open = 0;
  for (const PlacementRecord& record : contents.placements) {
    const std::string subject =
        absl::StrCat("placement store: version ", record.map.version.value);
    if (!contents.cluster.model) {
      return absl::DataLossError(subject + " without a model");
    }
    if (absl::Status status = placement::ValidatePlacement(
            record.map, contents.cluster.model->moe_layers);
        !status.ok()) {
      return absl::DataLossError(
          absl::StrCat(subject, ": ", std::string(status.message())));
    }
    if (record.map.version.value >= contents.cluster.next_version) {
      return absl::DataLossError(absl::StrCat(subject,
                                              " exists, the next to give is ",
                                              contents.cluster.next_version));
    }
    if (record.state == placement::VersionState::kActive) ++active;
    if (placement::IsOpen(record.state)) ++open;
    if (active > 1 || open > 1) {
      return absl::DataLossError(absl::StrCat(
          subject, " is ", Name(record.state), ", and so is another"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DurableCoordinator>> DurableCoordinator::Open(
    CoreOptions options, std::unique_ptr<PlacementStore> store, Moment moment) {
  TL_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<DurableCoordinator> durable(
      new DurableCoordinator(options, std::move(store)));
  TL_RETURN_IF_ERROR(durable->Recover(moment));
  return durable;
}

absl::Status DurableCoordinator::Recover(Moment moment) {
  // Revisions that were computed but never shown are skipped, so that a number
  // never means two views.
  const uint64_t first = core_ == nullptr ? 1 : core_->revision() + 1;
  const absl::StatusOr<StoreContents> loaded = store_->Load();
  if (!loaded.ok()) {
    if (absl::IsFailedPrecondition(loaded.status())) deposed_ = true;
    return loaded.status();
  }
  const StoreContents& contents = *loaded;
  TL_RETURN_IF_ERROR(CheckContents(contents));
  core_ = std::make_unique<Coordinator>(options_, contents, first, moment);
  stale_ = false;
  return absl::OkStatus();
}

DurableCoordinator::Outcome DurableCoordinator::StoreAway(
    const absl::Status& status) const {
  Outcome outcome;
  outcome.reply.status = absl::UnavailableError(absl::StrCat(
      "the placement store does not answer: ", std::string(status.message())));
  return outcome;
}

DurableCoordinator::Outcome DurableCoordinator::Step(const Event& event,
                                                     Moment moment) {
  const bool recovers = stale_;
  if (recovers) {
    if (absl::Status status = Recover(moment); !status.ok())
      return StoreAway(status);
  }
  Actions actions = core_->Step(event, moment);
  const bool reads =
      actions.change.empty() && !std::holds_alternative<HeartbeatEvent>(event);
  Outcome outcome = Finish(std::move(actions), moment);
  if (reads) {
    Outcome confirmed = Confirm(moment);
    if (!confirmed.reply.status.ok()) return confirmed;
    outcome.view_changed = outcome.view_changed || confirmed.view_changed;
  }
  if (recovers) outcome.view_changed = !stale_;
  return outcome;
}

DurableCoordinator::Outcome DurableCoordinator::Confirm(Moment moment) {
  Outcome outcome;
  if (!stale_) {
    const absl::Status status = store_->Confirm();
    if (status.ok()) return outcome;
    if (absl::IsFailedPrecondition(status)) {
      deposed_ = stale_ = true;
      outcome = StoreAway(status);
      if (control::IsNotLeading(status)) {
        control::SetNotLeading(control::LeaderIn(status),
                               &outcome.reply.status);
      }
      return outcome;
    }
    if (!absl::IsAborted(status)) return StoreAway(status);
    stale_ = true;
    recover_at_ = moment.now + kRecoverPeriod;
  }
  // Loading is a barrier too.
  if (absl::Status status = Recover(moment); !status.ok())
    return StoreAway(status);
  outcome.view_changed = true;
  return outcome;
}

DurableCoordinator::Outcome DurableCoordinator::Tick(Moment moment) {
  if (stale_) {
    Outcome outcome;
    if (deposed_ || moment.now < recover_at_) return outcome;
    recover_at_ = moment.now + kRecoverPeriod;
    if (!Recover(moment).ok()) return outcome;
    outcome.view_changed = true;
    outcome.notes.push_back("the placement store answers again");
    return outcome;
  }
  return Finish(core_->Tick(moment), moment);
}

DurableCoordinator::Outcome DurableCoordinator::Finish(Actions actions,
                                                       Moment moment) {
  Outcome outcome;
  outcome.view_changed = actions.view_changed;
  outcome.notes = std::move(actions.notes);
  outcome.tally = actions.tally;
  outcome.plan_rebalance = actions.plan_rebalance;
  if (actions.reply) outcome.reply = std::move(*actions.reply);
  if (actions.change.empty()) return outcome;
  const absl::Status status = store_->Commit(actions.change);
  if (status.ok()) {
    ++commits_;
    return outcome;
  }
  ++commit_failures_;
  stale_ = !TL_PLANTED(kCoreAheadOfStore);
  if (absl::IsFailedPrecondition(status)) deposed_ = true;
  recover_at_ = moment.now + kRecoverPeriod;
  outcome = Outcome();
  outcome.reply.status = absl::UnavailableError(
      absl::StrCat("the placement store refused the change: ",
                   std::string(status.message())));
  outcome.notes.push_back(std::string(outcome.reply.status.message()));
  if (!deposed_ && stale_ && Recover(moment).ok()) outcome.view_changed = true;
  return outcome;
}

absl::Time DurableCoordinator::NextDeadline() const {
  if (deposed_) return absl::InfiniteFuture();
  return stale_ ? recover_at_ : core_->NextDeadline();
}

}  // namespace trunkline::coordinator
