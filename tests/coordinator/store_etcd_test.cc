// What is etcd's own about the store in etcd, against a real one: late writes,
// half-written changes, damaged keys.

#include "coordinator/store_etcd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"
#include "coordinator/etcd_contents.h"
#include "proto/placement_store.pb.h"
#include "tests/coordinator/etcd_process.h"
#include "tests/coordinator/numbered_change.h"
#include "tests/integration/eventually.h"

namespace trunkline::coordinator {
namespace {

using ::testing::HasSubstr;
using trunkline::testing::EtcdProcess;

class StoreEtcd : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto etcd = EtcdProcess::Start();
    ASSERT_TRUE(etcd.ok()) << etcd.status();
    etcd_ = etcd->release();
  }
  static void TearDownTestSuite() { delete etcd_; }
  void SetUp() override {
    ASSERT_NE(etcd_, nullptr);
    // Each test has a prefix of its own.
    prefix_ = absl::StrCat(
        "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }

  absl::StatusOr<std::unique_ptr<PlacementStore>> Open(
      absl::Duration timeout = absl::Seconds(20)) {
    EtcdLead lead{.key = EtcdLeaderKey(prefix_)};
    TL_ASSIGN_OR_RETURN(lead.create_revision, trunkline::testing::TakeLead(
                                                  etcd_->client(), lead.key));
    return OpenEtcdStore(
        std::make_shared<EtcdClient>(etcd_->endpoints(), timeout), prefix_,
        lead, 7);
  }
  EtcdKeys keys() const { return EtcdKeys(prefix_); }

  static EtcdProcess* etcd_;
  std::string prefix_;
};

EtcdProcess* StoreEtcd::etcd_ = nullptr;

// The lease has run out and nobody has followed yet: that alone ends the right
// to write.
TEST_F(StoreEtcd, WithoutTheLeaderKeyNothingIsWritten) {
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Load().ok());
  ASSERT_TRUE((*store)->Commit(NumberedChange(1)).ok());
  ASSERT_TRUE(etcd_->Delete(keys().leader()).ok());
  const absl::Status status = (*store)->Commit(NumberedChange(2));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nobody leads"));
  auto next = Open();
  ASSERT_TRUE(next.ok());
  const auto contents = (*next)->Load();
  ASSERT_TRUE(contents.ok());
  ExpectWholeChange(*contents, 1);
}

// The barrier in front of reads from memory tells who leads instead, and what
// was written by nobody it knows.
TEST_F(StoreEtcd, ConfirmsNothingOnceAnotherLeadsOrHasWritten) {
  auto first = Open(absl::Milliseconds(300));
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->Load().ok());
  ASSERT_TRUE((*first)->Confirm().ok());
  ASSERT_TRUE(etcd_->Put(keys().commit(), "1.77").ok());
  EXPECT_EQ((*first)->Confirm().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE((*first)->Load().ok());
  EXPECT_TRUE((*first)->Confirm().ok());

  etcd_->member().Signal(SIGSTOP);
  // It may still answer what reaches it before the signal does.
  absl::Status silent;
  EXPECT_TRUE(Eventually(std::chrono::seconds(20), [&] {
    silent = (*first)->Confirm();
    return !silent.ok();
  }));
  etcd_->member().Signal(SIGCONT);
  EXPECT_NE(silent.code(), absl::StatusCode::kFailedPrecondition) << silent;
  ASSERT_TRUE(Eventually(std::chrono::seconds(20),
                         [&] { return (*first)->Confirm().ok(); }));

  ASSERT_TRUE(etcd_->Delete(keys().leader()).ok());
  const absl::Status nobody = (*first)->Confirm();
  EXPECT_EQ(nobody.code(), absl::StatusCode::kFailedPrecondition) << nobody;
  EXPECT_EQ(control::LeaderIn(nobody), "");
  auto second = Open();
  ASSERT_TRUE(second.ok()) << second.status();
  const absl::Status deposed = (*first)->Confirm();
  EXPECT_EQ(deposed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(control::LeaderIn(deposed), "test:1");
  EXPECT_TRUE((*second)->Confirm().ok());
}

// The request of a write that was given up for lost may still lie in a stopped
// etcd's socket. Once the store has been loaded it can not take effect any
// more: what Load has said stays true until this coordinator writes again.
TEST_F(StoreEtcd, AWriteThatWasGivenUpNeverArrivesAfterTheNextLoad) {
  auto store = Open(absl::Milliseconds(100));
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Load().ok());
  int given_up = 0;
  uint64_t n = 1;
  for (int round = 0; round < 10; ++round) {
    etcd_->member().Signal(SIGSTOP);
    const absl::Status status = (*store)->Commit(NumberedChange(n));
    etcd_->member().Signal(SIGCONT);
    if (status.ok()) {
      ++n;
      continue;
    }
    ++given_up;
    absl::StatusOr<StoreContents> first = absl::UnknownError("");
    ASSERT_TRUE(Eventually(std::chrono::seconds(20), [&] {
      first = (*store)->Load();
      return first.ok();
    })) << first.status();
    const auto second = (*store)->Load();
    ASSERT_TRUE(second.ok()) << second.status();
    ASSERT_EQ(second->history.size(), first->history.size());
    ASSERT_EQ(second->cluster.next_version, first->cluster.next_version);
    n = first->history.empty() ? 1 : first->history.back().sequence + 1;
    if (n > 1) ExpectWholeChange(*first, n - 1);
    ASSERT_TRUE(Eventually(std::chrono::seconds(20), [&] {
      const absl::Status again = (*store)->Commit(NumberedChange(n));
      if (!again.ok()) first = (*store)->Load();
      return again.ok();
    }));
    ++n;
  }
  EXPECT_GT(given_up, 0);
}

// A change of many records is put down whole before it is written out. The
// coordinator that wrote it down may die there.
TEST_F(StoreEtcd, AChangeThatWasPutDownIsFinishedByTheNextCoordinator) {
  {
    auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Load().ok());
    ASSERT_TRUE((*store)->Commit(NumberedChange(1)).ok());
  }
  store::v1::Pending first, second;
  store::v1::Write* write = first.add_writes();
  write->set_key(keys().worker(WorkerId(0)));
  write->set_remove(true);
  write = second.add_writes();
  write->set_key(keys().history(0));
  write->set_range_end(keys().history(2));
  write->set_remove(true);
  ASSERT_TRUE(
      etcd_->Put(keys().pending_batch(0), first.SerializeAsString()).ok());
  ASSERT_TRUE(
      etcd_->Put(keys().pending_batch(1), second.SerializeAsString()).ok());
  {
    // Not counted yet: it has not happened.
    auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    const auto contents = (*store)->Load();
    ASSERT_TRUE(contents.ok()) << contents.status();
    ExpectWholeChange(*contents, 1);
  }
  ASSERT_TRUE(etcd_->Put(keys().pending(), "2").ok());
  for (int opening = 0; opening < 2; ++opening) {
    auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    const auto contents = (*store)->Load();
    ASSERT_TRUE(contents.ok()) << contents.status();
    ASSERT_EQ(contents->workers.size(), 1u);
    EXPECT_EQ(contents->workers[0].id, WorkerId(1));
    EXPECT_TRUE(contents->history.empty());
    EXPECT_EQ(etcd_->Get(keys().pending()), "");
    EXPECT_EQ(etcd_->Get(keys().pending_batch(0)), "");
  }
}

