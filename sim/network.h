#pragma once

// The simulated network under both planes: who can reach whom, how long it
// takes, and what is wrong today. Processes are numbered places that live and
// die; a place keeps its number over restarts.
//
// What the data plane promises is in transport/transport.h; faults that stay
// inside the promise are `cut`, `slow` and death. The rest (a message that
// vanishes, comes twice or changed while its connection stays up) breaks the
// promise on purpose: the protocol has to stand it.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "sim/world.h"

namespace trunkline::sim {

using Place = uint32_t;

struct NetworkOptions {
  absl::Duration delay_least = absl::Microseconds(20);
  absl::Duration delay_most = absl::Microseconds(300);
  // Now and then a message takes this long: a lost packet that is sent again.
  double hiccup = 0.002;
  absl::Duration hiccup_most = absl::Milliseconds(250);
  // Silence after which a peer is down.
  absl::Duration peer_timeout = absl::Milliseconds(600);
  absl::Duration connect_timeout = absl::Seconds(2);
  // Beyond the promise, per message.
  double vanish = 0, repeat = 0, damage = 0;
};

class Network {
 public:
  Network(World* world, const NetworkOptions& options)
      : world_(world), options_(options) {}

  Place Add(const std::string& name);
  const std::string& name(Place place) const { return places_[place].name; }
  size_t places() const { return places_.size(); }

  // A process runs at the place, or none does.
  void SetAlive(Place place, bool alive);
  bool alive(Place place) const { return places_[place].alive; }
  // A stopped process: the kernel answers for it, nobody else does.
  void SetPaused(Place place, bool paused);
  bool paused(Place place) const { return places_[place].paused; }
  // Nothing passes from -> to.
  void SetCut(Place from, Place to, bool cut);
  bool cut(Place from, Place to) const { return cuts_.contains({from, to}); }
  void SetSlow(Place from, Place to, absl::Duration extra);
  void HealAll();  // cuts and slow links; beyond-promise faults end too

  // Of one message.
  absl::Duration Delay(Place from, Place to);
  const NetworkOptions& options() const { return options_; }

  // Called after every change of what can be reached.
  void OnChange(std::function<void()> listener) {
    listeners_.push_back(std::move(listener));
  }

 private:
  struct PlaceState {
    std::string name;
    bool alive = false, paused = false;
  };
  void Changed();

  World* const world_;
  NetworkOptions options_;
  std::vector<PlaceState> places_;
  std::set<std::pair<Place, Place>> cuts_;
  std::map<std::pair<Place, Place>, absl::Duration> slow_;
  std::vector<std::function<void()>> listeners_;
};

}  // namespace trunkline::sim
