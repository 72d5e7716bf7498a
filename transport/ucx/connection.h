#pragma once

// One connection of the ucx backend and the messages on their way out of it.
// Plain data; links.h has the rules.

#include <ucp/api/ucp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "transport/transport.h"
#include "transport/ucx/message_assembler.h"
#include "transport/ucx/socket_address.h"

namespace trunkline::transport::ucx {

struct LinkWorker;

// A message between Send and kSendDone. Shared with the sends that read its
// memory: UCX may outlive the connection.
struct Outgoing {
  Message message;
  uint64_t token = 0;
  size_t posted_bytes = 0;    // handed to UCX, in chunks, from the front
  size_t posted_chunks = 0;   // of those, how many chunks
  size_t pending_chunks = 0;  // of those, not completed by UCX
  bool all_posted() const {
    return posted_chunks > 0 && posted_bytes == message.size;
  }
};

struct Connection {
  enum class State {
    kLookingUp,   // waits for the addresses of a host name
    kKnocking,    // waits for the answer at the peer's door
    kConnecting,  // waits for the peer's hello
    kUp,
  };

  Connection(ConnectionId connection_id, bool was_accepted,
             MessageAssembler assembler_for_it)
      : id(connection_id),
        accepted(was_accepted),
        assembler(std::move(assembler_for_it)) {}

  const ConnectionId id;
  const bool accepted;  // else dialed. An accepted one has no event until kUp.
  std::string peer;     // for messages: "10.0.0.2:4000"
  State state = State::kLookingUp;
  ucp_ep_h endpoint = nullptr;   // null before kConnecting
  LinkWorker* worker = nullptr;  // that the endpoint belongs to
  // A dialed host's addresses; those before next_address have failed or are
  // being tried.
  std::vector<SocketAddress> addresses;
  size_t next_address = 0;
  uint64_t ticket = 0;  // of a dialed one, from the peer's door
  absl::Time connect_deadline;
  absl::Time last_heard;
  bool heartbeat_pending = false;

  // Messages out, by sequence number. Those before next_to_post are with UCX.
  std::map<uint64_t, std::shared_ptr<Outgoing>> outgoing;
  uint64_t next_sequence = 0;
  uint64_t next_to_post = 0;
  int64_t outgoing_bytes = 0;
  size_t window_bytes = 0;  // with UCX; at most kWindowBytes

  MessageAssembler assembler;
  int64_t unread_bytes = 0;  // in kReceived events that wait for Poll
};

}  // namespace trunkline::transport::ucx
