#pragma once

// Connections: how they end, what Poll and Wake do, addresses and limits.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/contract/transport_contract_fixture.h"

namespace trunkline::transport {

TEST_P(TransportContract, DisconnectTakesBothEndsDownOnce) {
  Pair pair(GetParam());
  pair.dialer.transport().Disconnect(pair.there);
  pair.dialer.transport().Disconnect(pair.there);
  ASSERT_TRUE(PumpUntil(pair.both(), [&] {
    return pair.dialer.link(pair.there).is_down() &&
           pair.listener.link(pair.here).is_down();
  }));
  EXPECT_EQ(pair.dialer.link(pair.there).down->code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(pair.listener.link(pair.here).down->code(),
            absl::StatusCode::kUnavailable);
  pair.listener.transport().Disconnect(pair.here);
  pair.listener.transport().Disconnect(ConnectionId(123456789));
  PumpFor(pair.both(), absl::Milliseconds(100));
  EXPECT_EQ(pair.dialer.event_count(), 2u);
  EXPECT_EQ(pair.listener.event_count(), 2u);
}

TEST_P(TransportContract, ASendAfterDownCompletesWithAnError) {
  Pair pair(GetParam());
  pair.dialer.transport().Disconnect(pair.there);
  ASSERT_TRUE(PumpUntil(pair.both(), [&] {
    return pair.dialer.link(pair.there).is_down() &&
           pair.listener.link(pair.here).is_down();
  }));
  const uint64_t a = pair.dialer.Send(pair.there, 1, 100);
  const uint64_t b = pair.listener.Send(pair.here, 1, 2 << 20);
  ASSERT_TRUE(PumpUntil(pair.both(), [&] {
    return pair.dialer.done(a) != nullptr && pair.listener.done(b) != nullptr;
  }));
  EXPECT_EQ(pair.dialer.done(a)->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.listener.done(b)->code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportContract, DisconnectCompletesTheSendsInFlight) {
  Pair pair(GetParam());
  constexpr size_t kMessages = 40;
  for (size_t i = 0; i < kMessages; ++i) {
    pair.dialer.Send(pair.there, i, i % 2 == 0 ? 2 << 20 : 100);
    pair.listener.Send(pair.here, i, i % 2 == 0 ? 100 : 2 << 20);
  }
  pair.dialer.Pump(absl::ZeroDuration());
  pair.dialer.transport().Disconnect(pair.there);
  ASSERT_TRUE(PumpUntil(pair.both(), [&] {
    return pair.dialer.link(pair.there).is_down() &&
           pair.listener.link(pair.here).is_down();
  }));
  EXPECT_EQ(pair.dialer.done_count(), kMessages);
  EXPECT_EQ(pair.listener.done_count(), kMessages);
  PumpFor(pair.both(), absl::Milliseconds(100));
}

TEST_P(TransportContract, ADestroyedTransportTakesItsPeersDown) {
  Pair pair(GetParam());
  for (size_t i = 0; i < 8; ++i) {
    pair.dialer.Send(pair.there, i, 3 << 20);
    pair.listener.Send(pair.here, i, 3 << 20);
  }
  pair.listener.Destroy();
  ASSERT_TRUE(PumpUntil(
      {&pair.dialer}, [&] { return pair.dialer.link(pair.there).is_down(); }));
  EXPECT_EQ(pair.dialer.link(pair.there).down->code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.dialer.done_count(), 8u);
}

// The sender never polls between its calls, yet nothing is lost: events wait
// for Poll and come from nowhere else.
TEST_P(TransportContract, EventsWaitForPoll) {
  Peer listener(GetParam()), dialer(GetParam());
  const ConnectionId there = dialer.Connect(listener.Listen());
  const uint64_t token = dialer.Send(there, 1, 10);
  dialer.transport().Disconnect(there);
  EXPECT_EQ(dialer.event_count(), 0u);
  ASSERT_TRUE(
      PumpUntil({&dialer}, [&] { return dialer.link(there).is_down(); }));
  EXPECT_NE(dialer.done(token), nullptr) << "completed before kPeerDown";
}

TEST_P(TransportContract, PollWithNothingToSayReturnsAfterItsWait) {
  Peer peer(GetParam());
  peer.Listen();
  std::vector<Event> events;
  const absl::Time start = absl::Now();
  peer.transport().Poll(absl::Milliseconds(30), &events);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(29));
  const absl::Time again = absl::Now();
  for (int i = 0; i < 100; ++i)
    peer.transport().Poll(absl::ZeroDuration(), &events);
  EXPECT_LT(absl::Now() - again, absl::Seconds(2));
  EXPECT_TRUE(events.empty());
}

TEST_P(TransportContract, WakeEndsAPollThatWaits) {
  Peer peer(GetParam());
  std::atomic<bool> polling{false};
  absl::Time returned;
  std::thread engine([&] {
    std::vector<Event> events;
    polling = true;
    peer.transport().Poll(absl::InfiniteDuration(), &events);
    returned = absl::Now();
    EXPECT_TRUE(events.empty());
  });
  while (!polling) std::this_thread::yield();
  peer.transport().Wake();
  engine.join();  // hangs here if the wake was lost
}

TEST_P(TransportContract, AWakeBetweenPollsEndsTheNextOneOnly) {
  Peer peer(GetParam());
  peer.transport().Wake();
  std::vector<Event> events;
  peer.transport().Poll(absl::InfiniteDuration(), &events);
  EXPECT_TRUE(events.empty());
  const absl::Time start = absl::Now();
  peer.transport().Poll(absl::Milliseconds(20), &events);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(19));
}

// An engine that computes for four times the silence that counts as death.
TEST_P(TransportContract, ABusyEngineKeepsItsPeers) {
  Options options;
  options.peer_timeout = absl::Milliseconds(600);
  options.heartbeat_interval = absl::Milliseconds(50);
  Pair pair(GetParam(), options, options);
  const absl::Time end = absl::Now() + 4 * options.peer_timeout;
  PumpUntil({&pair.dialer}, [&] { return absl::Now() > end; });
  EXPECT_FALSE(pair.dialer.link(pair.there).is_down())
      << *pair.dialer.link(pair.there).down;
  pair.dialer.Send(pair.there, 7, 900 << 10);
  ASSERT_TRUE(PumpUntil(pair.both(), [&] {
    return pair.listener.link(pair.here).received.size() == 1;
  }));
  EXPECT_TRUE(HasPattern(7, pair.listener.link(pair.here).received[0]));
  EXPECT_FALSE(pair.listener.link(pair.here).is_down());
}

TEST_P(TransportContract, ListeningOnABusyAddressIsAnErrorThatNamesIt) {
  Peer first(GetParam()), second(GetParam());
  const std::string address = first.Listen();
  const auto again = second.transport().Listen(address);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists)
      << again.status();
  const std::string rest = address.substr(address.find("://") + 3);
  EXPECT_NE(again.status().ToString().find(rest), std::string::npos)
      << again.status();
}

