// What happens to a connection when the process at its other end does.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/time/clock.h"
#include "tests/contract/transport_peer.h"
#include "tests/transport/child_process.h"

namespace trunkline::transport {
namespace {

constexpr absl::Duration kPeerTimeout = absl::Milliseconds(600);
// On top of peer_timeout: a tick of the keeper, and a machine that is shared.
constexpr absl::Duration kMargin = absl::Milliseconds(900);

// A ucx_peer that serves, and a connection to it.
class UcxProcess : public ::testing::Test {
 protected:
  void Serve(long count, size_t bytes) {
    child_ = std::make_unique<ChildProcess>(std::vector<std::string>{
        TRUNKLINE_UCX_PEER, "serve", "127.0.0.1:0", std::to_string(count),
        std::to_string(bytes), "600"});
    ASSERT_TRUE(child_->started());
    const auto address = child_->ReadLine("listening ");
    ASSERT_TRUE(address.has_value());
    address_ = *address;
    Connect();
  }

  void Connect() {
    there_ = peer_.Connect(address_);
    ASSERT_TRUE(PumpUntil({&peer_}, [&] { return link().connected; }));
  }

  // Keeps eight sends of `bytes` under way until the connection is down.
  void SendUntilDown(size_t bytes, absl::Duration deadline) {
    ASSERT_TRUE(PumpUntil(
        {&peer_},
        [&] {
          while (!link().is_down() &&
                 peer_.sent_count() - peer_.done_count() < 8)
            peer_.Send(there_, 1, bytes);
          link().received.clear();
          return link().is_down();
        },
        deadline));
    EXPECT_EQ(peer_.done_count(), peer_.sent_count());
  }

  Peer::Link& link() { return peer_.link(there_); }

