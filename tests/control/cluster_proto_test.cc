#include "control/cluster_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "control/status_to_grpc.h"

namespace trunkline::control {
namespace {

using testing::HasSubstr;

Registration FullRegistration() {
  Registration registration;
  registration.name = "expert-1";
  registration.role = Role::kExpert;
  registration.data_address = "ucx://10.0.0.1:4000";
  registration.metrics_address = "10.0.0.1:9100";
  registration.model_digest = "d";
  registration.numerics_class = "portable";
  registration.self_check_digest = "s";
  registration.failure_domain = "rack-1";
  registration.memory_bytes = 1u << 30;
  registration.speed = 2.5;
  registration.admission = "dropless";
  registration.process = ~uint64_t{0} - 3;
  registration.replaces = 41;
  registration.moe_layers = {
      {.layer = LayerIndex(1), .experts = 4, .expert_bytes = 10},
      {.layer = LayerIndex(3), .experts = 4, .expert_bytes = 20}};
  return registration;
}

ClusterView FullView() {
  ClusterView view;
  view.cluster_id = ~uint64_t{0};
  view.epoch = 3;
  view.revision = 9;
  view.model_digest = "d";
  view.numerics_class = "bf16dot";
  view.moe_layers = FullRegistration().moe_layers;
  view.waiting_for = "layer 1 expert 2";
  for (uint32_t id : {0u, 4u}) {
    WorkerView worker;
    worker.id = WorkerId(id);
    worker.name = "w";
    worker.role = id == 0 ? Role::kTrunk : Role::kExpert;
    worker.incarnation = 7;
    worker.alive = true;
    worker.speed = 1.5;
    worker.costs = {.read_seconds = 3e-4, .row_seconds = 0};
    worker.draining = true;
    worker.versions = {{.version = PlacementVersion(2),
                        .state = ShardState::kLoading,
                        .error = "e",
                        .bytes_loaded = 1,
                        .bytes_total = 2}};
    view.workers.push_back(worker);
  }
  for (uint64_t version : {1u, 2u}) {
    view.placements.push_back(
        {.map = *placement::InitialPlacement(PlacementVersion(version),
                                             view.moe_layers, {WorkerId(4)}, 1),
         .state = version == 1 ? PlacementState::kActive
                               : PlacementState::kStaging});
  }
  view.active = PlacementVersion(1);
  return view;
}

TEST(ClusterProto, ARegistrationComesBackAsItWas) {
  const auto back = FromProto(ToProto(FullRegistration()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToProto(*back).SerializeAsString(),
            ToProto(FullRegistration()).SerializeAsString());
  EXPECT_EQ(back->speed, 2.5);
  EXPECT_EQ(back->moe_layers[1].expert_bytes, 20);
}

TEST(ClusterProto, AHeartbeatComesBackAsItWas) {
  Heartbeat heartbeat;
  heartbeat.worker = WorkerId(4);
  heartbeat.incarnation = 7;
  heartbeat.cluster_id = 11;
  heartbeat.view_epoch = 2;
  heartbeat.view_revision = 30;
  heartbeat.report.versions = FullView().workers[0].versions;
  heartbeat.report.oldest_in_flight = PlacementVersion(1);
  heartbeat.report.loads = {{.layer = LayerIndex(1),
                             .selected = {1, 2, 3, 4},
                             .executed = {1, 2, 3, 0}}};
  heartbeat.report.wants_drain = true;
  heartbeat.report.at_rest = true;
  heartbeat.report.costs = {.read_seconds = 2e-4, .row_seconds = 1e-6};
  heartbeat.report.canary = {.version = PlacementVersion(3),
                             .digest = "ab",
                             .prompt = "portable/128+8",
                             .before_version = PlacementVersion(2),
                             .before_digest = "cd"};
  const auto back = FromProto(ToProto(heartbeat));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToProto(*back).SerializeAsString(),
            ToProto(heartbeat).SerializeAsString());
  EXPECT_EQ(back->report.loads[0].executed[3], 0u);
  EXPECT_EQ(back->report.costs.row_seconds, 1e-6);
  EXPECT_EQ(back->report.canary->before_version, PlacementVersion(2));
  heartbeat.report.oldest_in_flight = PlacementVersion();
  EXPECT_FALSE(FromProto(ToProto(heartbeat))->report.oldest_in_flight.valid());
}

TEST(ClusterProto, CostsAndCanariesThatCanNotBeAreRefusedByField) {
  Heartbeat heartbeat;
  heartbeat.worker = WorkerId(4);
  const auto said = [&](auto change) {
    wire::HeartbeatRequest message = ToProto(heartbeat);
    change(message);
    return std::string(FromProto(message).status().message());
  };
  EXPECT_THAT(said([](auto& m) { m.mutable_costs()->set_read_seconds(-1); }),
              HasSubstr("costs.read_seconds"));
  EXPECT_THAT(said([](auto& m) {
                m.mutable_costs()->set_row_seconds(
                    std::numeric_limits<double>::quiet_NaN());
              }),
              HasSubstr("costs.row_seconds"));
  EXPECT_THAT(said([](auto& m) { m.mutable_canary()->set_digest("ab"); }),
              HasSubstr("canary.version"));
  EXPECT_THAT(said([](auto& m) {
                m.mutable_canary()->set_version(1);
                m.mutable_canary()->set_prompt("a");
              }),
              HasSubstr("canary.digest"));
}

TEST(ClusterProto, AViewComesBackAsItWas) {
  const auto back = FromProto(ToProto(FullView()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToProto(*back).SerializeAsString(),
            ToProto(FullView()).SerializeAsString());
  EXPECT_EQ(back->FindWorker(WorkerId(4))->role, Role::kExpert);
  EXPECT_EQ(back->FindWorker(WorkerId(5)), nullptr);
  EXPECT_EQ(back->FindPlacement(PlacementVersion(2))->state,
            PlacementState::kStaging);
  ClusterView empty;
  EXPECT_FALSE(FromProto(ToProto(empty))->active.valid());
}

TEST(ClusterProto, AViewThatIsNotValidNamesTheField) {
  const auto refused = [](auto change, const std::string& said) {
    wire::ClusterView message = ToProto(FullView());
    change(message);
    const auto view = FromProto(message);
    EXPECT_EQ(view.status().code(), absl::StatusCode::kInvalidArgument) << said;
    EXPECT_THAT(std::string(view.status().message()), HasSubstr(said));
  };
  refused([](auto& m) { m.mutable_workers(1)->set_worker_id(0); },
          "workers[1].worker_id");
  refused([](auto& m) { m.mutable_workers(0)->set_worker_id(~0u); },
          "workers[0].worker_id");
  refused(
      [](auto& m) {
        m.mutable_workers(0)->set_role(wire::WORKER_ROLE_UNSPECIFIED);
      },
      "workers[0].role");
  refused(
      [](auto& m) {
        m.mutable_workers(0)->mutable_versions(0)->set_state(
            static_cast<wire::VersionReport::State>(7));
      },
      "workers[0].versions[0].state");
  refused(
      [](auto& m) {
        *m.mutable_workers(0)->add_versions() = m.workers(0).versions(0);
      },
      "reported twice");
  refused([](auto& m) { m.mutable_placements(1)->set_version(1); },
          "placements[1].version");
  refused([](auto& m) { m.mutable_placements(1)->set_version(0); },
          "placements[1]");
  refused(
      [](auto& m) {
        m.mutable_placements(0)->set_state(wire::PLACEMENT_STATE_UNSPECIFIED);
      },
      "placements[0]");
  refused(
      [](auto& m) {
        m.mutable_placements(0)
            ->mutable_layers(1)
            ->mutable_experts(2)
            ->add_worker_ids(9);
      },
      "layers[1].experts[2]: 2 worker_ids and 1 slots");
  refused(
      [](auto& m) {
        m.mutable_placements(0)->mutable_layers(1)->mutable_experts(2)->Clear();
      },
      "layer 3 expert 2 has no owner");
  refused([](auto& m) { m.set_active_version(5); }, "active_version");
  refused([](auto& m) { m.mutable_moe_layers(1)->set_layer(1); }, "moe_layers");
}

TEST(StatusToGrpc, EveryCodeComesBackWithItsMessage) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status wire = ToGrpc(status);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_EQ(FromGrpc(wire), status);
  }
  EXPECT_EQ(
      FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(31), "odd")).code(),
      absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace trunkline::control
