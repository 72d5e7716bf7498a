#include "sim/sim_transport.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "dispatch/expert_frame.h"

namespace trunkline::sim {

using transport::ConnectionId;
using transport::Event;
using transport::Message;

namespace {

Event MakeEvent(Event::Kind kind, ConnectionId connection,
                absl::Status status = absl::OkStatus(), uint64_t token = 0) {
  Event event;
  event.kind = kind;
  event.connection = connection;
  event.status = std::move(status);
  event.token = token;
  return event;
}

Message Copy(const Message& message) {
  Message copy;
  copy.buffer = AlignedBuffer(message.size);
  copy.size = message.size;
  std::memcpy(copy.data(), message.data(), message.size);
  return copy;
}

}  // namespace

Fabric::Fabric(World* world, Network* network)
    : world_(world), network_(network) {
  network_->OnChange([this] { OnNetworkChange(); });
}

void Fabric::Dial(SimTransport* from, ConnectionId id,
                  const std::string& address) {
  const auto found = listeners_.find(address);
  const Place place = from->place_;
  // A listener that is gone answers with a reset; one that can not be reached,
  // or does not run, answers nothing.
  const bool reachable = found == listeners_.end() ||
                         (!network_->cut(place, found->second->place_) &&
                          !network_->cut(found->second->place_, place) &&
                          !network_->paused(found->second->place_));
  const absl::Duration takes =
      reachable ? network_->Delay(place, place) + network_->Delay(place, place)
                : network_->options().connect_timeout;
  world_->After(takes, [this, from, alive = from->alive_, id, address] {
    if (!*alive || !from->dialling_.contains(id)) return;
    const auto now = listeners_.find(address);
    if (now == listeners_.end() ||
        network_->cut(from->place_, now->second->place_) ||
        network_->cut(now->second->place_, from->place_) ||
        network_->paused(now->second->place_)) {
      from->EndDial(id, absl::UnavailableError("nobody answers"));
      return;
    }
    auto waiting = from->dialling_.extract(id);
    Join(from, id, now->second);
    for (auto& [message, token] : waiting.mapped()) {
      ++from->held_;
      from->Send(id, std::move(message), token);
    }
  });
}

void Fabric::Join(SimTransport* from, ConnectionId id, SimTransport* to) {
  auto pipe = std::make_shared<Pipe>();
  SimTransport* const owners[2] = {from, to};
  pipe->number = next_connection_++;
  const ConnectionId ids[2] = {id, ConnectionId(next_connection_++)};
  for (int side = 0; side < 2; ++side) {
    End& end = pipe->ends[side];
    end.owner = owners[side];
    end.place = owners[side]->place_;
    end.id = ids[side];
    end.open = true;
    owners[side]->ends_[end.id] = {pipe, side};
    owners[side]->Push(MakeEvent(
        side == 0 ? Event::Kind::kConnected : Event::Kind::kAccepted, end.id));
  }
  std::erase_if(pipes_, [](const auto& weak) { return weak.expired(); });
  pipes_.push_back(pipe);
}

void Fabric::Post(const PipePtr& pipe, int side, Message message,
                  uint64_t token) {
  End& end = pipe->ends[side];
  if (on_send_)
    on_send_(end.place, pipe->ends[1 - side].place, pipe->number, message);
  ++on_the_way_;
  Letter letter;
  letter.message = std::move(message);
  letter.token = token;
  const absl::Time ready =
      world_->now() + end.owner->send_delay_ +
      network_->Delay(end.place, pipe->ends[1 - side].place);
  letter.ready = end.last_ready = std::max(end.last_ready, ready);
  end.outgoing.push_back(std::move(letter));
  Pump(pipe, side);
}

void Fabric::Pump(const PipePtr& pipe, int side) {
  End& end = pipe->ends[side];
  if (end.pumping || end.outgoing.empty()) return;
  end.pumping = true;
  world_->At(end.outgoing.front().ready, [this, pipe, side] {
    pipe->ends[side].pumping = false;
    Deliver(pipe, side);
  });
}

// The oldest letter of a direction arrives, unless nothing passes just now.
void Fabric::Deliver(const PipePtr& pipe, int side) {
  End& from = pipe->ends[side];
  End& to = pipe->ends[1 - side];
  if (from.outgoing.empty()) return;
  if (network_->cut(from.place, to.place)) return;  // goes on when healed
  Letter letter = std::move(from.outgoing.front());
  from.outgoing.pop_front();
  --on_the_way_;
  if (from.open && from.owner != nullptr) {
    from.owner->Push(MakeEvent(Event::Kind::kSendDone, from.id,
                               absl::OkStatus(), letter.token));
  }
  if (to.open && to.owner != nullptr) {
    const NetworkOptions& odds = network_->options();
    if (world_->Chance(odds.vanish)) {
      world_->Trace("a message vanishes ", network_->name(from.place), " -> ",
                    network_->name(to.place));
    } else {
      if (world_->Chance(odds.repeat)) {
        Event again = MakeEvent(Event::Kind::kReceived, to.id);
        again.message = Copy(letter.message);
        to.owner->Push(std::move(again));
      }
      if (letter.message.size > 0 && world_->Chance(odds.damage)) {
        letter.message.data()[world_->Below(letter.message.size)] ^=
            static_cast<std::byte>(1 + world_->Below(255));
        if (world_->has(PlantedBug::kNoChecksum))
          dispatch::SealFrame({letter.message.data(), letter.message.size});
      }
      Event event = MakeEvent(Event::Kind::kReceived, to.id);
      event.message = std::move(letter.message);
      to.owner->Push(std::move(event));
    }
  }
  Pump(pipe, side);
}

void Fabric::Close(const PipePtr& pipe, int side, const absl::Status& why,
                   bool tell_owner, bool tell_peer) {
  End& end = pipe->ends[side];
  if (!end.open) return;
  end.open = false;
  on_the_way_ -= end.outgoing.size();
  if (end.owner != nullptr) {
    for (const Letter& letter : end.outgoing) {
      if (tell_owner) {
        end.owner->Push(
            MakeEvent(Event::Kind::kSendDone, end.id, why, letter.token));
      }
    }
    if (tell_owner)
      end.owner->Push(MakeEvent(Event::Kind::kPeerDown, end.id, why));
    end.owner->ends_.erase(end.id);
  }
  end.outgoing.clear();
  end.owner = nullptr;
  const int other = 1 - side;
  if (!pipe->ends[other].open) return;
  if (tell_peer && !network_->cut(end.place, pipe->ends[other].place)) {
    world_->After(network_->Delay(end.place, pipe->ends[other].place),
                  [this, pipe, other] {
                    Close(pipe, other,
                          absl::UnavailableError("connection reset by peer"),
                          true, false);
                  });
  } else {
    LookForSilence(pipe, other);
  }
}

bool Fabric::Hears(const Pipe& pipe, int side) const {
  const End& peer = pipe.ends[1 - side];
  return peer.open && !network_->paused(peer.place) &&
         !network_->cut(peer.place, pipe.ends[side].place);
}

void Fabric::LookForSilence(const PipePtr& pipe, int side) {
  End& end = pipe->ends[side];
  if (!end.open) return;
  // A stopped process notices nothing, and gets a fresh look when it goes on.
  if (Hears(*pipe, side) || network_->paused(end.place)) {
    end.silent_since = absl::InfiniteFuture();
    return;
  }
  if (end.silent_since != absl::InfiniteFuture()) return;
  const absl::Time since = end.silent_since = world_->now();
  world_->After(network_->options().peer_timeout, [this, pipe, side, since] {
    if (pipe->ends[side].silent_since != since) return;
    Close(pipe, side, absl::UnavailableError("the peer is silent"), true, true);
  });
}

void Fabric::OnNetworkChange() {
  for (const std::weak_ptr<Pipe>& weak : std::vector(pipes_)) {
    const PipePtr pipe = weak.lock();
    if (pipe == nullptr) continue;
    for (int side = 0; side < 2; ++side) {
      LookForSilence(pipe, side);
      Pump(pipe, side);
    }
  }
}

void Fabric::Forget(SimTransport* transport, bool tell_peers) {
  std::erase_if(listeners_,
                [&](const auto& entry) { return entry.second == transport; });
  const auto ends = transport->ends_;
  for (const auto& [id, end] : ends) {
    Close(end.first, end.second, absl::CancelledError("the process is gone"),
          /*tell_owner=*/false, tell_peers);
  }
}

SimTransport::SimTransport(Fabric* fabric, World* world, Place place,
                           std::function<void()> wake)
    : fabric_(fabric), world_(world), place_(place), wake_(std::move(wake)) {}

SimTransport::~SimTransport() {
  *alive_ = false;
  fabric_->Forget(this, !silent_end_);
}

absl::StatusOr<std::string> SimTransport::Listen(const std::string& address) {
  const std::string full = absl::StrCat("sim://", address);
  if (!fabric_->listeners_.emplace(full, this).second)
    return absl::AlreadyExistsError(full);
  return full;
}

absl::StatusOr<ConnectionId> SimTransport::Connect(const std::string& address) {
  const ConnectionId id(fabric_->next_connection_++);
  dialling_[id];
  fabric_->Dial(this, id, address);
  return id;
}

void SimTransport::Disconnect(ConnectionId connection) {
  const absl::Status why = absl::CancelledError("disconnected");
  if (dialling_.contains(connection)) return EndDial(connection, why);
  const auto found = ends_.find(connection);
  if (found == ends_.end()) return;
  const auto [pipe, side] = found->second;
  fabric_->Close(pipe, side, why, true, true);
}

void SimTransport::EndDial(ConnectionId id, const absl::Status& why) {
  const auto waiting = dialling_.extract(id);
  for (const auto& [message, token] : waiting.mapped())
    Push(MakeEvent(Event::Kind::kSendDone, id, why, token));
  Push(MakeEvent(Event::Kind::kPeerDown, id, why));
}

void SimTransport::Send(ConnectionId connection, Message message,
                        uint64_t token) {
  --held_;
  if (const auto dial = dialling_.find(connection); dial != dialling_.end()) {
    dial->second.emplace_back(std::move(message), token);
    return;
  }
  const auto found = ends_.find(connection);
  if (found == ends_.end()) {
    Push(MakeEvent(Event::Kind::kSendDone, connection,
                   absl::UnavailableError("the connection is down"), token));
    return;
  }
  const auto [pipe, side] = found->second;
  if (touch_) touch_(message);
  fabric_->Post(pipe, side, std::move(message), token);
}

void SimTransport::Poll(absl::Duration max_wait, std::vector<Event>* events) {
  TL_CHECK(max_wait <= absl::ZeroDuration() || !inbox_.empty())
      << "a simulated process may not block";
  while (!inbox_.empty()) {
    if (inbox_.front().kind == Event::Kind::kReceived) ++held_;
    events->push_back(std::move(inbox_.front()));
    inbox_.pop_front();
  }
}

Message SimTransport::Allocate(size_t size) {
  Message message;
  message.buffer = AlignedBuffer(size);
  message.size = size;
  ++held_;
  return message;
}

void SimTransport::Release(Message message) {
  const bool kept =
      world_->has(PlantedBug::kKeepAnswers) && message.size % 3 == 0;
  if (!kept) --held_;
}

void SimTransport::Push(Event event) {
  inbox_.push_back(std::move(event));
  wake_();
}

}  // namespace trunkline::sim
