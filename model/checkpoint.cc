#include "model/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/checkpoint_digest.h"
#include "model/checkpoint_files.h"
#include "model/expert_manifest.h"
#include "model/json_text.h"
#include "model/tensor_match.h"

namespace trunkline::model {
namespace {

using Files = std::vector<std::shared_ptr<const SafetensorsFile>>;

constexpr int64_t kConfigBytesMax = int64_t{16} << 20;
constexpr int64_t kManifestBytesMax = int64_t{64} << 20;

class MappedWeights final : public WeightMap {
 public:
  // Maps the pages of the given tensors and no others: neighbours in a file
  // share one mapping, a gap that holds somebody else's tensor splits it.
  static absl::StatusOr<std::unique_ptr<MappedWeights>> Map(
      std::vector<const TensorInfo*> tensors, const Files& files) {
    auto weights = std::make_unique<MappedWeights>();
    std::sort(tensors.begin(), tensors.end(),
              [](const TensorInfo* a, const TensorInfo* b) {
                return a->file != b->file ? a->file < b->file
                                          : a->offset < b->offset;
              });
    const int64_t page = sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < tensors.size();) {
      const TensorInfo& first = *tensors[i];
      int64_t end = first.offset + first.bytes;
      size_t next = i + 1;
      while (next < tensors.size() && tensors[next]->file == first.file &&
             tensors[next]->offset / page <= (end + page - 1) / page) {
        end = std::max(end, tensors[next]->offset + tensors[next]->bytes);
        ++next;
      }
      TL_ASSIGN_OR_RETURN(
          MappedRange range,
          files[first.file]->Map(first.offset, end - first.offset));
      for (; i < next; ++i) weights->AddView(*tensors[i], range);
      weights->mapped_bytes_ += (range.mapped_bytes() + page - 1) / page * page;
      weights->ranges_.push_back(std::move(range));
    }
    return weights;
  }

  void AddAlias(const std::string& name, const std::string& existing) {
    TensorView view = views_.at(existing);
    view.name = name;
    views_[name] = std::move(view);
  }

  absl::StatusOr<TensorView> Find(
      const std::string& canonical_name) const override {
    const auto it = views_.find(canonical_name);
    if (it == views_.end()) {
      return absl::NotFoundError(
          absl::StrCat("no tensor ", canonical_name, " among the mapped ones"));
    }
    return it->second;
  }
  int64_t mapped_bytes() const override { return mapped_bytes_; }
  void ReleasePages() override {
    for (const MappedRange& range : ranges_) range.Release();
  }

 private:
  void AddView(const TensorInfo& tensor, const MappedRange& range) {
    TensorView view;
    view.name = tensor.name;
    view.dtype = tensor.dtype;
    view.shape = tensor.shape;
    view.data = range.At(tensor.offset);
    views_[tensor.name] = std::move(view);
  }

  std::vector<MappedRange> ranges_;
  absl::flat_hash_map<std::string, TensorView> views_;
  int64_t mapped_bytes_ = 0;
};

// A quantised checkpoint may say so in this file alone.
absl::Status RefuseQuantizedDirectory(const std::string& directory) {
  const std::string path = directory + "/hf_quant_config.json";
  auto text = ReadSmallFile(path, kConfigBytesMax);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  TL_RETURN_IF_ERROR(text.status());
  TL_ASSIGN_OR_RETURN(const nlohmann::json document,
                      ParseJson(*text, path, JsonLimits{}));
  std::string algorithm = "it names";
  if (document.is_object() && document.contains("quantization") &&
      document["quantization"].is_object() &&
      document["quantization"].contains("quant_algo")) {
    algorithm = JsonForError(document["quantization"]["quant_algo"]);
  }
  return absl::UnimplementedError(
      absl::StrCat(path, ": the quantisation ", algorithm,
                   "; F32, F16 and BF16 weights are supported"));
}

absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(
    const std::string& directory, const ModelConfig& config) {
  const std::string path = directory + "/generation_config.json";
  auto text = ReadSmallFile(path, kConfigBytesMax);
  GenerationDefaults defaults;
  if (!absl::IsNotFound(text.status())) {
    TL_RETURN_IF_ERROR(text.status());
    TL_ASSIGN_OR_RETURN(defaults, ParseGenerationConfig(*text, path));
  }
  for (const int32_t id : defaults.eos_token_ids) {
    if (id < config.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": eos_token_id ", id,
                                                   " is not below vocab_size ",
                                                   config.vocab_size));
  }
  if (defaults.eos_token_ids.empty())
    defaults.eos_token_ids = config.eos_token_ids;
  return defaults;
}

