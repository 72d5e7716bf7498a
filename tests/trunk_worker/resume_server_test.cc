// Streams that break off and go on elsewhere, and servers that are drained, as
// a client sees them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "control/status_to_grpc.h"
#include "tests/trunk_worker/server_fixture.h"

namespace trunkline::trunk {
namespace {

using ::testing::HasSubstr;

class ResumeTest : public ServerTest {
 protected:
  std::vector<v1::GenerateChunk> Chunks(v1::Generation::Stub& stub,
                                        const v1::GenerateRequest& request,
                                        absl::Status* end) {
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::seconds(60));
    auto reader = stub.GenerateStream(&context, request);
    std::vector<v1::GenerateChunk> chunks;
    v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) chunks.push_back(chunk);
    *end = control::FromGrpc(reader->Finish());
    return chunks;
  }
  std::vector<v1::GenerateChunk> Chunks(const v1::GenerateRequest& request) {
    absl::Status end;
    auto chunks = Chunks(*stub_, request, &end);
    EXPECT_TRUE(end.ok()) << end;
    return chunks;
  }
  // The request that goes on behind the first `count` chunks.
  static v1::GenerateRequest Behind(
      const v1::GenerateRequest& request,
      const std::vector<v1::GenerateChunk>& chunks, size_t count) {
    v1::GenerateRequest next = request;
    for (size_t i = 0; i < count; ++i)
      next.mutable_resume()->mutable_token_ids()->MergeFrom(
          chunks[i].token_ids());
    next.mutable_resume()->set_token(chunks[count - 1].resume_token());
    return next;
  }
  // All that a client keeps, times and one-time fields left out.
  static v1::GenerateResponse Joined(
      const std::vector<v1::GenerateChunk>& front, size_t count,
      const std::vector<v1::GenerateChunk>& rest) {
    v1::GenerateResponse all;
    for (size_t i = 0; i < count; ++i) AppendToResponse(front[i], &all);
    for (const v1::GenerateChunk& chunk : rest) AppendToResponse(chunk, &all);
    v1::Usage usage;
    usage.set_prompt_tokens(all.usage().prompt_tokens());
    usage.set_output_tokens(all.usage().output_tokens());
    *all.mutable_usage() = usage;
    return all;
  }
  // Cuts the stream behind each of its chunks.
  void ExpectEveryCutResumes(const v1::GenerateRequest& request) {
    const auto whole = Chunks(request);
    ASSERT_GT(whole.size(), 1u);
    for (size_t cut = 1; cut < whole.size(); ++cut) {
      ASSERT_FALSE(whole[cut - 1].resume_token().empty());
      ASSERT_LE(whole[cut - 1].resume_token().size(), 512u);
      const v1::GenerateRequest next = Behind(request, whole, cut);
      const auto rest = Chunks(next);
      ASSERT_FALSE(rest.empty());
      EXPECT_EQ(Joined(whole, cut, rest).SerializeAsString(),
                Joined(whole, whole.size(), {}).SerializeAsString())
          << "cut behind chunk " << cut;
      EXPECT_EQ(static_cast<int>(rest.back().usage().resumed_tokens()),
                next.resume().token_ids_size());
      EXPECT_EQ(rest.front().seed(), whole.front().seed());
    }
    EXPECT_EQ(whole.back().resume_token(), "") << "nothing is left";
  }
};

TEST_F(ResumeTest, AGreedyStreamGoesOnBehindEveryChunk) {
  StartServer();
  v1::GenerateRequest request = Greedy("And the LORD spake unto Moses,", 24);
  request.set_logprobs(2);
  request.set_prompt_logprobs(true);
  ExpectEveryCutResumes(request);
}

// The seed is the server's own: it is in the token.
TEST_F(ResumeTest, ASampledStreamGoesOnWithTheRightDraws) {
  StartServer();
  v1::GenerateRequest request = Greedy("In the beginning", 24);
  request.clear_sampling();
  request.mutable_sampling()->set_repetition_penalty(1.3f);
  request.mutable_sampling()->set_presence_penalty(0.5f);
  ExpectEveryCutResumes(request);
}