  Peer peer_{"ucx", Options{}};
  std::unique_ptr<ChildProcess> child_;
  std::string address_;
  ConnectionId there_;
};

TEST_F(UcxProcess, AKilledPeerIsDownWithinASecondWhileIdle) {
  ASSERT_NO_FATAL_FAILURE(Serve(0, 0));
  child_->Signal(SIGKILL);
  const absl::Time killed = absl::Now();
  ASSERT_TRUE(PumpUntil({&peer_}, [&] { return link().is_down(); }));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(1));
  EXPECT_EQ(link().down->code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(link().down->ToString().find(address_.substr(6)), std::string::npos)
      << *link().down;
}

TEST_F(UcxProcess, AKilledPeerIsDownWithinASecondWhileItSends) {
  ASSERT_NO_FATAL_FAILURE(Serve(-1, 700 << 10));
  ASSERT_TRUE(PumpUntil({&peer_}, [&] { return link().received.size() > 20; }));
  child_->Signal(SIGKILL);
  const absl::Time killed = absl::Now();
  ASSERT_TRUE(PumpUntil({&peer_}, [&] { return link().is_down(); }));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(1));
}

TEST_F(UcxProcess, AKilledPeerIsDownWithinASecondWhileWeSend) {
  for (const size_t bytes : {size_t{100}, size_t{128} << 10, size_t{6} << 20}) {
    ASSERT_NO_FATAL_FAILURE(Serve(0, 0));
    ASSERT_TRUE(PumpUntil({&peer_}, [&] {
      while (peer_.sent_count() - peer_.done_count() < 8)
        peer_.Send(there_, 1, bytes);
      return peer_.done_count() % 64 == 63;
    }));
    child_->Signal(SIGKILL);
    const absl::Time killed = absl::Now();
    ASSERT_NO_FATAL_FAILURE(SendUntilDown(bytes, absl::Seconds(20)));
    EXPECT_LT(absl::Now() - killed, absl::Seconds(1)) << bytes;
  }
}

// UCX itself never notices a stopped process.
TEST_F(UcxProcess, AStoppedPeerIsDownWithinThePeerTimeoutWhileIdle) {
  ASSERT_NO_FATAL_FAILURE(Serve(0, 0));
  child_->Signal(SIGSTOP);
  const absl::Time stopped = absl::Now();
  ASSERT_TRUE(PumpUntil({&peer_}, [&] { return link().is_down(); }));
  EXPECT_LT(absl::Now() - stopped, kPeerTimeout + kMargin);
  EXPECT_NE(link().down->ToString().find("no sign of life"), std::string::npos)
      << *link().down;
}

TEST_F(UcxProcess, AStoppedPeerIsDownWithinThePeerTimeoutWhileWeSend) {
  for (const size_t bytes : {size_t{100}, size_t{3} << 20}) {
    ASSERT_NO_FATAL_FAILURE(Serve(0, 0));
    child_->Signal(SIGSTOP);
    const absl::Time stopped = absl::Now();
    ASSERT_NO_FATAL_FAILURE(SendUntilDown(bytes, absl::Seconds(20)));
    EXPECT_LT(absl::Now() - stopped, kPeerTimeout + kMargin) << bytes;
  }
}

// The engine computes all the while: it learns of it at its next Poll.
TEST_F(UcxProcess, AStoppedPeerIsNoticedWhileTheEngineIsBusy) {
  ASSERT_NO_FATAL_FAILURE(Serve(0, 0));
  child_->Signal(SIGSTOP);
  const absl::Time end = absl::Now() + kPeerTimeout + kMargin;
  double busy = 1;
  while (absl::Now() < end) busy = busy * 1.0000001 + 1e-9;
  EXPECT_GT(busy, 1);
  peer_.Pump(absl::ZeroDuration());
  EXPECT_TRUE(link().is_down());
}

TEST_F(UcxProcess, AShortPauseCostsNothing) {
  ASSERT_NO_FATAL_FAILURE(Serve(0, 0));
  child_->Signal(SIGSTOP);
  PumpFor({&peer_}, absl::Milliseconds(200));
  child_->Signal(SIGCONT);
  PumpFor({&peer_}, absl::Milliseconds(1200));
  EXPECT_FALSE(link().is_down()) << *link().down;
}

// After its pause a peer finds its old connection gone and is as good as new.
TEST_F(UcxProcess, AResumedPeerTakesNewConnections) {
  ASSERT_NO_FATAL_FAILURE(Serve(0, 0));
  ASSERT_TRUE(child_->ReadLine("up").has_value());
  child_->Signal(SIGSTOP);
  ASSERT_TRUE(PumpUntil({&peer_}, [&] { return link().is_down(); }));
  child_->Signal(SIGCONT);
  EXPECT_TRUE(child_->ReadLine("down ").has_value());
  ASSERT_NO_FATAL_FAILURE(Connect());
  peer_.Send(there_, 1, 2 << 20);
  EXPECT_TRUE(PumpUntil({&peer_}, [&] { return peer_.done_count() == 1; }));
  EXPECT_TRUE(child_->ReadLine("received 1").has_value());
}

// A listener that is started again at once gets its port.
// A sender that dies while it writes into shared memory leaves a slot there
// that is never filled, and nothing behind it is ever read. Only its own
// connection may suffer from that: each round kills a process that floods us,
// and the one beside it must still be heard, by us and by our next dial.
TEST_F(UcxProcess, AKilledPeerLeavesTheOthersOfItsHostInReach) {
  ASSERT_NO_FATAL_FAILURE(Serve(-1, 10));
  const ConnectionId beside = there_;
  const std::unique_ptr<ChildProcess> witness = std::move(child_);
  for (int round = 0; round < 20; ++round) {
    ASSERT_NO_FATAL_FAILURE(Serve(-1, 4000)) << round;
    ASSERT_TRUE(
        PumpUntil({&peer_}, [&] { return link().received.size() > 20; }));
    child_->Signal(SIGKILL);
    ASSERT_TRUE(PumpUntil({&peer_}, [&] { return link().is_down(); }));
    Peer::Link& other = peer_.link(beside);
    // More than had reached us before the kill.
    for (int i = 0; i < 3; ++i) {
      other.received.clear();
      ASSERT_TRUE(PumpUntil({&peer_}, [&] {
        return other.received.size() > 20 || other.is_down();
      })) << round;
    }
    ASSERT_FALSE(other.is_down()) << round << ": " << *other.down;
  }
}

TEST_F(UcxProcess, ARestartedListenerGetsItsPortBack) {
  ASSERT_NO_FATAL_FAILURE(Serve(-1, 1000));
  ASSERT_TRUE(PumpUntil({&peer_}, [&] { return link().received.size() > 5; }));
  child_->Signal(SIGKILL);
  child_->Wait();
  ASSERT_TRUE(PumpUntil({&peer_}, [&] { return link().is_down(); }));
  child_ = std::make_unique<ChildProcess>(std::vector<std::string>{
      TRUNKLINE_UCX_PEER, "serve", address_, "0", "0", "600"});
  const auto again = child_->ReadLine("listening ");
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(*again, address_);
  // The dialer that knew the old process redials as every caller does. The
  // first dial may meet what the kernel has left of that process.
  const absl::Time end = absl::Now() + absl::Seconds(20);
  do {
    there_ = peer_.Connect(address_);
    ASSERT_TRUE(PumpUntil(
        {&peer_}, [&] { return link().connected || link().is_down(); }));
  } while (!link().connected && absl::Now() < end);
  EXPECT_TRUE(link().connected) << *link().down;
}

}  // namespace
}  // namespace trunkline::transport
