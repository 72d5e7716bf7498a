// Trunk workers that die or are drained in the middle of streams: the text goes
// on elsewhere, bit for bit. Real processes.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "control/coordinator_client.h"
#include "control/status_to_grpc.h"
#include "grpcpp/create_channel.h"
#include "proto/placement_admin.grpc.pb.h"
#include "tests/integration/completion.h"
#include "tests/integration/eventually.h"
#include "tests/integration/process_cluster.h"

namespace trunkline::testing {
namespace {

constexpr std::chrono::seconds kSoon{60};

// All that one or more streams of a request brought.
struct Gathered {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<std::string> logprobs;  // serialized: compared by bits
  std::string resume_token, stop;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  uint64_t seed = 0;

  void Add(const v1::GenerateChunk& chunk) {
    text += chunk.text();
    ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
    for (const auto& l : chunk.logprobs())
      logprobs.push_back(l.SerializeAsString());
    resume_token = chunk.resume_token();
    if (chunk.seed() != 0) seed = chunk.seed();
    stop += chunk.stop();
    if (chunk.finish_reason() != v1::FINISH_REASON_UNSPECIFIED)
      finish_reason = chunk.finish_reason();
  }
};

class TrunkLossTest : public ::testing::Test {
 protected:
  void Start(ProcessCluster::Options options) {
    options.model = std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo";
    auto cluster = ProcessCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::cerr << cluster_->Logs();
  }
  // Reads at most `chunks` more (negative: all). The status when it ended.
  absl::Status Read(int trunk, const v1::GenerateRequest& request,
                    Gathered* all, int kill_after = -1) {
    const auto stub = cluster_->NewStub(trunk);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(120));
    context.set_wait_for_ready(true);
    const auto reader = stub->GenerateStream(&context, request);
    v1::GenerateChunk chunk;
    for (int n = 1; reader->Read(&chunk); ++n) {
      all->Add(chunk);
      if (n == kill_after) cluster_->trunk(trunk).Signal(SIGKILL);
    }
    return control::FromGrpc(reader->Finish());
  }
  static v1::GenerateRequest Behind(const v1::GenerateRequest& request,
                                    const Gathered& all) {
    v1::GenerateRequest next = request;
    next.mutable_resume()->set_token(all.resume_token);
    next.mutable_resume()->mutable_token_ids()->Add(all.ids.begin(),
                                                    all.ids.end());
    return next;
  }
  static void ExpectEqual(const Gathered& got, const Gathered& wanted) {
    EXPECT_EQ(got.text, wanted.text);
    EXPECT_EQ(got.ids, wanted.ids);
    EXPECT_EQ(got.logprobs, wanted.logprobs);
    EXPECT_EQ(got.finish_reason, wanted.finish_reason);
    EXPECT_EQ(got.stop, wanted.stop);
  }

