// Reading scenarios. Every key is known or the file is refused.

#include <fstream>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "sim/scenario.h"

namespace trunkline::sim {
namespace {

using Json = nlohmann::json;

// Takes the keys of one object, each by its reader.
using Readers = std::map<std::string, std::function<absl::Status(const Json&)>>;

absl::Status ReadObject(const Json& object, const std::string& where,
                        const Readers& readers) {
  if (!object.is_object())
    return absl::InvalidArgumentError(where + " is no object");
  for (const auto& [key, value] : object.items()) {
    const auto reader = readers.find(key);
    if (reader == readers.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ".", key, " is not known"));
    }
    const absl::Status status = reader->second(value);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ".", key, ": ", std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

template <typename Number>
std::function<absl::Status(const Json&)> To(Number* number) {
  return [number](const Json& value) -> absl::Status {
    if (!value.is_number_integer())
      return absl::InvalidArgumentError("no whole number");
    *number = static_cast<Number>(value.get<int64_t>());
    return absl::OkStatus();
  };
}

std::function<absl::Status(const Json&)> To(bool* flag) {
  return [flag](const Json& value) -> absl::Status {
    if (!value.is_boolean())
      return absl::InvalidArgumentError("neither true nor false");
    *flag = value.get<bool>();
    return absl::OkStatus();
  };
}

std::function<absl::Status(const Json&)> To(std::string* text) {
  return [text](const Json& value) -> absl::Status {
    if (!value.is_string()) return absl::InvalidArgumentError("no text");
    *text = value.get<std::string>();
    return absl::OkStatus();
  };
}

std::function<absl::Status(const Json&)> To(absl::Duration* duration) {
  return [duration](const Json& value) -> absl::Status {
    if (!value.is_string() ||
        !absl::ParseDuration(value.get<std::string>(), duration))
      return absl::InvalidArgumentError("no duration like \"300ms\"");
    return absl::OkStatus();
  };
}

absl::Status ReadCluster(const Json& json, ClusterOptions* cluster) {
  coordinator::CoreOptions& core = cluster->coordinator.core;
  trunk::ExpertLink::Options& link = cluster->trunk.link;
  cluster->memory_bytes = {0};
  const Readers readers = {
      {"coordinators", To(&cluster->coordinators)},
      {"trunks", To(&cluster->trunks)},
      {"experts", To(&cluster->experts)},
      {"moe_layers", To(&cluster->moe_layers)},
      {"experts_per_layer", To(&cluster->experts_per_layer)},
      {"top_k", To(&cluster->top_k)},
      {"expert_workers", To(&core.driver.expert_workers)},
      {"replicas", To(&core.driver.replicas)},
      {"memory_bytes", To(&cluster->memory_bytes[0])},
      {"lease", To(&core.membership.lease)},
      {"stage_timeout", To(&core.driver.stage_timeout)},
      {"trunk_grace", To(&core.driver.trunk_grace)},
      {"repair_delay", To(&core.driver.repair_delay)},
      {"redundancy_delay", To(&core.driver.redundancy_delay)},
      {"retry_delay", To(&core.driver.retry_delay)},
      {"rebalance_interval", To(&core.rebalance_interval)},
      {"leader_lease", To(&cluster->coordinator.leader_lease)},
      {"worker_deadline", To(&link.limits.worker_deadline)},
      {"step_deadline", To(&link.limits.step_deadline)},
      {"newer_view_wait", To(&link.newer_view_wait)},
      {"unready_patience", To(&cluster->trunk.core.unready_patience)},
      {"sequences_max", To(&cluster->trunk.sequences_max)},
      {"canary_tokens", To(&cluster->trunk.canary_tokens)},
      {"experts_from_peers", To(&cluster->experts_from_peers)},
      {"peer_timeout", To(&cluster->network.peer_timeout)},
      {"load_time", To(&cluster->load_time)}};
  const absl::Status status = ReadObject(json, "cluster", readers);
  if (!status.ok()) return status;
  if (cluster->coordinators < 1 || cluster->trunks < 1 ||
      cluster->experts < 1 || cluster->moe_layers < 1 || cluster->top_k < 1 ||
      cluster->experts_per_layer < cluster->top_k)
    return absl::InvalidArgumentError("cluster: a count is too small");
  return core.Validate();
}

absl::Status ReadExpectations(const Json& json, Scenario* scenario) {
  const Readers readers = {
      {"failed_most", To(&scenario->failed_most)},
      {"finished_least", To(&scenario->finished_least)},
      {"activated_least", To(&scenario->activated_least)},
      {"activated_most", To(&scenario->activated_most)},
      {"abandoned_least", To(&scenario->abandoned_least)},
      {"canary_rollbacks_least", To(&scenario->canary_rollbacks_least)},
      {"silence_most", To(&scenario->silence_most)},
      {"settled", To(&scenario->settled)}};
  return ReadObject(json, "expect", readers);
}

absl::Status ReadEvents(const Json& json, Scenario* scenario) {
  if (!json.is_array()) return absl::InvalidArgumentError("events: no list");
  for (const Json& one : json) {
    ScenarioEvent event;
    std::string line;
    const absl::Status status =
        ReadObject(one, "events", {{"at", To(&event.at)}, {"do", To(&line)}});
    if (!status.ok()) return status;
    for (size_t begin = 0; begin < line.size();) {
      size_t end = line.find(' ', begin);
      if (end == std::string::npos) end = line.size();
      const std::string word = line.substr(begin, end - begin);
      if (event.what.empty()) {
        event.what = word;
      } else {
        event.arguments.push_back(word);
      }
      begin = end + 1;
    }
    scenario->events.push_back(std::move(event));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Scenario> ReadScenario(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(path + ": can not be read");
  const Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  Scenario scenario;
  scenario.cluster.network.hiccup = 0;
  const auto into = [](auto read, auto* target) {
    return [read, target](const Json& value) { return read(value, target); };
  };
  const Readers readers = {{"name", To(&scenario.name)},
                           {"peer", To(&scenario.peer)},
                           {"claim", To(&scenario.claim)},
                           {"seed", To(&scenario.seed)},
                           {"boot", To(&scenario.boot)},
                           {"calm", To(&scenario.calm)},
                           {"clients_pause", To(&scenario.clients_pause)},
                           {"clients_from", To(&scenario.clients_from)},
                           {"until", To(&scenario.until)},
                           {"cluster", into(ReadCluster, &scenario.cluster)},
                           {"events", into(ReadEvents, &scenario)},
                           {"expect", into(ReadExpectations, &scenario)}};
  const absl::Status status = json.is_discarded()
                                  ? absl::InvalidArgumentError("no JSON")
                                  : ReadObject(json, "scenario", readers);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", std::string(status.message())));
  }
  return scenario;
}

}  // namespace trunkline::sim
