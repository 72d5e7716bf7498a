#include "coordinator/membership.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/planted_mistake.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"

namespace trunkline::coordinator {

using control::Registration;
using control::VersionReport;

namespace {

// More processes of one name are not on their way at once.
constexpr size_t kReplacedKept = 8;

}  // namespace

const VersionReport* Member::FindReport(PlacementVersion version) const {
  for (const VersionReport& report : record.versions) {
    if (report.version == version) return &report;
  }
  return nullptr;
}

bool Member::ready(PlacementVersion version) const {
  const VersionReport* report = FindReport(version);
  return alive() && report != nullptr &&
         report->state == control::ShardState::kReady;
}

Membership::Membership(MembershipOptions options,
                       std::vector<WorkerRecord> workers, absl::Time now)
    : options_(options) {
  for (WorkerRecord& record : workers) {
    Member member;
    member.record = std::move(record);
    member.lease_end = now + options_.lease * options_.restart_leases;
    member.lost_at = now;
    members_.emplace(member.record.id, std::move(member));
  }
}

absl::Status Membership::CheckAdmission(
    const control::Registration& registration) const {
  if (registration.role != control::Role::kTrunk ||
      registration.admission.empty()) {
    return absl::OkStatus();
  }
  for (const auto& [worker, member] : members_) {
    const std::string& theirs = member.record.registration.admission;
    if (!member.alive() || !member.is(control::Role::kTrunk) ||
        member.name() == registration.name || theirs.empty() ||
        theirs == registration.admission) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "worker '", registration.name, "' has admission ",
        registration.admission, ", trunk worker '", member.name(), "' has ",
        theirs, ": they would answer the same prompt differently"));
  }
  return absl::OkStatus();
}

absl::Status Membership::CheckSuccession(const Registration& registration,
                                         const Member& member) {
  const WorkerRecord& record = member.record;
  const std::vector<uint64_t>& replaced = record.replaced;
  if (registration.process == record.registration.process) {
    if (!record.left) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "this process of worker '", member.name(), "' has left the cluster"));
  }
  if (std::count(replaced.begin(), replaced.end(), registration.process) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this process of worker '", member.name(),
        "' was replaced by incarnation ", record.incarnation, " at ",
        record.registration.data_address, record.registration.api_address));
  }
  if (registration.replaces == record.incarnation) return absl::OkStatus();
  absl::Status held = absl::AbortedError(absl::StrCat(
      "the name '", member.name(), "' is incarnation ", record.incarnation,
      "'s at ", record.registration.data_address,
      record.registration.api_address, ", and this process replaces ",
      registration.replaces));
  control::SetNameHeld(record.incarnation, &held);
  return held;
}

absl::StatusOr<WorkerId> Membership::Register(const Registration& registration,
                                              absl::Time now,
                                              uint32_t* next_worker) {
  const Member* known = FindByName(registration.name, registration.role);
  if (known != nullptr)
    TL_RETURN_IF_ERROR(CheckSuccession(registration, *known));
  const WorkerId id =
      known != nullptr ? known->record.id : WorkerId((*next_worker)++);
  Member& member = members_[id];
  member.record.id = id;
  member.lease_end = now + options_.lease;
  const bool same_process =
      known != nullptr && !TL_PLANTED(kForgetProcess) &&
      member.record.registration.process == registration.process;
  // Asked twice, or the answer was lost: nothing has changed.
  if (same_process && member.alive()) return id;
  if (!same_process) {
    // A new incarnation is a new process: it holds nothing until it says so.
    ++member.record.incarnation;
    member.record.leaving = false;
    member.costs = control::ExpertCosts();
    std::vector<uint64_t>& replaced = member.record.replaced;
    if (known != nullptr)
      replaced.push_back(member.record.registration.process);
    if (replaced.size() > kReplacedKept) replaced.erase(replaced.begin());
  }
  member.record.registration = registration;
  member.record.registration.moe_layers.clear();
  member.record.registration.replaces = 0;
  member.record.versions.clear();
  member.record.alive = true;
  member.record.left = false;
  member.oldest_in_flight = PlacementVersion();
  member.followed_epoch = 0;
  member.followed_revision = 0;
  member.at_rest = false;
  MarkChanged(id);
  return id;
}

