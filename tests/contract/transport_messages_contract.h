#pragma once

// Messages: whole, in order, each completed once.

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

TEST_P(TransportContract, ListenReturnsAnAddressWithTheBackendsScheme) {
  Peer peer(GetParam());
  EXPECT_EQ(peer.transport().Name(), GetParam());
  const std::string address = peer.Listen();
  EXPECT_EQ(address.rfind(GetParam() + "://", 0), 0u) << address;
  EXPECT_NE(address.substr(address.size() - 2), ":0");
}

TEST_P(TransportContract, ConnectGivesOneEventOnEachSide) {
  Pair pair(GetParam());
  EXPECT_EQ(pair.dialer.event_count(), 1u);
  EXPECT_EQ(pair.listener.event_count(), 1u);
  EXPECT_NE(pair.here, pair.there) << "ids are unique within the process";
}

TEST_P(TransportContract, MessagesOfEverySizeArriveWithTheirBytes) {
  Pair pair(GetParam());
  const std::vector<size_t> sizes = {0,
                                     1,
                                     63,
                                     64,
                                     65,
                                     4096,
                                     65537,
                                     256 << 10,
                                     (256 << 10) + 1,
                                     1 << 20,
                                     (1 << 20) + 1,
                                     5 << 20};
  for (size_t i = 0; i < sizes.size(); ++i)
    pair.dialer.Send(pair.there, i, sizes[i]);
  auto& received = pair.listener.link(pair.here).received;
  ASSERT_TRUE(PumpUntil(pair.both(), [&] {
    return received.size() == sizes.size() &&
           pair.dialer.done_count() == sizes.size();
  }));
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(received[i].size, sizes[i]);
    EXPECT_TRUE(HasPattern(i, received[i])) << sizes[i] << " bytes";
    EXPECT_EQ(reinterpret_cast<uintptr_t>(received[i].data()) % 64, 0u);
  }
}

// Small messages overtake large ones in a backend that sends them by different
// protocols; the connection must not show it.
TEST_P(TransportContract, MessagesArriveInTheOrderOfTheirSends) {
  Pair pair(GetParam());
  constexpr size_t kSizes[] = {8, 700 << 10, 0, 3 << 20, 100, 64 << 10, 1};
  constexpr size_t kMessages = 140;
  for (size_t i = 0; i < kMessages; ++i)
    pair.dialer.Send(pair.there, i, kSizes[i % std::size(kSizes)]);
  auto& received = pair.listener.link(pair.here).received;
  ASSERT_TRUE(PumpUntil(pair.both(), [&] {
    return received.size() == kMessages &&
           pair.dialer.done_count() == kMessages;
  }));
  for (size_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(received[i].size, kSizes[i % std::size(kSizes)]) << i;
    ASSERT_TRUE(HasPattern(i, received[i])) << i;
  }
}

// One large message and then far more small ones than a backend keeps under
// way: the small ones are there long before it and must wait for it.
TEST_P(TransportContract, ALargeMessageHoldsBackAFloodOfSmallOnes) {
  Pair pair(GetParam());
  constexpr size_t kSmall = 5000;
  pair.dialer.Send(pair.there, 0, 6 << 20);
  for (size_t i = 1; i <= kSmall; ++i) pair.dialer.Send(pair.there, i, 16);
  auto& received = pair.listener.link(pair.here).received;
  ASSERT_TRUE(
      PumpUntil(pair.both(), [&] { return received.size() == kSmall + 1; }));
  for (size_t i = 0; i <= kSmall; ++i) ASSERT_TRUE(HasPattern(i, received[i]));
}

TEST_P(TransportContract, EverySendCompletesOnceWithOkWhileThePeerReads) {
  Pair pair(GetParam());
  constexpr size_t kMessages = 2000;
  for (size_t i = 0; i < kMessages; ++i)
    pair.dialer.Send(pair.there, i, i % 300);
  auto& received = pair.listener.link(pair.here).received;
  ASSERT_TRUE(PumpUntil(pair.both(), [&] {
    return pair.dialer.done_count() == kMessages &&
           received.size() == kMessages;
  }));
  for (uint64_t token = 1; token <= kMessages; ++token)
    EXPECT_TRUE(pair.dialer.done(token)->ok());
  PumpFor(pair.both(), absl::Milliseconds(50));  // no second completion
}

TEST_P(TransportContract, ASendBeforeTheConnectionIsUpLeavesAfterIt) {
  Peer listener(GetParam()), dialer(GetParam());
  const ConnectionId there = dialer.Connect(listener.Listen());
  dialer.Send(there, 1, 100);
  dialer.Send(there, 2, 2 << 20);
  ASSERT_TRUE(PumpUntil({&dialer, &listener}, [&] {
    return dialer.done_count() == 2 && listener.accepted().size() == 1 &&
           listener.link(listener.accepted()[0]).received.size() == 2;
  }));
  auto& received = listener.link(listener.accepted()[0]).received;
  EXPECT_TRUE(HasPattern(1, received[0]));
  EXPECT_TRUE(HasPattern(2, received[1]));
}

