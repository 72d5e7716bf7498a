#include "sim/scenario.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "sim/sim_admin.h"

namespace trunkline::sim {
namespace {

// Does what a scenario's events say. The first that can not be done fails the
// run: a scenario that does nothing proves nothing.
class Script {
 public:
  Script(SimCluster* cluster, SimAdmin* admin)
      : cluster_(cluster), admin_(admin) {}

  void Do(const ScenarioEvent& event) {
    cluster_->world().Trace("scenario: ", event.what);
    const auto found = verbs_.find(event.what);
    if (found == verbs_.end() ||
        event.arguments.size() != found->second.first) {
      Fail(event, "is not known with so many arguments");
      return;
    }
    found->second.second(event.arguments);
  }

 private:
  using Words = std::vector<std::string>;
  void Fail(const ScenarioEvent& event, const std::string& why) {
    cluster_->checker().Fail("the scenario makes sense",
                             absl::StrCat("'", event.what, "' ", why));
  }
  Place At(const std::string& name) {
    for (const Place place : cluster_->processes())
      if (cluster_->network().name(place) == name) return place;
    cluster_->checker().Fail("the scenario makes sense",
                             "nobody is called " + name);
    return 0;
  }
  int Index(const std::string& name) {
    const Place place = At(name);
    return static_cast<int>(place) -
           static_cast<int>(cluster_->PlaceOf(SimCluster::Kind::kExpert, 0));
  }
  ExpertMachine& Machine(const std::string& name) {
    return cluster_->expert_machine(
        std::clamp(Index(name), 0, cluster_->options().experts - 1));
  }
  void CutBoth(Place place, bool cut) {
    for (const Place other : cluster_->processes()) {
      if (other == place) continue;
      cluster_->network().SetCut(place, other, cut);
      cluster_->network().SetCut(other, place, cut);
    }
  }

