#include "tests/model/checkpoint_builder.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/check.h"
#include "model/safetensors_file.h"

namespace trunkline::model {
namespace {

std::vector<LayerSpec> LayersOf(const SmallModel& model,
                                const std::string& pattern) {
  std::vector<LayerSpec> layers;
  for (const char letter : pattern) {
    LayerSpec layer;
    layer.index = LayerIndex(static_cast<uint32_t>(layers.size()));
    switch (letter) {
      case 'M':
        layer.kind = LayerKind::kMamba;
        layer.mamba = model.mamba;
        break;
      case '*':
        layer.kind = LayerKind::kAttention;
        layer.attention = model.attention;
        break;
      case '-':
        layer.kind = LayerKind::kMlp;
        layer.mlp.width = model.dense_width;
        break;
      default:
        TL_CHECK(letter == 'E') << "layer letter " << letter;
        layer.kind = LayerKind::kMoe;
        layer.moe = model.moe;
        break;
    }
    layers.push_back(layer);
  }
  return layers;
}

}  // namespace

TempDirectory::TempDirectory() {
  const char* base = std::getenv("TMPDIR");
  path_ =
      std::string(base != nullptr ? base : "/tmp") + "/trunkline_model_XXXXXX";
  TL_CHECK(mkdtemp(path_.data()) != nullptr) << path_;
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

ModelConfig SmallConfig(const SmallModel& model) {
  ModelConfig config;
  config.architecture = "NemotronHForCausalLM";
  config.model_type = "nemotron_h";
  config.vocab_size = model.vocab_size;
  config.hidden_size = model.hidden_size;
  config.max_positions = 8192;
  config.bos_token_id = 1;
  config.pad_token_id = 0;
  config.eos_token_ids = {2};
  config.layers = LayersOf(model, model.pattern);
  config.mtp_layers = LayersOf(model, model.mtp_pattern);
  return config;
}

std::string BuildCheckpoint(const SynthesisSpec& spec,
                            const TempDirectory& directory,
                            const std::string& name) {
  const std::string path = directory.path() + "/" + name;
  const absl::Status status = SynthesizeCheckpoint(spec, path);
  TL_CHECK(status.ok()) << status;
  return path;
}

EditableCheckpoint EditableCheckpoint::Read(const std::string& directory) {
  EditableCheckpoint checkpoint;
  // Python's literal in the spelling that plain JSON has for it.
  const std::string config_text =
      absl::StrReplaceAll(ReadFile(directory + "/config.json"),
                          {{"Infinity", R"({"__float__": "Infinity"})"}});
  checkpoint.config = nlohmann::json::parse(config_text);
  auto file = SafetensorsFile::Open(directory + "/model.safetensors");
  TL_CHECK(file.ok()) << file.status();
  for (const StoredTensor& stored : (*file)->header().tensors) {
    EditableTensor tensor;
    tensor.dtype = stored.dtype;
    tensor.shape = stored.shape;
    tensor.data.resize(static_cast<size_t>(stored.bytes));
    TL_CHECK(
        (*file)->Read(stored.offset, stored.bytes, tensor.data.data()).ok());
    checkpoint.tensors[stored.name] = std::move(tensor);
  }
  return checkpoint;
}

std::string EditableCheckpoint::HeaderJson() const {
  nlohmann::json header;
  size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  return header.dump();
}

std::string EditableCheckpoint::SafetensorsBytes() const {
  std::string data;
  for (const auto& [name, tensor] : tensors) data += tensor.data;
  return model::SafetensorsBytes(HeaderJson(), data);
}

void EditableCheckpoint::Write(const std::string& directory) const {
  mkdir(directory.c_str(), 0755);
  WriteFile(directory + "/config.json", config.dump(2));
  WriteFile(directory + "/model.safetensors", SafetensorsBytes());
}

std::string SafetensorsBytes(const std::string& header_json,
                             const std::string& data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) {
    bytes[static_cast<size_t>(i)] =
        static_cast<char>(uint64_t{header_json.size()} >> (8 * i));
  }
  return bytes + header_json + data;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.close();
  TL_CHECK(out.good()) << path;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  TL_CHECK(in.good()) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace trunkline::model
