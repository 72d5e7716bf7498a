// Numerics classes of a cluster of real processes: all workers compute in one,
// whoever brings another is refused by name, and what can not be had is an
// error that says why.

#include "kernels/numerics.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "control/coordinator_client.h"
#include "tests/integration/completion.h"
#include "tests/integration/eventually.h"
#include "tests/integration/process_cluster.h"

namespace trunkline::testing {
namespace {

constexpr std::chrono::seconds kSoon{60};

std::string DemoModel() {
  return std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo";
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class NumericsTest : public ::testing::Test {
 protected:
  using Flags = std::vector<std::string>;

  static std::unique_ptr<ProcessCluster> Start(int experts,
                                               const Flags& coordinator,
                                               const Flags& workers) {
    ProcessCluster::Options options;
    options.model = DemoModel();
    options.experts = experts;
    options.coordinator_flags = coordinator;
    options.trunk_flags = options.expert_flags = workers;
    auto cluster = ProcessCluster::Start(options);
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    return cluster.ok() ? *std::move(cluster) : nullptr;
  }
  // The bits of an answer: ids and log-probabilities of prompt and output.
  static std::string Answer(ProcessCluster& cluster) {
    v1::GenerateRequest request =
        GreedyRequest("The river ran past the mill and", 12);
    request.set_logprobs(5);
    request.set_prompt_logprobs(true);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kSoon);
    v1::GenerateResponse response;
    const grpc::Status status =
        cluster.NewStub()->Generate(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.token_ids_size(), 12);
    std::string bits;
    for (const auto& l : response.prompt_logprobs())
      bits += l.SerializeAsString();
    for (const auto& l : response.logprobs()) bits += l.SerializeAsString();
    return bits;
  }
  static std::string ResumeToken(ProcessCluster& cluster,
                                 const v1::GenerateRequest& request,
                                 std::vector<int32_t>* ids) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kSoon);
    const auto stub = cluster.NewStub();
    const auto reader = stub->GenerateStream(&context, request);
    v1::GenerateChunk chunk;
    if (!reader->Read(&chunk)) return "";
    ids->assign(chunk.token_ids().begin(), chunk.token_ids().end());
    context.TryCancel();
    return chunk.resume_token();
  }
};

class TwoClassesTest : public NumericsTest {
 protected:
  void SetUp() override {
    const absl::Status has =
        kernels::CheckMachineHas(kernels::Numerics::kBf16Dot);
    if (!has.ok()) GTEST_SKIP() << has.message();
  }
};

TEST_F(TwoClassesTest, WorkersWithAutoTakeOverTheCoordinatorsClass) {
  const auto fixed =
      Start(2, {"--numerics", "bf16dot"}, {"--numerics", "auto"});
  ASSERT_NE(fixed, nullptr);
  const v1::GetModelResponse model = GetModel(*fixed->NewStub());
  EXPECT_EQ(model.numerics_class(), "bf16dot");
  const auto view =
      control::FetchCluster(fixed->coordinator_address(), absl::Seconds(10));
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->numerics_class, "bf16dot");
  ASSERT_EQ(view->workers.size(), 3u);
  for (const control::WorkerView& worker : view->workers)
    EXPECT_EQ(worker.numerics_class, "bf16dot") << worker.name;

  // The first worker's class without a word of the coordinator's; another
  // number of workers. The bits are the class's.
  const auto brought = Start(1, {}, {"--numerics", "bf16dot"});
  ASSERT_NE(brought, nullptr);
  const v1::GetModelResponse same = GetModel(*brought->NewStub());
  EXPECT_EQ(same.self_check_digest(), model.self_check_digest());
  EXPECT_EQ(Answer(*fixed), Answer(*brought));

  const auto portable = Start(1, {}, {});
  ASSERT_NE(portable, nullptr);
  const v1::GetModelResponse other = GetModel(*portable->NewStub());
  EXPECT_EQ(other.numerics_class(), "portable");
  EXPECT_NE(other.self_check_digest(), model.self_check_digest());
  EXPECT_NE(Answer(*fixed), Answer(*portable));
}

