// The way out: Send -> outgoing -> Pump -> UCX -> FinishSend -> kSendDone.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/ucx/links.h"

namespace trunkline::transport::ucx {

void Links::Send(ConnectionId id, Message message, uint64_t token) {
  Connection* const connection = Find(id);
  if (connection == nullptr) {
    Push(Event::Kind::kSendDone, id,
         absl::UnavailableError(
             absl::StrCat("connection ", id.value, " is down")),
         token);
    return;
  }
  const auto bytes = static_cast<int64_t>(message.size);
  if (bytes > options_.message_bytes_max) {
    Push(Event::Kind::kSendDone, id,
         absl::InvalidArgumentError(absl::StrCat(
             "message of ", bytes, " bytes is above message_bytes_max (",
             options_.message_bytes_max, ")")),
         token);
    return;
  }
  if (connection->outgoing_bytes + bytes > options_.queue_bytes_max) {
    Push(Event::Kind::kSendDone, id,
         absl::ResourceExhaustedError(
             absl::StrCat(connection->outgoing_bytes, " bytes wait to leave; ",
                          bytes, " more are above queue_bytes_max (",
                          options_.queue_bytes_max, ")")),
         token);
    return;
  }
  ++activity_;
  auto outgoing = std::make_shared<Outgoing>();
  outgoing->message = std::move(message);
  outgoing->token = token;
  connection->outgoing_bytes += bytes;
  connection->outgoing.emplace(connection->next_sequence++,
                               std::move(outgoing));
  Pump(connection);
}

void Links::Pump(Connection* connection) {
  if (connection->state != Connection::State::kUp) return;
  const ConnectionId id = connection->id;
  while (connection->next_to_post < connection->next_sequence &&
         // Counted from the oldest that UCX still has, not by how many it has:
         // a rendezvous under way must not be overtaken by more small messages
         // than the receiver keeps for it.
         connection->next_to_post - connection->outgoing.begin()->first <
             kWindowMessages) {
    const auto at = connection->outgoing.find(connection->next_to_post);
    const std::shared_ptr<Outgoing> outgoing = at->second;
    const size_t offset = outgoing->posted_bytes;
    const size_t bytes = std::min(kChunkBytes, outgoing->message.size - offset);
    if (connection->window_bytes > 0 &&
        connection->window_bytes + bytes > kWindowBytes) {
      return;  // FinishSend comes back here
    }
    SendRecord* const record = NewSend(connection, SendKind::kChunk);
    record->header.chunk = {connection->next_to_post, outgoing->message.size,
                            offset};
    record->outgoing = outgoing;
    record->bytes = bytes;
    outgoing->posted_bytes += bytes;
    ++outgoing->posted_chunks;
    ++outgoing->pending_chunks;
    if (outgoing->all_posted()) ++connection->next_to_post;
    connection->window_bytes += bytes;
    Post(connection, kAmChunk, record, sizeof(ChunkHeader),
         bytes == 0 ? nullptr : outgoing->message.data() + offset);
    if (!failed_.empty() && failed_.back().connection == id) return;
  }
}

void Links::PostHello(Connection* connection) {
  SendRecord* const record = NewSend(connection, SendKind::kHello);
  record->header.hello = Hello{.ticket = connection->ticket};
  Post(connection, kAmHello, record, sizeof(Hello), nullptr);
}

void Links::PostHeartbeat(Connection* connection) {
  // A peer that does not read must not collect heartbeats.
  if (connection->heartbeat_pending) return;
  connection->heartbeat_pending = true;
  Post(connection, kAmHeartbeat, NewSend(connection, SendKind::kHeartbeat), 0,
       nullptr);
}

SendRecord* Links::NewSend(Connection* connection, SendKind kind) {
  std::list<SendRecord>& sends = connection->worker->sends;
  SendRecord& record = sends.emplace_front();
  record.links = this;
  record.worker = connection->worker;
  record.connection = connection->id;
  record.kind = kind;
  record.self = sends.begin();
  return &record;
}

void Links::Post(Connection* connection, AmId am, SendRecord* record,
                 size_t header_bytes, const void* data) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                       UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  // The receiver learns by the reply endpoint who has sent.
  param.flags = UCP_AM_SEND_FLAG_REPLY;
  param.cb.send = &OnSent;
  param.user_data = record;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  void* const request = ucp_am_send_nbx(
      connection->endpoint, am, header_bytes == 0 ? nullptr : &record->header,
      header_bytes, data, record->bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) FinishSend(record, UCS_PTR_STATUS(request));
}

void Links::OnSent(void* request, ucs_status_t status, void* arg) {
  auto* const record = static_cast<SendRecord*>(arg);
  record->links->FinishSend(record, status);
  ucp_request_free(request);
}

void Links::FinishSend(SendRecord* record, ucs_status_t status) {
  Connection* const connection = Find(record->connection);
  std::list<SendRecord>& sends = record->worker->sends;
  const auto self = record->self;
  if (connection == nullptr) {  // its events have been given long ago
    sends.erase(self);
    return;
  }
  if (status != UCS_OK) {
    Fail(connection, absl::UnavailableError(Describe(status)));
  } else if (record->kind == SendKind::kHeartbeat) {
    connection->heartbeat_pending = false;
  } else if (record->kind == SendKind::kChunk) {
    Outgoing& outgoing = *record->outgoing;
    connection->window_bytes -= record->bytes;
    --outgoing.pending_chunks;
    if (outgoing.pending_chunks == 0 && outgoing.all_posted()) {
      connection->outgoing_bytes -= static_cast<int64_t>(outgoing.message.size);
      pool_->Give(std::move(outgoing.message.buffer));
      Push(Event::Kind::kSendDone, connection->id, absl::OkStatus(),
           outgoing.token);
      connection->outgoing.erase(record->header.chunk.sequence);
    }
    if (connection->next_to_post < connection->next_sequence &&
        (to_pump_.empty() || to_pump_.back() != connection->id)) {
      to_pump_.push_back(connection->id);
    }
  }
  sends.erase(self);
}

}  // namespace trunkline::transport::ucx
