#pragma once

// Moving whole messages between peers. Owns connections, buffers in flight and
// the knowledge that a peer is gone; knows nothing of experts, steps or
// versions. Called by the worker edges. Backends: transport/inprocess,
// transport/ucx.
//
// Promises, kept weak on purpose (tests/contract/transport_contract.h runs them
// on every backend):
// - messages of one connection arrive whole and in order, or the connection
//   goes down;
// - nothing is ordered between connections;
// - every Send completes with exactly one kSendDone. The memory is the
//   transport's from Send on. OK says that the message was handed on, not that
//   the peer has read it; any other status says that it may not arrive;
// - a connection ends with exactly one kPeerDown, after which no event names
//   it but the kSendDone of a Send that was made later;
// - a peer that stops answering (killed, stopped, cut off) goes down within
//   Options::peer_timeout, whether or not messages are in flight: the transport
//   keeps its own heartbeat.
// Send never blocks and drops nothing in silence. Back pressure is the caller's
// credit window; Options::queue_bytes_max is the fence behind it.
// Thread safety: Poll from one thread (the engine); everything else from any
// thread. Events are delivered by Poll only, never from inside another call.
// Between Polls a keeper thread keeps heartbeats going, so an engine may
// compute for long without losing its peers.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/aligned_buffer.h"
#include "common/ids.h"

namespace trunkline::transport {

using ConnectionId =
    StrongId<struct ConnectionTag, uint64_t>;  // never reused within a process

// Bytes on a 64-byte boundary. Capacity may exceed size so that pooled memory
// is reused.
struct Message {
  AlignedBuffer buffer;
  size_t size = 0;
  std::byte* data() { return buffer.data(); }
  const std::byte* data() const { return buffer.data(); }
};

struct Event {
  enum class Kind : uint8_t {
    kAccepted,   // a peer connected to our listener
    kConnected,  // our Connect succeeded
    kReceived,   // message
    kSendDone,   // token, status (OK or why it was lost)
    kPeerDown,   // status says why; also the answer to a Connect that failed
  };
  Kind kind;
  ConnectionId connection;
  Message message;
  uint64_t token = 0;
  absl::Status status;
};

struct Options {
  absl::Duration peer_timeout =
      absl::Milliseconds(600);  // silence after which a peer is down
  absl::Duration heartbeat_interval = absl::Milliseconds(100);
  absl::Duration connect_timeout = absl::Seconds(5);
  absl::Duration spin = absl::Microseconds(50);  // before Poll sleeps
  int64_t message_bytes_max = int64_t{1}
                              << 30;  // a larger one is refused on both sides
  // Per connection and direction. A Send that would make the bytes that wait
  // to leave exceed this completes with RESOURCE_EXHAUSTED; a peer whose
  // messages wait unpolled beyond it goes down with RESOURCE_EXHAUSTED. At
  // least message_bytes_max.
  int64_t queue_bytes_max = int64_t{4} << 30;
  // Freed message memory that is kept for reuse, over all sizes.
  int64_t pool_bytes_max = int64_t{256} << 20;
};

// INVALID_ARGUMENT naming the field and its value.
absl::Status ValidateOptions(const Options& options);

class Transport {
 public:
  virtual ~Transport() = default;

  // Accepts connections at `address` ("host:port"; port 0 picks a free one).
  // Returns the address that peers dial, with its scheme
  // ("ucx://127.0.0.1:40123", "inprocess://worker-1"). ALREADY_EXISTS when the
  // address is in use.
  virtual absl::StatusOr<std::string> Listen(const std::string& address) = 0;
  // Starts a connection; kConnected or kPeerDown follows. INVALID_ARGUMENT for
  // an address it can't parse.
  virtual absl::StatusOr<ConnectionId> Connect(const std::string& address) = 0;
  // Ends the connection; kPeerDown (CANCELLED) follows. What was not handed on
  // yet is dropped. Does nothing when the connection is down already.
  virtual void Disconnect(ConnectionId connection) = 0;
  // Takes the message. kSendDone with `token` follows, also when the connection
  // is already down. A message sent before kConnected leaves after it.
  virtual void Send(ConnectionId connection, Message message,
                    uint64_t token) = 0;
  // Appends events to `events`; waits up to max_wait for the first (zero: only
  // looks). May return early with none (Wake).
  virtual void Poll(absl::Duration max_wait, std::vector<Event>* events) = 0;
  // Makes a Poll that waits, or the next one, return at once.
  virtual void Wake() = 0;
  // A message to fill, from the pool when one is free. Its bytes are undefined.
  virtual Message Allocate(size_t size) = 0;
  // Gives a received message's memory back to the pool.
  virtual void Release(Message message) = 0;
  virtual std::string Name() const = 0;  // "inprocess", "ucx"
};

}  // namespace trunkline::transport