TEST_F(TwoClassesTest, AWorkerOfAnotherClassIsRefusedByName) {
  struct Side {
    Flags cluster;
    std::string theirs, ours;
  };
  for (const Side& side :
       {Side{{}, "bf16dot", "portable"},
        Side{{"--numerics", "bf16dot"}, "portable", "bf16dot"}}) {
    SCOPED_TRACE(side.ours);
    const auto cluster = Start(1, side.cluster, {"--numerics", side.ours});
    ASSERT_NE(cluster, nullptr);
    for (const char* role : {"trunk-worker", "expert-worker"}) {
      const RunResult run = RunProgram(
          {TRUNKLINE_BINARY, role, "--model", DemoModel(), "--coordinator",
           cluster->coordinator_address(), "--name", "stranger", "--listen",
           "127.0.0.1:0", "--numerics", side.theirs},
          kSoon);
      EXPECT_EQ(run.exit_code, 1) << role << ": " << run.err;
      EXPECT_TRUE(Contains(
          run.err, "worker 'stranger' has numerics class " + side.theirs))
          << run.err;
      EXPECT_TRUE(Contains(run.err, side.ours)) << run.err;
    }
    // Those who were there have noticed nothing.
    EXPECT_FALSE(Answer(*cluster).empty());
  }
}

TEST_F(TwoClassesTest, AStreamDoesNotGoOnInAnotherClass) {
  const auto portable = Start(1, {}, {});
  const auto dot = Start(1, {}, {"--numerics", "bf16dot"});
  ASSERT_NE(portable, nullptr);
  ASSERT_NE(dot, nullptr);
  v1::GenerateRequest request = GreedyRequest("Once", 40);
  std::vector<int32_t> ids;
  const std::string token = ResumeToken(*portable, request, &ids);
  ASSERT_FALSE(token.empty());
  request.mutable_resume()->set_token(token);
  request.mutable_resume()->mutable_token_ids()->Add(ids.begin(), ids.end());
  const Completion refused = Stream(*dot->NewStub(), request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(Contains(refused.status.error_message(), "portable") &&
              Contains(refused.status.error_message(), "bf16dot"))
      << refused.status.error_message();
  EXPECT_TRUE(Stream(*portable->NewStub(), request).status.ok());
}

// Nobody has said a class and every machine has this one.
TEST_F(NumericsTest, AutoAloneIsPortable) {
  const auto cluster = Start(1, {"--numerics", "auto"}, {"--numerics", "auto"});
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(GetModel(*cluster->NewStub()).numerics_class(), "portable");
}

TEST_F(NumericsTest, WhatCanNotBeHadIsAnErrorThatSaysWhy) {
  const std::string f32 = std::string(TRUNKLINE_FIXTURES) + "/checkpoints/tiny";
  const bool has = kernels::CheckMachineHas(kernels::Numerics::kBf16Dot).ok();
  const std::vector<std::vector<std::string>> commands = {
      {"trunk-worker", "--model", f32},
      {"expert-worker", "--model", f32, "--coordinator", "127.0.0.1:1"},
      {"up", "--model", f32},
      {"bench", "--model", f32},
  };
  for (std::vector<std::string> argv : commands) {
    SCOPED_TRACE(argv.front());
    argv.insert(argv.begin(), TRUNKLINE_BINARY);
    argv.insert(argv.end(), {"--numerics", "bf16dot"});
    const RunResult run = RunProgram(argv, kSoon);
    EXPECT_EQ(run.exit_code, 1) << run.out << run.err;
    EXPECT_TRUE(Contains(run.err, "--numerics")) << run.err;
    EXPECT_TRUE(Contains(run.err, has ? "F32" : "AVX512_BF16")) << run.err;
  }
}

}  // namespace
}  // namespace trunkline::testing
