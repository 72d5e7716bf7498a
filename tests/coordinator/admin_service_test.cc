// The operators' API over real gRPC, with workers that load whatever they are
// told to.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/log.h"
#include "control/control_channel.h"
#include "control/status_to_grpc.h"
#include "coordinator/coordinator_server.h"
#include "proto/placement_admin.grpc.pb.h"
#include "tests/coordinator/fake_worker.h"
#include "tests/integration/eventually.h"

namespace trunkline::coordinator {
namespace {

namespace admin = ::trunkline::admin::v1;
namespace wire = control::wire;
using testing::HasSubstr;

class AdminServiceTest : public testing::Test {
 protected:
  // Once: the log may not be replaced while clients write to it.
  static void SetUpTestSuite() {
    ASSERT_TRUE(InitLogging("test", "coordinator", "error").ok());
  }
  void Start(CoordinatorOptions options = {}) {
    options.listen = "127.0.0.1:0";
    options.expert_workers = 2;
    auto server = CoordinatorServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = admin::PlacementAdmin::NewStub(
        control::OpenControlChannel(server_->address()));
    for (const char* name : {"a", "b"}) {
      experts_.push_back(
          std::make_unique<FakeWorker>(server_->address(), name, kExpertRole));
    }
    trunk_ = std::make_unique<FakeWorker>(server_->address(), "t", kTrunkRole);
    ASSERT_TRUE(trunk_->AwaitActive(1));
  }
  void TearDown() override {
    trunk_.reset();
    experts_.clear();
    server_.reset();
  }

  // One call of the stub: Call(&Stub::Show, request, &response).
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (admin::PlacementAdmin::Stub::*method)(
                        grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    return control::FromGrpc(
        (stub_.get()->*method)(&context, request, response));
  }

  admin::ShowResponse Show() {
    admin::ShowResponse response;
    EXPECT_TRUE(Call(&Stub::Show, admin::ShowRequest(), &response).ok());
    return response;
  }
  std::string Export(uint64_t version = 0) {
    admin::ExportRequest request;
    request.set_version(version);
    admin::ExportResponse response;
    const absl::Status status = Call(&Stub::Export, request, &response);
    EXPECT_TRUE(status.ok()) << status;
    return response.document();
  }
  // The active document with the names of a and b exchanged.
  std::string Exchanged() {
    return absl::StrReplaceAll(Export(),
                               {{"\"a\"", "\"b\""}, {"\"b\"", "\"a\""}});
  }
  // Expert 0 of every layer gets nearly everything, expert 1 the rest.
  void SkewLoads() {
    std::vector<control::ExpertLoadReport> loads;
    for (const auto& shape : TestShapes()) {
      control::ExpertLoadReport load;
      load.layer = shape.layer;
      load.selected.assign(8, 0);
      load.selected[0] = 500;
      load.selected[1] = 400;
      load.executed = load.selected;
      loads.push_back(load);
    }
    trunk_->AddLoads(std::move(loads));
    // Seen as soon as the plan knows of a load.
    ASSERT_TRUE(Eventually(std::chrono::seconds(10),
                           [this] { return Show().load().slowest() > 0; }));
  }

