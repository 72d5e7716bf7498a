#include "dispatch/layer_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/planted_mistake.h"
#include "common/status_macros.h"
#include "routing/route_validator.h"

namespace trunkline::dispatch {
namespace {

bool Contains(const std::vector<WorkerId>& workers, WorkerId worker) {
  return std::find(workers.begin(), workers.end(), worker) != workers.end();
}

absl::Status Unconserved(const std::string& why) {
  return routing::BrokenContract(routing::RouteContract::kCompletion, why);
}

}  // namespace

std::string LayerExchange::Where() const {
  return absl::StrCat("step ", step_.value, ", layer ",
                      placement_->layer.value);
}

// The first error is kept: whatever was on its way can only be dropped.
absl::Status LayerExchange::Fail(absl::Status status) {
  failure_ = std::move(status);
  for (size_t f = 0; f < flights_used_; ++f) flights_[f]->open = false;
  for (size_t r = 0; r < states_.size(); ++r) {
    if (table_->fate[r] == routing::RouteFate::kAccepted &&
        states_[r] != RouteState::kDone) {
      states_[r] = RouteState::kFailed;
    }
  }
  return failure_;
}

absl::StatusOr<std::vector<SendAction>> LayerExchange::Begin(
    StepId step, uint16_t micro_batch, const routing::RouteTable* table,
    const placement::LayerPlacement* placement, PlacementVersion version,
    std::vector<WorkerId> live, const Limits& limits, absl::Time now) {
  step_ = step;
  micro_batch_ = micro_batch;
  table_ = table;
  placement_ = placement;
  version_ = version;
  live_ = std::move(live);
  excluded_.clear();
  limits_ = limits;
  begun_ = now;
  next_attempt_ = 0;
  flights_used_ = 0;
  const auto routes = static_cast<size_t>(table->size());
  states_.assign(routes, RouteState::kPlanned);
  answers_.assign(routes, RouteAnswer{});
  flight_of_route_.assign(routes, UINT32_MAX);
  mark_.assign(routes, 0);
  mark_now_ = 0;
  waiting_for_placement_.clear();
  last_failure_.clear();
  failure_ = absl::OkStatus();
  counters_ = ExchangeCounters{};
  std::vector<uint32_t> accepted;
  for (uint32_t r = 0; r < routes; ++r) {
    if (table->fate[r] == routing::RouteFate::kAccepted) accepted.push_back(r);
  }
  outstanding_ = static_cast<int64_t>(accepted.size());
  return PlanAndSend(std::move(accepted), now);
}

absl::StatusOr<std::vector<SendAction>> LayerExchange::PlanAndSend(
    std::vector<uint32_t> routes, absl::Time now) {
  std::vector<SendAction> actions;
  if (routes.empty()) return actions;
  const auto after = [&] {
    return last_failure_.empty() ? std::string()
                                 : absl::StrCat(" after ", last_failure_);
  };
  if (next_attempt_ >= limits_.attempts_max) {
    const uint32_t r = routes.front();
    return Fail(absl::UnavailableError(absl::StrCat(
        Where(), ", expert ", table_->expert_id[r].value, ": ", routes.size(),
        " routes unanswered after ", next_attempt_, " attempts", after())));
  }
  absl::Status planned = planner_.Plan(*table_, routes, *placement_, version_,
                                       live_, &plan_, costs_);
  if (!planned.ok()) {
    return Fail(absl::Status(
        planned.code(), absl::StrCat("step ", step_.value, ", ",
                                     std::string(planned.message()), after())));
  }
  const uint16_t attempt = next_attempt_++;
  for (WorkerShare& share : plan_.shares) {
    if (flights_used_ == flights_.size()) {
      flights_.push_back(std::make_unique<Flight>());
    }
    const auto index = static_cast<uint32_t>(flights_used_++);
    Flight& flight = *flights_[index];
    // The planner gets the flight's old vectors back and reuses their memory.
    std::swap(flight.share, share);
    flight.attempt = attempt;
    flight.version = version_;
    flight.sent = now;
    flight.open = true;
    flight.answered = false;
    flight.answer_number = UINT32_MAX;
    for (uint32_t r : flight.share.routes) {
      states_[r] = attempt == 0 ? RouteState::kSent : RouteState::kRetried;
      flight_of_route_[r] = index;
    }
    counters_.routes_sent += flight.share.routes.size();
    if (attempt > 0) counters_.routes_retried += flight.share.routes.size();
    actions.push_back({attempt, version_, &flight.share});
  }
  return actions;
}

// Late is what was once asked for and is no longer wanted; a lie is what was
// never asked for.
LayerExchange::Match LayerExchange::MatchHeader(WorkerId from,
                                                const FrameHeader& h,
                                                uint32_t* flight_index,
                                                std::string* why) const {
  const auto lie = [&](absl::string_view field, auto got, auto expected) {
    *why = absl::StrCat(field, " ", got, " where ", expected, " was asked for");
    return Match::kLie;
  };
  if (h.worker_rank != from.value) {
    return lie("worker rank", h.worker_rank, from.value);
  }
  if (h.step_id < step_.value) return Match::kLate;
  if (h.step_id > step_.value) return lie("step", h.step_id, step_.value);
  const uint32_t layer = placement_->layer.value;
  if (h.layer < layer) return Match::kLate;
  if (h.layer > layer) return lie("layer", h.layer, layer);
  if (h.micro_batch != micro_batch_) {
    return lie("micro-batch", h.micro_batch, micro_batch_);
  }
  return MatchFlight(from, h, flight_index, why);
}

LayerExchange::Match LayerExchange::MatchFlight(WorkerId from,
                                                const FrameHeader& h,
                                                uint32_t* flight_index,
                                                std::string* why) const {
  for (size_t f = 0; f < flights_used_; ++f) {
    const Flight& flight = *flights_[f];
    if (flight.share.worker != from || flight.attempt != h.attempt) continue;
    if (flight.version.value != h.placement_version) {
      *why = absl::StrCat("placement version ", h.placement_version, " where ",
                          flight.version.value, " was asked for");
      return Match::kLie;
    }
    *flight_index = static_cast<uint32_t>(f);
    return flight.open ? Match::kCurrent : Match::kLate;
  }
  *why = absl::StrCat("attempt ", h.attempt, ", which was never sent to it");
  return Match::kLie;
}

// The table is in (token, slot) order.
uint32_t LayerExchange::FindRoute(uint32_t token, uint16_t slot) const {
  size_t low = 0;
  size_t high = table_->token_id.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (std::pair(table_->token_id[middle], table_->selected_slot[middle]) <
        std::pair(token, slot)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == table_->token_id.size() || table_->token_id[low] != token ||
      table_->selected_slot[low] != slot) {
    return UINT32_MAX;
  }
  return static_cast<uint32_t>(low);
}

// Fills matched_ with the route row of each of the answer's rows. Nothing is
// completed before all of them are known to be right.
absl::Status LayerExchange::MatchRoutes(const AnswerFrameView& answer,
                                        uint32_t flight_index) {
  const WorkerShare& share = flights_[flight_index]->share;
  const size_t count = answer.token_id.size();
  if (count != share.routes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        count, " routes where ", share.routes.size(), " were asked for"));
  }
  ++mark_now_;
  matched_.clear();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t token = answer.token_id[i];
    const uint16_t slot = answer.slot[i];
    // A worker answers in the order it was asked, as a rule.
    uint32_t r = share.routes[i];
    if (table_->token_id[r] != token || table_->selected_slot[r] != slot) {
      r = FindRoute(token, slot);
    }
    if (r == UINT32_MAX || flight_of_route_[r] != flight_index) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", token, ", slot ", slot, ", which was not asked for"));
    }
    if (table_->expert_id[r].value != answer.expert_id[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expert ", answer.expert_id[i], " for token ", token, ", slot ", slot,
          " where expert ", table_->expert_id[r].value, " was asked for"));
    }
    if (mark_[r] == mark_now_) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, ", slot ", slot, " twice"));
    }
    mark_[r] = mark_now_;
    matched_.push_back(r);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LayerExchange::OnAnswer(WorkerId from,
                                             const AnswerFrameView& answer,
                                             uint32_t answer_number) {
  if (!failure_.ok()) {
    ++counters_.late_answers;
    return false;
  }
  uint32_t index = 0;
  std::string why;
  const Match match = MatchHeader(from, answer.header, &index, &why);
  if (match == Match::kLate) {
    ++counters_.late_answers;
    return false;
  }
  if (match == Match::kCurrent) {
    why = std::string(MatchRoutes(answer, index).message());
  }
  if (!why.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(), ": worker ", from.value, " answered ", why));
  }
  for (size_t i = 0; i < matched_.size(); ++i) {
    const uint32_t r = matched_[i];
    states_[r] = RouteState::kDone;
    answers_[r] = {answer_number, static_cast<uint32_t>(i)};
  }
  Flight& flight = *flights_[index];
  flight.open = false;
  flight.answered = true;
  flight.answer_number = answer_number;
  outstanding_ -= static_cast<int64_t>(matched_.size());
  counters_.routes_done += matched_.size();
  return true;
}

