#pragma once

// Who is in the cluster: identities that survive restarts, leases, and what
// each worker last said. Pure: the caller brings the time. Only this class
// changes membership; what a worker says about others never does.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "control/cluster_proto.h"
#include "coordinator/placement_store.h"
#include "placement/worker_profile.h"

namespace trunkline::coordinator {

struct MembershipOptions {
  absl::Duration lease = absl::Seconds(2);
  // After a restart the workers need a while to find the coordinator again;
  // until then those that were alive count as alive.
  double restart_leases = 3;
  // A worker that is gone for so long, and that no placement names, is
  // forgotten. Its id is never given to another.
  absl::Duration forget_after = absl::Hours(1);
};

struct Member {
  WorkerRecord record;
  absl::Time lease_end;  // while alive
  absl::Time lost_at;    // while not alive
  // Trunks: from the last heartbeat of this incarnation.
  PlacementVersion oldest_in_flight;
  uint64_t followed_epoch = 0, followed_revision = 0;
  bool at_rest = false;  // refuses new requests and has none
  // The first view of this epoch that shows it as draining, once it is; what a
  // trunk says of its rest counts from there on.
  uint64_t draining_since = 0;
  // Expert workers: as shown. Measurements move all the time; what is shown
  // follows in steps of a quarter, so that views do not.
  control::ExpertCosts costs;

  bool alive() const { return record.alive; }
  bool draining() const { return record.cordoned || record.leaving; }
  bool is(control::Role role) const { return record.registration.role == role; }
  const std::string& name() const { return record.registration.name; }
  const control::VersionReport* FindReport(PlacementVersion version) const;
  bool ready(PlacementVersion version) const;
};

class Membership {
 public:
  Membership(MembershipOptions options, std::vector<WorkerRecord> workers,
             absl::Time now);

  // FAILED_PRECONDITION when a trunk would answer otherwise than one that is
  // alive: its fixed capacity is another. Not kept in the store; a worker that
  // has not joined since a restart has said nothing.
  absl::Status CheckAdmission(const control::Registration& registration) const;
  // Joins or joins again. *next_worker gives the id of a new name. The same
  // process keeps its incarnation, and what it has reported while it is alive.
  // ABORTED (control::NameHeldBy): the name is another process's, which this
  // one does not say that it replaces. FAILED_PRECONDITION: this process has
  // been replaced or has left.
  absl::StatusOr<WorkerId> Register(const control::Registration& registration,
                                    absl::Time now, uint32_t* next_worker);
  // Renews the lease and takes the report; versions that `known` lacks are
  // dropped from it. NOT_FOUND: register again. FAILED_PRECONDITION: another
  // process has the name now.
  absl::Status Renew(const control::Heartbeat& heartbeat,
                     const std::set<PlacementVersion>& known, absl::Time now);
  absl::Status Leave(WorkerId worker, uint64_t incarnation, absl::Time now);
  // next_revision: of the view that will show it. NOT_FOUND names the worker.
  absl::Status SetCordoned(const std::string& name, bool cordoned,
                           uint64_t next_revision);
  // Ends leases. Returns whose.
  std::vector<WorkerId> Expire(absl::Time now);
  // Forgets those gone for long that are not in `named`. Returns whom.
  std::vector<WorkerId> Forget(const std::set<WorkerId>& named, absl::Time now);
  // Drops reports of versions that `known` lacks.
  void KeepReportsOf(const std::set<PlacementVersion>& known);

  const std::map<WorkerId, Member>& members() const { return members_; }
  const Member* Find(WorkerId worker) const;
  const Member* FindByName(const std::string& name, control::Role role) const;
  // Expert workers that may be given experts: alive and not draining.
  std::vector<placement::WorkerProfile> UsableExperts() const;

  // The next time at which Expire has something to do; infinite future: never.
  absl::Time NextExpiry() const;
  // The same for Forget, after `now`. One that is overdue is still named by a
  // placement: it goes when that changes, not at a time.
  absl::Time NextForget(absl::Time now) const;
  // Grows whenever anything but lease ends and load progress has changed.
  uint64_t generation() const { return generation_; }
  // Records changed since the last call, for the store and the view.
  std::vector<WorkerRecord> TakeChanged();

 private:
  // Why `registration` may not have the name that `member` has.
  static absl::Status CheckSuccession(const control::Registration& registration,
                                      const Member& member);
  void MarkChanged(WorkerId worker);
  void TakeCosts(const control::ExpertCosts& costs, Member* member);
  void TakeReports(const std::vector<control::VersionReport>& reports,
                   const std::set<PlacementVersion>& known, Member* member);

  const MembershipOptions options_;
  std::map<WorkerId, Member> members_;
  std::set<WorkerId> changed_;
  uint64_t generation_ = 1;
};

}  // namespace trunkline::coordinator
