#pragma once

// One end in a transport test: a Transport with a book of what its events have
// said. The book is kept strictly: an event that the interface forbids (a
// second kPeerDown, a kSendDone for nothing, anything after the end) fails the
// test at once, whatever the test was about.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "transport/transport_factory.h"

namespace trunkline::transport {

// A message's bytes as a function of its seed, so that a receiver can tell
// which message it has and that all of it is there.
inline void FillPattern(uint64_t seed, Message* message) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  std::byte* p = message->data();
  size_t left = message->size;
  while (left > 0) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = x ^ (x >> 29);
    const size_t n = left < 8 ? left : 8;
    std::memcpy(p, &word, n);
    p += n;
    left -= n;
  }
}

inline bool HasPattern(uint64_t seed, const Message& message) {
  Message expected{AlignedBuffer(message.size), message.size};
  FillPattern(seed, &expected);
  return message.size == 0 ||
         std::memcmp(expected.data(), message.data(), message.size) == 0;
}

// For tests that are not about time: a machine that is short of cpu must not
// cost them a peer.
inline Options PatientOptions() {
  Options options;
  options.peer_timeout = absl::Seconds(5);
  return options;
}

class Peer {
 public:
  struct Link {
    bool accepted = false;
    bool connected = false;
    std::optional<absl::Status> down;
    absl::Time down_at;
    std::vector<Message> received;
    bool is_down() const { return down.has_value(); }
    bool up() const { return (accepted || connected) && !down.has_value(); }
  };

  explicit Peer(const std::string& kind,
                const Options& options = PatientOptions())
      : name_(kind) {
    auto made = MakeTransport(kind, options);
    EXPECT_TRUE(made.ok()) << made.status();
    transport_ = std::move(made).value();
  }

  Transport& transport() { return *transport_; }
  void Destroy() { transport_.reset(); }

  std::string Listen() {
    auto address = transport_->Listen("127.0.0.1:0");
    EXPECT_TRUE(address.ok()) << address.status();
    return address.value_or("");
  }

  ConnectionId Connect(const std::string& address) {
    auto id = transport_->Connect(address);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(ConnectionId());
  }

  // Sends `size` bytes of pattern `seed`; the token is the next free number.
  uint64_t Send(ConnectionId connection, uint64_t seed, size_t size) {
    Message message = transport_->Allocate(size);
    EXPECT_EQ(message.size, size);
    FillPattern(seed, &message);
    const uint64_t token = next_token_++;
    sent_[token] = connection;
    transport_->Send(connection, std::move(message), token);
    return token;
  }

  void Pump(absl::Duration wait) {
    std::vector<Event> events;
    transport_->Poll(wait, &events);
    for (Event& event : events) Record(std::move(event));
  }

  Link& link(ConnectionId id) { return links_[id]; }
  std::vector<ConnectionId> accepted() const {
    std::vector<ConnectionId> out;
    for (const auto& [id, link] : links_)
      if (link.accepted) out.push_back(id);
    return out;
  }
  size_t done_count() const { return done_.size(); }
  size_t sent_count() const { return sent_.size(); }
  // Null until the send has completed.
  const absl::Status* done(uint64_t token) const {
    const auto it = done_.find(token);
    return it == done_.end() ? nullptr : &it->second;
  }
  size_t event_count() const { return event_count_; }

  // What a test that waited in vain prints.
  std::string Summary() const {
    std::string out = name_ + ": " + std::to_string(done_.size()) + " of " +
                      std::to_string(sent_.size()) + " sends done";
    for (const auto& [id, link] : links_) {
      out += "; connection " + std::to_string(id.value) +
             (link.accepted    ? " accepted"
              : link.connected ? " connected"
                               : "") +
             ", received " + std::to_string(link.received.size());
      if (link.down.has_value()) out += ", down: " + link.down->ToString();
    }
    return out;
  }

 private:
  void Record(Event event) {
    ++event_count_;
    ASSERT_TRUE(event.connection.valid());
    Link& link = links_[event.connection];
    if (event.kind == Event::Kind::kSendDone) {
      const auto sent = sent_.find(event.token);
      ASSERT_TRUE(sent != sent_.end()) << "kSendDone for a token never sent";
      EXPECT_EQ(sent->second, event.connection);
      EXPECT_TRUE(done_.emplace(event.token, event.status).second)
          << "a second kSendDone for token " << event.token;
      if (link.down.has_value()) {
        EXPECT_FALSE(event.status.ok());
      }
      return;
    }
    EXPECT_FALSE(link.down.has_value())
        << "event " << static_cast<int>(event.kind) << " after kPeerDown";
    switch (event.kind) {
      case Event::Kind::kAccepted:
        EXPECT_FALSE(link.accepted || link.connected);
        link.accepted = true;
        break;
      case Event::Kind::kConnected:
        EXPECT_FALSE(link.accepted || link.connected);
        link.connected = true;
        break;
      case Event::Kind::kReceived:
        EXPECT_TRUE(link.up()) << "a message before the connection was up";
        link.received.push_back(std::move(event.message));
        break;
      case Event::Kind::kPeerDown:
        EXPECT_FALSE(event.status.ok());
        link.down = event.status;
        link.down_at = absl::Now();
        break;
      case Event::Kind::kSendDone:
        break;
    }
  }

  const std::string name_;
  std::unique_ptr<Transport> transport_;
  std::map<ConnectionId, Link> links_;
  std::map<uint64_t, ConnectionId> sent_;  // by token
  std::map<uint64_t, absl::Status> done_;  // by token
  uint64_t next_token_ = 1;
  size_t event_count_ = 0;
};

// Polls the peers in turn until the condition holds; false when it does not
// within the deadline.
inline bool PumpUntil(const std::vector<Peer*>& peers,
                      const std::function<bool()>& condition,
                      absl::Duration deadline = absl::Seconds(30)) {
  const absl::Time end = absl::Now() + deadline;
  while (!condition()) {
    if (absl::Now() > end) {
      for (const Peer* peer : peers) std::cerr << peer->Summary() << "\n";
      return false;
    }
    for (Peer* peer : peers) {
      peer->Pump(peers.size() == 1 ? absl::Milliseconds(5)
                                   : absl::Microseconds(100));
    }
  }
  return true;
}

// Polls for the whole of the time: to see that something does not happen.
inline void PumpFor(const std::vector<Peer*>& peers, absl::Duration time) {
  const absl::Time end = absl::Now() + time;
  PumpUntil(
      peers, [&] { return absl::Now() >= end; }, time * 4);
}

}  // namespace trunkline::transport
