#include "sim/sim_control.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "control/cluster_proto.h"

namespace trunkline::sim {

namespace {

constexpr absl::Duration kRegisterTimeout = absl::Seconds(5);
// A connection that carries nothing is found dead by pings.
constexpr absl::Duration kPing = absl::Seconds(1);
constexpr absl::Duration kPingsMissed = absl::Seconds(3);

}  // namespace

SimCoordinator* ControlPlane::running(Place place) const {
  const auto found = running_.find(place);
  return found == running_.end() ? nullptr : found->second;
}

void ControlPlane::Call(Place from, Place to, absl::Duration timeout,
                        std::shared_ptr<bool> alive,
                        std::function<absl::Status(SimCoordinator&)> request,
                        std::function<void(const absl::Status&)> done) {
  ++calls_;
  auto over = std::make_shared<bool>(false);
  const auto end = [alive, over,
                    done = std::move(done)](const absl::Status& status) {
    if (std::exchange(*over, true) || !*alive) return;
    done(status);
  };
  world_->After(timeout, [end] {
    end(absl::DeadlineExceededError("the coordinator did not answer in time"));
  });
  const auto answer = [this, from, to, end](const absl::Status& status) {
    if (network_->cut(to, from)) return;
    world_->After(network_->Delay(to, from), [end, status] { end(status); });
  };
  const auto arrive = [this, to, answer, request = std::move(request)] {
    SimCoordinator* const coordinator = running(to);
    if (coordinator == nullptr) {
      answer(absl::UnavailableError("nobody listens there"));
      return;
    }
    coordinator->Mail([coordinator, answer, request] {
      const absl::Status status = request(*coordinator);
      answer(status);
    });
  };
  if (network_->cut(from, to)) return;
  if (world_->Chance(network_->options().vanish)) return;
  world_->After(network_->Delay(from, to), arrive);
}

void ControlPlane::ArriveLate(
    Place to, std::function<absl::Status(SimCoordinator&)> request) {
  world_->After(world_->Between(absl::Milliseconds(100), absl::Seconds(9)),
                [this, to, request = std::move(request)] {
                  SimCoordinator* const coordinator = running(to);
                  if (coordinator == nullptr) return;
                  coordinator->Mail([coordinator, request] {
                    request(*coordinator).IgnoreError();
                  });
                });
}

SimControlClient::SimControlClient(World* world, Network* network,
                                   ControlPlane* plane, Place place,
                                   control::Registration registration,
                                   Callbacks callbacks)
    : world_(world),
      network_(network),
      plane_(plane),
      place_(place),
      registration_([&] {
        registration.process = plane->NextProcess();
        return std::move(registration);
      }()),
      callbacks_(std::move(callbacks)) {
  After(world_->Between(absl::ZeroDuration(), absl::Milliseconds(50)),
        [this] { Keep(); });
}

SimControlClient::~SimControlClient() { *alive_ = false; }

Place SimControlClient::target() const {
  return plane_->places()[target_ % plane_->places().size()];
}

void SimControlClient::Run(Work work) {
  if (network_->paused(place_)) {
    held_.push_back(std::move(work));
    return;
  }
  work();
}

void SimControlClient::After(absl::Duration delay, Work work) {
  world_->After(delay, [this, alive = alive_, work = std::move(work)] {
    if (*alive) Run(work);
  });
}

void SimControlClient::Resume() {
  std::vector<Work> held;
  held.swap(held_);
  const std::shared_ptr<bool> alive = alive_;
  for (const Work& work : held) {
    if (*alive) Run(work);
  }
}

void SimControlClient::Keep() {
  if (ended_ || calling_) return;
  calling_ = true;
  if (session_.registered()) {
    Beat();
  } else {
    Register();
  }
}

void SimControlClient::Register() {
  auto reply = std::make_shared<coordinator::RegisterReply>();
  const auto request = [reply, message = control::ToProto(
                                   session_.MakeRegistration(registration_))](
                           SimCoordinator& c) {
    const auto registration = control::FromProto(message);
    if (!registration.ok()) return registration.status();
    const coordinator::Reply answer =
        c.Submit(coordinator::RegisterEvent{.registration = *registration});
    if (answer.status.ok())
      *reply = std::get<coordinator::RegisterReply>(answer.body);
    return answer.status;
  };
  if (plane_->late() > 0 && world_->Chance(plane_->late()))
    plane_->ArriveLate(target(), request);
  plane_->Call(place_, target(), kRegisterTimeout, alive_, request,
               [this, reply](const absl::Status& status) {
                 Run([this, reply, status] {
                   if (status.ok()) {
                     identity_ = reply->identity;
                     session_.OnRegistered(reply->identity, reply->lease);
                     report_now_ = true;
                     callbacks_.on_registered(reply->identity);
                     stream_ = 0;  // of the identity before
                     Watch();
                   }
                   OnResult(status);
                 });
               });
}

void SimControlClient::Beat() {
  report_now_ = false;
  const control::FollowedView followed = followed_;
  const control::Heartbeat heartbeat =
      session_.MakeHeartbeat(followed, callbacks_.make_report());
  plane_->Call(
      place_, target(), session_.heartbeat_timeout(), alive_,
      [request = control::ToProto(heartbeat)](SimCoordinator& c) {
        auto received = control::FromProto(request);
        if (!received.ok()) return received.status();
        return c
            .Submit(
                coordinator::HeartbeatEvent{.heartbeat = *std::move(received)})
            .status;
      },
      [this](const absl::Status& status) {
        Run([this, status] { OnResult(status); });
      });
}

void SimControlClient::OnResult(const absl::Status& status) {
  calling_ = false;
  const bool deaf =
      world_->has(PlantedBug::kNeverJoinAgain) && absl::IsNotFound(status);
  const control::WorkerSession::Next next =
      session_.OnResult(deaf ? absl::UnavailableError("not heard") : status);
  if (next.refused) {
    ended_ = true;
    callbacks_.on_refused(status);
    return;
  }
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))
    ++target_;
  const uint64_t wake = ++wake_;
  const absl::Duration wait =
      next.wakes_for_report && report_now_ ? absl::ZeroDuration() : next.wait;
  After(wait, [this, wake] {
    if (wake == wake_) Keep();
  });
}

