#pragma once

// The gRPC edge of the route recorder: streams a recording to the client that
// asked for it. A thread per recording turns captured layers into messages, so
// that neither the engine nor gRPC's threads do.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/checkpoint.h"
#include "proto/route_record.grpc.pb.h"
#include "trunk_worker/route_record.h"
#include "trunk_worker/route_recorder.h"
#include "trunk_worker/trunk_weights.h"

namespace trunkline::trunk {

// What a recording of these layers is headed with; none: every moe layer.
// INVALID_ARGUMENT naming a layer that is not one.
absl::StatusOr<RecordingHeader> MakeRecordingHeader(
    const model::Checkpoint& checkpoint, const TrunkWeights& weights,
    const routing::AdmissionPolicy& admission,
    const std::vector<LayerIndex>& layers);

class RouteRecorderService final : public v1::RouteRecorder::CallbackService {
 public:
  // All outlive the service; it ends after the server that has it registered.
  RouteRecorderService(const model::Checkpoint* checkpoint,
                       const TrunkWeights* weights,
                       routing::AdmissionPolicy admission,
                       RouteRecorder* recorder, std::string model_name,
                       std::string trunk_name);

  grpc::ServerWriteReactor<v1::RecordChunk>* Record(
      grpc::CallbackServerContext* context,
      const v1::RecordRequest* request) override;
  grpc::ServerUnaryReactor* StopRecording(
      grpc::CallbackServerContext* context,
      const v1::StopRecordingRequest* request,
      v1::StopRecordingResponse* response) override;

 private:
  class RecordCall;
  absl::StatusOr<RecordingHeader> HeaderFor(const v1::RecordRequest& request);

  const model::Checkpoint& checkpoint_;
  const TrunkWeights& weights_;
  const routing::AdmissionPolicy admission_;
  RouteRecorder& recorder_;
  const std::string model_name_, trunk_name_;
};

}  // namespace trunkline::trunk