// Stop strings that span tokens: what is held back at the cut must be held back
// behind it.
TEST_F(ResumeTest, StopStringsAreFoundAcrossTheCut) {
  StartServer();
  v1::GenerateRequest request = Greedy("Blessed are the", 40);
  const Result whole = Stream(*stub_, request);
  ASSERT_TRUE(whole.status.ok());
  const std::string& text = whole.all.text();
  ASSERT_GT(text.size(), 40u);
  request.add_stop(text.substr(text.size() - 20, 12));
  request.add_stop("never in it");
  const auto chunks = Chunks(request);
  ASSERT_EQ(chunks.back().finish_reason(), v1::FINISH_REASON_STOP);
  ASSERT_EQ(chunks.back().stop(), request.stop(0));
  ExpectEveryCutResumes(request);
}

TEST_F(ResumeTest, TheWholeRestComesWithOneCallToo) {
  StartServer();
  const v1::GenerateRequest request = Greedy("In the beginning", 16);
  const auto whole = Chunks(request);
  ASSERT_GT(whole.size(), 1u);
  const Result rest = Unary(Behind(request, whole, 1));
  ASSERT_TRUE(rest.status.ok()) << rest.status.error_message();
  std::string text;
  for (size_t i = 1; i < whole.size(); ++i) text += whole[i].text();
  EXPECT_EQ(rest.all.text(), text);
  EXPECT_EQ(rest.all.token_ids_size(), 16 - whole[0].token_ids_size());
  EXPECT_EQ(rest.all.usage().output_tokens(), 16u);
}

TEST_F(ResumeTest, AnotherRequestsTokenIsRefusedByWhatDiffers) {
  StartServer();
  v1::GenerateRequest request = Greedy("In the beginning", 60);
  request.mutable_sampling()->set_seed(5);
  request.add_stop("zzz");
  const auto whole = Chunks(request);
  ASSERT_GT(whole.size(), 1u);
  const v1::GenerateRequest good = Behind(request, whole, 1);
  const int delivered = good.resume().token_ids_size();
  struct Case {
    std::string says;
    std::function<void(v1::GenerateRequest&)> edit;
  };
  const std::vector<Case> cases = {
      {"is damaged",
       [](auto& r) { (*r.mutable_resume()->mutable_token())[20] ^= 1; }},
      {"is none", [](auto& r) { r.mutable_resume()->set_token("abc"); }},
      {"number of tokens", [](auto& r) { r.set_text("In the beginnings of"); }},
      {"the prompt is not the one",
       [&](auto& r) {
         v1::TokenizeRequest tokenize;
         tokenize.set_text(r.text());
         tokenize.set_add_special_tokens(true);
         grpc::ClientContext context;
         v1::TokenizeResponse ids;
         ASSERT_TRUE(stub_->Tokenize(&context, tokenize, &ids).ok());
         ids.set_ids(0, ids.ids(0) + 1);
         *r.mutable_tokens()->mutable_ids() = ids.ids();
       }},
      {"sampling.temperature is 0.5",
       [](auto& r) { r.mutable_sampling()->set_temperature(0.5f); }},
      {"sampling.seed is 6",
       [](auto& r) { r.mutable_sampling()->set_seed(6); }},
      {"max_tokens is 13", [](auto& r) { r.set_max_tokens(13); }},
      {"stop is not", [](auto& r) { r.clear_stop(); }},
      {"stop_token_ids or ignore_eos",
       [](auto& r) { r.set_ignore_eos(false); }},
      {"logprobs is 1", [](auto& r) { r.set_logprobs(1); }},
      {"include_special_tokens",
       [](auto& r) { r.set_include_special_tokens(true); }},
      {absl::StrCat("has ", delivered - 1, " ids; the resume token covers ",
                    delivered),
       [](auto& r) { r.mutable_resume()->mutable_token_ids()->RemoveLast(); }},
      {"are not those",
       [](auto& r) {
         r.mutable_resume()->set_token_ids(
             0, r.resume().token_ids(0) == 9 ? 8 : 9);
       }},
      {"resume.token_ids[0] is -1",
       [](auto& r) { r.mutable_resume()->set_token_ids(0, -1); }},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest bad = good;
    c.edit(bad);
    const Result refused = Stream(*stub_, bad);
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << c.says << ": " << refused.status.error_message();
    EXPECT_THAT(refused.status.error_message(), HasSubstr(c.says));
    EXPECT_EQ(refused.chunks, 0);
  }
  EXPECT_TRUE(Stream(*stub_, good).status.ok());
  EXPECT_TRUE(EverythingIsFree());
}

