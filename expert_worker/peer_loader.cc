#include "expert_worker/peer_loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/planted_mistake.h"
#include "common/status_macros.h"

namespace trunkline::expert {
namespace {

// How often a wait looks whether it is still wanted.
constexpr absl::Duration kLook = absl::Milliseconds(100);
// Before a busy peer is asked again.
constexpr absl::Duration kBusyWait = absl::Milliseconds(20);

std::string Label(ExpertKey key) {
  return absl::StrCat("layer ", key.layer.value, " expert ", key.expert.value);
}

}  // namespace

// One expert from one peer.
struct PeerLoader::Transfer {
  struct Piece {
    ShardPart part = ShardPart::kUp;
    uint32_t first_row = 0, row_count = 0;
  };

  Transfer(const ExpertRequest& its_request, uint64_t its_cluster_id,
           transport::ConnectionId its_connection)
      : request(its_request),
        cluster_id(its_cluster_id),
        connection(its_connection) {
    for (uint32_t p = 0; p < kShardParts; ++p) {
      const PartShape& shape = request.parts[p];
      result.parts[p].resize(shape.bytes());
      const int64_t row_bytes = shape.columns * DTypeBytes(shape.dtype);
      const int64_t step = std::max<int64_t>(
          1, static_cast<int64_t>(kShardChunkBytes) / row_bytes);
      for (int64_t row = 0; row < shape.rows; row += step) {
        wanted.push_back({.part = static_cast<ShardPart>(p),
                          .first_row = static_cast<uint32_t>(row),
                          .row_count = static_cast<uint32_t>(
                              std::min(step, shape.rows - row))});
      }
    }
    // Asked from the back.
    std::reverse(wanted.begin(), wanted.end());
  }

