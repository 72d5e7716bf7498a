#pragma once

// A UCX worker and everything that is under way in it. Plain data; links.h has
// the rules.
//
// Memory that UCX may still touch belongs to a SendRecord or a ReceiveRecord.
// Records live until UCX has called back, or their worker is destroyed,
// whatever has become of their connection.

#include <ucp/api/ucp.h>

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "transport/transport.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/message_assembler.h"
#include "transport/ucx/ucx_context.h"
#include "transport/ucx/wire.h"

namespace trunkline::transport::ucx {

class Links;
struct LinkWorker;

enum class SendKind { kHello, kChunk, kHeartbeat };

struct SendRecord {
  Links* links = nullptr;
  LinkWorker* worker = nullptr;
  ConnectionId connection;
  SendKind kind = SendKind::kHeartbeat;
  // UCX reads the header until the send has completed.
  union {
    Hello hello;
    ChunkHeader chunk;
  } header{};
  std::shared_ptr<Outgoing> outgoing;  // of a chunk
  size_t bytes = 0;                    // of a chunk
  std::list<SendRecord>::iterator self;
};

struct ReceiveRecord {
  Links* links = nullptr;
  LinkWorker* worker = nullptr;
  ConnectionId connection;
  std::shared_ptr<MessageAssembler::Assembly> assembly;
  size_t bytes = 0;
  std::list<ReceiveRecord>::iterator self;
};

struct UcxListener {
  ucp_listener_h handle = nullptr;
  uint16_t port = 0;
};

struct LinkWorker {
  Links* links = nullptr;
  Reach reach = Reach::kNetwork;
  // Connections with an endpoint here. A host's worker serves one; a visitor
  // that has no business here may be a second one until its hello.
  int connections = 0;
  // Tickets out for its listeners. A host's worker without tickets and
  // connections retires.
  int tickets = 0;
  // Listeners by the host they are bound to, while tickets are out.
  std::map<std::string, UcxListener> listeners;
  std::vector<ucp_conn_request_h> accepting;  // a callback's note for Drive
  std::vector<void*> closing;                 // requests of ucp_ep_close_nbx
  std::list<SendRecord> sends;
  std::list<ReceiveRecord> receives;
  absl::Time retire_by = absl::InfiniteFuture();  // of a retiring one

  bool has_work() const {
    return !closing.empty() || !sends.empty() || !receives.empty();
  }

  // Last, so that it goes first: no record may go while it lives.
  std::unique_ptr<UcxWorker> ucx;
};

}  // namespace trunkline::transport::ucx
