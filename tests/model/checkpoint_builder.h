#pragma once

// Small random checkpoints for tests: any layer pattern, element type, latent
// width, sharding, stacking, prefix or wrapper, the same bytes for the same
// seed. And checkpoints held in memory, to break one thing and write them out.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/model_config.h"
#include "model/synthesize.h"

namespace trunkline::model {

// A directory that lives as long as the object.
class TempDirectory {
 public:
  TempDirectory();
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The sizes of the tiny fixtures, so that a test changes what it is about.
struct SmallModel {
  std::string pattern = "MEM*EMEM";
  std::string mtp_pattern;  // "*E": a prediction head
  int64_t vocab_size = 512;
  int64_t hidden_size = 64;
  MambaShape mamba = {8, 16, 2, 16, 4};
  AttentionShape attention = {4, 2, 16};
  int64_t dense_width = 128;
  MoeShape moe = {16, 4, 48, 96, 0, 1, 1, true, 2.5f};
};
ModelConfig SmallConfig(const SmallModel& model);

// Writes spec's checkpoint to DIRECTORY/NAME and answers that path. A fault
// ends the test program: it is one of the test itself.
std::string BuildCheckpoint(const SynthesisSpec& spec,
                            const TempDirectory& directory,
                            const std::string& name = "checkpoint");

struct EditableTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data;
};

// One-file checkpoint in memory.
struct EditableCheckpoint {
  nlohmann::json config;
  std::map<std::string, EditableTensor> tensors;  // by stored name

  static EditableCheckpoint Read(const std::string& directory);
  std::string HeaderJson() const;
  // 8 length bytes, header, data.
  std::string SafetensorsBytes() const;
  // config.json and model.safetensors.
  void Write(const std::string& directory) const;
};

std::string SafetensorsBytes(const std::string& header_json,
                             const std::string& data);
void WriteFile(const std::string& path, const std::string& bytes);
std::string ReadFile(const std::string& path);

}  // namespace trunkline::model