class OpenCheckpoint final : public Checkpoint {
 public:
  static absl::StatusOr<std::shared_ptr<const Checkpoint>> Open(
      const std::string& directory) {
    auto checkpoint = std::make_shared<OpenCheckpoint>();
    TL_RETURN_IF_ERROR(checkpoint->Load(directory));
    return std::shared_ptr<const Checkpoint>(std::move(checkpoint));
  }

  const std::string& directory() const override { return directory_; }
  const ModelConfig& config() const override { return config_; }
  const GenerationDefaults& generation_defaults() const override {
    return generation_defaults_;
  }
  const std::vector<TensorInfo>& tensors() const override {
    return matched_.tensors;
  }
  const std::vector<std::string>& files() const override { return paths_; }
  DType projection_dtype() const override { return matched_.projection_dtype; }
  DType activation_dtype() const override {
    return matched_.projection_dtype == DType::kBF16 ? DType::kBF16
                                                     : DType::kF32;
  }
  const std::string& digest() const override { return digest_; }
  const std::vector<ExpertChecksum>& expert_checksums() const override {
    return expert_checksums_;
  }

  absl::StatusOr<std::unique_ptr<WeightMap>> MapTrunk() const override {
    if (files_.empty()) return NoWeights("the trunk");
    std::vector<const TensorInfo*> owned;
    for (const TensorInfo& tensor : matched_.tensors) {
      if (tensor.role == TensorRole::kTrunk) owned.push_back(&tensor);
    }
    TL_ASSIGN_OR_RETURN(auto weights, MappedWeights::Map(owned, files_));
    if (!matched_.head_stored) {
      weights->AddAlias(std::string(kHeadName), std::string(kEmbeddingName));
    }
    return std::unique_ptr<WeightMap>(std::move(weights));
  }

  absl::StatusOr<std::unique_ptr<WeightMap>> MapExpert(
      LayerIndex layer, ExpertId expert) const override {
    if (!layer.valid() || layer.value >= config_.layers.size() ||
        config_.layers[layer.value].kind != LayerKind::kMoe) {
      return absl::NotFoundError(absl::StrCat(directory_, ": layer ",
                                              layer.value, " is no moe layer"));
    }
    const int64_t experts = config_.layers[layer.value].moe.experts;
    if (!expert.valid() || expert.value >= experts) {
      return absl::NotFoundError(absl::StrCat(
          directory_, ": layer ", layer.value, " has no expert ", expert.value,
          ", its ", experts, " experts are 0..", experts - 1));
    }
    if (files_.empty()) {
      return NoWeights(
          absl::StrCat("expert ", expert.value, " of layer ", layer.value));
    }
    // An expert's two tensors follow each other in the list.
    const size_t at =
        first_of_layer_.at(layer.value) + 2 * size_t{expert.value};
    TL_ASSIGN_OR_RETURN(
        auto weights,
        MappedWeights::Map({&matched_.tensors[at], &matched_.tensors[at + 1]},
                           files_));
    return std::unique_ptr<WeightMap>(std::move(weights));
  }