// Each connection carries its own stream; the listener sends back on the
// connection that a message came by.
TEST_P(TransportContract, ManyConnectionsKeepTheirMessagesApart) {
  constexpr size_t kDialers = 4, kConnections = 4, kMessages = 8;
  Peer listener(GetParam());
  const std::string address = listener.Listen();
  std::vector<std::unique_ptr<Peer>> dialers;
  std::vector<Peer*> all = {&listener};
  std::vector<std::pair<Peer*, ConnectionId>> ends;
  for (size_t d = 0; d < kDialers; ++d) {
    dialers.push_back(std::make_unique<Peer>(GetParam()));
    all.push_back(dialers.back().get());
    for (size_t c = 0; c < kConnections; ++c)
      ends.push_back({all.back(), all.back()->Connect(address)});
  }
  for (size_t e = 0; e < ends.size(); ++e) {
    for (size_t m = 0; m < kMessages; ++m)
      ends[e].first->Send(ends[e].second, e * 100 + m, 1000 + e);
  }
  ASSERT_TRUE(PumpUntil(all, [&] {
    size_t total = 0;
    for (ConnectionId id : listener.accepted())
      total += listener.link(id).received.size();
    return total == ends.size() * kMessages;
  }));
  EXPECT_EQ(listener.accepted().size(), ends.size());
  for (ConnectionId id : listener.accepted()) {
    auto& received = listener.link(id).received;
    ASSERT_EQ(received.size(), kMessages);
    const size_t e = received[0].size - 1000;
    for (size_t m = 0; m < kMessages; ++m)
      EXPECT_TRUE(HasPattern(e * 100 + m, received[m]));
    listener.Send(id, e, 5000 + e);
  }
  ASSERT_TRUE(PumpUntil(all, [&] {
    for (auto& [peer, id] : ends)
      if (peer->link(id).received.size() != 1) return false;
    return true;
  }));
  for (size_t e = 0; e < ends.size(); ++e) {
    const Message& answer = ends[e].first->link(ends[e].second).received[0];
    EXPECT_EQ(answer.size, 5000 + e);
    EXPECT_TRUE(HasPattern(e, answer));
  }
}

TEST_P(TransportContract, ATransportReachesItsOwnListener) {
  Peer peer(GetParam());
  const ConnectionId there = peer.Connect(peer.Listen());
  ASSERT_TRUE(PumpUntil({&peer}, [&] {
    return peer.link(there).connected && peer.accepted().size() == 1;
  }));
  const ConnectionId here = peer.accepted()[0];
  peer.Send(there, 1, 1000);
  peer.Send(here, 2, 600 << 10);
  ASSERT_TRUE(PumpUntil({&peer}, [&] {
    return peer.link(here).received.size() == 1 &&
           peer.link(there).received.size() == 1;
  }));
  EXPECT_TRUE(HasPattern(1, peer.link(here).received[0]));
  EXPECT_TRUE(HasPattern(2, peer.link(there).received[0]));
}

// Both directions at full tilt, each end on its own thread, as two workers are.
TEST_P(TransportContract, TwoWayTrafficOnTwoThreads) {
  Pair pair(GetParam());
  constexpr size_t kMessages = 300;
  const auto run = [](Peer* peer, ConnectionId connection) {
    for (size_t i = 0; i < kMessages; ++i)
      peer->Send(connection, i, (i * 7919) % (400 << 10));
    return PumpUntil({peer}, [&] {
      return peer->done_count() == kMessages &&
             peer->link(connection).received.size() == kMessages;
    });
  };
  bool listener_ok = false;
  // After its own part an end keeps polling, since the other still needs it.
  std::atomic<int> finished{0};
  std::thread other([&] {
    listener_ok = run(&pair.listener, pair.here);
    ++finished;
    PumpUntil({&pair.listener}, [&] { return finished == 2; });
  });
  const bool dialer_ok = run(&pair.dialer, pair.there);
  ++finished;
  PumpUntil({&pair.dialer}, [&] { return finished == 2; });
  other.join();
  ASSERT_TRUE(listener_ok && dialer_ok);
  for (Peer* peer : pair.both()) {
    auto& received =
        peer->link(peer == &pair.dialer ? pair.there : pair.here).received;
    for (size_t i = 0; i < kMessages; ++i) {
      ASSERT_EQ(received[i].size, (i * 7919) % (400 << 10));
      ASSERT_TRUE(HasPattern(i, received[i]));
    }
  }
}

TEST_P(TransportContract, SendsFromSeveralThreadsKeepEachThreadsOrder) {
  Pair pair(GetParam());
  constexpr uint64_t kThreads = 4, kEach = 200;
  std::vector<std::thread> senders;
  for (uint64_t t = 0; t < kThreads; ++t) {
    senders.emplace_back([&, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        Message message = pair.dialer.transport().Allocate(16);
        const uint64_t words[2] = {t, i};
        std::memcpy(message.data(), words, sizeof words);
        pair.dialer.transport().Send(pair.there, std::move(message), 0);
      }
    });
  }
  std::vector<Event> at_dialer, at_listener;
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while ((at_dialer.size() < kThreads * kEach ||
          at_listener.size() < kThreads * kEach) &&
         absl::Now() < end) {
    pair.dialer.transport().Poll(absl::Microseconds(100), &at_dialer);
    pair.listener.transport().Poll(absl::Microseconds(100), &at_listener);
  }
  for (std::thread& sender : senders) sender.join();
  ASSERT_EQ(at_listener.size(), kThreads * kEach);
  ASSERT_EQ(at_dialer.size(), kThreads * kEach);
  uint64_t next[kThreads] = {};
  for (const Event& event : at_listener) {
    ASSERT_EQ(event.kind, Event::Kind::kReceived);
    uint64_t words[2];
    std::memcpy(words, event.message.data(), sizeof words);
    ASSERT_LT(words[0], kThreads);
    EXPECT_EQ(words[1], next[words[0]]++);
  }
}

}  // namespace trunkline::transport
