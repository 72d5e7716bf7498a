#include "sim/network.h"

namespace trunkline::sim {

Place Network::Add(const std::string& name) {
  places_.push_back({.name = name, .alive = false, .paused = false});
  return static_cast<Place>(places_.size() - 1);
}

void Network::SetAlive(Place place, bool alive) {
  places_[place].alive = alive;
  places_[place].paused = false;
  Changed();
}

void Network::SetPaused(Place place, bool paused) {
  places_[place].paused = paused;
  Changed();
}

void Network::SetCut(Place from, Place to, bool cut) {
  if (cut) {
    cuts_.insert({from, to});
  } else {
    cuts_.erase({from, to});
  }
  Changed();
}

void Network::SetSlow(Place from, Place to, absl::Duration extra) {
  slow_[{from, to}] = extra;
}

void Network::HealAll() {
  cuts_.clear();
  slow_.clear();
  options_.vanish = options_.repeat = options_.damage = 0;
  Changed();
}

absl::Duration Network::Delay(Place from, Place to) {
  absl::Duration delay =
      world_->Between(options_.delay_least, options_.delay_most);
  if (world_->Chance(options_.hiccup))
    delay += world_->Between(absl::ZeroDuration(), options_.hiccup_most);
  const auto slow = slow_.find({from, to});
  if (slow != slow_.end()) delay += slow->second;
  return delay;
}

void Network::Changed() {
  for (const auto& listener : listeners_) listener();
}

}  // namespace trunkline::sim
