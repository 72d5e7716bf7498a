#pragma once

// What transport/transport.h promises, as tests. A backend's test file includes
// this header and instantiates the suite with its kind:
//
//   INSTANTIATE_TEST_SUITE_P(Inprocess, TransportContract,
//                            ::testing::Values("inprocess"));

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/contract/transport_peer.h"

namespace trunkline::transport {

class TransportContract : public ::testing::TestWithParam<std::string> {
 protected:
  // A listener and one connection to it, both ends up.
  struct Pair {
    explicit Pair(const std::string& kind,
                  const Options& dialer_options = PatientOptions(),
                  const Options& listener_options = PatientOptions())
        : listener(kind, listener_options), dialer(kind, dialer_options) {
      address = listener.Listen();
      there = dialer.Connect(address);
      EXPECT_TRUE(PumpUntil({&dialer, &listener}, [&] {
        return dialer.link(there).connected && !listener.accepted().empty();
      }));
      if (!listener.accepted().empty()) here = listener.accepted()[0];
    }
    std::vector<Peer*> both() { return {&dialer, &listener}; }

    Peer listener;
    Peer dialer;
    std::string address;
    ConnectionId there;  // the dialer's name of the connection
    ConnectionId here;   // the listener's
  };
};

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
