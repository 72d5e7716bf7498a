#include "coordinator/etcd_election.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace trunkline::coordinator {
namespace {

namespace pb = etcdserverpb;

// After an error; a vacancy is noticed by the watch, not by asking.
constexpr absl::Duration kRetry = absl::Milliseconds(300);
// A watch that says nothing for so long is opened anew, on another member if
// this one does not answer; no event is lost in between.
constexpr absl::Duration kWatchRound = absl::Seconds(1);
constexpr absl::Duration kStoreTimeout = absl::Seconds(3);

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

EtcdElection::EtcdElection(const Options& options, Callbacks callbacks)
    : options_(options),
      callbacks_(std::move(callbacks)),
      key_(EtcdLeaderKey(options.prefix)),
      client_(options.endpoints, options.lease / 2),
      watcher_(options.endpoints, options.lease / 2),
      store_client_(
          std::make_shared<EtcdClient>(options.endpoints, kStoreTimeout)) {}

EtcdElection::~EtcdElection() { Stop(); }

void EtcdElection::Start() {
  thread_ = std::thread([this] { Run(); });
}

void EtcdElection::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  watcher_.Cancel();
  if (thread_.joinable()) thread_.join();
}

void EtcdElection::Resign() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    resigned_ = true;
    changed_.notify_all();
  }
  watcher_.Cancel();
}

bool EtcdElection::Sleep(absl::Duration wait) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoNanoseconds(wait),
                    [this] { return stopping_; });
  return !stopping_;
}

void EtcdElection::Run() {
  while (true) {
    const absl::Status status = RunOnce();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
    }
    if (status.ok()) continue;
    SayFollowing("", std::string(status.message()));
    if (!Sleep(kRetry)) return;
  }
}

void EtcdElection::SayFollowing(const std::string& leader,
                                const std::string& why) {
  std::string said = absl::StrCat(leader, "\n", why);
  if (said == said_) return;
  said_ = std::move(said);
  callbacks_.on_following(leader, why);
}

// Until something changes: follows a leader, or wins and leads.
absl::Status EtcdElection::RunOnce() {
  TL_ASSIGN_OR_RETURN(const Seen seen, Look());
  if (seen.create_revision != 0) {
    SayFollowing(seen.leader, seen.leader + " leads");
    return AwaitVacancy(seen);
  }
  const absl::Time asked = Now();
  TL_ASSIGN_OR_RETURN(const EtcdClient::Lease lease,
                      client_.GrantLease(options_.lease));
  absl::StatusOr<Seen> mine = Campaign(lease.id);
  absl::Status status = mine.status();
  if (mine.ok() && mine->leader.empty()) {
    SetLeaseEnd(asked + lease.ttl);
    status = Lead(lease.id, *mine);
  }
  // Whoever is next need not wait for the lease to run out.
  client_.RevokeLease(lease.id).IgnoreError();
  return status;
}

absl::StatusOr<EtcdElection::Seen> EtcdElection::Look() {
  pb::RangeRequest request;
  request.set_key(key_);
  TL_ASSIGN_OR_RETURN(const pb::RangeResponse found, client_.Range(request));
  Seen seen;
  seen.revision = found.header().revision();
  if (found.kvs_size() > 0) {
    seen.leader = found.kvs(0).value();
    seen.create_revision = found.kvs(0).create_revision();
  }
  return seen;
}

// OK: the key has changed or has to be read again.
absl::Status EtcdElection::AwaitVacancy(const Seen& seen) {
  int64_t revision = seen.revision + 1;
  bool changed = false;
  while (!changed) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return absl::OkStatus();
    }
    const absl::StatusOr<int64_t> next =
        watcher_.WatchKey(key_, revision, kWatchRound, [&](const pb::Event&) {
          changed = true;
          return false;
        });
    // Compacted meanwhile: whether the key has changed only reading it tells.
    if (absl::IsOutOfRange(next.status())) return absl::OkStatus();
    if (!next.ok()) return next.status();
    revision = *next;
  }
  return absl::OkStatus();
}

