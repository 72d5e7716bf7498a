#include "sim/sim_admin.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "control/status_to_grpc.h"

namespace trunkline::sim {

namespace {

constexpr absl::Duration kPatience = absl::Seconds(3);
constexpr char kPinRegister[] = "pin";

std::string CordonRegister(const std::string& worker) {
  return absl::StrCat("cordon of ", worker);
}

// A refusal that says for certain that nothing was done.
bool IsDefinite(const absl::Status& status) {
  if (control::IsNotLeading(status)) return true;
  return !status.ok() && !absl::IsUnavailable(status) &&
         !absl::IsDeadlineExceeded(status);
}

}  // namespace

SimAdmin::SimAdmin(SimCluster* cluster)
    : cluster_(cluster), place_(cluster->network().Add("operator")) {
  cluster->network().SetAlive(place_, true);
}

absl::Time SimAdmin::now() const { return cluster_->world().now(); }

void SimAdmin::Ask(std::function<absl::Status(SimCoordinator&)> request,
                   Told told) {
  const std::vector<Place>& places = cluster_->plane().places();
  // Whoever leads, if one does; else anybody, to be told so.
  SimCoordinator* const leader = cluster_->leader();
  const Place to = leader != nullptr && cluster_->world().Chance(0.7)
                       ? leader->place()
                       : places[cluster_->world().Below(places.size())];
  ++asking_;
  cluster_->plane().Call(place_, to, kPatience, alive_, std::move(request),
                         [this, told = std::move(told)](const auto& status) {
                           --asking_;
                           if (told) told(status);
                         });
}

void SimAdmin::DoSomething() {
  World& world = cluster_->world();
  const uint64_t what = world.Below(100);
  if (what < 30) {
    ApplyRandom();
  } else if (what < 36) {
    Rollback();
  } else if (what < 40) {
    Abandon();
  } else if (what < 50) {
    coordinator::RebalanceOptions options;
    options.policy = static_cast<placement::BalancePolicy>(1 + world.Below(3));
    options.min_gain = 0.01;
    Rebalance(options);
  } else if (what < 58) {
    Pin(world.Chance(0.4));
  } else if (what < 75) {
    const uint64_t experts = static_cast<uint64_t>(cluster_->options().experts);
    const uint64_t trunks = static_cast<uint64_t>(cluster_->options().trunks);
    const bool trunk = world.Chance(0.15);
    Drain(static_cast<int>(trunk ? experts + world.Below(trunks)
                                 : world.Below(experts)),
          world.Chance(0.45));
  } else {
    Look();
  }
}

void SimAdmin::ApplyRandom() {
  World& world = cluster_->world();
  SimCoordinator* const leader = cluster_->leader();
  if (leader == nullptr) return;
  std::vector<WorkerId> workers;
  for (const auto& profile :
       leader->durable()->core().membership().UsableExperts())
    workers.push_back(profile.worker);
  if (workers.empty()) return;
  placement::PlacementMap map;
  for (const auto& shape : cluster_->model().shapes()) {
    placement::LayerPlacement layer;
    layer.layer = shape.layer;
    for (int64_t e = 0; e < shape.experts; ++e) {
      std::vector<placement::Replica> replicas;
      const uint64_t copies =
          1 + world.Below(std::min<uint64_t>(workers.size(), 3));
      while (replicas.size() < copies) {
        const placement::Replica replica{world.Pick(workers), 0};
        if (std::count(replicas.begin(), replicas.end(), replica) == 0)
          replicas.push_back(replica);
      }
      layer.replicas.push_back(std::move(replicas));
    }
    map.layers.push_back(std::move(layer));
  }
  placement::AssignSlots(&map);
  Apply(std::move(map), nullptr);
}

void SimAdmin::Apply(placement::PlacementMap map, Told told) {
  const size_t change = history_.BeginChange(now());
  auto version = std::make_shared<uint64_t>(0);
  Ask(
      [map = std::move(map), version](SimCoordinator& c) {
        const coordinator::Reply reply = c.Submit(coordinator::ApplyEvent{
            .map = map, .origin = "apply", .expected_active = {}});
        if (reply.status.ok()) {
          *version =
              std::get<coordinator::ChangeReply>(reply.body).version.value;
        }
        return reply.status;
      },
      [this, change, version, told = std::move(told)](const auto& status) {
        if (status.ok()) history_.EndChange(change, *version, now());
        cluster_->world().Trace("apply: ", status.ToString());
        if (told) told(status);
      });
}

void SimAdmin::Rollback() {
  const size_t change = history_.BeginChange(now());
  auto version = std::make_shared<uint64_t>(0);
  Ask(
      [version](SimCoordinator& c) {
        const coordinator::Reply reply = c.Submit(coordinator::RollbackEvent{});
        if (reply.status.ok()) {
          *version =
              std::get<coordinator::ChangeReply>(reply.body).version.value;
        }
        return reply.status;
      },
      [this, change, version](const auto& status) {
        if (status.ok()) history_.EndChange(change, *version, now());
        cluster_->world().Trace("rollback: ", status.ToString());
      });
}

void SimAdmin::Abandon() {
  SimCoordinator* const leader = cluster_->leader();
  if (leader == nullptr) return;
  const auto* open = leader->durable()->core().driver().OpenChange();
  if (open == nullptr) return;
  Ask(
      [version = open->map.version](SimCoordinator& c) {
        return c
            .Submit(coordinator::AbandonEvent{.version = version,
                                              .reason = "an operator's wish"})
            .status;
      },
      [this](const auto& status) {
        cluster_->world().Trace("abandon: ", status.ToString());
      });
}

void SimAdmin::Rebalance(const coordinator::RebalanceOptions& options) {
  Ask(
      [options](SimCoordinator& c) -> absl::Status {
        const auto snapshot = c.Snapshot();
        if (!snapshot.ok()) return snapshot.status();
        const auto plan = coordinator::PlanRebalance(*snapshot, options);
        if (!plan.ok()) return plan.status();
        if (!plan->worthwhile) return absl::OkStatus();
        return c
            .Submit(coordinator::ApplyEvent{
                .map = plan->map,
                .origin = "rebalance",
                .expected_active = snapshot->current.version})
            .status;
      },
      [this](const auto& status) {
        cluster_->world().Trace("rebalance: ", status.ToString());
      });
}

void SimAdmin::Pin(bool pinned) {
  const uint64_t value = pinned ? next_pin_++ : 0;
  const size_t op = history_.BeginWrite(kPinRegister, value, now());
  Ask(
      [pinned, value](SimCoordinator& c) {
        return c
            .Submit(coordinator::PinEvent{.pinned = pinned,
                                          .reason = absl::StrCat(value)})
            .status;
      },
      [this, op](const auto& status) {
        if (status.ok()) history_.EndWrite(kPinRegister, op, now());
        if (IsDefinite(status)) history_.EndRefused(kPinRegister, op, now());
      });
}

void SimAdmin::Drain(int index, bool drain, Told told) {
  const std::string worker = cluster_->worker_name(index);
  const std::string name = CordonRegister(worker);
  const size_t op = history_.BeginWrite(name, drain ? 1 : 0, now());
  Ask(
      [worker, drain](SimCoordinator& c) {
        return c
            .Submit(coordinator::DrainEvent{.worker = worker, .drain = drain})
            .status;
      },
      [this, name, op, worker, drain,
       told = std::move(told)](const auto& status) {
        if (status.ok()) history_.EndWrite(name, op, now());
        if (IsDefinite(status)) history_.EndRefused(name, op, now());
        cluster_->world().Trace(drain ? "drain " : "undrain ", worker, ": ",
                                status.ToString());
        if (told) told(status);
      });
}

void SimAdmin::Look() {
  struct Answer {
    uint64_t pin = 0, active = 0;
    std::map<std::string, bool> cordoned;
  };
  const absl::Time asked = now();
  auto answer = std::make_shared<Answer>();
  auto ops = std::make_shared<std::map<std::string, size_t>>();
  (*ops)[kPinRegister] = history_.BeginRead(kPinRegister, asked);
  for (int i = 0; i < cluster_->workers(); ++i) {
    const std::string name = CordonRegister(cluster_->worker_name(i));
    (*ops)[name] = history_.BeginRead(name, asked);
  }
  Ask(
      [answer](SimCoordinator& c) -> absl::Status {
        const absl::Status leads = c.ConfirmLead();
        if (!leads.ok()) return leads;
        const coordinator::Coordinator& core = c.durable()->core();
        const auto& cluster = core.cluster();
        if (cluster.pinned &&
            !absl::SimpleAtoi(cluster.pin_reason, &answer->pin))
          return absl::InternalError("a pin of nobody's");
        if (core.driver().Active() != nullptr)
          answer->active = core.driver().Active()->map.version.value;
        for (const auto& [id, member] : core.membership().members())
          answer->cordoned[member.name()] = member.record.cordoned;
        return absl::OkStatus();
      },
      [this, asked, answer, ops](const auto& status) {
        if (!status.ok()) return;
        for (const auto& [name, op] : *ops) {
          uint64_t value = answer->pin;
          if (name != kPinRegister) {
            const std::string worker = name.substr(CordonRegister("").size());
            value = answer->cordoned[worker] ? 1 : 0;
          }
          history_.EndRead(name, op, value, now());
        }
        if (answer->active != 0)
          history_.OnActiveRead(answer->active, asked, now());
      });
}

}  // namespace trunkline::sim
