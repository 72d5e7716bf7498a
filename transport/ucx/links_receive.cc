// The way in: UCX -> OnChunk -> assembler -> kReceived.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/ucx/links.h"

namespace trunkline::transport::ucx {

ucs_status_t Links::OnHello(void* arg, const void* header, size_t header_bytes,
                            void*, size_t, const ucp_am_recv_param_t* param) {
  Links* const links = static_cast<LinkWorker*>(arg)->links;
  if (Connection* const connection = links->FindSender(param)) {
    const absl::Status status =
        links->ReceiveHello(connection, header, header_bytes);
    if (!status.ok()) links->Fail(connection, status);
  }
  return UCS_OK;
}

absl::Status Links::ReceiveHello(Connection* connection, const void* header,
                                 size_t header_bytes) {
  Hello hello;
  if (header_bytes < sizeof hello) {
    return absl::FailedPreconditionError(
        absl::StrCat("a greeting of ", header_bytes, " bytes"));
  }
  std::memcpy(&hello, header, sizeof hello);
  if (hello.magic != kMagic)
    return absl::FailedPreconditionError("the peer is no Trunkline transport");
  if (hello.version != kWireVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the peer speaks transport version ", hello.version,
                     ", this is version ", kWireVersion));
  }
  if (connection->state == Connection::State::kUp)
    return absl::InvalidArgumentError("a second greeting");
  if (connection->accepted && !UseTicket(hello.ticket)) {
    return absl::FailedPreconditionError(
        "it did not come through the door, or too late");
  }
  connection->state = Connection::State::kUp;
  connection->last_heard = now_;
  Push(connection->accepted ? Event::Kind::kAccepted : Event::Kind::kConnected,
       connection->id, absl::OkStatus(), 0);
  to_pump_.push_back(connection->id);
  return absl::OkStatus();
}

ucs_status_t Links::OnHeartbeat(void* arg, const void*, size_t, void*, size_t,
                                const ucp_am_recv_param_t* param) {
  Links* const links = static_cast<LinkWorker*>(arg)->links;
  if (Connection* const connection = links->FindSender(param))
    connection->last_heard = links->now_;
  return UCS_OK;
}

ucs_status_t Links::OnUnknown(void* arg, const void*, size_t, void*, size_t,
                              const ucp_am_recv_param_t* param) {
  Links* const links = static_cast<LinkWorker*>(arg)->links;
  if (Connection* const connection = links->FindSender(param)) {
    links->Fail(connection,
                absl::InvalidArgumentError("an unknown kind of message"));
  }
  return UCS_OK;
}

// A payload that is not wanted needs no more than UCS_OK: UCX frees it and, in
// the rendezvous protocol, tells the sender that it may go on.
ucs_status_t Links::OnChunk(void* arg, const void* header, size_t header_bytes,
                            void* data, size_t bytes,
                            const ucp_am_recv_param_t* param) {
  Links* const links = static_cast<LinkWorker*>(arg)->links;
  Connection* const connection = links->FindSender(param);
  if (connection == nullptr) return UCS_OK;
  connection->last_heard = links->now_;
  if (connection->state != Connection::State::kUp) {
    links->Fail(connection,
                absl::FailedPreconditionError("a message before the greeting"));
    return UCS_OK;
  }
  ChunkHeader chunk;
  if (header_bytes != sizeof chunk) {
    links->Fail(connection, absl::InvalidArgumentError(absl::StrCat(
                                "a chunk header of ", header_bytes, " bytes")));
    return UCS_OK;
  }
  std::memcpy(&chunk, header, sizeof chunk);
  auto target =
      connection->assembler.Begin(chunk, bytes, connection->unread_bytes);
  if (!target.ok()) {
    links->Fail(connection, target.status());
    return UCS_OK;
  }
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    if (bytes > 0) std::memcpy(target->bytes, data, bytes);
    links->FinishChunk(connection, target->assembly.get(), bytes);
    return UCS_OK;
  }
  LinkWorker* const worker = connection->worker;
  ReceiveRecord& record = worker->receives.emplace_front();
  record = {links,          worker,
            connection->id, std::move(target->assembly),
            bytes,          worker->receives.begin()};
  ucp_request_param_t receive{};
  receive.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                         UCP_OP_ATTR_FIELD_USER_DATA |
                         UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  receive.cb.recv_am = &OnReceived;
  receive.user_data = &record;
  receive.memory_type = UCS_MEMORY_TYPE_HOST;
  void* const request = ucp_am_recv_data_nbx(worker->ucx->get(), data,
                                             target->bytes, bytes, &receive);
  if (!UCS_PTR_IS_PTR(request))
    OnReceived(nullptr, UCS_PTR_STATUS(request), bytes, &record);
  return UCS_INPROGRESS;
}

void Links::OnReceived(void* request, ucs_status_t status, size_t bytes,
                       void* arg) {
  auto* const record = static_cast<ReceiveRecord*>(arg);
  Links* const links = record->links;
  if (Connection* const connection = links->Find(record->connection)) {
    if (status != UCS_OK) {
      links->Fail(connection, absl::UnavailableError(Describe(status)));
    } else if (bytes != record->bytes) {
      links->Fail(connection,
                  absl::InvalidArgumentError(absl::StrCat(
                      "a chunk of ", record->bytes, " bytes came as ", bytes)));
    } else {
      connection->last_heard = links->now_;
      links->FinishChunk(connection, record->assembly.get(), bytes);
    }
  }
  record->worker->receives.erase(record->self);
  if (request != nullptr) ucp_request_free(request);
}

void Links::FinishChunk(Connection* connection,
                        MessageAssembler::Assembly* assembly, size_t bytes) {
  connection->assembler.Finish(assembly, bytes);
  Message message;
  while (connection->assembler.TakeNext(&message)) {
    ++activity_;
    connection->unread_bytes += static_cast<int64_t>(message.size);
    Push(Event::Kind::kReceived, connection->id, absl::OkStatus(), 0);
    events_.back().message = std::move(message);
  }
}

}  // namespace trunkline::transport::ucx
