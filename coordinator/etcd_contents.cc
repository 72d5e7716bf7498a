#include "coordinator/etcd_contents.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "coordinator/placement_record_proto.h"

namespace trunkline::coordinator {
namespace {

absl::Status Damaged(const std::string& key, const std::string& what) {
  return absl::DataLossError(absl::StrCat("etcd key ", key, ": ", what));
}

// The same status with the key in front.
absl::Status At(const std::string& key, const absl::Status& status) {
  return Damaged(key, std::string(status.message()));
}

// "workers/00000000000000000007" with kind "workers" -> 7.
bool NumberOf(absl::string_view name, absl::string_view kind,
              uint64_t* number) {
  return absl::ConsumePrefix(&name, kind) && absl::ConsumePrefix(&name, "/") &&
         name.size() == 20 && absl::SimpleAtoi(name, number);
}

class Reader {
 public:
  absl::Status Take(absl::string_view name, const std::string& value) {
    uint64_t number = 0;
    if (name == "cluster") {
      TL_ASSIGN_OR_RETURN(contents_.cluster, DecodeCluster(value));
      has_cluster_ = true;
    } else if (NumberOf(name, "workers", &number)) {
      if (number >= WorkerId::kNone) {
        return absl::DataLossError("is no worker's");
      }
      TL_ASSIGN_OR_RETURN(WorkerRecord worker, DecodeWorker(value));
      worker.id = WorkerId(static_cast<uint32_t>(number));
      contents_.workers.push_back(std::move(worker));
    } else if (NumberOf(name, "maps", &number)) {
      TL_ASSIGN_OR_RETURN(maps_[number], DecodeMap(value));
    } else if (NumberOf(name, "placements", &number)) {
      TL_ASSIGN_OR_RETURN(PlacementRecord placement, DecodePlacement(value));
      placement.map.version = PlacementVersion(number);
      contents_.placements.push_back(std::move(placement));
    } else if (NumberOf(name, "history", &number)) {
      TL_ASSIGN_OR_RETURN(HistoryRecord entry, DecodeHistory(value));
      entry.sequence = number;
      contents_.history.push_back(std::move(entry));
    } else if (name != "leader" && name != "schema" && name != "epoch" &&
               name != "commit") {
      return absl::DataLossError("has no place here");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StoreContents> Finish(const EtcdKeys& keys) {
    if (!has_cluster_) return Damaged(keys.cluster(), "is missing");
    for (PlacementRecord& placement : contents_.placements) {
      const PlacementVersion version = placement.map.version;
      const auto map = maps_.find(version.value);
      if (map == maps_.end()) return Damaged(keys.map(version), "is missing");
      placement.map = std::move(map->second);
      placement.map.version = version;
      maps_.erase(map);
    }
    if (!maps_.empty()) {
      return Damaged(keys.map(PlacementVersion(maps_.begin()->first)),
                     "belongs to no placement");
    }
    return std::move(contents_);
  }

 private:
  StoreContents contents_;
  bool has_cluster_ = false;
  std::map<uint64_t, placement::PlacementMap> maps_;
};

}  // namespace

std::string EtcdKeys::Numbered(const char* kind, uint64_t number) const {
  return absl::StrFormat("%s%s/%020d", prefix_, kind, number);
}
std::string EtcdKeys::pending_batch(uint64_t index) const {
  return Numbered("pending", index);
}
std::string EtcdKeys::worker(WorkerId id) const {
  return Numbered("workers", id.value);
}
std::string EtcdKeys::placement(PlacementVersion version) const {
  return Numbered("placements", version.value);
}
std::string EtcdKeys::map(PlacementVersion version) const {
  return Numbered("maps", version.value);
}
std::string EtcdKeys::history(uint64_t sequence) const {
  return Numbered("history", sequence);
}

void EtcdKeys::ErasePending(KeyValues* records) const {
  records->erase(pending());
  records->erase(records->lower_bound(pending_batch(0)),
                 records->upper_bound(
                     pending_batch(std::numeric_limits<uint64_t>::max())));
}

absl::StatusOr<StoreContents> ContentsFrom(const EtcdKeys& keys,
                                           const KeyValues& records) {
  Reader reader;
  for (const auto& [key, value] : records) {
    absl::string_view name = key;
    if (!absl::ConsumePrefix(&name, keys.prefix())) {
      return Damaged(key, "has no place here");
    }
    if (absl::Status status = reader.Take(name, value); !status.ok()) {
      return At(key, status);
    }
  }
  return reader.Finish(keys);
}

}  // namespace trunkline::coordinator
