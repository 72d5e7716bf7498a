#include "transport/inprocess/node.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/connection_id.h"

namespace trunkline::transport::inprocess {
namespace {

Event MakeEvent(Event::Kind kind, ConnectionId connection,
                absl::Status status = absl::OkStatus(), uint64_t token = 0) {
  Event event{};
  event.kind = kind;
  event.connection = connection;
  event.status = std::move(status);
  event.token = token;
  return event;
}

constexpr int kLockSpins = 200;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The mutexes are held for well under a microsecond: going to sleep for one
// costs more than waiting for it.
std::unique_lock<std::mutex> SpinLock(std::mutex& mutex) {
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  for (int i = 0; i < kLockSpins && !lock.owns_lock(); ++i) {
    Relax();
    lock.try_lock();
  }
  if (!lock.owns_lock()) lock.lock();
  return lock;
}

// Two nodes at once, always in the order of their addresses, or the one when a
// node talks to itself.
class BothLocked {
 public:
  BothLocked(std::mutex& a, std::mutex& b) {
    first_ = SpinLock(&a < &b ? a : b);
    if (&a != &b) second_ = SpinLock(&a < &b ? b : a);
  }

 private:
  std::unique_lock<std::mutex> first_;
  std::unique_lock<std::mutex> second_;
};

}  // namespace

void Node::PushLocked(Item item) {
  inbox_.push_back(std::move(item));
  ready_.store(true, std::memory_order_release);
  filled_.notify_one();
}

void Node::TakeDownLocked(ConnectionId connection, const absl::Status& why) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  for (const PendingSend& send : it->second.pending) {
    PushLocked({MakeEvent(Event::Kind::kSendDone, connection, why, send.token),
                nullptr,
                {}});
  }
  connections_.erase(it);
  PushLocked({MakeEvent(Event::Kind::kPeerDown, connection, why), nullptr, {}});
}

void Node::Join(const std::shared_ptr<Node>& from, ConnectionId connection,
                const std::shared_ptr<Node>& to) {
  BothLocked lock(from->mutex_, to->mutex_);
  if (to->shut_down_) {
    from->PushLocked({MakeEvent(Event::Kind::kPeerDown, connection,
                                absl::UnavailableError("the peer shut down")),
                      nullptr,
                      {}});
    return;
  }
  const ConnectionId accepted = NextConnectionId();
  from->connections_[connection] = Connection{to, accepted, {}, 0};
  to->connections_[accepted] = Connection{from, connection, {}, 0};
  to->PushLocked({MakeEvent(Event::Kind::kAccepted, accepted), nullptr, {}});
  from->PushLocked(
      {MakeEvent(Event::Kind::kConnected, connection), nullptr, {}});
}

void Node::RefuseConnect(ConnectionId connection, absl::Status why) {
  const auto lock = SpinLock(mutex_);
  PushLocked({MakeEvent(Event::Kind::kPeerDown, connection, std::move(why)),
              nullptr,
              {}});
}

void Node::Send(const std::shared_ptr<Node>& self, ConnectionId connection,
                Message message, uint64_t token) {
  const auto done = [&](absl::Status status) {
    PushLocked({MakeEvent(Event::Kind::kSendDone, connection, std::move(status),
                          token),
                nullptr,
                {}});
  };
  std::shared_ptr<Node> peer;
  {
    const auto lock = SpinLock(mutex_);
    const auto it = connections_.find(connection);
    if (it == connections_.end()) {
      done(absl::UnavailableError(
          absl::StrCat("connection ", connection.value, " is down")));
      return;
    }
    const auto bytes = static_cast<int64_t>(message.size);
    if (bytes > options_.message_bytes_max) {
      done(absl::InvalidArgumentError(absl::StrCat(
          "message of ", message.size, " bytes is above message_bytes_max (",
          options_.message_bytes_max, ")")));
      return;
    }
    if (it->second.pending_bytes + bytes > options_.queue_bytes_max) {
      done(absl::ResourceExhaustedError(absl::StrCat(
          it->second.pending_bytes, " bytes wait to leave; ", message.size,
          " more are above queue_bytes_max (", options_.queue_bytes_max, ")")));
      return;
    }
    peer = it->second.peer;
  }
  BothLocked lock(mutex_, peer->mutex_);
  const auto it = connections_.find(connection);
  if (it == connections_.end()) {  // went down between the two locks
    done(absl::UnavailableError(
        absl::StrCat("connection ", connection.value, " is down")));
    return;
  }
  const ConnectionId there = it->second.peer_connection;
  if (static_cast<int64_t>(message.size) > peer->options_.message_bytes_max) {
    // Both ends are locked, so both can be told at once.
    const absl::Status why = absl::InvalidArgumentError(
        absl::StrCat("message of ", message.size,
                     " bytes is above the receiver's message_bytes_max (",
                     peer->options_.message_bytes_max, ")"));
    done(why);
    TakeDownLocked(connection, why);
    peer->TakeDownLocked(there, why);
    return;
  }
  it->second.pending.push_back({token, message.size});
  it->second.pending_bytes += static_cast<int64_t>(message.size);
  Event event = MakeEvent(Event::Kind::kReceived, there);
  event.message = std::move(message);
  peer->PushLocked({std::move(event), self, connection});
}

