#include "expert_worker/expert_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "tests/expert_worker/dispatch_frame.h"

namespace trunkline::expert {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kCluster = 77;
constexpr uint32_t kWorker = 5;

// Delivers one frame, and calls a function while it is being taken.
class OneFrame final : public transport::Transport {
 public:
  OneFrame(const AlignedBuffer& frame, std::function<void()> meanwhile)
      : meanwhile_(std::move(meanwhile)) {
    frame_.buffer = AlignedBuffer(frame.size());
    std::memcpy(frame_.data(), frame.data(), frame.size());
    frame_.size = frame.size();
  }

  std::string answer() { return answer_.get_future().get(); }
  void Go() { go_ = true; }

  absl::StatusOr<std::string> Listen(const std::string&) override {
    return "test";
  }
  absl::StatusOr<transport::ConnectionId> Connect(const std::string&) override {
    return absl::UnimplementedError("nobody connects");
  }
  void Disconnect(transport::ConnectionId) override {}
  void Send(transport::ConnectionId connection, transport::Message message,
            uint64_t token) override {
    answer_.set_value(std::string(reinterpret_cast<const char*>(message.data()),
                                  message.size));
    sent_.kind = transport::Event::Kind::kSendDone;
    sent_.connection = connection;
    sent_.token = token;
    has_sent_ = true;
  }
  void Poll(absl::Duration, std::vector<transport::Event>* events) override {
    if (std::exchange(has_sent_, false)) events->push_back(std::move(sent_));
    if (delivered_ || !go_) {
      std::this_thread::yield();
      return;
    }
    delivered_ = true;
    meanwhile_();
    transport::Event event;
    event.kind = transport::Event::Kind::kReceived;
    event.connection = transport::ConnectionId(1);
    event.message = std::move(frame_);
    events->push_back(std::move(event));
  }
  void Wake() override {}
  transport::Message Allocate(size_t size) override {
    transport::Message message;
    message.buffer = AlignedBuffer(size);
    message.size = size;
    return message;
  }
  void Release(transport::Message) override {}
  std::string Name() const override { return "one frame"; }

 private:
  std::function<void()> meanwhile_;
  transport::Message frame_;
  std::atomic<bool> go_ = false;
  bool delivered_ = false, has_sent_ = false;  // of the engine's thread
  transport::Event sent_;
  std::promise<std::string> answer_;
};

// A worker joins, the coordinator shows it to the trunks, and the first frame
// arrives while the worker's own thread has not looked up since.
TEST(ExpertEngine, WhatWasAskedBeforeAFrameCameIsDoneBeforeItIsLookedAt) {
  TestFrame frame;
  frame.header.row_dtype = DType::kF32;
  frame.header.cluster_id = kCluster;
  frame.header.trunk_rank = 9;
  frame.header.worker_rank = kWorker;
  frame.header.placement_version = 2;
  frame.header.layer = 1;
  frame.header.row_width = 16;
  frame.routes = {{0, 0, 1, 0, 0.5f}};

  prometheus::Registry registry;
  ExpertMetrics metrics(registry);
  std::unique_ptr<ExpertEngine> engine;
  auto transport = std::make_unique<OneFrame>(
      frame.Bytes(), [&] { engine->SetIdentity(kCluster, WorkerId(kWorker)); });
  OneFrame* const wire = transport.get();
  ExpertEngine::Options options;
  options.layers = {{LayerIndex(1), 8, 16}};
  engine =
      std::make_unique<ExpertEngine>(options, std::move(transport), &metrics);
  wire->Go();
  // It serves no version yet, and says so; but it knows who it is.
  const std::string answer = wire->answer();
  EXPECT_THAT(answer, HasSubstr("placement version 2 is not served"));
  EXPECT_THAT(answer, Not(HasSubstr("not joined")));
}

}  // namespace
}  // namespace trunkline::expert
