#pragma once

// The gRPC edge of the generation API: takes requests in, hands outputs out.
// Everything here is callbacks, so the number of streams is not bound to a
// number of threads. A stream whose client does not read is bounded in memory:
// the request ends when its buffer is full.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "proto/generation.grpc.pb.h"
#include "trunk_worker/engine.h"
#include "trunk_worker/generation_wire.h"
#include "trunk_worker/trunk_metrics.h"

namespace trunkline::trunk {

class GenerationService final : public v1::Generation::CallbackService {
 public:
  struct Options {
    absl::Duration request_time_max = absl::InfiniteDuration();
    int64_t stream_buffer_bytes = int64_t{1} << 20;
    // The active placement version as the coordinator says; invalid: none.
    std::function<PlacementVersion()> active_version;
  };

  // All outlive the service. Engine and service end after the server that has
  // the service registered.
  GenerationService(const ServedModel* model, Engine* engine,
                    TrunkMetrics* metrics, Options options);

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<v1::GenerateChunk>* GenerateStream(
      grpc::CallbackServerContext* context,
      const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(
      grpc::CallbackServerContext* context,
      const v1::DetokenizeRequest* request,
      v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

 private:
  class Call;
  class UnaryCall;
  class StreamCall;

  const ServedModel& model_;
  Engine& engine_;
  TrunkMetrics& metrics_;
  const Options options_;
  const uint64_t seed_base_;
  std::atomic<uint64_t> arrivals_{0};
};

}  // namespace trunkline::trunk
