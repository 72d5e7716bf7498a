#include "model/tensor_match.h"

#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/tensor_view.h"
#include "model/tensor_names.h"

namespace trunkline::model {
namespace {

using Files = std::vector<std::shared_ptr<const SafetensorsFile>>;

struct Candidate {
  const StoredTensor* stored = nullptr;
  int file = 0;
  bool used = false;
};

class Matcher {
 public:
  Matcher(const ModelConfig& config, const Files& files,
          const std::string& directory)
      : config_(config), files_(files), directory_(directory) {}

  absl::StatusOr<MatchedTensors> Run() {
    TL_RETURN_IF_ERROR(Collect());
    TL_RETURN_IF_ERROR(FindProjectionType());
    result_.head_stored = candidates_.contains(std::string(kHeadName));
    for (const TensorSpec& spec : ExpectedTensors(config_)) {
      if (spec.part == TensorPart::kHead && !result_.head_stored) continue;
      TL_RETURN_IF_ERROR(Match(spec));
    }
    TL_RETURN_IF_ERROR(CheckSurplus());
    return std::move(result_);
  }

 private:
  const std::string& PathOf(const Candidate& candidate) const {
    return files_[candidate.file]->path();
  }
  template <typename... Parts>
  absl::Status Fault(const Candidate& candidate, const Parts&... parts) const {
    return absl::InvalidArgumentError(
        absl::StrCat(PathOf(candidate), ": tensor ", candidate.stored->name,
                     ": ", parts...));
  }

  absl::Status Collect() {
    for (size_t f = 0; f < files_.size(); ++f) {
      for (const StoredTensor& stored : files_[f]->header().tensors) {
        CanonicalName canonical =
            CanonicalTensorName(stored.name, config_.wrapped);
        if (canonical.kind == CanonicalName::Kind::kDropped) continue;
        Candidate candidate;
        candidate.stored = &stored;
        candidate.file = static_cast<int>(f);
        if (canonical.kind == CanonicalName::Kind::kUnknown) {
          if (unknown_.stored == nullptr) unknown_ = candidate;
          continue;
        }
        const auto [it, inserted] =
            candidates_.emplace(std::move(canonical.name), candidate);
        if (!inserted) {
          return Fault(candidate, "is the same tensor as ",
                       it->second.stored->name, " in ", PathOf(it->second));
        }
      }
    }
    return absl::OkStatus();
  }

  // The embedding's type is the type of the checkpoint.
  absl::Status FindProjectionType() {
    const auto it = candidates_.find(std::string(kEmbeddingName));
    if (it == candidates_.end()) return Missing(std::string(kEmbeddingName));
    TL_ASSIGN_OR_RETURN(result_.projection_dtype, TypeOf(it->second));
    return absl::OkStatus();
  }

  absl::Status Missing(const std::string& name,
                       const std::vector<int64_t>& shape = {}) const {
    std::string hint;
    if (unknown_.stored != nullptr) {
      hint = absl::StrCat(" (the checkpoint holds ", unknown_.stored->name,
                          ", which no known writer's prefix explains)");
    } else if (name.rfind("mtp.", 0) == 0) {
      hint =
          " (config.json asks for a prediction head with "
          "num_nextn_predict_layers)";
    }
    return absl::InvalidArgumentError(absl::StrCat(
        directory_, ": missing tensor ", name,
        shape.empty() ? "" : absl::StrCat(" ", ShapeString(shape)), hint));
  }

  absl::StatusOr<DType> TypeOf(const Candidate& candidate) const {
    const absl::StatusOr<DType> dtype = ParseDType(candidate.stored->dtype);
    if (dtype.ok()) return dtype;
    return Fault(candidate, dtype.status().message());
  }

  absl::Status CheckType(const TensorSpec& spec, const Candidate& candidate,
                         DType dtype) const {
    if (dtype == result_.projection_dtype) return absl::OkStatus();
    if (spec.typing == TensorTyping::kSmall && dtype == DType::kF32)
      return absl::OkStatus();
    return Fault(candidate, "dtype ", DTypeName(dtype), ", expected ",
                 DTypeName(result_.projection_dtype),
                 spec.typing == TensorTyping::kSmall ? " or F32" : "",
                 " as in this checkpoint's ", kEmbeddingName);
  }

  absl::Status Match(const TensorSpec& spec) {
    std::vector<int64_t> shape = spec.shape;
    bool stacked = false;
    auto it = candidates_.find(spec.name);
    if (it == candidates_.end() && spec.expert.valid()) {
      it = candidates_.find(StackedExpertsName(spec.name));
      stacked = it != candidates_.end();
    }
    if (it == candidates_.end()) return Missing(spec.name, spec.shape);
    Candidate& candidate = it->second;
    candidate.used = true;
    TL_ASSIGN_OR_RETURN(const DType dtype, TypeOf(candidate));
    TL_RETURN_IF_ERROR(CheckType(spec, candidate, dtype));
    if (stacked) shape.insert(shape.begin(), ExpertsOf(spec));
    if (candidate.stored->shape != shape) {
      return Fault(candidate, "shape ", ShapeString(candidate.stored->shape),
                   ", expected ", ShapeString(shape));
    }
    TensorInfo info;
    info.name = spec.name;
    info.stored_name = candidate.stored->name;
    info.dtype = dtype;
    info.shape = spec.shape;
    info.role = spec.role;
    info.layer = spec.layer;
    info.expert = spec.expert;
    info.file = candidate.file;
    info.bytes = candidate.stored->bytes;
    info.offset = candidate.stored->offset;
    if (stacked) {
      info.bytes /= shape[0];
      info.offset += info.bytes * spec.expert.value;
    }
    result_.tensors.push_back(std::move(info));
    return absl::OkStatus();
  }

  int64_t ExpertsOf(const TensorSpec& spec) const {
    const auto& layers =
        spec.role == TensorRole::kMtp ? config_.mtp_layers : config_.layers;
    return layers[spec.layer.value].moe.experts;
  }

  absl::Status CheckSurplus() const {
    if (unknown_.stored != nullptr) {
      return Fault(unknown_,
                   "unexpected: no writer's prefix (backbone., "
                   "model., language_model., mtp.) explains it");
    }
    // The first by file and offset, so that the error does not depend on the
    // order of a hash table.
    const Candidate* first = nullptr;
    for (const auto& [name, candidate] : candidates_) {
      if (candidate.used) continue;
      if (first == nullptr || candidate.file < first->file ||
          (candidate.file == first->file &&
           candidate.stored->offset < first->stored->offset)) {
        first = &candidate;
      }
    }
    if (first == nullptr) return absl::OkStatus();
    return Fault(*first,
                 "unexpected: the layer table of config.json has no "
                 "place for it (shape ",
                 ShapeString(first->stored->shape), ")");
  }

  const ModelConfig& config_;
  const Files& files_;
  const std::string& directory_;
  absl::flat_hash_map<std::string, Candidate> candidates_;
  Candidate unknown_;  // the first whose name no writer uses
  MatchedTensors result_;
};

}  // namespace

absl::StatusOr<MatchedTensors> MatchTensors(const ModelConfig& config,
                                            const Files& files,
                                            const std::string& directory) {
  return Matcher(config, files, directory).Run();
}

}  // namespace trunkline::model