 private:
  absl::Status Load(const std::string& directory) {
    directory_ = directory;
    struct stat stat_buffer;
    if (stat(directory.c_str(), &stat_buffer) != 0 ||
        !S_ISDIR(stat_buffer.st_mode)) {
      return absl::NotFoundError(
          absl::StrCat("\"", directory,
                       "\" is no directory: a checkpoint is a directory "
                       "with config.json and model.safetensors"));
    }
    const std::string config_path = directory + "/config.json";
    TL_ASSIGN_OR_RETURN(const std::string config_text,
                        ReadSmallFile(config_path, kConfigBytesMax));
    TL_ASSIGN_OR_RETURN(config_, ParseModelConfig(config_text, config_path));
    TL_RETURN_IF_ERROR(RefuseQuantizedDirectory(directory));
    TL_ASSIGN_OR_RETURN(generation_defaults_,
                        ReadGenerationDefaults(directory, config_));
    absl::StatusOr<Files> files = OpenWeightFiles(directory);
    if (absl::IsNotFound(files.status())) {
      const std::string path = absl::StrCat(directory, "/", kManifestName);
      auto text = ReadSmallFile(path, kManifestBytesMax);
      // Without one, the missing weights are the fault.
      if (!absl::IsNotFound(text.status())) {
        TL_RETURN_IF_ERROR(text.status());
        return LoadManifest(*text, path);
      }
    }
    TL_RETURN_IF_ERROR(files.status());
    files_ = *std::move(files);
    for (const auto& file : files_) paths_.push_back(file->path());
    TL_ASSIGN_OR_RETURN(matched_, MatchTensors(config_, files_, directory));
    // What is stored decides, whatever the flag says.
    config_.tie_word_embeddings = !matched_.head_stored;
    for (size_t i = 0; i < matched_.tensors.size(); ++i) {
      const TensorInfo& tensor = matched_.tensors[i];
      if (tensor.role == TensorRole::kRoutedExpert)
        first_of_layer_.emplace(tensor.layer.value, i);
    }
    TL_ASSIGN_OR_RETURN(digest_,
                        ComputeDigest(config_, matched_.tensors, files_));
    return absl::OkStatus();
  }

  // The experts' tensors as they would be, without a file.
  absl::Status LoadManifest(const std::string& text, const std::string& path) {
    TL_ASSIGN_OR_RETURN(ExpertManifest manifest,
                        ParseExpertManifest(text, path, config_));
    config_.tie_word_embeddings = manifest.tied_head;
    digest_ = manifest.model_digest;
    expert_checksums_ = std::move(manifest.experts);
    matched_.projection_dtype = manifest.dtype;
    for (const TensorSpec& spec : ExpectedTensors(config_)) {
      if (spec.role != TensorRole::kRoutedExpert) continue;
      first_of_layer_.emplace(spec.layer.value, matched_.tensors.size());
      TensorInfo tensor;
      tensor.name = spec.name;
      tensor.dtype = manifest.dtype;
      tensor.shape = spec.shape;
      tensor.role = spec.role;
      tensor.layer = spec.layer;
      tensor.expert = spec.expert;
      tensor.file = -1;
      tensor.bytes = DTypeBytes(tensor.dtype);
      for (const int64_t dimension : spec.shape) tensor.bytes *= dimension;
      matched_.tensors.push_back(std::move(tensor));
    }
    return absl::OkStatus();
  }

  absl::Status NoWeights(const std::string& of_what) const {
    return absl::NotFoundError(absl::StrCat(directory_,
                                            ": holds no weights of ", of_what,
                                            ", only ", kManifestName));
  }

  std::string directory_;
  ModelConfig config_;
  GenerationDefaults generation_defaults_;
  Files files_;
  std::vector<std::string> paths_;
  MatchedTensors matched_;
  // Index in matched_.tensors of expert 0's first tensor, by moe layer.
  absl::flat_hash_map<uint32_t, size_t> first_of_layer_;
  std::string digest_;
  std::vector<ExpertChecksum> expert_checksums_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Checkpoint>> Checkpoint::Open(
    const std::string& directory) {
  return OpenCheckpoint::Open(directory);
}

}  // namespace trunkline::model