void LayerExchange::CloseFlights(WorkerId worker,
                                 std::vector<uint32_t>* routes) {
  for (size_t f = 0; f < flights_used_; ++f) {
    Flight& flight = *flights_[f];
    if (!flight.open || flight.share.worker != worker) continue;
    flight.open = false;
    routes->insert(routes->end(), flight.share.routes.begin(),
                   flight.share.routes.end());
  }
}

void LayerExchange::Exclude(WorkerId worker, const std::string& why) {
  if (!TL_PLANTED(kRetryTheLost)) std::erase(live_, worker);
  if (!Contains(excluded_, worker)) excluded_.push_back(worker);
  last_failure_ = absl::StrCat("worker ", worker.value, ": ", why);
}

absl::StatusOr<std::vector<SendAction>> LayerExchange::OnWorkerDown(
    WorkerId worker, const std::string& why, absl::Time now) {
  if (!failure_.ok()) return failure_;
  if (!Contains(excluded_, worker)) {
    ++counters_.workers_failed;
    Exclude(worker, why);
  }
  std::vector<uint32_t> routes;
  CloseFlights(worker, &routes);
  std::sort(routes.begin(), routes.end());
  return PlanAndSend(std::move(routes), now);
}

absl::StatusOr<std::vector<SendAction>> LayerExchange::OnRefused(
    WorkerId worker, const RefusalFrameView& refusal, absl::Time now) {
  if (!failure_.ok()) return failure_;
  uint32_t index = 0;
  std::string why;
  const Match match = MatchHeader(worker, refusal.header, &index, &why);
  if (match == Match::kLate) {
    ++counters_.late_answers;
    return std::vector<SendAction>();
  }
  if (match == Match::kLie) {
    return OnWorkerDown(worker, absl::StrCat("refused ", why), now);
  }
  ++counters_.refusals;
  const RefusalCode code = refusal.header.refusal;
  why = absl::StrCat("refused: ", RefusalName(code),
                     refusal.message.empty() ? "" : ": ", refusal.message);
  if (code != RefusalCode::kUnknownVersion) {
    Exclude(worker, why);
    std::vector<uint32_t> routes;
    CloseFlights(worker, &routes);
    std::sort(routes.begin(), routes.end());
    return PlanAndSend(std::move(routes), now);
  }
  // The worker is well; it is the plan that is out of date. Only this flight
  // is: one sent under another version stands.
  last_failure_ = absl::StrCat("worker ", worker.value, ": ", why);
  Flight& flight = *flights_[index];
  flight.open = false;
  if (flight.version < version_) {
    std::vector<uint32_t> routes(flight.share.routes);
    std::sort(routes.begin(), routes.end());
    return PlanAndSend(std::move(routes), now);
  }
  for (uint32_t r : flight.share.routes) states_[r] = RouteState::kPlanned;
  waiting_for_placement_.insert(waiting_for_placement_.end(),
                                flight.share.routes.begin(),
                                flight.share.routes.end());
  return absl::FailedPreconditionError(absl::StrCat(
      Where(), ": worker ", worker.value, " does not serve placement version ",
      flight.version.value, "; a newer one is needed"));
}

