// Who leads, against a real etcd: one at a time, without a gap in what the
// watch tells, and nobody by an old right.

#include "coordinator/etcd_election.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "tests/coordinator/etcd_process.h"
#include "tests/coordinator/numbered_change.h"
#include "tests/integration/eventually.h"

namespace trunkline::coordinator {
namespace {

using trunkline::testing::EtcdProcess;
constexpr auto kLimit = std::chrono::seconds(30);

// A coordinator of which only the election is real.
class Candidate {
 public:
  Candidate(const EtcdProcess& etcd, const std::string& prefix,
            const std::string& address)
      : address_(address),
        election_({.endpoints = etcd.endpoints(),
                   .prefix = prefix,
                   .address = address,
                   .lease = absl::Seconds(2),
                   .new_cluster_id = 1},
                  {.on_elected =
                       [this](std::unique_ptr<PlacementStore> store) {
                         const std::lock_guard<std::mutex> lock(mutex_);
                         store_ = std::move(store);
                         ++terms_;
                         return store_->Load().status();
                       },
                   .on_following =
                       [this](const std::string& leader, const std::string&) {
                         const std::lock_guard<std::mutex> lock(mutex_);
                         leader_ = leader;
                         if (store_ != nullptr) old_ = std::move(store_);
                       }}) {
    election_.Start();
  }

  bool leads() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return store_ != nullptr &&
           Clock::Monotonic().Now() < election_.leads_until();
  }
  std::string leader() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return leader_;
  }
  int terms() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return terms_;
  }
  // With the store of the present term, or of the last one.
  absl::Status Commit(const StoreChange& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return (store_ != nullptr ? store_ : old_)->Commit(change);
  }
  EtcdElection& election() { return election_; }
  const std::string& address() const { return address_; }

 private:
  const std::string address_;
  std::mutex mutex_;
  std::unique_ptr<PlacementStore> store_, old_;
  std::string leader_;
  int terms_ = 0;
  EtcdElection election_;  // last: its thread uses the rest
};

class EtcdElectionTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_TRUE(InitLogging("test", "election", "error").ok());
    auto etcd = EtcdProcess::Start();
    ASSERT_TRUE(etcd.ok()) << etcd.status();
    etcd_ = etcd->release();
  }
  static void TearDownTestSuite() { delete etcd_; }
  void SetUp() override {
    ASSERT_NE(etcd_, nullptr);
    prefix_ = absl::StrCat(
        "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    for (int i = 0; i < 3; ++i) {
      candidates_.push_back(std::make_unique<Candidate>(
          *etcd_, prefix_, absl::StrCat("host-", i, ":1")));
    }
  }

  // The one that leads, once the others know it.
  Candidate* AwaitLeader() {
    Candidate* leader = nullptr;
    Eventually(kLimit, [&] {
      leader = nullptr;
      for (const auto& candidate : candidates_) {
        if (candidate == nullptr || !candidate->leads()) continue;
        // Leases never overlap. A key that somebody deleted ends a term of
        // which its leader hears a moment later; until then only the fence
        // keeps it from writing.
        if (leader != nullptr) {
          EXPECT_TRUE(key_deleted_) << "two lead";
          return false;
        }
        leader = candidate.get();
      }
      if (leader == nullptr) return false;
      for (const auto& candidate : candidates_) {
        if (candidate != nullptr && candidate.get() != leader &&
            candidate->leader() != leader->address()) {
          return false;
        }
      }
      return true;
    });
    return leader;
  }
  void Drop(const Candidate* which) {
    for (auto& candidate : candidates_) {
      if (candidate.get() == which) candidate.reset();
    }
  }

  static EtcdProcess* etcd_;
  std::string prefix_;
  bool key_deleted_ = false;
  std::vector<std::unique_ptr<Candidate>> candidates_;
};

EtcdProcess* EtcdElectionTest::etcd_ = nullptr;

TEST_F(EtcdElectionTest, OneLeadsAndTheOthersSayWho) {
  Candidate* leader = AwaitLeader();
  ASSERT_NE(leader, nullptr);
  EXPECT_TRUE(leader->Commit(NumberedChange(1)).ok());
  // The next leader has all that this one wrote; going is handing over.
  Drop(leader);
  leader = AwaitLeader();
  ASSERT_NE(leader, nullptr);
  EXPECT_TRUE(leader->Commit(NumberedChange(2)).ok());
  EXPECT_EQ(etcd_->Get(prefix_ + "/epoch"), "2");
}

