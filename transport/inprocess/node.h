#pragma once

// One transport's place in the process: its inbox and its connections. Nodes
// reach each other directly; a call into two of them takes both mutexes, in the
// order of their addresses.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "transport/transport.h"

namespace trunkline::transport::inprocess {

class Node {
 public:
  explicit Node(const Options& options) : options_(options) {}

  // Both ends come up, or the caller's end goes down because `listener` has
  // shut down. `from` and `to` may be the same node.
  static void Join(const std::shared_ptr<Node>& from, ConnectionId connection,
                   const std::shared_ptr<Node>& to);
  // The answer to a Connect that reached nobody.
  void RefuseConnect(ConnectionId connection, absl::Status why);
  void Send(const std::shared_ptr<Node>& self, ConnectionId connection,
            Message message, uint64_t token);
  void Disconnect(ConnectionId connection, const absl::Status& here,
                  const absl::Status& there);
  // Every connection goes down; later Joins are refused.
  void Shutdown();

  void Poll(absl::Duration max_wait, std::vector<Event>* events);
  void Wake();

 private:
  struct PendingSend {
    uint64_t token;
    size_t bytes;
  };
  struct Connection {
    std::shared_ptr<Node> peer;
    ConnectionId peer_connection;
    std::deque<PendingSend> pending;  // in the peer's inbox, in its order
    int64_t pending_bytes = 0;
  };
  struct Item {
    Event event;
    // Of a kReceived: who waits to hear that it was taken.
    std::shared_ptr<Node> sender;
    ConnectionId sender_connection;
  };

  void PushLocked(Item item);
  // Completes what is pending with `why`, ends the connection.
  void TakeDownLocked(ConnectionId connection, const absl::Status& why);
  // The peer has taken the oldest message of the connection.
  void CompleteOldest(ConnectionId connection);
  bool WaitForInbox(std::unique_lock<std::mutex>& lock,
                    absl::Duration max_wait);

  const Options options_;

  // A spinning Poll looks here without the lock.
  std::atomic<bool> ready_{false};  // inbox not empty, or woken

  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Item> inbox_;                                     // mutex_
  absl::flat_hash_map<ConnectionId, Connection> connections_;  // mutex_
  bool woken_ = false;                                         // mutex_
  bool shut_down_ = false;                                     // mutex_
};

}  // namespace trunkline::transport::inprocess
