#pragma once

// All connections of one transport: the state machine of the backend.
//
//   Dial -> kLookingUp -> kKnocking -> kConnecting -> kUp
//   a visitor at the door gets a ticket; accept -> kConnecting -> kUp
//
// and each may go down. UCX's own listener is open only while a ticket is out
// (door.h says why).
//
// UCX calls back from inside its own progress. A callback only writes down what
// happened (failed_, accepting_, to_pump_); Drive acts on it afterwards, so no
// endpoint is closed under UCX's feet.
//
// Connections over the network share one UCX worker; each connection within the
// host has a worker of its own (ucx_context.h, Reach, says why), up to
// kHostWorkersMax. A host's worker lives as long as its connection, or as the
// ticket of the visitor that it is for, and then until UCX has let go of it.
//
// Needs the owner's mutex for every call.

#include <ucp/api/ucp.h>

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "transport/buffer_pool.h"
#include "transport/transport.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/door.h"
#include "transport/ucx/link_worker.h"
#include "transport/ucx/ucx_context.h"
#include "transport/ucx/wire.h"

namespace trunkline::transport::ucx {

class Links {
 public:
  static absl::StatusOr<std::unique_ptr<Links>> Create(const Options& options,
                                                       BufferPool* pool);
  ~Links();

  // Returns the address that the listener has got.
  absl::StatusOr<SocketAddress> Listen(const SocketAddress& address);

  // A dialed connection starts with Dial; DialAddresses follows when its
  // addresses (or the reason why there are none) are known.
  void Dial(ConnectionId id, const std::string& peer);
  void DialAddresses(ConnectionId id,
                     absl::StatusOr<std::vector<SocketAddress>> addresses);
  void Disconnect(ConnectionId id);
  void Send(ConnectionId id, Message message, uint64_t token);

  // Lets UCX work, for about a millisecond at most, and acts on what it
  // reported. Sends and judges heartbeats when that is due: whoever drives does
  // it, so a tick never waits for another thread to get the mutex.
  void Drive();
  absl::Time next_tick() const { return next_tick_; }
  // Appends what has happened; false when nothing has.
  bool TakeEvents(std::vector<Event>* events);

  // Lets dialers in, and ours through the peers' doors. Has work when door_fd()
  // is readable, and when a stranger's time is over.
  void RunDoor();
  int door_fd() const { return door_.fd(); }

  bool has_events() const { return !events_.empty(); }
  bool has_connections() const { return !connections_.empty(); }
  // Something is with UCX that may need Drive to get on.
  bool has_sends() const;
  // Grows with every message in or out.
  uint64_t activity() const { return activity_; }
  int efd() const { return epoll_; }
  // True when efd() will tell of the next event and nothing is left to do now.
  bool Arm();

 private:
  Links(const Options& options, BufferPool* pool);
  absl::Status Start();

  // UCX's callbacks; `arg` is a LinkWorker or a record.
  static void OnConnectionRequest(ucp_conn_request_h request, void* arg);
  static void OnEndpointError(void* arg, ucp_ep_h endpoint,
                              ucs_status_t status);
  static void OnSent(void* request, ucs_status_t status, void* arg);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes,
                         void* arg);
  static ucs_status_t OnHello(void* arg, const void* header,
                              size_t header_bytes, void* data, size_t bytes,
                              const ucp_am_recv_param_t* param);
  static ucs_status_t OnChunk(void* arg, const void* header,
                              size_t header_bytes, void* data, size_t bytes,
                              const ucp_am_recv_param_t* param);
  static ucs_status_t OnHeartbeat(void* arg, const void* header,
                                  size_t header_bytes, void* data, size_t bytes,
                                  const ucp_am_recv_param_t* param);
  static ucs_status_t OnUnknown(void* arg, const void* header,
                                size_t header_bytes, void* data, size_t bytes,
                                const ucp_am_recv_param_t* param);

  // links_workers.cc
  absl::StatusOr<LinkWorker*> AddWorker(Reach reach);
  static absl::Status SetHandlers(LinkWorker* worker);
  // The worker for a connection with that address: a new one within the host.
  absl::StatusOr<LinkWorker*> WorkerFor(const SocketAddress& peer);
  void Retire();

  // links.cc: life of a connection.
  Connection* Find(ConnectionId id);
  Connection* FindSender(const ucp_am_recv_param_t* param);
  Connection* Add(ConnectionId id, bool accepted, std::string peer);
  void TryNextAddress(Connection* connection, const absl::Status& last_error);
  void Answer(const Door::Visitor& visitor);
  void EnterPeersDoor(const Door::Reply& reply);
  static absl::StatusOr<uint16_t> UcxPort(LinkWorker* worker,
                                          const SocketAddress& local);
  static void CloseIdleListeners(LinkWorker* worker);
  bool UseTicket(uint64_t ticket);
  void Accept(LinkWorker* worker, ucp_conn_request_h request);
  // The endpoint belongs to the connection, and the connection to the worker.
  void Attach(Connection* connection, LinkWorker* worker, ucp_ep_h endpoint);
  void Progress();
  void ActOnFailures();
  void Tick();
  void Judge(Connection* connection, bool held_up);
  void DropEndpoint(Connection* connection);
  // Completes every send with `why`; the last event of the connection.
  void TakeDown(Connection* connection, const absl::Status& why);
  void Fail(Connection* connection, absl::Status why);
  static void Reap(LinkWorker* worker);
  void Push(Event::Kind kind, ConnectionId id, absl::Status status,
            uint64_t token);

  // links_send.cc
  void PostHello(Connection* connection);
  void PostHeartbeat(Connection* connection);
  void Pump(Connection* connection);
  void Post(Connection* connection, AmId am, SendRecord* record,
            size_t header_bytes, const void* data);
  SendRecord* NewSend(Connection* connection, SendKind kind);
  void FinishSend(SendRecord* record, ucs_status_t status);

  // links_receive.cc
  absl::Status ReceiveHello(Connection* connection, const void* header,
                            size_t header_bytes);
  void FinishChunk(Connection* connection, MessageAssembler::Assembly* assembly,
                   size_t bytes);

  const Options options_;
  BufferPool* const pool_;
  absl::Time now_;  // read at each round of progress
  absl::Time last_tick_;
  absl::Time next_tick_;
  uint64_t activity_ = 0;

  absl::flat_hash_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  absl::flat_hash_map<ucp_ep_h, ConnectionId> by_endpoint_;
  Door door_;
  // Tickets that no hello has shown yet.
  struct Ticket {
    absl::Time expires;
    LinkWorker* worker;
  };
  absl::flat_hash_map<uint64_t, Ticket> tickets_;
  std::deque<Event> events_;

  // What callbacks wrote down for Drive.
  struct Failure {
    ConnectionId connection;
    ucp_ep_h endpoint;  // that failed; the connection may have another by now
    absl::Status why;
  };
  std::vector<Failure> failed_;
  std::vector<ConnectionId> to_pump_;

  int epoll_ = -1;  // over the workers' descriptors

  // Workers go before their contexts, and before all else that UCX may touch.
  std::unique_ptr<UcxContext> network_;
  std::unique_ptr<UcxContext> host_;  // null: no shared memory is to be used
  std::list<std::unique_ptr<LinkWorker>> workers_;  // the network's first
};

}  // namespace trunkline::transport::ucx
