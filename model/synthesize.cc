#include "model/synthesize.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bfloat16.h"
#include "common/status_macros.h"
#include "model/tensor_names.h"
#include "model/weight_partition.h"

namespace trunkline::model {
namespace {

// A tensor as it will be stored: one of the expected ones, or the experts of a
// layer stacked.
struct OutTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  std::vector<const TensorSpec*> sources;  // in the order of their bytes
  int64_t bytes = 0;
};

using Shard = std::vector<OutTensor>;

DType TypeOf(const SynthesisSpec& spec, const TensorSpec& tensor) {
  return tensor.part == TensorPart::kRouter ? spec.router_dtype : spec.dtype;
}

std::string StoredName(const SynthesisSpec& spec, const std::string& name) {
  const bool outside = name == kHeadName || name.rfind("mtp.", 0) == 0;
  return absl::StrCat(spec.config.wrapped ? "language_model." : "",
                      outside ? "" : spec.trunk_prefix, name);
}

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

std::vector<OutTensor> PlanTensors(const SynthesisSpec& spec,
                                   const std::vector<TensorSpec>& expected) {
  std::vector<OutTensor> tensors;
  std::vector<size_t> stacked;  // of the layer at hand: up, down
  for (const TensorSpec& tensor : expected) {
    if (tensor.part == TensorPart::kHead && spec.config.tie_word_embeddings)
      continue;
    const bool stack = spec.stacked_experts && tensor.expert.valid();
    const bool up = stack && tensor.name.find("up_proj") != std::string::npos;
    if (stack && tensor.expert.value > 0) {
      OutTensor& whole = tensors[stacked[up ? 0 : 1]];
      ++whole.shape[0];
      whole.sources.push_back(&tensor);
      whole.bytes += Elements(tensor.shape) * DTypeBytes(whole.dtype);
      continue;
    }
    OutTensor out;
    out.name =
        StoredName(spec, stack ? StackedExpertsName(tensor.name) : tensor.name);
    out.shape = tensor.shape;
    out.dtype = TypeOf(spec, tensor);
    out.sources = {&tensor};
    out.bytes = Elements(tensor.shape) * DTypeBytes(out.dtype);
    if (stack) {
      out.shape.insert(out.shape.begin(), 1);
      if (up) stacked.clear();
      stacked.push_back(tensors.size());
    }
    tensors.push_back(std::move(out));
  }
  return tensors;
}

std::vector<Shard> PlanShards(std::vector<OutTensor> tensors,
                              int64_t shard_bytes_max) {
  std::vector<Shard> shards(1);
  int64_t bytes = 0;
  for (OutTensor& tensor : tensors) {
    if (shard_bytes_max > 0 && bytes > 0 &&
        bytes + tensor.bytes > shard_bytes_max) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes;
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

absl::Status SystemError(const std::string& path, const char* action) {
  const int error = errno;
  const std::string text =
      absl::StrCat(path, ": can not ", action, ": ", strerror(error));
  if (error == ENOSPC || error == EDQUOT)
    return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

// A file that gets its name only when it is complete.
class OutFile {
 public:
  explicit OutFile(std::string path)
      : path_(std::move(path)), partial_(path_ + ".partial") {}
  ~OutFile() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(partial_.c_str());
  }
  OutFile(const OutFile&) = delete;
  OutFile& operator=(const OutFile&) = delete;

  absl::Status Create() {
    fd_ =
        open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return fd_ < 0 ? SystemError(partial_, "create") : absl::OkStatus();
  }
  absl::Status Write(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return SystemError(partial_, "write");
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }
  absl::Status Finish() {
    if (close(std::exchange(fd_, -1)) != 0)
      return SystemError(partial_, "close");
    if (rename(partial_.c_str(), path_.c_str()) != 0)
      return SystemError(path_, "rename to");
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const std::string partial_;
  int fd_ = -1;
};

absl::Status WriteText(const std::string& path, const std::string& text) {
  OutFile file(path);
  TL_RETURN_IF_ERROR(file.Create());
  TL_RETURN_IF_ERROR(file.Write(text));
  return file.Finish();
}

// Written as text: an ordered JSON object looks through all its names for each
// new one.
std::string HeaderOf(const Shard& shard) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  int64_t offset = 0;
  for (const OutTensor& tensor : shard) {
    absl::StrAppend(&text, ",\"", tensor.name, "\":{\"dtype\":\"",
                    DTypeName(tensor.dtype), "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[",
                    offset, ",", offset + tensor.bytes, "]}");
    offset += tensor.bytes;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i)
    length[i] =
        static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  return length + text;
}

class WeightWriter {
 public:
  WeightWriter(uint64_t seed, int64_t bytes_in_all,
               const SynthesisProgress& progress)
      : seed_(seed), bytes_in_all_(bytes_in_all), progress_(progress) {}

  absl::Status WriteShard(const Shard& shard, const std::string& path) {
    OutFile file(path);
    TL_RETURN_IF_ERROR(file.Create());
    TL_RETURN_IF_ERROR(file.Write(HeaderOf(shard)));
    for (const OutTensor& tensor : shard) {
      for (const TensorSpec* source : tensor.sources)
        TL_RETURN_IF_ERROR(WriteTensor(*source, tensor.dtype, &file));
    }
    return file.Finish();
  }

 private:
  absl::Status WriteTensor(const TensorSpec& tensor, DType dtype,
                           OutFile* file) {
    constexpr int64_t kChunk = 1 << 16;
    const SyntheticTensor values(seed_, tensor.name, tensor.shape);
    const int64_t elements = Elements(tensor.shape);
    for (int64_t begin = 0; begin < elements; begin += kChunk) {
      const int64_t end = std::min(elements, begin + kChunk);
      buffer_.resize(static_cast<size_t>((end - begin) * DTypeBytes(dtype)));
      for (int64_t i = begin; i < end; ++i) {
        char* out = buffer_.data() + (i - begin) * DTypeBytes(dtype);
        const float value = values.At(i);
        if (dtype == DType::kF32) {
          std::memcpy(out, &value, 4);
        } else {
          const Bf16Bits bits = FloatToBf16(value);
          std::memcpy(out, &bits, 2);
        }
      }
      TL_RETURN_IF_ERROR(file->Write(buffer_));
      bytes_written_ += static_cast<int64_t>(buffer_.size());
      if (progress_) progress_(bytes_written_, bytes_in_all_);
    }
    return absl::OkStatus();
  }

  const uint64_t seed_;
  const int64_t bytes_in_all_;
  const SynthesisProgress& progress_;
  int64_t bytes_written_ = 0;
  std::string buffer_;
};

absl::Status WriteWeights(const SynthesisSpec& spec,
                          const std::string& directory,
                          const SynthesisProgress& progress) {
  const std::vector<TensorSpec> expected = ExpectedTensors(spec.config);
  const std::vector<Shard> shards =
      PlanShards(PlanTensors(spec, expected), spec.shard_bytes_max);
  int64_t bytes = 0;
  for (const Shard& shard : shards) {
    for (const OutTensor& tensor : shard) bytes += tensor.bytes;
  }
  WeightWriter writer(spec.seed, bytes, progress);
  if (spec.shard_bytes_max == 0) {
    return writer.WriteShard(shards[0],
                             absl::StrCat(directory, "/model.safetensors"));
  }
  nlohmann::json index;
  index["metadata"] = {{"total_size", bytes}};
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name =
        absl::StrFormat("model-%05d-of-%05d.safetensors", s + 1, shards.size());
    for (const OutTensor& tensor : shards[s])
      index["weight_map"][tensor.name] = name;
    TL_RETURN_IF_ERROR(
        writer.WriteShard(shards[s], absl::StrCat(directory, "/", name)));
  }
  return WriteText(absl::StrCat(directory, "/model.safetensors.index.json"),
                   index.dump(2) + "\n");
}

bool Exists(const std::string& path) {
  struct stat stat_buffer;
  return stat(path.c_str(), &stat_buffer) == 0;
}

}  // namespace

absl::Status SynthesizeCheckpoint(const SynthesisSpec& spec,
                                  const std::string& directory,
                                  const SynthesisProgress& progress) {
  for (const DType dtype : {spec.dtype, spec.router_dtype}) {
    if (dtype == DType::kF16) {
      return absl::UnimplementedError(
          "checkpoints are synthesised as F32 or BF16, not F16");
    }
  }
  if (spec.router_dtype != DType::kF32 && spec.router_dtype != spec.dtype) {
    return absl::InvalidArgumentError(
        "the router's type is F32 or the type of the projections");
  }
  if (spec.trunk_prefix != "backbone." && spec.trunk_prefix != "model.") {
    return absl::InvalidArgumentError(
        absl::StrCat("trunk prefix \"", spec.trunk_prefix,
                     "\": backbone. and model. are written"));
  }
  TL_ASSIGN_OR_RETURN(const std::string config_text,
                      ConfigJson(spec.config, spec.dtype, spec.spelling));
  TL_ASSIGN_OR_RETURN(const std::string tokenizer_text,
                      SyntheticTokenizerJson(spec.config.vocab_size));
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST)
    return SystemError(directory, "create");
  const std::string config_path = directory + "/config.json";
  if (Exists(config_path)) {
    return absl::AlreadyExistsError(
        absl::StrCat(directory, ": holds a checkpoint already"));
  }
  TL_RETURN_IF_ERROR(WriteWeights(spec, directory, progress));
  const nlohmann::ordered_json generation = {
      {"bos_token_id", spec.config.bos_token_id},
      {"eos_token_id", spec.config.eos_token_ids},
      {"do_sample", false}};
  TL_RETURN_IF_ERROR(WriteText(directory + "/generation_config.json",
                               generation.dump(2) + "\n"));
  TL_RETURN_IF_ERROR(WriteText(directory + "/tokenizer.json", tokenizer_text));
  // Last, since it is what makes the directory a checkpoint.
  return WriteText(config_path, config_text);
}

}  // namespace trunkline::model