TEST_F(ResumeTest, AnotherModelsTokenIsRefusedByItsDigest) {
  StartServer();
  v1::GenerateRequest request;
  for (int id : {5, 6, 7}) request.mutable_tokens()->add_ids(id);
  request.set_max_tokens(60);
  request.set_ignore_eos(true);
  const auto whole = Chunks(request);
  TrunkOptions other = DemoOptions();
  other.model_dir = trunkline::testing::CheckpointFixture("tiny").checkpoint;
  other.sequence_tokens_max = 256;
  StartServer(other);
  const Result refused = Stream(*stub_, Behind(request, whole, 1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("model digest"));
}

// The server stops in the middle: the error says how far the stream came, and
// another server goes on from there.
TEST_F(ResumeTest, AStreamThatAStoppingServerEndsGoesOnElsewhere) {
  StartServer();
  const v1::GenerateRequest request = Greedy("And it came to pass", 700);
  grpc::ClientContext context;
  SetDeadline(context, std::chrono::seconds(120));
  auto reader = stub_->GenerateStream(&context, request);
  std::vector<v1::GenerateChunk> front;
  v1::GenerateChunk chunk;
  for (int i = 0; i < 4 && reader->Read(&chunk); ++i) front.push_back(chunk);
  ASSERT_EQ(front.size(), 4u);
  server_->Shutdown(absl::ZeroDuration());
  while (reader->Read(&chunk)) front.push_back(chunk);
  const absl::Status end = control::FromGrpc(reader->Finish());
  ASSERT_TRUE(absl::IsUnavailable(end)) << end;
  v1::StreamFailure failure;
  ASSERT_TRUE(control::GetDetail(end, &failure)) << end;
  int delivered = 0;
  for (const auto& c : front) delivered += c.token_ids_size();
  EXPECT_EQ(static_cast<int>(failure.output_tokens()), delivered);
  EXPECT_EQ(failure.resume_token(), front.back().resume_token());

  StartServer();
  const auto rest = Chunks(Behind(request, front, front.size()));
  const auto whole = Chunks(request);
  EXPECT_EQ(Joined(front, front.size(), rest).SerializeAsString(),
            Joined(whole, whole.size(), {}).SerializeAsString());
}

TEST_F(ResumeTest, ADrainingServerFinishesItsStreamsAndSendsNewOnesAway) {
  StartServer();
  const v1::GenerateRequest request = Greedy("Thou shalt not", 400);
  grpc::ClientContext context;
  SetDeadline(context, std::chrono::seconds(120));
  auto reader = stub_->GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  int tokens = chunk.token_ids_size();
  server_->engine().SetDraining(true, absl::UnavailableError("drained by us"));
  absl::Status refused;
  EXPECT_TRUE(Chunks(*stub_, Greedy("x", 3), &refused).empty());
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("drained by us"));
  EXPECT_EQ(control::RetryAfter(refused), absl::Seconds(1));
  while (reader->Read(&chunk)) tokens += chunk.token_ids_size();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 400);
  server_->engine().SetDraining(false, absl::OkStatus());
  EXPECT_TRUE(Stream(*stub_, Greedy("x", 3)).status.ok());
}

}  // namespace
}  // namespace trunkline::trunk