absl::Status Membership::Renew(const control::Heartbeat& heartbeat,
                               const std::set<PlacementVersion>& known,
                               absl::Time now) {
  const auto found = members_.find(heartbeat.worker);
  if (found == members_.end()) {
    return absl::NotFoundError(
        absl::StrCat("worker ", heartbeat.worker.value, " is not registered"));
  }
  Member& member = found->second;
  if (member.alive() && heartbeat.incarnation < member.record.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "incarnation ", heartbeat.incarnation, " of worker '", member.name(),
        "' was replaced by incarnation ", member.record.incarnation, " at ",
        member.record.registration.data_address,
        member.record.registration.api_address));
  }
  if (!member.alive() || heartbeat.incarnation != member.record.incarnation) {
    return absl::NotFoundError(
        absl::StrCat("incarnation ", heartbeat.incarnation, " of worker '",
                     member.name(), "' holds no lease"));
  }
  member.lease_end = now + options_.lease;
  const control::Report& report = heartbeat.report;
  if (report.oldest_in_flight != member.oldest_in_flight ||
      heartbeat.view_epoch != member.followed_epoch ||
      heartbeat.view_revision != member.followed_revision) {
    member.oldest_in_flight = report.oldest_in_flight;
    member.followed_epoch = heartbeat.view_epoch;
    member.followed_revision = heartbeat.view_revision;
    ++generation_;
  }
  if (report.at_rest != member.at_rest) {
    member.at_rest = report.at_rest;
    MarkChanged(heartbeat.worker);
  }
  if (report.wants_drain && !member.record.leaving) {
    member.record.leaving = true;
    MarkChanged(heartbeat.worker);
  }
  TakeReports(report.versions, known, &member);
  TakeCosts(report.costs, &member);
  return absl::OkStatus();
}

void Membership::TakeCosts(const control::ExpertCosts& costs, Member* member) {
  if (!costs.known()) return;
  const auto moved = [](double shown, double now) {
    return std::abs(now - shown) > 0.25 * std::max(shown, now);
  };
  if (member->costs.known() &&
      !moved(member->costs.read_seconds, costs.read_seconds) &&
      !moved(member->costs.row_seconds, costs.row_seconds)) {
    return;
  }
  member->costs = costs;
  MarkChanged(member->record.id);
}

void Membership::TakeReports(const std::vector<VersionReport>& reports,
                             const std::set<PlacementVersion>& known,
                             Member* member) {
  std::vector<VersionReport> kept;
  for (const VersionReport& report : reports) {
    if (known.count(report.version) != 0) kept.push_back(report);
  }
  std::sort(kept.begin(), kept.end(),
            [](const VersionReport& a, const VersionReport& b) {
              return a.version < b.version;
            });
  // Progress alone is no change: it is in the view when somebody asks, but
  // wakes nobody and is not stored.
  const bool same =
      std::equal(kept.begin(), kept.end(), member->record.versions.begin(),
                 member->record.versions.end(),
                 [](const VersionReport& a, const VersionReport& b) {
                   return a.version == b.version && a.state == b.state &&
                          a.error == b.error;
                 });
  member->record.versions = std::move(kept);
  if (!same) MarkChanged(member->record.id);
}

absl::Status Membership::Leave(WorkerId worker, uint64_t incarnation,
                               absl::Time now) {
  const auto found = members_.find(worker);
  if (found == members_.end()) {
    return absl::NotFoundError(
        absl::StrCat("worker ", worker.value, " is not registered"));
  }
  Member& member = found->second;
  if (member.record.incarnation != incarnation) {
    return absl::NotFoundError(absl::StrCat("incarnation ", incarnation,
                                            " of worker '", member.name(),
                                            "' holds no lease"));
  }
  if (member.record.left) return absl::OkStatus();
  if (member.record.alive) member.lost_at = now;
  member.record.alive = false;
  member.record.left = true;
  member.record.versions.clear();
  MarkChanged(worker);
  return absl::OkStatus();
}