  using Stub = admin::PlacementAdmin::Stub;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<admin::PlacementAdmin::Stub> stub_;
  std::vector<std::unique_ptr<FakeWorker>> experts_;
  std::unique_ptr<FakeWorker> trunk_;
};

TEST_F(AdminServiceTest, ShowsVersionsWorkersAndHistory) {
  Start();
  const admin::ShowResponse show = Show();
  EXPECT_EQ(show.active_version(), 1u);
  EXPECT_EQ(show.waiting_for(), "");
  ASSERT_EQ(show.versions_size(), 1);
  EXPECT_EQ(show.versions(0).origin(), "initial");
  EXPECT_EQ(show.versions(0).copies(), 16u);
  EXPECT_EQ(show.versions(0).workers(), 2u);
  EXPECT_EQ(show.versions(0).workers_ready(), 2u);
  EXPECT_EQ(show.load().balancedness(), 1);
  ASSERT_EQ(show.workers_size(), 3);
  EXPECT_EQ(show.workers(0).shard_bytes() + show.workers(1).shard_bytes() +
                show.workers(2).shard_bytes(),
            1600u);
  admin::HistoryRequest request;
  admin::HistoryResponse history;
  ASSERT_TRUE(Call(&Stub::History, request, &history).ok());
  ASSERT_EQ(history.entries_size(), 4);
  EXPECT_EQ(history.entries(0).state(), wire::PLACEMENT_STATE_PROPOSED);
  EXPECT_EQ(history.entries(3).state(), wire::PLACEMENT_STATE_ACTIVE);
  EXPECT_GT(history.entries(3).unix_nanos(), 0);
  request.set_limit(1);
  ASSERT_TRUE(Call(&Stub::History, request, &history).ok());
  ASSERT_EQ(history.entries_size(), 1);
  EXPECT_EQ(history.entries(0).sequence(), 4u);
}

TEST_F(AdminServiceTest, AppliesAnExportedDocumentByNames) {
  Start();
  const std::string before = Export();
  admin::ApplyRequest request;
  request.set_document(Exchanged());
  request.set_dry_run(true);
  admin::PlanResponse plan;
  ASSERT_TRUE(Call(&Stub::Apply, request, &plan).ok());
  EXPECT_EQ(plan.moved_bytes(), 1600u);
  EXPECT_EQ(plan.moves_size(), 16);
  EXPECT_EQ(plan.moves(0).source_ids_size(), 1);
  EXPECT_EQ(plan.drops(), 16u);
  EXPECT_EQ(plan.version(), 0u);
  EXPECT_EQ(Show().versions_size(), 1);
  request.set_dry_run(false);
  ASSERT_TRUE(Call(&Stub::Apply, request, &plan).ok());
  EXPECT_EQ(plan.version(), 2u);
  ASSERT_TRUE(trunk_->AwaitActive(2));
  EXPECT_EQ(
      Export(),
      plan.document().empty()
          ? ""
          : absl::StrReplaceAll(
                plan.document(),
                {{"\"placement_version\": 0", "\"placement_version\": 2"},
                 {"\"placement_version\": 1", "\"placement_version\": 2"}}));
  EXPECT_NE(Export(), before);
  EXPECT_EQ(Export(1), before);
}

TEST_F(AdminServiceTest, RefusesDocumentsThatDoNotFitNamingTheFault) {
  Start();
  const std::string good = Export();
  const auto refused = [&](const std::string& document, uint64_t base,
                           absl::StatusCode code, const std::string& said) {
    admin::ApplyRequest request;
    request.set_document(document);
    request.set_base_version(base);
    admin::PlanResponse plan;
    const absl::Status status = Call(&Stub::Apply, request, &plan);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  };
  refused("{", 0, absl::StatusCode::kInvalidArgument, "syntax");
  refused(absl::StrReplaceAll(good, {{"\"name\": \"a\"", "\"name\": \"z\""}}),
          0, absl::StatusCode::kNotFound, "'z'");
  refused(absl::StrReplaceAll(good, {{"\"layer\": 4", "\"layer\": 5"}}), 0,
          absl::StatusCode::kInvalidArgument, "layer 5");
  refused(good, 7, absl::StatusCode::kFailedPrecondition, "active is 1");
  refused(good, 0, absl::StatusCode::kAlreadyExists, "version 1");
  EXPECT_EQ(Show().versions_size(), 1);
}

TEST_F(AdminServiceTest, PlansAndRebalancesByTheLoadsOfTheTrunks) {
  Start();
  admin::PlanRequest request;
  admin::PlanResponse plan;
  ASSERT_TRUE(Call(&Stub::Plan, request, &plan).ok());
  EXPECT_FALSE(plan.worthwhile()) << plan.reason();
  SkewLoads();
  EXPECT_LT(Show().load().balancedness(), 0.6);
  ASSERT_TRUE(Call(&Stub::Plan, request, &plan).ok());
  EXPECT_TRUE(plan.worthwhile());
  EXPECT_EQ(plan.base_version(), 1u);
  EXPECT_GT(plan.moves_size(), 0);
  EXPECT_GT(plan.after().balancedness(), plan.before().balancedness());
  EXPECT_EQ(Show().versions_size(), 1);
  request.set_dry_run(true);
  ASSERT_TRUE(Call(&Stub::Rebalance, request, &plan).ok());
  EXPECT_EQ(plan.version(), 0u);
  request.set_dry_run(false);
  ASSERT_TRUE(Call(&Stub::Rebalance, request, &plan).ok());
  EXPECT_EQ(plan.version(), 2u);
  ASSERT_TRUE(trunk_->AwaitActive(2));
  EXPECT_GT(Show().load().balancedness(), 0.8);
  request.set_policy("magic");
  EXPECT_THAT(std::string(Call(&Stub::Plan, request, &plan).message()),
              HasSubstr("magic"));
  request.set_policy("");
  request.set_min_gain(2);
  EXPECT_THAT(std::string(Call(&Stub::Plan, request, &plan).message()),
              HasSubstr("min_gain"));
}

TEST_F(AdminServiceTest, FollowsTheLoadByItselfWhenToldTo) {
  CoordinatorOptions options;
  options.rebalance_interval = absl::Milliseconds(100);
  Start(options);
  SkewLoads();
  ASSERT_TRUE(trunk_->AwaitActive(2));
  EXPECT_EQ(Show().versions(Show().versions_size() - 1).origin(), "rebalance");
}

TEST_F(AdminServiceTest, APinnedPlacementIsNotRebalancedUntilItIsUnpinned) {
  Start();
  SkewLoads();
  admin::PinRequest pin;
  pin.set_pinned(true);
  pin.set_reason("demo day");
  admin::PinResponse pinned;
  ASSERT_TRUE(Call(&Stub::Pin, pin, &pinned).ok());
  EXPECT_EQ(pinned.active_version(), 1u);
  EXPECT_EQ(Show().pin_reason(), "demo day");
  admin::PlanRequest request;
  admin::PlanResponse plan;
  const absl::Status status = Call(&Stub::Rebalance, request, &plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("demo day"));
  pin.set_pinned(false);
  ASSERT_TRUE(Call(&Stub::Pin, pin, &pinned).ok());
  ASSERT_TRUE(Call(&Stub::Rebalance, request, &plan).ok());
  EXPECT_EQ(plan.version(), 2u);
}

TEST_F(AdminServiceTest, RollsBackAndGivesUp) {
  Start();
  const std::string first = Export();
  admin::ChangeResponse change;
  EXPECT_EQ(Call(&Stub::Rollback, admin::RollbackRequest(), &change).code(),
            absl::StatusCode::kNotFound);
  admin::ApplyRequest request;
  request.set_document(Exchanged());
  admin::PlanResponse plan;
  ASSERT_TRUE(Call(&Stub::Apply, request, &plan).ok());
  ASSERT_TRUE(trunk_->AwaitActive(2));
  ASSERT_TRUE(Call(&Stub::Rollback, admin::RollbackRequest(), &change).ok());
  EXPECT_EQ(change.version(), 3u);
  ASSERT_TRUE(trunk_->AwaitActive(3));
  EXPECT_EQ(absl::StrReplaceAll(Export(), {{"_version\": 3", "_version\": 1"}}),
            first);
  admin::AbandonRequest abandon;
  abandon.set_version(3);
  EXPECT_EQ(Call(&Stub::Abandon, abandon, &change).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(AdminServiceTest, DrainsUntilTheWorkerIsSafeToStop) {
  Start();
  admin::DrainRequest request;
  request.set_worker("nobody");
  admin::ListWorkersResponse workers;
  EXPECT_EQ(Call(&Stub::Drain, request, &workers).code(),
            absl::StatusCode::kNotFound);
  request.set_worker("b");
  ASSERT_TRUE(Call(&Stub::Drain, request, &workers).ok());
  ASSERT_TRUE(trunk_->AwaitView([](const control::ClusterView& view) {
    for (const auto& worker : view.workers) {
      if (worker.name == "b") return worker.drained;
    }
    return false;
  }));
  ASSERT_TRUE(
      Call(&Stub::ListWorkers, admin::ListWorkersRequest(), &workers).ok());
  for (const admin::WorkerInfo& info : workers.workers()) {
    EXPECT_EQ(info.worker().draining(), info.worker().name() == "b");
    EXPECT_EQ(info.copies(), info.worker().name() == "a" ? 16u : 0u);
    EXPECT_GT(info.lease_seconds_left(), 0);
  }
  ASSERT_TRUE(Call(&Stub::Undrain, request, &workers).ok());
  for (const admin::WorkerInfo& info : workers.workers()) {
    EXPECT_FALSE(info.worker().draining());
  }
}

TEST_F(AdminServiceTest, RecordsExactCountsBetweenStartAndStop) {
  Start();
  SkewLoads();  // before the recording: not counted
  admin::RecordLoadsRequest request;
  admin::RecordLoadsResponse response;
  EXPECT_EQ(Call(&Stub::RecordLoads, request, &response).code(),
            absl::StatusCode::kInvalidArgument);
  request.set_action(admin::RecordLoadsRequest::START);
  ASSERT_TRUE(Call(&Stub::RecordLoads, request, &response).ok());
  EXPECT_TRUE(response.running());
  control::ExpertLoadReport load;
  load.layer = LayerIndex(4);
  load.selected = {1, 2, 3, 4, 5, 6, 7, 8};
  load.executed = {1, 2, 3, 4, 5, 6, 7, 0};
  trunk_->AddLoads({load});
  request.set_action(admin::RecordLoadsRequest::DUMP);
  ASSERT_TRUE(Eventually(std::chrono::seconds(10), [&] {
    return Call(&Stub::RecordLoads, request, &response).ok() &&
           response.loads_size() == 1;
  }));
  EXPECT_EQ(response.loads(0).layer(), 4u);
  EXPECT_EQ(response.loads(0).selected(7), 8u);
  EXPECT_EQ(response.loads(0).executed(7), 0u);
  request.set_action(admin::RecordLoadsRequest::STOP);
  ASSERT_TRUE(Call(&Stub::RecordLoads, request, &response).ok());
  EXPECT_FALSE(response.running());
  EXPECT_EQ(response.loads_size(), 1);
}

}  // namespace
}  // namespace trunkline::coordinator