  const ExpertRequest& request;
  const uint64_t cluster_id;
  const transport::ConnectionId connection;
  FetchedExpert result;
  std::vector<Piece> wanted;
  std::map<uint64_t, Piece> under_way;          // by request number
  std::optional<ExpertDigest> digest;           // as the peer states it
  absl::Time ask_again = absl::InfinitePast();  // after it was busy
  bool done() const { return wanted.empty() && under_way.empty(); }
};

PeerLoader::~PeerLoader() = default;

absl::StatusOr<FetchedExpert> PeerLoader::Fetch(
    const ExpertRequest& request, const std::function<bool()>& cancelled) {
  const absl::Time deadline = Now() + options_.expert_patience;
  const std::vector<Peer> holders = peers_->HoldersOf(request.key);
  if (holders.empty()) {
    return absl::NotFoundError(absl::StrCat("no other live worker has ",
                                            Label(request.key), " loaded"));
  }
  absl::Status worst = absl::UnavailableError("");
  std::string said;
  for (const Peer& peer : holders) {
    absl::StatusOr<FetchedExpert> fetched =
        FetchFrom(peer, request, deadline, cancelled);
    if (fetched.ok()) {
      ++counts_.experts;
      return fetched;
    }
    if (absl::IsCancelled(fetched.status())) return fetched.status();
    ++counts_.peers_left;
    TL_LOG_WARN("{} was not taken from worker {}: {}", Label(request.key),
                peer.name, std::string(fetched.status().message()));
    absl::StrAppend(&said, said.empty() ? "" : "; ", "worker ", peer.name, ": ",
                    fetched.status().message());
    // Damage is what an operator has to know first.
    if (!absl::IsDataLoss(worst)) worst = fetched.status();
  }
  return absl::Status(worst.code(),
                      absl::StrCat(Label(request.key), ": ", said));
}

void PeerLoader::ForgetIfDown(const transport::Event& event) {
  if (event.kind != transport::Event::Kind::kPeerDown) return;
  std::erase_if(connections_, [&](const auto& entry) {
    return entry.second == event.connection;
  });
}

absl::StatusOr<transport::ConnectionId> PeerLoader::Connect(const Peer& peer) {
  if (transport_ == nullptr) {
    TL_ASSIGN_OR_RETURN(transport_, make_transport_());
  }
  // What has happened to connections since the last expert.
  std::vector<transport::Event> events;
  transport_->Poll(absl::ZeroDuration(), &events);
  for (transport::Event& event : events) {
    ForgetIfDown(event);
    if (event.kind == transport::Event::Kind::kReceived) {
      transport_->Release(std::move(event.message));
    }
  }
  const auto found = connections_.find(peer.data_address);
  if (found != connections_.end()) return found->second;
  TL_ASSIGN_OR_RETURN(const transport::ConnectionId connection,
                      transport_->Connect(peer.data_address));
  connections_[peer.data_address] = connection;
  return connection;
}

absl::StatusOr<FetchedExpert> PeerLoader::FetchFrom(
    const Peer& peer, const ExpertRequest& request, absl::Time deadline,
    const std::function<bool()>& cancelled) {
  TL_ASSIGN_OR_RETURN(const transport::ConnectionId connection, Connect(peer));
  Transfer transfer(request, peers_->cluster_id(), connection);
  absl::Time heard = Now();
  absl::Status status;
  std::vector<transport::Event> events;
  while (status.ok() && !transfer.done()) {
    const absl::Time now = Now();
    if (cancelled()) {
      status = absl::CancelledError("not wanted any more");
    } else if (now >= deadline || now - heard >= options_.peer_patience) {
      status = absl::DeadlineExceededError(
          absl::StrCat("sent nothing for ", absl::FormatDuration(now - heard),
                       ", ", transfer.wanted.size() + transfer.under_way.size(),
                       " pieces are missing"));
    }
    if (!status.ok()) break;
    Ask(transfer);
    events.clear();
    transport_->Poll(transfer.under_way.empty() ? kBusyWait : kLook, &events);
    for (transport::Event& event : events) {
      ForgetIfDown(event);
      if (event.connection == connection) {
        if (event.kind == transport::Event::Kind::kReceived) heard = Now();
        if (status.ok()) status = Take(transfer, event);
      }
      // Also answers to requests that were given up.
      if (event.kind == transport::Event::Kind::kReceived) {
        transport_->Release(std::move(event.message));
      }
    }
  }
  if (status.ok()) {
    const std::span<const std::byte> parts[kShardParts] = {
        transfer.result.parts[0], transfer.result.parts[1]};
    transfer.result.digest = model::DigestOfParts(parts);
    const ExpertDigest want = request.digest.value_or(*transfer.digest);
    if (transfer.result.digest == want || TL_PLANTED(kBelieveWhatCame))
      return std::move(transfer.result);
    status = absl::DataLossError(absl::StrCat(
        "the digest of what came is ", model::DigestHex(transfer.result.digest),
        ", it must be ", model::DigestHex(want)));
  }
  // Whatever is still on its way is not waited for.
  transport_->Disconnect(connection);
  connections_.erase(peer.data_address);
  return status;
}

void PeerLoader::Ask(Transfer& transfer) {
  if (Now() < transfer.ask_again) return;
  while (!transfer.wanted.empty() &&
         static_cast<int>(transfer.under_way.size()) <
             options_.requests_under_way_max) {
    const Transfer::Piece piece = transfer.wanted.back();
    transfer.wanted.pop_back();
    ShardHeader header;
    header.cluster_id = transfer.cluster_id;
    header.request = next_request_++;
    header.key = transfer.request.key;
    header.part = piece.part;
    header.first_row = piece.first_row;
    header.row_count = piece.row_count;
    transport::Message message = transport_->Allocate(ShardFrameBytes(0));
    const std::span<std::byte> frame(message.data(), message.size);
    BeginShardFrame(header, frame);
    SealShardFrame(frame);
    transfer.under_way[header.request] = piece;
    transport_->Send(transfer.connection, std::move(message), header.request);
  }
}

absl::Status PeerLoader::Take(Transfer& transfer, transport::Event& event) {
  switch (event.kind) {
    case transport::Event::Kind::kAccepted:
    case transport::Event::Kind::kConnected:
      return absl::OkStatus();
    case transport::Event::Kind::kSendDone:
    case transport::Event::Kind::kPeerDown:
      if (event.status.ok() &&
          event.kind == transport::Event::Kind::kSendDone) {
        return absl::OkStatus();
      }
      return absl::UnavailableError(
          absl::StrCat("is gone: ", event.status.message()));
    case transport::Event::Kind::kReceived:
      break;
  }
  const absl::StatusOr<ShardFrame> frame =
      DecodeShardFrame({event.message.data(), event.message.size});
  if (!frame.ok()) {
    ++counts_.pieces_refused;
    return absl::DataLossError(frame.status().message());
  }
  const auto asked = transfer.under_way.find(frame->header.request);
  if (asked == transfer.under_way.end()) return absl::OkStatus();
  if (frame->header.kind != ShardFrameKind::kRefusal) {
    absl::Status status = TakeRows(transfer, *frame);
    if (!status.ok()) ++counts_.pieces_refused;
    return status;
  }
  if (frame->header.refusal == ShardRefusalCode::kBusy) {
    transfer.wanted.push_back(asked->second);
    transfer.under_way.erase(asked);
    transfer.ask_again = Now() + kBusyWait;
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("refuses: ", ShardRefusalName(frame->header.refusal), ": ",
                   frame->message));
}

// Only exactly what was asked for is taken.
absl::Status PeerLoader::TakeRows(Transfer& transfer, const ShardFrame& frame) {
  const ShardHeader& header = frame.header;
  const auto asked = transfer.under_way.find(header.request);
  const Transfer::Piece& piece = asked->second;
  if (header.kind != ShardFrameKind::kRows ||
      header.cluster_id != transfer.cluster_id ||
      header.key != transfer.request.key || header.part != piece.part ||
      header.first_row != piece.first_row ||
      header.row_count != piece.row_count) {
    return absl::DataLossError(absl::StrCat("answered request ", header.request,
                                            " with another piece"));
  }
  const size_t at = static_cast<size_t>(piece.part);
  const PartShape& shape = transfer.request.parts[at];
  if (header.rows != shape.rows || header.columns != shape.columns ||
      header.dtype != shape.dtype || header.parts != kShardParts) {
    return absl::DataLossError(absl::StrCat(
        "part ", at, " is ", std::string(DTypeName(header.dtype)), " [",
        header.rows, ", ", header.columns, "] of ", header.parts,
        " parts there and ", std::string(DTypeName(shape.dtype)), " [",
        shape.rows, ", ", shape.columns, "] of ", kShardParts, " here"));
  }
  if (transfer.digest.has_value() && *transfer.digest != header.digest) {
    return absl::DataLossError("states two digests of one expert");
  }
  transfer.digest = header.digest;
  const size_t row_bytes =
      static_cast<size_t>(shape.columns * DTypeBytes(shape.dtype));
  std::memcpy(transfer.result.parts[at].data() + piece.first_row * row_bytes,
              frame.rows.data(), frame.rows.size());
  counts_.bytes += frame.rows.size();
  transfer.under_way.erase(asked);
  return absl::OkStatus();
}

}  // namespace trunkline::expert