TEST_F(StoreEtcd, ForeignKeysAndOtherSchemasAreLeftAlone) {
  ASSERT_TRUE(etcd_->Put(prefix_ + "/registry/pods", "x").ok());
  const auto foreign = Open();
  EXPECT_EQ(foreign.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(foreign.status().message()),
              HasSubstr("/registry/pods"));
  EXPECT_EQ(etcd_->Get(keys().epoch()), "");
  prefix_ += "2";
  ASSERT_TRUE(etcd_->Put(keys().schema(), "9").ok());
  const auto newer = Open();
  EXPECT_EQ(newer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(newer.status().message()),
              HasSubstr("schema version 9"));
}

TEST_F(StoreEtcd, DamagedKeysAreNamedAndNeverTrusted) {
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Load().ok());
  ASSERT_TRUE((*store)->Commit(NumberedChange(1)).ok());
  const std::string placement = keys().placement(PlacementVersion(1));
  const std::string map = keys().map(PlacementVersion(1));
  const std::pair<std::string, std::string> damages[] = {
      {keys().cluster(), "\xff\xff"},
      {keys().worker(WorkerId(0)), std::string("\x10\x09", 2)},  // role 9
      {placement, std::string("\x08\x2c", 2)},                   // state 44
      {map, "\x0a"},
      {keys().history(1), "\xff"},
      {keys().pending(), "many"},
      {keys().pending(), "1"},
      {prefix_ + "/workers/7", "x"},
      {keys().map(PlacementVersion(9)), ""}};
  for (const auto& [key, value] : damages) {
    const std::string before = etcd_->Get(key);
    ASSERT_TRUE(etcd_->Put(key, value).ok());
    const absl::Status status = (*store)->Load().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << key << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(key));
    ASSERT_TRUE(
        (before.empty() ? etcd_->Delete(key) : etcd_->Put(key, before)).ok());
  }
  EXPECT_TRUE((*store)->Load().ok());
}

TEST_F(StoreEtcd, AnEndpointThatIsAwayIsLeftForAnother) {
  EtcdLead lead{.key = EtcdLeaderKey(prefix_)};
  const auto revision = trunkline::testing::TakeLead(etcd_->client(), lead.key);
  ASSERT_TRUE(revision.ok());
  lead.create_revision = *revision;
  // Port 1 refuses.
  const auto client = std::make_shared<EtcdClient>(
      std::vector<std::string>{"127.0.0.1:1", etcd_->endpoints()[0]},
      absl::Seconds(20));
  auto store = OpenEtcdStore(client, prefix_, lead, 7);
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Load().ok());
  EXPECT_TRUE((*store)->Commit(NumberedChange(1)).ok());
  EtcdClient nobody({"127.0.0.1:1"}, absl::Seconds(1));
  etcdserverpb::RangeRequest request;
  request.set_key("/");
  const absl::Status status = nobody.Range(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace trunkline::coordinator
