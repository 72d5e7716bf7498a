// The way in for connections: a knock at the door, a ticket, UCX's listener.

#include <netinet/in.h>

#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "transport/address.h"
#include "transport/ucx/links.h"

namespace trunkline::transport::ucx {
namespace {

constexpr size_t kConnectionsMax = 4096;

uint64_t RandomTicket() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

void Links::RunDoor() {
  now_ = Clock::Monotonic().Now();
  std::vector<Door::Visitor> visitors;
  std::vector<Door::Reply> replies;
  door_.Run(now_, &visitors, &replies);
  for (const Door::Visitor& visitor : visitors) Answer(visitor);
  for (const Door::Reply& reply : replies) EnterPeersDoor(reply);
}

void Links::Answer(const Door::Visitor& visitor) {
  // UCX 1.13 gets lost, and then corrupts its memory, when it is dialed over
  // IPv6 on an interface that has an IPv4 address too.
  const SocketAddress local = Ipv4OfSameInterface(visitor.local);
  DoorAnswer answer;
  absl::StatusOr<uint16_t> port = absl::ResourceExhaustedError(absl::StrCat(
      kConnectionsMax, " connections are open, which is the most"));
  LinkWorker* worker = nullptr;
  if (connections_.size() + tickets_.size() < kConnectionsMax) {
    const auto found = WorkerFor(visitor.peer);
    if (found.ok()) {
      worker = *found;
      port = UcxPort(worker, local);
    } else {
      port = found.status();
    }
  }
  if (port.ok()) {
    answer.port = *port;
    if (local.get()->sa_family == AF_INET) {
      answer.has_ipv4 = 1;
      std::memcpy(answer.ipv4,
                  &reinterpret_cast<const sockaddr_in*>(local.get())->sin_addr,
                  sizeof answer.ipv4);
    }
    answer.ticket = RandomTicket();
    tickets_[answer.ticket] = {now_ + options_.connect_timeout, worker};
    ++worker->tickets;
  } else {
    TL_LOG_WARN("ucx: {} refused: {}", visitor.name, port.status().ToString());
    answer.verdict = DoorVerdict::kFull;
  }
  Door::Admit(visitor, answer);
}

bool Links::UseTicket(uint64_t ticket) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return false;
  --it->second.worker->tickets;
  tickets_.erase(it);
  return true;
}

absl::StatusOr<uint16_t> Links::UcxPort(LinkWorker* worker,
                                        const SocketAddress& local) {
  const std::string host = ToHostPort(local).host;
  if (const auto it = worker->listeners.find(host);
      it != worker->listeners.end()) {
    return it->second.port;
  }
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                      UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = local.get();
  params.sockaddr.addrlen = local.length;
  params.conn_handler.cb = &OnConnectionRequest;
  params.conn_handler.arg = worker;
  UcxListener listener;
  ucs_status_t status =
      ucp_listener_create(worker->ucx->get(), &params, &listener.handle);
  if (status != UCS_OK) {
    return absl::UnavailableError(
        absl::StrCat("no UCX listener on ", host, ": ", Describe(status)));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_listener_query(listener.handle, &attributes);
  if (status != UCS_OK) {
    ucp_listener_destroy(listener.handle);
    return absl::UnavailableError(absl::StrCat("no UCX listener address on ",
                                               host, ": ", Describe(status)));
  }
  SocketAddress bound = local;
  bound.storage = attributes.sockaddr;
  listener.port = ToHostPort(bound).port;
  worker->listeners.emplace(host, listener);
  return listener.port;
}

void Links::CloseIdleListeners(LinkWorker* worker) {
  if (worker->tickets > 0 || worker->listeners.empty()) return;
  for (ucp_conn_request_h request : worker->accepting)
    ucp_listener_reject(worker->listeners.begin()->second.handle, request);
  worker->accepting.clear();
  for (const auto& [host, listener] : worker->listeners)
    ucp_listener_destroy(listener.handle);
  worker->listeners.clear();
}

void Links::EnterPeersDoor(const Door::Reply& reply) {
  Connection* const connection = Find(reply.connection);
  if (connection == nullptr) return;
  if (!reply.status.ok()) {
    TryNextAddress(connection, reply.status);
    return;
  }
  const auto worker = WorkerFor(reply.address);
  if (!worker.ok()) {
    TryNextAddress(connection, worker.status());
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reply.address.get();
  params.sockaddr.addrlen = reply.address.length;
  params.err_handler.cb = &OnEndpointError;
  params.err_handler.arg = this;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status =
      ucp_ep_create((*worker)->ucx->get(), &params, &endpoint);
  if (status != UCS_OK) {
    TryNextAddress(connection, absl::UnavailableError(Describe(status)));
    return;
  }
  Attach(connection, *worker, endpoint);
  connection->ticket = reply.ticket;
  PostHello(connection);
}

}  // namespace trunkline::transport::ucx