absl::StatusOr<std::vector<SendAction>> LayerExchange::Replace(
    const placement::LayerPlacement* placement, PlacementVersion version,
    std::vector<WorkerId> live, absl::Time now) {
  if (!failure_.ok()) return failure_;
  if (placement->layer != placement_->layer) {
    return absl::InvalidArgumentError(absl::StrCat(
        Where(), ": the new placement is for layer ", placement->layer.value));
  }
  if (version <= version_) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(), ": placement version ", version.value,
                     " is not newer than version ", version_.value));
  }
  placement_ = placement;
  version_ = version;
  live_ = std::move(live);
  std::erase_if(live_, [&](WorkerId w) { return Contains(excluded_, w); });
  std::vector<uint32_t> routes;
  std::swap(routes, waiting_for_placement_);
  std::sort(routes.begin(), routes.end());
  return PlanAndSend(std::move(routes), now);
}

absl::StatusOr<std::vector<SendAction>> LayerExchange::Tick(absl::Time now) {
  if (!failure_.ok()) return failure_;
  if (done()) return std::vector<SendAction>();
  const bool step_missed = now >= begun_ + limits_.step_deadline;
  std::vector<uint32_t> routes;
  WorkerId slow;
  for (size_t f = 0; f < flights_used_; ++f) {
    const Flight& flight = *flights_[f];
    if (!flight.open) continue;
    if (!slow.valid()) slow = flight.share.worker;
    if (step_missed || now < flight.sent + limits_.worker_deadline) continue;
    ++counters_.deadlines_missed;
    const WorkerId worker = flight.share.worker;
    Exclude(worker,
            absl::StrCat("no answer within ",
                         absl::FormatDuration(limits_.worker_deadline)));
    CloseFlights(worker, &routes);
  }
  if (step_missed) {
    return Fail(absl::DeadlineExceededError(absl::StrCat(
        Where(), ": ", outstanding_, " routes unanswered after ",
        absl::FormatDuration(limits_.step_deadline), ", ",
        slow.valid() ? absl::StrCat("worker ", slow.value, " has not answered")
                     : std::string("waiting for a newer placement"),
        last_failure_.empty() ? "" : "; before, ", last_failure_)));
  }
  std::sort(routes.begin(), routes.end());
  return PlanAndSend(std::move(routes), now);
}