TEST_P(TransportContract, AnAddressIsFreeAfterItsListenerIsGone) {
  auto first = std::make_unique<Peer>(GetParam());
  const std::string address = first->Listen();
  {
    Peer dialer(GetParam());
    const ConnectionId id = dialer.Connect(address);
    ASSERT_TRUE(PumpUntil({&dialer, first.get()},
                          [&] { return dialer.link(id).connected; }));
  }
  first.reset();
  Peer second(GetParam());
  const auto again = second.transport().Listen(address);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, address);
}

TEST_P(TransportContract, ConnectToNobodyEndsInPeerDown) {
  std::string address;
  {
    Peer gone(GetParam());
    address = gone.Listen();
  }
  Options options;
  options.connect_timeout = absl::Seconds(2);
  Peer dialer(GetParam(), options);
  const absl::Time start = absl::Now();
  const ConnectionId id = dialer.Connect(address);
  const uint64_t token = dialer.Send(id, 1, 100);
  ASSERT_TRUE(PumpUntil({&dialer}, [&] { return dialer.link(id).is_down(); }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(4));
  EXPECT_FALSE(dialer.link(id).connected);
  EXPECT_EQ(dialer.link(id).down->code(), absl::StatusCode::kUnavailable)
      << *dialer.link(id).down;
  EXPECT_NE(dialer.link(id).down->ToString().find(
                address.substr(address.find("://") + 3)),
            std::string::npos)
      << *dialer.link(id).down;
  ASSERT_NE(dialer.done(token), nullptr);
  EXPECT_FALSE(dialer.done(token)->ok());
}

TEST_P(TransportContract, ABadAddressIsInvalidAndLeavesNoEvent) {
  Peer peer(GetParam());
  for (const char* address : {"", "quic://127.0.0.1:1", "://x:1"}) {
    EXPECT_EQ(peer.transport().Connect(address).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
    EXPECT_EQ(peer.transport().Listen(address).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
  PumpFor({&peer}, absl::Milliseconds(20));
  EXPECT_EQ(peer.event_count(), 0u);
}

TEST_P(TransportContract, AMessageAboveTheSendersLimitIsRefusedAlone) {
  Options small = PatientOptions();
  small.message_bytes_max = 1 << 20;
  Pair pair(GetParam(), small);
  const uint64_t big = pair.dialer.Send(pair.there, 1, (1 << 20) + 1);
  const uint64_t fits = pair.dialer.Send(pair.there, 2, 1 << 20);
  ASSERT_TRUE(PumpUntil(pair.both(), [&] {
    return pair.dialer.done_count() == 2 &&
           pair.listener.link(pair.here).received.size() == 1;
  }));
  EXPECT_EQ(pair.dialer.done(big)->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(pair.dialer.done(big)->ToString().find("1048577"),
            std::string::npos);
  EXPECT_TRUE(pair.dialer.done(fits)->ok());
  EXPECT_TRUE(HasPattern(2, pair.listener.link(pair.here).received[0]));
  EXPECT_FALSE(pair.dialer.link(pair.there).is_down());
}

TEST_P(TransportContract,
       AMessageAboveTheReceiversLimitTakesTheConnectionDown) {
  Options small = PatientOptions();
  small.message_bytes_max = 1 << 20;
  Pair pair(GetParam(), PatientOptions(), small);
  pair.dialer.Send(pair.there, 1, 2 << 20);
  ASSERT_TRUE(PumpUntil(pair.both(), [&] {
    return pair.listener.link(pair.here).is_down() &&
           pair.dialer.link(pair.there).is_down();
  }));
  const absl::Status& why = *pair.listener.link(pair.here).down;
  EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument) << why;
  EXPECT_NE(why.ToString().find("2097152"), std::string::npos) << why;
  EXPECT_NE(why.ToString().find("1048576"), std::string::npos) << why;
  EXPECT_EQ(pair.dialer.done_count(), 1u);
}

// A caller without a credit window meets a fence, not an endless queue.
TEST_P(TransportContract, SendsBeyondTheQueueLimitAreRefusedAlone) {
  Options small = PatientOptions();
  small.message_bytes_max = 1 << 20;
  small.queue_bytes_max = 4 << 20;
  Pair pair(GetParam(), small);
  std::vector<uint64_t> tokens;
  for (size_t i = 0; i < 64; ++i)
    tokens.push_back(pair.dialer.Send(pair.there, i, 1 << 20));
  ASSERT_TRUE(PumpUntil(
      pair.both(), [&] { return pair.dialer.done_count() == tokens.size(); }));
  std::vector<uint64_t> accepted;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const absl::Status& status = *pair.dialer.done(tokens[i]);
    if (status.ok()) {
      accepted.push_back(i);
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    }
  }
  EXPECT_GE(accepted.size(), 4u);
  EXPECT_LT(accepted.size(), tokens.size());
  auto& received = pair.listener.link(pair.here).received;
  ASSERT_TRUE(PumpUntil(pair.both(),
                        [&] { return received.size() == accepted.size(); }));
  for (size_t i = 0; i < accepted.size(); ++i)
    EXPECT_TRUE(HasPattern(accepted[i], received[i]));
}

TEST_P(TransportContract, OptionsThatDoNotFitAreRefusedByName) {
  Options options;
  options.heartbeat_interval = absl::Milliseconds(500);
  auto made = MakeTransport(GetParam(), options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(made.status().ToString().find("heartbeat_interval"),
            std::string::npos);
}

TEST_P(TransportContract, ReleasedMemoryIsUsedAgain) {
  Peer peer(GetParam());
  Message message = peer.transport().Allocate(3 << 20);
  const std::byte* first = message.data();
  peer.transport().Release(std::move(message));
  EXPECT_EQ(peer.transport().Allocate(3 << 20).data(), first);
}

}  // namespace trunkline::transport
