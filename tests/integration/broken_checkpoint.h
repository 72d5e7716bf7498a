#pragma once

// Copies of a good checkpoint with one thing wrong, for tests that expect the
// error to name it.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace trunkline::testing {

// Copies the checkpoint's files (not its expected/ folder) into `to`, which
// must not exist.
void CopyCheckpoint(const std::string& from, const std::string& to);

// Rewrites one JSON file of a directory.
void EditJson(const std::string& file,
              const std::function<void(nlohmann::json&)>& edit);

// Rewrites the header of a safetensors file and leaves the data as it is.
void EditSafetensorsHeader(const std::string& file,
                           const std::function<void(nlohmann::json&)>& edit);

// Replaces the first occurrence; the test fails when there is none.
void ReplaceInFile(const std::string& file, const std::string& from,
                   const std::string& to);

void Truncate(const std::string& file, double fraction);

}  // namespace trunkline::testing