void Node::Disconnect(ConnectionId connection, const absl::Status& here,
                      const absl::Status& there) {
  std::shared_ptr<Node> peer;
  {
    const auto lock = SpinLock(mutex_);
    const auto it = connections_.find(connection);
    if (it == connections_.end()) return;
    peer = it->second.peer;
  }
  BothLocked lock(mutex_, peer->mutex_);
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  const ConnectionId peer_connection = it->second.peer_connection;
  TakeDownLocked(connection, here);
  peer->TakeDownLocked(peer_connection, there);
}

void Node::Shutdown() {
  std::vector<ConnectionId> open;
  {
    const auto lock = SpinLock(mutex_);
    shut_down_ = true;
    for (const auto& [id, connection] : connections_) open.push_back(id);
  }
  for (ConnectionId id : open) {
    Disconnect(id, absl::CancelledError("this transport shut down"),
               absl::UnavailableError("the peer shut down"));
  }
  // Items name other nodes; a dropped inbox breaks the circle.
  std::deque<Item> dropped;
  const auto lock = SpinLock(mutex_);
  dropped.swap(inbox_);
}

void Node::CompleteOldest(ConnectionId connection) {
  const auto lock = SpinLock(mutex_);
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;  // completed when it went down
  const PendingSend send = it->second.pending.front();
  it->second.pending.pop_front();
  it->second.pending_bytes -= static_cast<int64_t>(send.bytes);
  PushLocked({MakeEvent(Event::Kind::kSendDone, connection, absl::OkStatus(),
                        send.token),
              nullptr,
              {}});
}

bool Node::WaitForInbox(std::unique_lock<std::mutex>& lock,
                        absl::Duration max_wait) {
  const absl::Duration spin = std::min(max_wait, options_.spin);
  if (inbox_.empty() && !woken_ && spin > absl::ZeroDuration()) {
    lock.unlock();
    const auto end =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(spin);
    while (!ready_.load(std::memory_order_acquire) &&
           std::chrono::steady_clock::now() < end) {
      Relax();
    }
    lock = SpinLock(mutex_);
  }
  const auto filled = [this] { return !inbox_.empty() || woken_; };
  if (max_wait == absl::InfiniteDuration()) {
    filled_.wait(lock, filled);
  } else if (max_wait > spin) {
    filled_.wait_for(lock, absl::ToChronoNanoseconds(max_wait - spin), filled);
  }
  return filled();
}

void Node::Poll(absl::Duration max_wait, std::vector<Event>* events) {
  std::deque<Item> taken;
  {
    auto lock = SpinLock(mutex_);
    WaitForInbox(lock, max_wait);
    woken_ = false;
    ready_.store(false, std::memory_order_release);
    taken.swap(inbox_);
  }
  for (Item& item : taken) {
    events->push_back(std::move(item.event));
    if (item.sender != nullptr)
      item.sender->CompleteOldest(item.sender_connection);
  }
}

void Node::Wake() {
  const auto lock = SpinLock(mutex_);
  woken_ = true;
  ready_.store(true, std::memory_order_release);
  filled_.notify_one();
}

}  // namespace trunkline::transport::inprocess