// Makes the leader key if there is none. Empty leader: it is ours, made at
// create_revision.
absl::StatusOr<EtcdElection::Seen> EtcdElection::Campaign(int64_t lease) {
  pb::TxnRequest request;
  pb::Compare* vacant = request.add_compare();
  vacant->set_key(key_);
  vacant->set_target(pb::Compare::CREATE);
  vacant->set_create_revision(0);
  pb::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key(key_);
  put->set_value(options_.address);
  put->set_lease(lease);
  request.add_failure()->mutable_request_range()->set_key(key_);
  TL_ASSIGN_OR_RETURN(const pb::TxnResponse response, client_.Txn(request));
  Seen seen;
  seen.revision = response.header().revision();
  if (response.succeeded()) {
    seen.create_revision = seen.revision;
    return seen;
  }
  if (response.responses_size() != 1 ||
      response.responses(0).response_range().kvs_size() != 1) {
    return absl::UnavailableError("the leader key came and went");
  }
  const pb::KeyValue& found = response.responses(0).response_range().kvs(0);
  seen.create_revision = found.create_revision();
  // The client sent it twice and the first one had arrived.
  if (found.lease() != lease) seen.leader = found.value();
  return seen;
}

absl::Status EtcdElection::Lead(int64_t lease, const Seen& mine) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    resigned_ = term_over_ = false;
  }
  std::thread keeper([this, lease] { KeepLease(lease); });
  absl::StatusOr<std::unique_ptr<PlacementStore>> store =
      OpenEtcdStore(store_client_, options_.prefix,
                    {.key = key_, .create_revision = mine.create_revision},
                    options_.new_cluster_id);
  absl::Status status = store.status();
  if (store.ok()) {
    said_.clear();
    status = callbacks_.on_elected(*std::move(store));
  }
  if (status.ok()) {
    AwaitEnd(mine);
    SayFollowing("", "the lead is lost");
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    term_over_ = true;
    changed_.notify_all();
  }
  keeper.join();
  SetLeaseEnd(absl::InfinitePast());
  return status;
}

bool EtcdElection::Over() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stopping_ || resigned_ || Now() >= leads_until();
}

// Returns when the key is another's or gone, the lease has run out, or the
// term is to end.
void EtcdElection::AwaitEnd(const Seen& mine) {
  int64_t revision = mine.create_revision + 1;
  while (!Over()) {
    bool lost = false;
    const absl::StatusOr<int64_t> next = watcher_.WatchKey(
        key_, revision,
        std::clamp(leads_until() - Now(), absl::Milliseconds(10), kWatchRound),
        [&](const pb::Event& event) {
          lost = event.type() == pb::Event::DELETE ||
                 event.kv().create_revision() != mine.create_revision;
          return !lost;
        });
    if (lost) return;
    if (next.ok()) {
      revision = *next;
      continue;
    }
    // A member that is away or a compacted history say nothing about the lead:
    // the lease decides, and the key as it stands now.
    const absl::StatusOr<Seen> seen = Look();
    if (seen.ok()) {
      if (seen->create_revision != mine.create_revision) return;
      revision = seen->revision + 1;
    } else if (!Over()) {
      Sleep(std::min(kRetry, options_.lease / 8));
    }
  }
}

void EtcdElection::KeepLease(int64_t lease) {
  const absl::Duration period = options_.lease / 4;
  absl::Duration wait = period;
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, absl::ToChronoNanoseconds(wait),
                        [this] { return term_over_; });
      if (term_over_) return;
    }
    const absl::Time asked = Now();
    const absl::StatusOr<absl::Duration> ttl = client_.KeepLeaseAlive(lease);
    wait = period;
    if (ttl.ok()) {
      SetLeaseEnd(asked + *ttl);
    } else if (absl::IsNotFound(ttl.status())) {
      TL_LOG_WARN("election: {}", std::string(ttl.status().message()));
      SetLeaseEnd(absl::InfinitePast());
      watcher_.Cancel();
      return;
    } else {
      TL_LOG_WARN("election: the lease was not renewed: {}",
                  std::string(ttl.status().message()));
      wait = std::min(period, absl::Milliseconds(100));
    }
  }
}

}  // namespace trunkline::coordinator