  SimCluster* const cluster_;
  SimAdmin* const admin_;
  // By name: how many arguments, and what to do.
  const std::map<std::string,
                 std::pair<size_t, std::function<void(const Words&)>>>
      verbs_ = {
          {"kill",
           {1, [this](const Words& w) { cluster_->Kill(At(w[0]), false); }}},
          {"kill_silently",
           {1, [this](const Words& w) { cluster_->Kill(At(w[0]), true); }}},
          {"start",
           {1, [this](const Words& w) { cluster_->StartProcess(At(w[0])); }}},
          {"stop", {1, [this](const Words& w) { cluster_->Pause(At(w[0])); }}},
          {"continue",
           {1, [this](const Words& w) { cluster_->Resume(At(w[0])); }}},
          {"terminate",
           {1, [this](const Words& w) { cluster_->Terminate(At(w[0])); }}},
          {"isolate", {1, [this](const Words& w) { CutBoth(At(w[0]), true); }}},
          {"join", {1, [this](const Words& w) { CutBoth(At(w[0]), false); }}},
          {"cut",
           {2,
            [this](const Words& w) {
              cluster_->network().SetCut(At(w[0]), At(w[1]), true);
            }}},
          {"heal",
           {2,
            [this](const Words& w) {
              cluster_->network().SetCut(At(w[0]), At(w[1]), false);
            }}},
          {"slow_link",
           {3,
            [this](const Words& w) {
              absl::Duration extra;
              if (!absl::ParseDuration(w[2], &extra)) {
                cluster_->checker().Fail("the scenario makes sense", w[2]);
              }
              cluster_->network().SetSlow(At(w[0]), At(w[1]), extra);
            }}},
          {"drain",
           {1, [this](const Words& w) { admin_->Drain(Index(w[0]), true); }}},
          {"undrain",
           {1, [this](const Words& w) { admin_->Drain(Index(w[0]), false); }}},
          {"apply_random",
           {0, [this](const Words&) { admin_->ApplyRandom(); }}},
          {"rollback", {0, [this](const Words&) { admin_->Rollback(); }}},
          {"rebalance",
           {0,
            [this](const Words&) {
              coordinator::RebalanceOptions options;
              options.min_gain = 0.01;
              admin_->Rebalance(options);
            }}},
          {"break_disk",
           {1, [this](const Words& w) { Machine(w[0]).disk_broken = true; }}},
          {"mend_disk",
           {1, [this](const Words& w) { Machine(w[0]).disk_broken = false; }}},
          {"rot_sends",
           {1, [this](const Words& w) { Machine(w[0]).sends_rotten = true; }}},
          {"send_well",
           {1, [this](const Words& w) { Machine(w[0]).sends_rotten = false; }}},
          {"load_wrong",
           {1,
            [this](const Words& w) {
              Machine(w[0]).loads_wrong = true;
              cluster_->checker().SuspendAnswers(true);
            }}},
          {"load_right",
           {1, [this](const Words& w) { Machine(w[0]).loads_wrong = false; }}},
          {"compare_answers",
           {0,
            [this](const Words&) {
              cluster_->checker().SuspendAnswers(false);
            }}},
          {"load_time",
           {2,
            [this](const Words& w) {
              if (!absl::ParseDuration(w[1], &Machine(w[0]).load_time))
                cluster_->checker().Fail("the scenario makes sense", w[1]);
            }}},
          {"store_write_fails",
           {0,
            [this](const Words&) {
              cluster_->disk().FailNextWrite(SimDisk::WriteFault::kAfter);
            }}},
  };
};

int64_t CountHistory(const SimCluster& cluster, placement::VersionState state) {
  int64_t count = 0;
  for (const auto& entry : cluster.disk().contents().history)
    count += entry.state == state;
  return count;
}

void CheckExpectations(const Scenario& scenario, SimCluster* cluster) {
  const SimClients::Outcomes& outcomes = cluster->clients().outcomes();
  const auto expect = [&](bool met, const std::string& what) {
    if (!met) cluster->checker().Fail("the scenario's claim holds", what);
  };
  const auto failed = static_cast<int64_t>(outcomes.failed + outcomes.cut_off);
  if (scenario.failed_most >= 0) {
    expect(failed <= scenario.failed_most,
           absl::StrCat(failed, " requests failed, at most ",
                        scenario.failed_most, " may"));
  }
  const auto finished = static_cast<int64_t>(outcomes.finished);
  expect(finished >= scenario.finished_least,
         absl::StrCat(finished, " requests finished, at least ",
                      scenario.finished_least, " must"));
  const int64_t activated =
      CountHistory(*cluster, placement::VersionState::kActive);
  expect(activated >= scenario.activated_least,
         absl::StrCat(activated, " versions became active, at least ",
                      scenario.activated_least, " must"));
  if (scenario.activated_most >= 0) {
    expect(activated <= scenario.activated_most,
           absl::StrCat(activated, " versions became active, at most ",
                        scenario.activated_most, " may"));
  }
  const int64_t abandoned =
      CountHistory(*cluster, placement::VersionState::kAbandoned);
  expect(abandoned >= scenario.abandoned_least,
         absl::StrCat(abandoned, " versions were abandoned, at least ",
                      scenario.abandoned_least, " must"));
  const auto rolled_back = static_cast<int64_t>(cluster->canary_rollbacks());
  expect(rolled_back >= scenario.canary_rollbacks_least,
         absl::StrCat(rolled_back, " versions were rolled back by the canary, ",
                      "at least ", scenario.canary_rollbacks_least, " must"));
  if (scenario.silence_most > absl::ZeroDuration()) {
    const absl::Duration silence = cluster->clients().longest_silence();
    expect(silence <= scenario.silence_most,
           absl::StrCat("no token came for ", absl::FormatDuration(silence),
                        ", at most ",
                        absl::FormatDuration(scenario.silence_most)));
  }
  if (scenario.settled) {
    const std::string why = cluster->WhyNotSettled();
    expect(why.empty(), why);
  }
}

}  // namespace

RunResult RunScenario(const Scenario& scenario, bool keep_lines) {
  World world(scenario.seed);
  if (keep_lines) world.KeepLines();
  SimCluster cluster(&world, scenario.cluster);
  SimAdmin admin(&cluster);
  Script script(&cluster, &admin);
  if (scenario.boot) cluster.Boot();
  for (const ScenarioEvent& event : scenario.events) {
    world.After(event.at, [&script, event] { script.Do(event); });
  }
  world.After(scenario.clients_from, [&] {
    cluster.clients().Start(scenario.clients_pause, /*patient=*/true);
  });
  cluster.RunFor(scenario.until);
  cluster.clients().Stop();
  cluster.RunUntilDone(absl::Seconds(30),
                       [&] { return cluster.clients().waiting() == 0; });
  if (cluster.clients().waiting() != 0) {
    cluster.checker().Fail("no request hangs",
                           cluster.clients().DescribeWaiting());
  }
  if (cluster.violation().empty()) CheckExpectations(scenario, &cluster);
  RunResult result;
  if (cluster.violation().empty() && scenario.calm) {
    result.settled_after = RunCalm(&cluster, &admin, absl::Seconds(150));
  }
  FillResult(cluster, admin, &result);
  return result;
}

}  // namespace trunkline::sim
