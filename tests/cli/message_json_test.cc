#include "cli/message_json.h"

#include <gtest/gtest.h>

#include "proto/placement_admin.pb.h"

namespace trunkline::cli {
namespace {

TEST(MessageJson, KeepsSixtyFourBitsAsNumbersAndShortensEnums) {
  ::trunkline::admin::v1::ShowResponse show;
  show.set_active_version(3);
  show.set_cluster_id(18446744073709551615ull);
  show.set_pin_reason("a \"b\"\n");
  ::trunkline::admin::v1::VersionInfo* version = show.add_versions();
  version->set_state(control::v1::PLACEMENT_STATE_DRAINING);
  control::v1::WorkerView* worker = show.add_workers()->mutable_worker();
  worker->set_role(control::v1::WORKER_ROLE_EXPERT);
  worker->add_versions()->set_state(control::v1::VersionReport::READY);
  const nlohmann::ordered_json json = MessageJson(show);
  EXPECT_EQ(json["active_version"], 3);
  EXPECT_EQ(json["cluster_id"].get<uint64_t>(), 18446744073709551615ull);
  EXPECT_EQ(json["pin_reason"], "a \"b\"\n");
  EXPECT_EQ(json["versions"][0]["state"], "draining");
  EXPECT_EQ(json["workers"][0]["worker"]["role"], "expert");
  EXPECT_EQ(json["workers"][0]["worker"]["versions"][0]["state"], "ready");
  EXPECT_EQ(nlohmann::ordered_json::parse(json.dump()), json);
}

TEST(MessageJson, HoldsEveryScalarAndListButNoMessageThatIsAbsent) {
  const nlohmann::ordered_json json =
      MessageJson(::trunkline::admin::v1::ShowResponse());
  EXPECT_EQ(json["pinned"], false);
  EXPECT_EQ(json["waiting_for"], "");
  EXPECT_TRUE(json["versions"].is_array());
  EXPECT_FALSE(json.contains("load"));
  ::trunkline::admin::v1::PlanRequest request;
  EXPECT_FALSE(MessageJson(request).contains("min_gain"));
  request.set_min_gain(0);
  EXPECT_EQ(MessageJson(request)["min_gain"], 0.0);
}

TEST(MessageJson, FieldsStandInTheirOrder) {
  const nlohmann::ordered_json json =
      MessageJson(::trunkline::admin::v1::PlanResponse());
  EXPECT_EQ(json.begin().key(), "base_version");
}

}  // namespace
}  // namespace trunkline::cli
