#include "coordinator/readiness.h"

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trunkline::coordinator {
namespace {

std::string WaitingForFirst(const Membership& membership,
                            const PlacementDriver& driver) {
  if (const PlacementRecord* open = driver.OpenChange(); open != nullptr) {
    for (const WorkerId worker : open->map.Workers()) {
      const Member* member = membership.Find(worker);
      if (member != nullptr && member->ready(open->map.version)) continue;
      return absl::StrCat("placement version ", open->map.version.value, " is ",
                          Name(open->state), ": ",
                          WhyNotReady(membership, worker, open->map.version));
    }
  }
  const int64_t wanted = driver.options().expert_workers;
  const size_t joined = membership.UsableExperts().size();
  if (static_cast<int64_t>(joined) < wanted) {
    return absl::StrCat(joined, " of ", wanted, " expert workers have joined");
  }
  return driver.last_failure();
}

}  // namespace

std::string WorkerLabel(const Membership& membership, WorkerId worker) {
  const Member* member = membership.Find(worker);
  return member != nullptr ? absl::StrCat("worker '", member->name(), "'")
                           : absl::StrCat("worker ", worker.value);
}

std::string WhyNotReady(const Membership& membership, WorkerId worker,
                        PlacementVersion version) {
  const Member* member = membership.Find(worker);
  const std::string label = WorkerLabel(membership, worker);
  if (member == nullptr) return label + " is unknown";
  if (!member->alive()) {
    return label + (member->record.left ? " has left" : " holds no lease");
  }
  const control::VersionReport* report = member->FindReport(version);
  if (report == nullptr) return label + " has not reported yet";
  if (report->state == control::ShardState::kFailed) {
    return absl::StrCat(label, " failed to load it: ", report->error);
  }
  return label + " is loading";
}

std::string WaitingFor(const ClusterRecord& cluster,
                       const Membership& membership,
                       const PlacementDriver& driver) {
  if (!cluster.model) return "no worker has registered";
  const PlacementRecord* active = driver.Active();
  if (active == nullptr) return WaitingForFirst(membership, driver);
  const PlacementVersion version = active->map.version;
  std::set<WorkerId> ready;
  for (const auto& [id, member] : membership.members()) {
    if (member.ready(version)) ready.insert(id);
  }
  for (const placement::LayerPlacement& layer : active->map.layers) {
    for (size_t e = 0; e < layer.replicas.size(); ++e) {
      std::vector<std::string> reasons;
      for (const placement::Replica& replica : layer.replicas[e]) {
        if (ready.count(replica.worker) != 0) {
          reasons.clear();
          break;
        }
        reasons.push_back(WhyNotReady(membership, replica.worker, version));
      }
      if (reasons.empty()) continue;
      return absl::StrCat("layer ", layer.layer.value, " expert ", e, ": ",
                          absl::StrJoin(reasons, ", "),
                          driver.blocked().empty() ? "" : "; ",
                          driver.blocked());
    }
  }
  return "";
}

}  // namespace trunkline::coordinator
