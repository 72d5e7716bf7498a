#pragma once

// A trunk worker with its API on a loopback port, and clients of it.

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/generation.grpc.pb.h"
#include "tests/golden/checkpoint_fixture.h"
#include "tests/integration/connected_channel.h"
#include "tests/integration/eventually.h"
#include "trunk_worker/trunk_server.h"

namespace trunkline::trunk {

inline TrunkOptions DemoOptions() {
  TrunkOptions options;
  options.model_dir = trunkline::testing::DemoFixture().checkpoint;
  options.threads = 1;
  options.sequence_tokens_max = 2048;
  options.log_level = "error";
  return options;
}

inline v1::GenerateRequest Greedy(const std::string& text,
                                  uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  request.set_add_special_tokens(true);
  request.mutable_sampling()->set_temperature(0.0f);
  return request;
}

struct Result {
  grpc::Status status;
  v1::GenerateResponse all;
  int chunks = 0;
};

class ServerTest : public ::testing::Test {
 protected:
  void StartServer(const TrunkOptions& options = DemoOptions()) {
    auto server = TrunkServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = NewStub();
  }
  std::shared_ptr<grpc::Channel> NewChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt("grpc.use_local_subchannel_pool", 1);
    // A small fixed window, so that a client that does not read is felt soon.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16384);
    return testing::Connected(grpc::CreateCustomChannel(
        server_->address(), grpc::InsecureChannelCredentials(), arguments));
  }
  std::unique_ptr<v1::Generation::Stub> NewStub() {
    return v1::Generation::NewStub(NewChannel());
  }
  static void SetDeadline(grpc::ClientContext& context,
                          std::chrono::milliseconds deadline) {
    context.set_deadline(std::chrono::system_clock::now() + deadline);
  }
  // cancel_after: tokens; negative: never.
  Result Stream(v1::Generation::Stub& stub, const v1::GenerateRequest& request,
                std::chrono::milliseconds deadline = std::chrono::seconds(60),
                int cancel_after = -1) {
    Result result;
    grpc::ClientContext context;
    SetDeadline(context, deadline);
    auto reader = stub.GenerateStream(&context, request);
    v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) {
      ++result.chunks;
      AppendToResponse(chunk, &result.all);
      if (chunk.seed() != 0) result.all.set_seed(chunk.seed());
      if (!chunk.request_id().empty())
        result.all.set_request_id(chunk.request_id());
      if (cancel_after >= 0 && result.all.token_ids_size() >= cancel_after)
        context.TryCancel();
    }
    result.status = reader->Finish();
    return result;
  }
  Result Unary(const v1::GenerateRequest& request) {
    Result result;
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::seconds(60));
    result.status = stub_->Generate(&context, request, &result.all);
    return result;
  }
  v1::GetModelResponse Model() {
    grpc::ClientContext context;
    v1::GetModelResponse model;
    EXPECT_TRUE(stub_->GetModel(&context, {}, &model).ok());
    return model;
  }
  bool EverythingIsFree() {
    return trunkline::Eventually(std::chrono::seconds(20), [&] {
      const v1::GetModelResponse model = Model();
      return model.sequence_slots_used() == 0 &&
             model.state_bytes_used() == 0 && model.queued_requests() == 0;
    });
  }
  // The health service's answer, read from the bytes: field 1, 1 = SERVING.
  int Health(const std::string& service) {
    grpc::GenericStub generic(NewChannel());
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::seconds(10));
    std::string request;
    if (!service.empty())
      request = absl::StrCat("\x0a", std::string(1, service.size()), service);
    const grpc::Slice slice(request);
    auto call =
        generic.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                 grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    if (!status.ok()) return -static_cast<int>(status.error_code());
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(answer.Dump(&slices).ok());
    if (slices.empty() || slices[0].size() != 2) return 0;
    return slices[0].begin()[1];
  }

  std::unique_ptr<TrunkServer> server_;
  std::unique_ptr<v1::Generation::Stub> stub_;
};

}  // namespace trunkline::trunk
