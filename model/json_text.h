#pragma once

// Strict reading of the small JSON files that lie beside a checkpoint.
//
// Takes what Python's json module writes (the literals Infinity, -Infinity and
// NaN) and refuses what a tolerant reader would hide: duplicate keys, nesting
// without end, trailing bytes. Pure: text in, values out. The file name serves
// the errors only.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trunkline::model {

struct JsonLimits {
  size_t bytes_max = 16u << 20;
  int depth_max = 64;
};

// INVALID_ARGUMENT "FILE:LINE:COLUMN: what is wrong".
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text,
                                         const std::string& file,
                                         const JsonLimits& limits);

// A number that may be one of the non-finite literals, or their transformers 5
// spelling {"__float__": "Infinity"}. False when `value` is no number.
bool ReadJsonNumber(const nlohmann::json& value, double* number);

// A value as it appears in an error: compact and cut after 80 bytes.
std::string JsonForError(const nlohmann::json& value);

// Reads the fields of one JSON object. The first fault is kept and every later
// read answers the fallback, so a caller reads all its fields and then looks at
// status() once. null counts as absent everywhere.
class JsonFields {
 public:
  // path: where the object lies ("" for the top, "block_configs[3]").
  JsonFields(const nlohmann::json& object, std::string path, std::string file);

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Fail(const absl::Status& status);
  // INVALID_ARGUMENT "FILE: PATH.NAME TEXT".
  void FailField(const std::string& name, const std::string& text);

  // From now on `modern` is read from `alias` when the alias is present. When
  // both are, the alias wins (alias_wins) or must hold the same value.
  void Alias(const std::string& modern, const std::string& alias,
             bool alias_wins);

  const nlohmann::json* Find(const std::string& name) const;
  bool Has(const std::string& name) const { return Find(name) != nullptr; }
  int64_t Int(const std::string& name, int64_t fallback, int64_t min,
              int64_t max);
  double Number(const std::string& name, double fallback);
  bool Bool(const std::string& name, bool fallback);
  std::string String(const std::string& name, const std::string& fallback);

  const nlohmann::json& object() const { return object_; }
  const std::string& file() const { return file_; }
  // "llm_config.hidden_size", with the spelling the file uses.
  std::string NameOf(const std::string& name) const;

 private:
  const nlohmann::json& object_;
  const std::string path_;
  const std::string file_;
  std::map<std::string, std::string> spelling_;  // modern name -> name in file
  absl::Status status_;
};

}  // namespace trunkline::model
