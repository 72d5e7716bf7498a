#include "sim/sim_clients.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trunkline::sim {

namespace {

// How often a client goes on elsewhere before it gives up.
constexpr int kFollowsMost = 8;

// What a client may be told. INTERNAL, UNKNOWN and DATA_LOSS would mean that we
// broke something.
bool IsTyped(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kCancelled:
      return !status.message().empty();
    default:
      return false;
  }
}

}  // namespace

void SimClients::Start(absl::Duration pause_most, bool patient) {
  patient_ = patient;
  pause_most_ = pause_most;
  stopped_ = false;
  AskLater();
}

void SimClients::AskLater() {
  world_->After(world_->Between(absl::Milliseconds(1), pause_most_), [this] {
    if (stopped_) return;
    Submit(world_->Between(absl::Seconds(patient_ ? 20 : 1), absl::Seconds(20)),
           patient_);
    AskLater();
  });
}

bool SimClients::Submit(absl::Duration patience, bool patient) {
  const std::vector<SimTrunk*> trunks = trunks_();
  if (trunks.empty()) return false;
  SimTrunk* const trunk = trunks[world_->Below(trunks.size())];
  const uint64_t id = next_++;
  trunk::GenerationRequest request;
  request.id = RequestId(id);
  const uint64_t prompt = 1 + world_->Below(7);
  for (uint64_t i = 0; i < prompt; ++i)
    request.prompt.push_back(static_cast<int32_t>(world_->Below(kVocabulary)));
  request.max_tokens = 1 + static_cast<int64_t>(world_->Below(10));
  request.wait_for_capacity = patient || world_->Chance(0.7);
  request.deadline = trunk->Now() + patience;
  if (live_.empty() && quiet_since_ != absl::InfiniteFuture())
    quiet_since_ = world_->now();
  Request& live = live_[id];
  live.trunk = trunk->place();
  live.asked = world_->now();
  live.expected =
      model_->Generate(request.prompt, static_cast<int>(request.max_tokens));
  live.first = request;
  live.patience = patience;
  live.follows = world_->Chance(0.7) ? kFollowsMost : 0;
  ++outcomes_.asked;
  trunk->Submit(std::move(request), SinkOf(id));
  if (!patient && world_->Chance(0.05)) {
    world_->After(world_->Between(absl::ZeroDuration(), absl::Milliseconds(50)),
                  [this, id] {
                    const auto found = live_.find(id);
                    if (found == live_.end() || found->second.between) return;
                    found->second.cancelled = true;
                    for (SimTrunk* t : trunks_()) {
                      if (t->place() == found->second.trunk)
                        t->Cancel(RequestId(id));
                    }
                  });
  }
  return true;
}

SimTrunk::StreamSink SimClients::SinkOf(uint64_t id) {
  return [this, id](const trunk::Output& output, const std::string& token) {
    OnOutput(id, output, token);
  };
}

bool SimClients::Follow(uint64_t id, Request* request) {
  if (request->follows == 0 || request->cancelled) return false;
  --request->follows;
  request->between = true;
  world_->After(world_->Between(absl::Milliseconds(1), absl::Milliseconds(800)),
                [this, id] { GoOn(id); });
  return true;
}

void SimClients::GoOn(uint64_t id) {
  const auto found = live_.find(id);
  if (found == live_.end()) return;
  Request& request = found->second;
  if (request.got.size() == request.expected.size()) {
    // Only the end of the stream was lost.
    OnEnd(id, request, absl::OkStatus());
    live_.erase(found);
    return;
  }
  const std::vector<SimTrunk*> trunks = trunks_();
  if (trunks.empty()) {
    if (Follow(id, &request)) return;
    ++outcomes_.cut_off;
    live_.erase(found);
    return;
  }
  SimTrunk* const trunk = trunks[world_->Below(trunks.size())];
  request.between = false;
  request.trunk = trunk->place();
  trunk::GenerationRequest again = request.first;
  again.deadline = trunk->Now() + request.patience;
  ++outcomes_.resumed;
  world_->Trace("request ", id, " goes on at ", trunk->name(), " with ",
                request.got.size(), " tokens");
  if (request.got.empty()) {
    trunk->Submit(std::move(again), SinkOf(id));
    return;
  }
  const absl::Status taken = trunk->Continue(
      std::move(again), request.resume_token, request.got, SinkOf(id));
  if (!taken.ok()) fail_("a stream goes on with its token", taken.ToString());
}

void SimClients::OnOutput(uint64_t id, const trunk::Output& output,
                          const std::string& resume_token) {
  const auto found = live_.find(id);
  if (found == live_.end() || found->second.between) {
    fail_("a request ends once", absl::StrCat("request ", id));
    return;
  }
  if (quiet_since_ != absl::InfiniteFuture())
    longest_silence_ = std::max(longest_silence_, world_->now() - quiet_since_);
  if (!output.token_ids.empty() || quiet_since_ != absl::InfiniteFuture())
    quiet_since_ = world_->now();
  Request& request = found->second;
  request.got.insert(request.got.end(), output.token_ids.begin(),
                     output.token_ids.end());
  request.resume_token = resume_token;
  outcomes_.tokens += output.token_ids.size();
  const bool prefix = request.got.size() <= request.expected.size() &&
                      std::equal(request.got.begin(), request.got.end(),
                                 request.expected.begin());
  if (!prefix) {
    fail_("a text is what the model alone would say",
          absl::StrCat("request ", id, ": ", absl::StrJoin(request.got, " "),
                       " where ", absl::StrJoin(request.expected, " "),
                       " is right"));
  }
  if (!output.finished) return;
  // As `generate --server A,B`: what one trunk can not go on with another may.
  if (absl::IsUnavailable(output.status) && !request.got.empty() &&
      Follow(id, &request))
    return;
  OnEnd(id, request, output.status);
  live_.erase(found);
}

void SimClients::OnEnd(uint64_t id, const Request& request,
                       const absl::Status& status) {
  if (status.ok()) {
    ++outcomes_.finished;
    if (request.got.size() != request.expected.size()) {
      fail_("a text is what the model alone would say",
            absl::StrCat("request ", id, " ends after ", request.got.size(),
                         " of ", request.expected.size(), " tokens"));
    }
    return;
  }
  ++(request.cancelled && absl::IsCancelled(status) ? outcomes_.cancelled
                                                    : outcomes_.failed);
  ++outcomes_.errors[status.code()];
  if (!IsTyped(status)) {
    fail_("a request ends right or with a typed error",
          absl::StrCat("request ", id, ": ", status.ToString()));
  }
  world_->Trace("request ", id, " ends: ", status.ToString());
}

void SimClients::OnTrunkEnd(Place place) {
  for (auto entry = live_.begin(); entry != live_.end();) {
    Request& request = entry->second;
    const bool broken = request.trunk == place && !request.between;
    if (!broken || Follow(entry->first, &request)) {
      ++entry;
      continue;
    }
    ++outcomes_.cut_off;
    entry = live_.erase(entry);
  }
}

std::string SimClients::DescribeWaiting() const {
  if (live_.empty()) return "none";
  const auto& [id, request] = *live_.begin();
  return absl::StrCat(
      live_.size(), " requests, the first is ", id, ", asked at ",
      absl::FormatDuration(request.asked - absl::UnixEpoch()), ", with ",
      request.got.size(), " of ", request.expected.size(), " tokens");
}

}  // namespace trunkline::sim