void SimControlClient::ReportNow() {
  report_now_ = true;
  if (calling_ || ended_ || !session_.registered()) return;
  const uint64_t wake = ++wake_;
  After(absl::ZeroDuration(), [this, wake] {
    if (wake == wake_) Keep();
  });
}

void SimControlClient::Leave() {
  ended_ = true;
  if (!session_.registered()) return;
  const control::Identity identity = *session_.identity();
  plane_->Call(
      place_, target(), absl::Milliseconds(500), std::make_shared<bool>(true),
      [identity](SimCoordinator& c) {
        return c
            .Submit(coordinator::LeaveEvent{.worker = identity.worker,
                                            .incarnation = identity.incarnation,
                                            .cluster_id = identity.cluster_id})
            .status;
      },
      [](const absl::Status&) {});
}

void SimControlClient::Watch() {
  if (ended_ || !identity_.has_value()) return;
  const uint64_t stream = plane_->NextStream();
  stream_ = stream;
  stream_delivered_ = false;
  const Place to = target();
  // Of the process that answers: by the time its answer is read, another one
  // may run there.
  struct Peer {
    uint64_t life = 0, terms = 0;
  };
  const auto peer = std::make_shared<Peer>();
  plane_->Call(
      place_, to, kRegisterTimeout, alive_,
      // The coordinator may be paused, and this client gone when it resumes.
      [this, stream, peer, to, plane = plane_, alive = alive_, place = place_,
       identity = *identity_](SimCoordinator& c) {
        *peer = {.life = plane->life(to), .terms = c.terms()};
        return c.OpenWatch(
            identity.worker, identity.incarnation, identity.cluster_id, place,
            stream, [this, stream, alive](const control::ClusterView& view) {
              if (!*alive) return;
              Run([this, stream, view] { OnStreamView(stream, view); });
            });
      },
      [this, stream, to, peer](const absl::Status& status) {
        Run([this, stream, to, peer, status] {
          if (stream != stream_) return;
          if (!status.ok()) {
            OnStreamEnd(stream);
            return;
          }
          stream_place_ = to;
          stream_life_ = peer->life;
          stream_terms_ = peer->terms;
          LookAtStream(stream, absl::InfiniteFuture());
        });
      });
}

void SimControlClient::OnStreamView(uint64_t stream,
                                    const control::ClusterView& view) {
  if (ended_ || stream != stream_) return;
  // Over the wire and back, as every view goes.
  const auto decoded = control::FromProto(control::ToProto(view));
  if (!decoded.ok()) {
    OnStreamEnd(stream);
    return;
  }
  stream_delivered_ = true;
  if (!followed_.IsOlderThan(*decoded) &&
      !world_->has(PlantedBug::kFollowDeposed))
    return;
  callbacks_.on_view(*decoded);
  followed_.Set(*decoded);
}

void SimControlClient::OnStreamEnd(uint64_t stream) {
  if (stream != stream_) return;
  stream_ = 0;
  if (std::exchange(stream_delivered_, false)) watch_backoff_.Reset();
  After(watch_backoff_.Next(), [this] {
    if (stream_ == 0) Watch();
  });
}

// Ends the stream when its coordinator has died or stepped down, or when pings
// stay unanswered.
void SimControlClient::LookAtStream(uint64_t stream, absl::Time broken_since) {
  if (ended_ || stream != stream_) return;
  const Place to = stream_place_;
  SimCoordinator* const peer = plane_->running(to);
  if (peer == nullptr || plane_->life(to) != stream_life_ ||
      peer->durable() == nullptr || peer->terms() != stream_terms_) {
    OnStreamEnd(stream);
    return;
  }
  const bool broken = network_->cut(place_, to) || network_->cut(to, place_) ||
                      network_->paused(to);
  if (!broken) {
    broken_since = absl::InfiniteFuture();
  } else if (broken_since == absl::InfiniteFuture()) {
    broken_since = world_->now();
  } else if (world_->now() - broken_since >= kPingsMissed) {
    peer->CloseWatch(stream);
    OnStreamEnd(stream);
    return;
  }
  After(kPing,
        [this, stream, broken_since] { LookAtStream(stream, broken_since); });
}

}  // namespace trunkline::sim
