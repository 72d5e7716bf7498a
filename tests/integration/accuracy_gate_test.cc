// The accuracy gate over real processes: a worker whose disk holds other bytes
// of some experts, which the checkpoint's digest does not sample.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "proto/placement_admin.grpc.pb.h"
#include "tests/integration/broken_checkpoint.h"
#include "tests/integration/completion.h"
#include "tests/integration/eventually.h"
#include "tests/integration/process_cluster.h"

namespace trunkline::testing {
namespace {

constexpr std::chrono::seconds kSoon{60};

// Flips a bit in the exponent of some weights in the middle of a tensor, where
// the digest does not look.
void DamageTensor(const std::string& file, const std::string& name) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_bytes = 0;
  stream.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  std::string header(header_bytes, '\0');
  stream.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const auto offsets =
      nlohmann::json::parse(header).at(name).at("data_offsets");
  const uint64_t begin =
      sizeof(header_bytes) + header_bytes + offsets[0].get<uint64_t>();
  const uint64_t middle =
      begin + (offsets[1].get<uint64_t>() - offsets[0].get<uint64_t>()) / 2;
  for (uint64_t i = 0; i < 64; ++i) {
    const auto at = static_cast<std::streamoff>(middle + 2 * i + 1);
    stream.seekg(at);
    const char byte = static_cast<char>(stream.get() ^ 0x02);
    stream.seekp(at);
    stream.put(byte);
  }
  ASSERT_TRUE(stream.good());
}

class AccuracyGateTest : public ::testing::Test {
 protected:
  // expert-1 has a damaged copy; version 1 gives it none of the damaged
  // experts.
  void Start(const std::string& canary_tokens) {
    const std::string good = std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo";
    const std::string bad = dir_.path() + "/demo";
    CopyCheckpoint(good, bad);
    for (int expert = 0; expert < 16; ++expert) {
      DamageTensor(bad + "/model.safetensors",
                   absl::StrCat("backbone.layers.1.mixer.experts.", expert,
                                ".up_proj.weight"));
    }
    auto cluster = ProcessCluster::Start(
        {.model = good,
         .experts = 2,
         .trunk_flags = {"--canary-tokens", canary_tokens},
         .expert_models = {good, bad}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    stub_ = cluster_->NewStub();
    admin_ = admin::v1::PlacementAdmin::NewStub(grpc::CreateChannel(
        cluster_->coordinator_address(), grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::cerr << cluster_->Logs();
  }
  admin::v1::ShowResponse Show() {
    grpc::ClientContext context;
    admin::v1::ShowResponse response;
    EXPECT_TRUE(admin_->Show(&context, {}, &response).ok());
    return response;
  }
  // The two workers change places: expert-1 gets what it has damaged.
  void ApplySwapped() {
    admin::v1::ExportResponse exported;
    {
      grpc::ClientContext context;
      ASSERT_TRUE(admin_->Export(&context, {}, &exported).ok());
    }
    nlohmann::json document = nlohmann::json::parse(exported.document());
    nlohmann::json& workers = document["workers"];
    std::swap(workers[0]["name"], workers[1]["name"]);
    admin::v1::ApplyRequest request;
    request.set_document(document.dump());
    grpc::ClientContext context;
    admin::v1::PlanResponse response;
    const grpc::Status applied = admin_->Apply(&context, request, &response);
    ASSERT_TRUE(applied.ok()) << applied.error_message();
    ASSERT_EQ(response.version(), 2u);
  }
  std::string Text() {
    return Stream(*stub_, GreedyRequest("In the beginning", 40)).text;
  }

  TempDir dir_;
  std::unique_ptr<ProcessCluster> cluster_;
  std::unique_ptr<v1::Generation::Stub> stub_;
  std::unique_ptr<admin::v1::PlacementAdmin::Stub> admin_;
};

TEST_F(AccuracyGateTest, AVersionWithAWrongExpertIsNamedAndRolledBack) {
  Start("128");
  ASSERT_TRUE(Eventually(kSoon, [&] {
    return Show().accuracy().find("expected canary answer") !=
           std::string::npos;
  })) << Show().accuracy();
  const std::string before = Text();
  ApplySwapped();
  admin::v1::ShowResponse show;
  ASSERT_TRUE(Eventually(kSoon, [&] {
    show = Show();
    return show.active_version() == 3 &&
           show.accuracy().find("version 3 gives the expected") !=
               std::string::npos;
  })) << show.ShortDebugString();
  EXPECT_NE(show.accuracy().find("under placement version 2"),
            std::string::npos)
      << show.accuracy();
  for (const auto& version : show.versions()) {
    if (version.version() != 3) continue;
    EXPECT_EQ(version.origin(), "rollback to 1: version 2 failed the canary");
  }
  EXPECT_EQ(Text(), before);
}

// The stated consequence, and the proof that the damage is one: without the
// canary the wrong version stays, and gives another text.
TEST_F(AccuracyGateTest, WithoutTheCanaryTheWrongVersionStays) {
  Start("0");
  ASSERT_TRUE(Eventually(kSoon, [&] { return Show().active_version() == 1; }));
  const std::string before = Text();
  ApplySwapped();
  ASSERT_TRUE(Eventually(kSoon, [&] {
    const auto show = Show();
    return show.active_version() == 2 && show.versions_size() == 2 &&
           show.versions(0).state() == control::v1::PLACEMENT_STATE_RETIRED;
  }));
  EXPECT_NE(Text(), before);
  EXPECT_EQ(Show().accuracy(), "");
}

}  // namespace
}  // namespace trunkline::testing
