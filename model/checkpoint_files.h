#pragma once

// The files of one checkpoint directory: reads the small ones whole, finds and
// opens the safetensors file or all shards, and checks the index against what
// the shards hold. Knows no model.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/safetensors_file.h"

namespace trunkline::model {

// NOT_FOUND when there is no such file; INVALID_ARGUMENT when it is larger
// than bytes_max.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path,
                                          int64_t bytes_max);

// model.safetensors, or the shards of model.safetensors.index.json by name.
absl::StatusOr<std::vector<std::shared_ptr<const SafetensorsFile>>>
OpenWeightFiles(const std::string& directory);

}  // namespace trunkline::model