TEST_F(EtcdElectionTest, ALeaderWhoseKeyIsGoneStepsDownAndWritesNothing) {
  Candidate* first = AwaitLeader();
  ASSERT_NE(first, nullptr);
  ASSERT_TRUE(first->Commit(NumberedChange(1)).ok());
  key_deleted_ = true;
  ASSERT_TRUE(etcd_->Delete(prefix_ + "/leader").ok());
  ASSERT_TRUE(Eventually(kLimit, [&] {
    int terms = 0;
    for (const auto& candidate : candidates_) terms += candidate->terms();
    return terms == 2;
  }));
  Candidate* second = AwaitLeader();
  ASSERT_NE(second, nullptr);
  EXPECT_TRUE(second->Commit(NumberedChange(2)).ok());
  if (second != first) {
    EXPECT_EQ(first->Commit(NumberedChange(2)).code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

// Followers wait on a revision that etcd has thrown away meanwhile: they read
// the key again and miss nothing.
TEST_F(EtcdElectionTest, CompactedHistoryHidesNoVacancy) {
  Candidate* leader = AwaitLeader();
  ASSERT_NE(leader, nullptr);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(etcd_->Put("/elsewhere", std::to_string(i)).ok());
  }
  ASSERT_TRUE(etcd_->Compact().ok());
  EtcdClient client(etcd_->endpoints(), absl::Seconds(5));
  EXPECT_EQ(client
                .WatchKey("/elsewhere", 1, absl::Seconds(5),
                          [](const auto&) { return true; })
                .status()
                .code(),
            absl::StatusCode::kOutOfRange);
  Drop(leader);
  EXPECT_NE(AwaitLeader(), nullptr);
}

// Every change of a key is told once and in order, also those from before the
// watch, and over the end of one watch into the next.
TEST_F(EtcdElectionTest, AWatchHasNoGaps) {
  EtcdClient client(etcd_->endpoints(), absl::Seconds(5));
  ASSERT_TRUE(etcd_->Put(prefix_ + "-w", "0").ok());
  etcdserverpb::RangeRequest request;
  request.set_key(prefix_ + "-w");
  const auto now = client.Range(request);
  ASSERT_TRUE(now.ok());
  int64_t revision = now->header().revision() + 1;
  std::vector<std::string> told;
  int written = 0;
  while (told.size() < 60) {
    for (int i = 0; i < 4 && written < 60; ++i) {
      ASSERT_TRUE(etcd_->Put(prefix_ + "-w", std::to_string(++written)).ok());
    }
    size_t round = 0;
    const auto next =
        client.WatchKey(prefix_ + "-w", revision, absl::Milliseconds(200),
                        [&](const etcdserverpb::Event& event) {
                          told.push_back(event.kv().value());
                          return ++round < 3;
                        });
    ASSERT_TRUE(next.ok()) << next.status();
    revision = *next;
  }
  ASSERT_EQ(told.size(), 60u);
  for (size_t i = 0; i < told.size(); ++i) {
    ASSERT_EQ(told[i], std::to_string(i + 1));
  }
}

// While etcd is away nobody leads for longer than the lease, by the leader's
// own clock; when it is back somebody does.
TEST_F(EtcdElectionTest, WithoutEtcdTheLeadEndsByItself) {
  Candidate* leader = AwaitLeader();
  ASSERT_NE(leader, nullptr);
  etcd_->member().Signal(SIGSTOP);
  EXPECT_TRUE(Eventually(kLimit, [&] { return !leader->leads(); }));
  etcd_->member().Signal(SIGCONT);
  EXPECT_NE(AwaitLeader(), nullptr);
}

TEST_F(EtcdElectionTest, WhoResignsMakesRoomAtOnce) {
  Candidate* leader = AwaitLeader();
  ASSERT_NE(leader, nullptr);
  const int before = leader->terms();
  leader->election().Resign();
  ASSERT_TRUE(Eventually(kLimit, [&] {
    int terms = 0;
    for (const auto& candidate : candidates_) terms += candidate->terms();
    return terms > before;
  }));
  EXPECT_NE(AwaitLeader(), nullptr);
}

}  // namespace
}  // namespace trunkline::coordinator