absl::Time LayerExchange::next_deadline() const {
  if (done() || !failure_.ok()) return absl::InfiniteFuture();
  absl::Time next = begun_ + limits_.step_deadline;
  for (size_t f = 0; f < flights_used_; ++f) {
    if (!flights_[f]->open) continue;
    next = std::min(next, flights_[f]->sent + limits_.worker_deadline);
  }
  return next;
}

absl::Status LayerExchange::CheckConservation() const {
  uint64_t accepted = 0;
  std::vector<uint8_t> row_taken(states_.size(), 0);
  std::vector<size_t> first_row(flights_used_, 0);
  size_t rows = 0;
  for (size_t f = 0; f < flights_used_; ++f) {
    first_row[f] = rows;
    if (flights_[f]->answered) rows += flights_[f]->share.routes.size();
  }
  if (rows > states_.size()) {
    return Unconserved(absl::StrCat(Where(), ": ", rows, " rows came back for ",
                                    states_.size(), " routes"));
  }
  for (size_t r = 0; r < states_.size(); ++r) {
    const auto broken = [&](absl::string_view what) {
      return Unconserved(absl::StrCat(Where(), ": token ", table_->token_id[r],
                                      ", slot ", table_->selected_slot[r],
                                      ", expert ", table_->expert_id[r].value,
                                      " ", what));
    };
    const RouteAnswer& a = answers_[r];
    if (table_->fate[r] != routing::RouteFate::kAccepted) {
      if (a.answer != UINT32_MAX || states_[r] != RouteState::kPlanned) {
        return broken("was executed and had not been accepted");
      }
      continue;
    }
    ++accepted;
    if (states_[r] != RouteState::kDone) return broken("did not complete");
    const uint32_t f = flight_of_route_[r];
    if (f >= flights_used_ || !flights_[f]->answered ||
        flights_[f]->answer_number != a.answer ||
        a.row >= flights_[f]->share.routes.size()) {
      return broken("completed by an answer that is not its worker's");
    }
    uint8_t& taken = row_taken[first_row[f] + a.row];
    if (taken != 0) return broken("shares its answer row with another route");
    taken = 1;
  }
  if (accepted != rows || accepted != counters_.routes_done ||
      outstanding_ != 0) {
    return Unconserved(absl::StrCat(
        Where(), ": ", accepted, " routes were accepted, ", rows,
        " rows came back, ", counters_.routes_done, " routes were completed, ",
        outstanding_, " are outstanding"));
  }
  return absl::OkStatus();
}

}  // namespace trunkline::dispatch
