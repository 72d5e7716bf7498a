// What the simulated wires promise and what they break: transport.h, in
// simulated time.

#include "sim/sim_transport.h"

#include <gtest/gtest.h>

#include <cstring>

namespace trunkline::sim {
namespace {

using transport::ConnectionId;
using transport::Event;

class SimTransportTest : public ::testing::Test {
 protected:
  SimTransportTest() {
    network_.SetAlive(a_, true);
    network_.SetAlive(b_, true);
    server_ = std::make_unique<SimTransport>(&fabric_, &world_, b_, [] {});
    client_ = std::make_unique<SimTransport>(&fabric_, &world_, a_, [] {});
  }

  void RunFor(absl::Duration time) {
    const absl::Time end = world_.now() + time;
    while (world_.RunOne(end)) {
    }
  }
  std::vector<Event> Poll(SimTransport* transport) {
    std::vector<Event> events;
    transport->Poll(absl::ZeroDuration(), &events);
    return events;
  }
  void Connect() {
    if (address_.empty()) address_ = server_->Listen("server").value();
    to_server_ = client_->Connect(address_).value();
    RunFor(absl::Seconds(1));
    const auto up = Poll(client_.get());
    ASSERT_EQ(up.size(), 1u);
    ASSERT_EQ(up[0].kind, Event::Kind::kConnected);
    const auto accepted = Poll(server_.get());
    ASSERT_FALSE(accepted.empty());
    ASSERT_EQ(accepted.back().kind, Event::Kind::kAccepted);
    to_client_ = accepted.back().connection;
  }
  void Send(uint64_t number) {
    transport::Message message = client_->Allocate(sizeof(number));
    std::memcpy(message.data(), &number, sizeof(number));
    client_->Send(to_server_, std::move(message), number);
  }
  std::vector<uint64_t> Receive() {
    std::vector<uint64_t> numbers;
    for (Event& event : Poll(server_.get())) {
      if (event.kind != Event::Kind::kReceived) continue;
      uint64_t number = 0;
      std::memcpy(&number, event.message.data(), sizeof(number));
      numbers.push_back(number);
      server_->Release(std::move(event.message));
    }
    return numbers;
  }
  int CountDown(SimTransport* transport) {
    int down = 0;
    for (const Event& event : Poll(transport))
      down += event.kind == Event::Kind::kPeerDown;
    return down;
  }

  World world_{5};
  NetworkOptions options_;
  Network network_{&world_, options_};
  Place a_ = network_.Add("a"), b_ = network_.Add("b");
  Fabric fabric_{&world_, &network_};
  std::unique_ptr<SimTransport> server_, client_;
  std::string address_;
  ConnectionId to_server_, to_client_;
};

TEST_F(SimTransportTest, MessagesOfOneConnectionArriveInOrderEachAnsweredOnce) {
  Connect();
  for (uint64_t i = 0; i < 200; ++i) Send(i);
  RunFor(absl::Seconds(5));
  const std::vector<uint64_t> numbers = Receive();
  ASSERT_EQ(numbers.size(), 200u);
  for (uint64_t i = 0; i < 200; ++i) EXPECT_EQ(numbers[i], i);
  std::vector<int> done(200, 0);
  for (const Event& event : Poll(client_.get())) {
    ASSERT_EQ(event.kind, Event::Kind::kSendDone);
    EXPECT_TRUE(event.status.ok());
    ++done[event.token];
  }
  EXPECT_EQ(done, std::vector<int>(200, 1));
  EXPECT_EQ(client_->messages_held(), 0);
  EXPECT_EQ(server_->messages_held(), 0);
  EXPECT_EQ(fabric_.messages_on_the_way(), 0u);
}

TEST_F(SimTransportTest, ACutShorterThanTheTimeoutOnlyDelays) {
  Connect();
  network_.SetCut(a_, b_, true);
  Send(1);
  RunFor(options_.peer_timeout / 2);
  EXPECT_TRUE(Receive().empty());
  network_.SetCut(a_, b_, false);
  RunFor(absl::Seconds(2));
  EXPECT_EQ(Receive(), std::vector<uint64_t>{1});
  EXPECT_EQ(CountDown(client_.get()), 0);
}

TEST_F(SimTransportTest, BothEndsGoDownOnceWhenNothingPassesForLong) {
  Connect();
  network_.SetCut(a_, b_, true);
  network_.SetCut(b_, a_, true);
  Send(1);
  RunFor(absl::Seconds(3));
  EXPECT_EQ(CountDown(server_.get()), 1);
  int down = 0, lost = 0;
  for (const Event& event : Poll(client_.get())) {
    down += event.kind == Event::Kind::kPeerDown;
    lost += event.kind == Event::Kind::kSendDone && !event.status.ok();
  }
  EXPECT_EQ(down, 1);
  EXPECT_EQ(lost, 1) << "every Send completes";
}

TEST_F(SimTransportTest, AHalfOpenConnectionEndsOnBothSides) {
  Connect();
  network_.SetCut(a_, b_, true);  // b hears nothing, a hears b
  RunFor(absl::Seconds(3));
  EXPECT_EQ(CountDown(server_.get()), 1);
  EXPECT_EQ(CountDown(client_.get()), 1);
}

TEST_F(SimTransportTest, AStoppedPeerIsFoundByItsSilenceAndAKilledOneAtOnce) {
  Connect();
  network_.SetPaused(b_, true);
  RunFor(options_.peer_timeout / 2);
  EXPECT_EQ(CountDown(client_.get()), 0);
  RunFor(options_.peer_timeout);
  EXPECT_EQ(CountDown(client_.get()), 1);
  network_.SetPaused(b_, false);
  RunFor(absl::Seconds(1));
  Connect();
  server_.reset();
  RunFor(absl::Milliseconds(300));
  EXPECT_EQ(CountDown(client_.get()), 1);
}

TEST_F(SimTransportTest, DiallingNobodyIsAnsweredWithPeerDown) {
  const ConnectionId id = client_->Connect("sim://nobody").value();
  RunFor(absl::Seconds(1));
  const auto events = Poll(client_.get());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Event::Kind::kPeerDown);
  EXPECT_EQ(events[0].connection, id);
}

}  // namespace
}  // namespace trunkline::sim
