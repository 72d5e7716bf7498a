#include "placement/placement_json.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::placement {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "trunkline.placement";
constexpr uint64_t kFormatVersion = 1;
// Deeper than the schema needs, and shallow enough that hostile nesting can not
// exhaust the stack.
constexpr int kDepthMax = 8;

absl::Status Invalid(const std::string& where, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("placement document: ", where, ": ", what));
}

// nlohmann keeps the last of two equal keys without a word; a document that
// says a thing twice is refused instead.
class RepeatedKeyFinder {
 public:
  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    if (depth > kDepthMax) too_deep_ = true;
    if (event == json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == json::parse_event_t::key && !keys_.empty()) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) repeated_ = key;
    }
    return !too_deep_;
  }
  const std::string& repeated() const { return repeated_; }
  bool too_deep() const { return too_deep_; }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string repeated_;
  bool too_deep_ = false;
};

absl::Status CheckFields(const json& value, const std::string& where,
                         const std::set<std::string>& required,
                         const std::set<std::string>& optional) {
  if (!value.is_object()) return Invalid(where, "is not an object");
  for (const auto& item : value.items()) {
    if (required.count(item.key()) == 0 && optional.count(item.key()) == 0) {
      return Invalid(where, absl::StrCat("unknown field '", item.key(), "'"));
    }
  }
  for (const std::string& name : required) {
    if (!value.contains(name)) {
      return Invalid(where, absl::StrCat("missing field '", name, "'"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ReadUnsigned(const json& value,
                                      const std::string& where, uint64_t max) {
  if (!value.is_number_unsigned()) {
    return Invalid(where, absl::StrCat("is ", value.type_name(),
                                       ", expected an integer from 0"));
  }
  const uint64_t number = value.get<uint64_t>();
  if (number > max) {
    return Invalid(where, absl::StrCat("is ", number, ", at most ", max));
  }
  return number;
}

// The largest value is the id that names nothing.
absl::StatusOr<uint32_t> ReadId(const json& value, const std::string& where) {
  TL_ASSIGN_OR_RETURN(
      const uint64_t number,
      ReadUnsigned(value, where, std::numeric_limits<uint32_t>::max() - 1));
  return static_cast<uint32_t>(number);
}

absl::StatusOr<Replica> ReadReplica(const json& value,
                                    const std::string& where) {
  TL_RETURN_IF_ERROR(CheckFields(value, where, {"worker", "slot"}, {}));
  Replica replica;
  TL_ASSIGN_OR_RETURN(const uint32_t worker,
                      ReadId(value["worker"], where + ".worker"));
  TL_ASSIGN_OR_RETURN(replica.slot, ReadId(value["slot"], where + ".slot"));
  replica.worker = WorkerId(worker);
  return replica;
}

absl::StatusOr<LayerPlacement> ReadLayer(const json& value,
                                         const std::string& where) {
  TL_RETURN_IF_ERROR(CheckFields(value, where, {"layer", "experts"}, {}));
  LayerPlacement layer;
  TL_ASSIGN_OR_RETURN(const uint32_t index,
                      ReadId(value["layer"], where + ".layer"));
  layer.layer = LayerIndex(index);
  const json& experts = value["experts"];
  if (!experts.is_array())
    return Invalid(where + ".experts", "is not an array");
  for (size_t e = 0; e < experts.size(); ++e) {
    const std::string expert_where = absl::StrCat(where, ".experts[", e, "]");
    if (!experts[e].is_array()) return Invalid(expert_where, "is not an array");
    std::vector<Replica> replicas;
    for (size_t r = 0; r < experts[e].size(); ++r) {
      TL_ASSIGN_OR_RETURN(
          const Replica replica,
          ReadReplica(experts[e][r], absl::StrCat(expert_where, "[", r, "]")));
      replicas.push_back(replica);
    }
    layer.replicas.push_back(std::move(replicas));
  }
  return layer;
}

absl::Status ReadWorkers(const json& workers, PlacementDocument* document) {
  if (!workers.is_array()) return Invalid("workers", "is not an array");
  std::set<std::string> names;
  for (size_t i = 0; i < workers.size(); ++i) {
    const std::string where = absl::StrCat("workers[", i, "]");
    TL_RETURN_IF_ERROR(CheckFields(workers[i], where, {"id", "name"}, {}));
    TL_ASSIGN_OR_RETURN(const uint32_t id,
                        ReadId(workers[i]["id"], where + ".id"));
    const json& name = workers[i]["name"];
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
      return Invalid(where + ".name", "is not a name");
    }
    if (!document->worker_names.emplace(WorkerId(id), name).second) {
      return Invalid(where, absl::StrCat("id ", id, " appears twice"));
    }
    if (!names.insert(name).second) {
      return Invalid(where, absl::StrCat("name '", name.get<std::string>(),
                                         "' appears twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<json> Parse(absl::string_view text) {
  RepeatedKeyFinder finder;
  json root;
  try {
    root = json::parse(text.begin(), text.end(), std::ref(finder));
  } catch (const json::exception& error) {
    if (!finder.too_deep()) return Invalid("syntax", error.what());
  }
  if (finder.too_deep()) {
    return Invalid("syntax", absl::StrCat("nested deeper than ", kDepthMax));
  }
  if (!finder.repeated().empty()) {
    return Invalid("syntax",
                   absl::StrCat("field '", finder.repeated(), "' repeated"));
  }
  return root;
}

}  // namespace

std::string PlacementToJson(const PlacementDocument& document) {
  // Built by hand: one line per expert reads and diffs well, which a generic
  // indentation does not give.
  const PlacementMap& map = document.map;
  std::string text = absl::StrCat("{\n \"format\": \"", kFormat,
                                  "\",\n \"format_version\": ", kFormatVersion,
                                  ",\n \"placement_version\": ",
                                  map.version.valid() ? map.version.value : 0,
                                  ",\n \"workers\": [");
  const char* separator = "\n";
  for (const auto& [id, name] : document.worker_names) {
    absl::StrAppend(
        &text, separator, "  {\"id\": ", id.value, ", \"name\": ",
        json(name).dump(-1, ' ', true, json::error_handler_t::replace), "}");
    separator = ",\n";
  }
  absl::StrAppend(&text, "\n ],\n \"layers\": [");
  separator = "\n";
  for (const LayerPlacement& layer : map.layers) {
    absl::StrAppend(&text, separator, "  {\"layer\": ", layer.layer.value,
                    ", \"experts\": [");
    const char* expert_separator = "\n";
    for (const std::vector<Replica>& replicas : layer.replicas) {
      absl::StrAppend(&text, expert_separator, "   [");
      const char* replica_separator = "";
      for (const Replica& replica : replicas) {
        absl::StrAppend(&text, replica_separator,
                        "{\"worker\": ", replica.worker.value,
                        ", \"slot\": ", replica.slot, "}");
        replica_separator = ", ";
      }
      absl::StrAppend(&text, "]");
      expert_separator = ",\n";
    }
    absl::StrAppend(&text, "\n  ]}");
    separator = ",\n";
  }
  absl::StrAppend(&text, "\n ]\n}\n");
  return text;
}

absl::StatusOr<PlacementDocument> PlacementFromJson(absl::string_view text) {
  TL_ASSIGN_OR_RETURN(const json root, Parse(text));
  TL_RETURN_IF_ERROR(
      CheckFields(root, "document",
                  {"format", "format_version", "placement_version", "layers"},
                  {"workers"}));
  if (root["format"] != kFormat) {
    return Invalid("format", absl::StrCat("is not \"", kFormat, "\""));
  }
  TL_ASSIGN_OR_RETURN(const uint64_t format_version,
                      ReadUnsigned(root["format_version"], "format_version",
                                   std::numeric_limits<uint64_t>::max()));
  if (format_version != kFormatVersion) {
    return Invalid("format_version",
                   absl::StrCat("is ", format_version, ", this program reads ",
                                kFormatVersion));
  }
  PlacementDocument document;
  TL_ASSIGN_OR_RETURN(
      const uint64_t version,
      ReadUnsigned(root["placement_version"], "placement_version",
                   std::numeric_limits<uint64_t>::max() - 1));
  if (version != 0) document.map.version = PlacementVersion(version);
  if (root.contains("workers")) {
    TL_RETURN_IF_ERROR(ReadWorkers(root["workers"], &document));
  }
  const json& layers = root["layers"];
  if (!layers.is_array()) return Invalid("layers", "is not an array");
  for (size_t l = 0; l < layers.size(); ++l) {
    TL_ASSIGN_OR_RETURN(LayerPlacement layer,
                        ReadLayer(layers[l], absl::StrCat("layers[", l, "]")));
    document.map.layers.push_back(std::move(layer));
  }
  return document;
}

absl::StatusOr<PlacementMap> ResolveWorkers(
    const PlacementDocument& document,
    const std::map<std::string, WorkerId>& cluster) {
  std::map<WorkerId, WorkerId> renamed;
  for (const auto& [id, name] : document.worker_names) {
    const auto found = cluster.find(name);
    if (found == cluster.end()) {
      return absl::NotFoundError(absl::StrCat("placement document: worker '",
                                              name, "' is not in the cluster"));
    }
    renamed.emplace(id, found->second);
  }
  PlacementMap map = document.map;
  for (LayerPlacement& layer : map.layers) {
    for (std::vector<Replica>& replicas : layer.replicas) {
      for (Replica& replica : replicas) {
        const auto found = renamed.find(replica.worker);
        if (found != renamed.end()) replica.worker = found->second;
      }
      // Another order of ids is another order of replicas.
      std::sort(replicas.begin(), replicas.end());
    }
  }
  return map;
}

}  // namespace trunkline::placement
