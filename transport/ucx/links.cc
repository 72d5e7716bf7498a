#include "transport/ucx/links.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "transport/connection_id.h"

namespace trunkline::transport::ucx {
namespace {

// One Drive lets UCX run for about this long, so that the mutex is free again
// soon and heartbeats are not late: with large messages a round of progress is
// a copy of a megabyte.
constexpr absl::Duration kDriveTime = absl::Milliseconds(1);
constexpr int kDriveRounds = 64;
// A worker that can't close its endpoints in this time is destroyed with them.
constexpr absl::Duration kCloseTimeout = absl::Seconds(2);

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

absl::StatusOr<std::unique_ptr<Links>> Links::Create(const Options& options,
                                                     BufferPool* pool) {
  auto out = std::unique_ptr<Links>(new Links(options, pool));
  TL_RETURN_IF_ERROR(out->Start());
  return out;
}

Links::Links(const Options& options, BufferPool* pool)
    : options_(options),
      pool_(pool),
      now_(Now()),
      last_tick_(now_),
      next_tick_(now_ + options.heartbeat_interval),
      door_(options.connect_timeout) {}

Links::~Links() {
  tickets_.clear();
  for (const auto& worker : workers_) {
    worker->tickets = 0;
    CloseIdleListeners(worker.get());
  }
  for (auto& [id, connection] : connections_) DropEndpoint(connection.get());
  connections_.clear();
  const absl::Time end = Now() + kCloseTimeout;
  const auto busy = [](const auto& worker) { return worker->has_work(); };
  while (std::any_of(workers_.begin(), workers_.end(), busy) && Now() < end) {
    for (const auto& worker : workers_) {
      worker->ucx->Progress();
      Reap(worker.get());
    }
  }
  workers_.clear();
  if (epoll_ >= 0) close(epoll_);
}

absl::StatusOr<SocketAddress> Links::Listen(const SocketAddress& address) {
  return door_.Listen(address);
}

Connection* Links::Find(ConnectionId id) {
  const auto it = connections_.find(id);
  return it == connections_.end() ? nullptr : it->second.get();
}

Connection* Links::FindSender(const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return nullptr;
  const auto it = by_endpoint_.find(param->reply_ep);
  return it == by_endpoint_.end() ? nullptr : Find(it->second);
}

Connection* Links::Add(ConnectionId id, bool accepted, std::string peer) {
  auto connection = std::make_unique<Connection>(
      id, accepted,
      MessageAssembler(pool_, options_.message_bytes_max,
                       options_.queue_bytes_max));
  connection->peer = std::move(peer);
  connection->connect_deadline = Now() + options_.connect_timeout;
  Connection* const out = connection.get();
  connections_[id] = std::move(connection);
  return out;
}

void Links::Dial(ConnectionId id, const std::string& peer) {
  Add(id, /*accepted=*/false, peer);
}

void Links::DialAddresses(
    ConnectionId id, absl::StatusOr<std::vector<SocketAddress>> addresses) {
  Connection* const connection = Find(id);
  if (connection == nullptr) return;  // disconnected meanwhile
  if (!addresses.ok()) {
    TakeDown(connection, Annotate(addresses.status(),
                                  absl::StrCat("ucx://", connection->peer)));
    return;
  }
  connection->addresses = *std::move(addresses);
  TryNextAddress(connection, absl::UnavailableError("no address"));
}

void Links::TryNextAddress(Connection* connection,
                           const absl::Status& last_error) {
  if (connection->next_address < connection->addresses.size()) {
    connection->state = Connection::State::kKnocking;
    door_.Knock(connection->id,
                connection->addresses[connection->next_address++]);
    return;
  }
  TakeDown(connection,
           Annotate(last_error,
                    absl::StrCat("can't connect to ucx://", connection->peer)));
}

void Links::OnConnectionRequest(ucp_conn_request_h request, void* arg) {
  static_cast<LinkWorker*>(arg)->accepting.push_back(request);
}

void Links::Accept(LinkWorker* worker, ucp_conn_request_h request) {
  std::string peer = "unknown";
  ucp_conn_request_attr_t attributes{};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  if (ucp_conn_request_query(request, &attributes) == UCS_OK) {
    SocketAddress address;
    address.storage = attributes.client_address;
    address.length = sizeof address.storage;
    peer = FormatHostPort(ToHostPort(address));
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.conn_request = request;
  params.err_handler.cb = &OnEndpointError;
  params.err_handler.arg = this;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status =
      ucp_ep_create(worker->ucx->get(), &params, &endpoint);
  if (status != UCS_OK) {
    TL_LOG_WARN("ucx: connection of {} not accepted: {}", peer,
                Describe(status));
    return;
  }
  Connection* const connection =
      Add(NextConnectionId(), /*accepted=*/true, std::move(peer));
  Attach(connection, worker, endpoint);
  PostHello(connection);
}

void Links::Attach(Connection* connection, LinkWorker* worker,
                   ucp_ep_h endpoint) {
  connection->endpoint = endpoint;
  connection->worker = worker;
  ++worker->connections;
  connection->state = Connection::State::kConnecting;
  by_endpoint_[endpoint] = connection->id;
}

void Links::OnEndpointError(void* arg, ucp_ep_h endpoint, ucs_status_t status) {
  auto* const links = static_cast<Links*>(arg);
  const auto it = links->by_endpoint_.find(endpoint);
  if (it == links->by_endpoint_.end()) return;  // being closed already
  links->failed_.push_back(
      {it->second, endpoint, absl::UnavailableError(Describe(status))});
}

void Links::Fail(Connection* connection, absl::Status why) {
  failed_.push_back({connection->id, connection->endpoint, std::move(why)});
}

void Links::ActOnFailures() {
  std::vector<Failure> failed;
  failed.swap(failed_);
  for (Failure& failure : failed) {
    Connection* const connection = Find(failure.connection);
    if (connection == nullptr || connection->endpoint != failure.endpoint)
      continue;  // already acted on
    TakeDown(connection,
             Annotate(failure.why, absl::StrCat("peer ", connection->peer)));
  }
}

void Links::DropEndpoint(Connection* connection) {
  if (connection->endpoint == nullptr) return;
  LinkWorker* const worker = std::exchange(connection->worker, nullptr);
  ucp_ep_h const endpoint = std::exchange(connection->endpoint, nullptr);
  --worker->connections;
  by_endpoint_.erase(endpoint);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* const request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) worker->closing.push_back(request);
  connection->heartbeat_pending = false;
}

void Links::TakeDown(Connection* connection, const absl::Status& why) {
  const ConnectionId id = connection->id;
  if (connection->state == Connection::State::kKnocking) door_.Forget(id);
  const bool announced =
      !connection->accepted || connection->state == Connection::State::kUp;
  DropEndpoint(connection);
  for (const auto& [sequence, outgoing] : connection->outgoing)
    Push(Event::Kind::kSendDone, id, why, outgoing->token);
  connections_.erase(id);
  if (announced) {
    Push(Event::Kind::kPeerDown, id, why, 0);
  } else {
    TL_LOG_WARN("ucx: a connection ended before it was up: {}", why.ToString());
  }
}

void Links::Disconnect(ConnectionId id) {
  Connection* const connection = Find(id);
  // An accepted connection has no name outside before it is up.
  if (connection == nullptr) return;
  TakeDown(connection, absl::CancelledError("disconnected"));
}

void Links::Reap(LinkWorker* worker) {
  std::erase_if(worker->closing, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

void Links::Progress() {
  now_ = Now();
  const absl::Time end = now_ + kDriveTime;
  for (int i = 0; i < kDriveRounds; ++i) {
    bool any = false;
    for (const auto& worker : workers_) any |= worker->ucx->Progress();
    if (!any) return;
    now_ = Now();
    if (now_ >= end) return;
  }
}

void Links::Drive() {
  Progress();
  for (const auto& worker : workers_) {
    std::vector<ucp_conn_request_h> accepting;
    accepting.swap(worker->accepting);
    for (ucp_conn_request_h request : accepting) Accept(worker.get(), request);
  }
  std::vector<ConnectionId> to_pump;
  to_pump.swap(to_pump_);
  for (ConnectionId id : to_pump) {
    if (Connection* const connection = Find(id)) Pump(connection);
  }
  if (now_ >= next_tick_) Tick();
  ActOnFailures();
  Retire();
}

void Links::Tick() {
  // When we ourselves were held up (stopped, starved of cpu), the silence was
  // ours: what peers sent lies in the sockets and is heard before the next
  // tick.
  const bool held_up = now_ - last_tick_ > 2 * options_.heartbeat_interval;
  last_tick_ = now_;
  next_tick_ = now_ + options_.heartbeat_interval;
  std::vector<ConnectionId> ids;
  ids.reserve(connections_.size());
  for (const auto& [id, connection] : connections_) ids.push_back(id);
  for (ConnectionId id : ids) {
    if (Connection* const connection = Find(id)) Judge(connection, held_up);
  }
  absl::erase_if(tickets_, [&](const auto& ticket) {
    if (now_ < ticket.second.expires) return false;
    --ticket.second.worker->tickets;
    return true;
  });
}

void Links::Judge(Connection* connection, bool held_up) {
  if (connection->state == Connection::State::kUp) {
    if (!held_up && now_ - connection->last_heard > options_.peer_timeout) {
      TakeDown(connection,
               absl::UnavailableError(absl::StrCat(
                   "peer ", connection->peer, ": no sign of life for ",
                   absl::FormatDuration(now_ - connection->last_heard))));
    } else {
      PostHeartbeat(connection);
    }
  } else if (!held_up && now_ >= connection->connect_deadline) {
    TakeDown(connection,
             absl::UnavailableError(absl::StrCat(
                 "no answer from ucx://", connection->peer, " within ",
                 absl::FormatDuration(options_.connect_timeout))));
  }
}

void Links::Push(Event::Kind kind, ConnectionId id, absl::Status status,
                 uint64_t token) {
  Event event{};
  event.kind = kind;
  event.connection = id;
  event.status = std::move(status);
  event.token = token;
  events_.push_back(std::move(event));
}

bool Links::TakeEvents(std::vector<Event>* events) {
  if (events_.empty()) return false;
  for (Event& event : events_) {
    if (event.kind == Event::Kind::kReceived) {
      if (Connection* const connection = Find(event.connection))
        connection->unread_bytes -= static_cast<int64_t>(event.message.size);
    }
    events->push_back(std::move(event));
  }
  events_.clear();
  return true;
}

bool Links::has_sends() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return !worker->sends.empty(); });
}

bool Links::Arm() {
  if (!failed_.empty() || !to_pump_.empty()) return false;
  for (const auto& worker : workers_) {
    if (!worker->accepting.empty() || !worker->closing.empty() ||
        !worker->ucx->Arm()) {
      return false;
    }
  }
  return true;
}

}  // namespace trunkline::transport::ucx