absl::Status Membership::SetCordoned(const std::string& name, bool cordoned,
                                     uint64_t next_revision) {
  bool known = false;
  for (auto& [id, member] : members_) {
    if (member.name() != name) continue;
    known = true;
    if (member.record.cordoned == cordoned) continue;
    member.record.cordoned = cordoned;
    if (cordoned) member.draining_since = next_revision;
    MarkChanged(id);
  }
  if (known) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("no worker is named '", name, "'"));
}

std::vector<WorkerId> Membership::Expire(absl::Time now) {
  std::vector<WorkerId> expired;
  for (auto& [id, member] : members_) {
    if (!member.record.alive || member.lease_end > now) continue;
    member.record.alive = false;
    member.lost_at = now;
    member.record.versions.clear();
    MarkChanged(id);
    expired.push_back(id);
  }
  return expired;
}

std::vector<WorkerId> Membership::Forget(const std::set<WorkerId>& named,
                                         absl::Time now) {
  std::vector<WorkerId> forgotten;
  for (const auto& [id, member] : members_) {
    if (member.alive() || named.count(id) != 0 || member.record.cordoned ||
        member.lost_at + options_.forget_after > now) {
      continue;
    }
    forgotten.push_back(id);
  }
  for (const WorkerId id : forgotten) {
    members_.erase(id);
    changed_.erase(id);
    ++generation_;
  }
  return forgotten;
}

void Membership::KeepReportsOf(const std::set<PlacementVersion>& known) {
  for (auto& [id, member] : members_) {
    const size_t erased =
        std::erase_if(member.record.versions, [&](const VersionReport& report) {
          return known.count(report.version) == 0;
        });
    if (erased > 0) MarkChanged(id);
  }
}

const Member* Membership::Find(WorkerId worker) const {
  const auto found = members_.find(worker);
  return found == members_.end() ? nullptr : &found->second;
}

const Member* Membership::FindByName(const std::string& name,
                                     control::Role role) const {
  for (const auto& [id, member] : members_) {
    if (member.is(role) && member.name() == name) return &member;
  }
  return nullptr;
}

std::vector<placement::WorkerProfile> Membership::UsableExperts() const {
  std::vector<placement::WorkerProfile> profiles;
  for (const auto& [id, member] : members_) {
    if (!member.is(control::Role::kExpert) || !member.alive() ||
        (member.draining() && !TL_PLANTED(kIgnoreDrain))) {
      continue;
    }
    const Registration& registration = member.record.registration;
    profiles.push_back({.worker = id,
                        .memory_bytes = registration.memory_bytes,
                        .speed = registration.speed,
                        .failure_domain = registration.failure_domain,
                        .numerics_class = registration.numerics_class});
  }
  return profiles;
}

absl::Time Membership::NextExpiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, member] : members_) {
    if (member.alive()) next = std::min(next, member.lease_end);
  }
  return next;
}

absl::Time Membership::NextForget(absl::Time now) const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, member] : members_) {
    const absl::Time forget_at = member.lost_at + options_.forget_after;
    if (!member.alive() && forget_at > now) next = std::min(next, forget_at);
  }
  return next;
}

std::vector<WorkerRecord> Membership::TakeChanged() {
  std::vector<WorkerRecord> records;
  for (const WorkerId id : changed_) {
    const auto found = members_.find(id);
    TL_CHECK(found != members_.end()) << "worker " << id << " changed and gone";
    records.push_back(found->second.record);
  }
  changed_.clear();
  return records;
}

void Membership::MarkChanged(WorkerId worker) {
  changed_.insert(worker);
  ++generation_;
}

}  // namespace trunkline::coordinator
