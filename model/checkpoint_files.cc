#include "model/checkpoint_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/json_text.h"

namespace trunkline::model {
namespace {

using Files = std::vector<std::shared_ptr<const SafetensorsFile>>;
using WeightMapOfIndex = std::map<std::string, std::string>;  // tensor -> shard

constexpr char kSingleName[] = "model.safetensors";
constexpr char kIndexName[] = "model.safetensors.index.json";

bool Exists(const std::string& path) {
  struct stat stat_buffer;
  return stat(path.c_str(), &stat_buffer) == 0;
}

std::string BaseName(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

absl::StatusOr<WeightMapOfIndex> ReadIndex(const std::string& path) {
  constexpr int64_t kIndexBytesMax = int64_t{256} << 20;
  TL_ASSIGN_OR_RETURN(const std::string text,
                      ReadSmallFile(path, kIndexBytesMax));
  JsonLimits limits;
  limits.bytes_max = kIndexBytesMax;
  limits.depth_max = 16;
  TL_ASSIGN_OR_RETURN(const nlohmann::json document,
                      ParseJson(text, path, limits));
  JsonFields fields(document, "", path);
  TL_RETURN_IF_ERROR(fields.status());
  const nlohmann::json* map = fields.Find("weight_map");
  if (map == nullptr || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": weight_map, an object from tensor to shard, is missing"));
  }
  WeightMapOfIndex result;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string name =
        shard.is_string() ? shard.get<std::string>() : std::string();
    if (name.empty() || absl::StrContains(name, "/") || name == "." ||
        name == "..") {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": weight_map puts tensor ", tensor, " into ",
          JsonForError(shard), ", the name of a file beside it is expected"));
    }
    result[tensor] = name;
  }
  return result;
}

// Both directions: every listed tensor lies where the index says, and nothing
// lies in a shard that the index does not list.
absl::Status CheckIndex(const std::string& index_path,
                        const WeightMapOfIndex& index, const Files& files) {
  std::set<std::string> found;
  for (const auto& file : files) {
    const std::string shard = BaseName(file->path());
    for (const StoredTensor& tensor : file->header().tensors) {
      const auto listed = index.find(tensor.name);
      if (listed == index.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(file->path(), ": holds tensor ", tensor.name,
                         ", which ", BaseName(index_path), " does not list"));
      }
      if (listed->second != shard) {
        return absl::InvalidArgumentError(
            absl::StrCat(index_path, ": puts tensor ", tensor.name, " into ",
                         listed->second, ", but it lies in ", shard));
      }
      found.insert(tensor.name);
    }
  }
  for (const auto& [tensor, shard] : index) {
    if (found.count(tensor) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, ": puts tensor ", tensor, " into ", shard,
                     ", but that file does not hold it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path,
                                          int64_t bytes_max) {
  struct stat stat_buffer;
  if (stat(path.c_str(), &stat_buffer) != 0) {
    const std::string text =
        absl::StrCat(path, ": can not open: ", strerror(errno));
    return errno == ENOENT || errno == ENOTDIR ? absl::NotFoundError(text)
                                               : absl::UnavailableError(text);
  }
  if (!S_ISREG(stat_buffer.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a regular file"));
  }
  if (stat_buffer.st_size > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", stat_buffer.st_size, " bytes, at most ",
                     bytes_max, " are read"));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) {
    return absl::UnavailableError(absl::StrCat(path, ": can not read"));
  }
  return text.str();
}

absl::StatusOr<Files> OpenWeightFiles(const std::string& directory) {
  const std::string single_path = absl::StrCat(directory, "/", kSingleName);
  const std::string index_path = absl::StrCat(directory, "/", kIndexName);
  const bool single = Exists(single_path);
  const bool sharded = Exists(index_path);
  if (single && sharded) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, ": holds both ", kSingleName, " and ",
                     kIndexName, "; remove the one that is stale"));
  }
  if (!single && !sharded) {
    return absl::NotFoundError(
        absl::StrCat(directory, ": no ", kSingleName, " and no ", kIndexName));
  }
  Files files;
  if (single) {
    TL_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(single_path));
    files.push_back(std::move(file));
    return files;
  }
  TL_ASSIGN_OR_RETURN(const WeightMapOfIndex index, ReadIndex(index_path));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  for (const std::string& shard : shards) {
    auto file = SafetensorsFile::Open(absl::StrCat(directory, "/", shard));
    if (!file.ok()) {
      return Annotate(file.status(),
                      absl::StrCat(index_path, " lists the shard ", shard));
    }
    files.push_back(*std::move(file));
  }
  TL_RETURN_IF_ERROR(CheckIndex(index_path, index, files));
  return files;
}

}  // namespace trunkline::model