  std::unique_ptr<ProcessCluster> cluster_;
};

// Every kind of request loses its trunk, one trunk after the other, and each
// time another one makes exactly the rest.
TEST_F(TrunkLossTest, AKilledTrunksStreamsGoOnWithTheIdenticalText) {
  Start({.experts = 2, .trunks = 4});
  v1::GenerateRequest greedy = GreedyRequest("And the LORD spake unto", 400);
  v1::GenerateRequest sampled = GreedyRequest("Blessed are the", 400);
  sampled.clear_sampling();
  sampled.mutable_sampling()->set_seed(11);
  sampled.mutable_sampling()->set_temperature(0.9f);
  sampled.mutable_sampling()->set_top_p(0.9f);
  sampled.mutable_sampling()->set_presence_penalty(0.3f);
  sampled.set_logprobs(3);
  v1::GenerateRequest stopped = GreedyRequest("Thou shalt not", 400);
  Gathered text;
  ASSERT_TRUE(Read(3, stopped, &text).ok());
  ASSERT_GT(text.text.size(), 600u);
  const size_t late = text.text.size() - 40;
  stopped.add_stop(text.text.substr(late, 9));

  int trunk = 0;
  for (const auto& request : {greedy, sampled, stopped}) {
    Gathered whole;
    ASSERT_TRUE(Read(3, request, &whole).ok());
    Gathered got;
    const absl::Status lost = Read(trunk, request, &got, /*kill_after=*/9);
    ASSERT_TRUE(absl::IsUnavailable(lost)) << lost;
    ASSERT_GE(got.ids.size(), 9u);
    ASSERT_LT(got.ids.size(), whole.ids.size());
    ++trunk;
    ASSERT_TRUE(Read(trunk, Behind(request, got), &got).ok());
    ExpectEqual(got, whole);
  }
}

TEST_F(TrunkLossTest, TheClientGoesOnAtTheNextServerAndPrintsNothingTwice) {
  Start({.experts = 2, .trunks = 2});
  const std::vector<std::string> words = {
      "--temperature", "0.8", "--seed",       "3",
      "--max-tokens",  "600", "--ignore-eos", "In the beginning"};
  const auto command = [&](const std::string& servers) {
    std::vector<std::string> argv = {TRUNKLINE_BINARY, "generate", "--server",
                                     servers};
    argv.insert(argv.end(), words.begin(), words.end());
    return argv;
  };
  const RunResult whole =
      RunProgram(command(cluster_->trunk_address(1)), kSoon);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const TempDir dir;
  const std::string out = dir.path() + "/out", err = dir.path() + "/err";
  ChildProcess client(
      {.argv = command(absl::StrCat(cluster_->trunk_address(0), ",",
                                    cluster_->trunk_address(1))),
       .environment = {},
       .stdout_file = out,
       .stderr_file = err,
       .stdin_text = ""});
  ASSERT_TRUE(Eventually(kSoon, [&] { return ReadFile(out).size() > 40; }));
  cluster_->trunk(0).Signal(SIGKILL);
  const std::optional<int> end = client.Wait(kSoon);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(WEXITSTATUS(*end), 0) << ReadFile(err);
  EXPECT_EQ(ReadFile(out), whole.out);
  EXPECT_NE(ReadFile(err).find("going on"), std::string::npos) << ReadFile(err);
}

// SIGTERM: what runs may finish; what does not finish in time ends with a token
// to go on with; the process exits 0.
TEST_F(TrunkLossTest, ATerminatedTrunkEndsSlowStreamsWithATokenToGoOnWith) {
  Start(
      {.experts = 2, .trunks = 2, .trunk_flags = {"--drain-timeout", "300ms"}});
  const v1::GenerateRequest request = GreedyRequest("Now these are", 6000);
  Gathered got;
  const auto stub = cluster_->NewStub(0);
  grpc::ClientContext context;
  const auto reader = stub->GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  got.Add(chunk);
  cluster_->trunk(0).Signal(SIGTERM);
  while (reader->Read(&chunk)) got.Add(chunk);
  const absl::Status end = control::FromGrpc(reader->Finish());
  ASSERT_TRUE(absl::IsUnavailable(end)) << end;
  v1::StreamFailure failure;
  ASSERT_TRUE(control::GetDetail(end, &failure)) << end;
  ASSERT_EQ(failure.output_tokens(), got.ids.size());
  const std::optional<int> exit = cluster_->trunk(0).Wait(kSoon);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(WEXITSTATUS(*exit), 0);

  // The first 40 tokens more than had arrived, and those of an undisturbed run.
  v1::GenerateRequest next = Behind(request, got);
  next.mutable_resume()->set_token(failure.resume_token());
  const size_t front = got.ids.size();
  const Completion rest =
      Stream(*cluster_->NewStub(1), next, kSoon, /*cancel_after=*/40);
  const Completion whole =
      Stream(*cluster_->NewStub(1), request, kSoon,
             /*cancel_after=*/static_cast<int>(front) + 40);
  got.ids.insert(got.ids.end(), rest.ids.begin(), rest.ids.end());
  ASSERT_GE(rest.ids.size(), 40u);
  const size_t both = std::min(got.ids.size(), whole.ids.size());
  ASSERT_GE(both, front + 40);
  EXPECT_TRUE(std::equal(got.ids.begin(),
                         got.ids.begin() + static_cast<int64_t>(both),
                         whole.ids.begin()));
}

TEST_F(TrunkLossTest, ADrainedTrunkFinishesRefusesAndComesBack) {
  Start({.experts = 2, .trunks = 2});
  const auto admin = admin::v1::PlacementAdmin::NewStub(grpc::CreateChannel(
      cluster_->coordinator_address(), grpc::InsecureChannelCredentials()));
  admin::v1::DrainRequest trunk_0;
  trunk_0.set_worker("trunk-0");
  const auto stub = cluster_->NewStub(0);
  const v1::GenerateRequest request = GreedyRequest("Then said Jesus", 600);
  grpc::ClientContext context;
  const auto reader = stub->GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  Gathered got;
  ASSERT_TRUE(reader->Read(&chunk));
  got.Add(chunk);
  {
    grpc::ClientContext drain;
    admin::v1::ListWorkersResponse workers;
    ASSERT_TRUE(admin->Drain(&drain, trunk_0, &workers).ok());
  }
  absl::Status refused;
  ASSERT_TRUE(Eventually(kSoon, [&] {
    Gathered none;
    refused = Read(0, GreedyRequest("x", 1), &none);
    return !refused.ok();
  }));
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_GT(control::RetryAfter(refused), absl::ZeroDuration());
  while (reader->Read(&chunk)) got.Add(chunk);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(got.ids.size(), 600u);
  {
    grpc::ClientContext undrain;
    admin::v1::ListWorkersResponse workers;
    ASSERT_TRUE(admin->Undrain(&undrain, trunk_0, &workers).ok());
  }
  EXPECT_TRUE(Eventually(kSoon, [&] {
    Gathered one;
    return Read(0, GreedyRequest("x", 1), &one).ok();
  }));
}

}  // namespace
}  // namespace trunkline::testing
