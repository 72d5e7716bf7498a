#include "tests/contract/transport_contract.h"

namespace trunkline::transport {
namespace {

INSTANTIATE_TEST_SUITE_P(Inprocess, TransportContract,
                         ::testing::Values("inprocess"),
                         [](const auto& param) { return param.param; });

// A name is an address of its own here: no port is needed.
TEST(InprocessTransport, ListensUnderAnyName) {
  Peer listener("inprocess"), dialer("inprocess");
  const auto address = listener.transport().Listen("inprocess://worker-1");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "inprocess://worker-1");
  const ConnectionId id = dialer.Connect("worker-1");
  EXPECT_TRUE(PumpUntil({&dialer}, [&] { return dialer.link(id).connected; }));
}

// The receiver gets the sender's memory itself.
TEST(InprocessTransport, AMessageIsMovedNotCopied) {
  Peer listener("inprocess"), dialer("inprocess");
  const ConnectionId id = dialer.Connect(listener.Listen());
  Message message = dialer.transport().Allocate(1000);
  const std::byte* bytes = message.data();
  std::vector<Event> events;
  dialer.transport().Send(id, std::move(message), 1);
  listener.transport().Poll(absl::Seconds(5), &events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].message.data(), bytes);
}

// One way traffic: what the receiver releases is what the sender fills next.
TEST(InprocessTransport, SenderAndReceiverShareThePool) {
  Peer sender("inprocess"), receiver("inprocess");
  Message message = sender.transport().Allocate(100000);
  const std::byte* bytes = message.data();
  receiver.transport().Release(std::move(message));
  EXPECT_EQ(sender.transport().Allocate(100000).data(), bytes);
}

// What the peer has not taken yet is not done: this bounds a receiver's inbox
// by its senders' limits.
TEST(InprocessTransport, ASendIsDoneWhenThePeersPollTakesIt) {
  Peer listener("inprocess"), dialer("inprocess");
  const ConnectionId id = dialer.Connect(listener.Listen());
  const uint64_t token = dialer.Send(id, 1, 8);
  dialer.Pump(absl::Milliseconds(10));
  EXPECT_EQ(dialer.done(token), nullptr);
  listener.Pump(absl::ZeroDuration());
  dialer.Pump(absl::ZeroDuration());
  ASSERT_NE(dialer.done(token), nullptr);
  EXPECT_TRUE(dialer.done(token)->ok());
}

}  // namespace
}  // namespace trunkline::transport
