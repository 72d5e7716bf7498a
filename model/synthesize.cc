#include "model/synthesize.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bfloat16.h"
#include "common/float16.h"
#include "common/status_macros.h"
#include "model/out_file.h"
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
  // Every release stores it in fp32, whatever the gate's type.
  if (absl::EndsWith(tensor.name, "e_score_correction_bias")) {
    return DType::kF32;
  }
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

void Store(float value, DType dtype, char* out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, &value, sizeof(value));
      return;
    case DType::kF16: {
      const HalfBits bits = FloatToHalf(value);
      std::memcpy(out, &bits, sizeof(bits));
      return;
    }
    case DType::kBF16: {
      const Bf16Bits bits = FloatToBf16(value);
      std::memcpy(out, &bits, sizeof(bits));
      return;
    }
  }
}

// Makes the elements piece by piece on all threads; which thread makes which
// piece changes nothing, since an element depends on its index alone.
class WeightWriter {
 public:
  WeightWriter(uint64_t seed, int64_t bytes_in_all, ThreadPool& pool,
               const SynthesisProgress& progress)
      : seed_(seed),
        bytes_in_all_(bytes_in_all),
        pool_(pool),
        progress_(progress) {}

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
  static constexpr int64_t kPiece = 1 << 15;  // elements of a task
  static constexpr int64_t kChunk = 1 << 21;  // elements between two writes

  absl::Status WriteTensor(const TensorSpec& tensor, DType dtype,
                           OutFile* file) {
    const SyntheticTensor values(seed_, tensor.name, tensor.shape);
    const int64_t elements = Elements(tensor.shape);
    const int64_t width = DTypeBytes(dtype);
    for (int64_t begin = 0; begin < elements; begin += kChunk) {
      const int64_t end = std::min(elements, begin + kChunk);
      buffer_.resize(static_cast<size_t>((end - begin) * width));
      pool_.ParallelFor((end - begin + kPiece - 1) / kPiece,
                        [&](int64_t piece, int) {
                          const int64_t from = begin + piece * kPiece;
                          const int64_t to = std::min(end, from + kPiece);
                          char* out = buffer_.data() + (from - begin) * width;
                          for (int64_t i = from; i < to; ++i, out += width)
                            Store(values.At(i), dtype, out);
                        });
      TL_RETURN_IF_ERROR(file->Write(buffer_));
      bytes_written_ += static_cast<int64_t>(buffer_.size());
      if (progress_) progress_(bytes_written_, bytes_in_all_);
    }
    return absl::OkStatus();
  }

  const uint64_t seed_;
  const int64_t bytes_in_all_;
  ThreadPool& pool_;
  const SynthesisProgress& progress_;
  int64_t bytes_written_ = 0;
  std::string buffer_;
};

int64_t BytesOf(const std::vector<Shard>& shards) {
  int64_t bytes = 0;
  for (const Shard& shard : shards) {
    for (const OutTensor& tensor : shard) bytes += tensor.bytes;
  }
  return bytes;
}

absl::Status WriteWeights(const SynthesisSpec& spec,
                          const std::vector<Shard>& shards,
                          const std::string& directory, ThreadPool& pool,
                          const SynthesisProgress& progress) {
  const int64_t bytes = BytesOf(shards);
  WeightWriter writer(spec.seed, bytes, pool, progress);
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
  return WriteWholeFile(
      absl::StrCat(directory, "/model.safetensors.index.json"),
      index.dump(2) + "\n");
}

absl::Status CheckSpec(const SynthesisSpec& spec) {
  if (spec.router_dtype != DType::kF32 && spec.router_dtype != spec.dtype) {
    return absl::InvalidArgumentError(
        "the router's type is F32 or the type of the projections");
  }
  if (spec.trunk_prefix != "backbone." && spec.trunk_prefix != "model.") {
    return absl::InvalidArgumentError(
        absl::StrCat("trunk prefix \"", spec.trunk_prefix,
                     "\": backbone. and model. are written"));
  }
  return absl::OkStatus();
}

// Makes the directory, or takes one that is empty.
absl::Status TakeDirectory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST)
    return FileError(directory, "create");
  std::error_code error;
  const std::filesystem::directory_iterator entries(directory, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, ": ", error.message()));
  }
  if (entries == std::filesystem::directory_iterator()) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(directory, ": is not empty, it holds ",
                   entries->path().filename().string(),
                   ": a checkpoint is written to a new or an empty directory"));
}

// Headers, index, tokenizer and the file system's own are small beside this.
constexpr int64_t kRoomForTheRest = int64_t{64} << 20;

absl::Status CheckRoom(const std::string& directory, int64_t weight_bytes) {
  struct statvfs system {};
  if (statvfs(directory.c_str(), &system) != 0)
    return FileError(directory, "ask the free space of");
  const double needed = static_cast<double>(weight_bytes + kRoomForTheRest);
  const double free = static_cast<double>(system.f_bavail) *
                      static_cast<double>(system.f_frsize);
  if (needed <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s: the checkpoint needs %.1f GiB and %.1f GiB are free", directory,
      needed / (int64_t{1} << 30), free / (int64_t{1} << 30)));
}

}  // namespace

absl::Status SynthesizeCheckpoint(const SynthesisSpec& spec,
                                  const std::string& directory,
                                  const SynthesisProgress& progress,
                                  ThreadPool* pool) {
  TL_RETURN_IF_ERROR(CheckSpec(spec));
  TL_ASSIGN_OR_RETURN(const std::string config_text,
                      ConfigJson(spec.config, spec.dtype, spec.spelling));
  TL_ASSIGN_OR_RETURN(const std::string tokenizer_text,
                      SyntheticTokenizerJson(spec.config.vocab_size));
  TL_RETURN_IF_ERROR(TakeDirectory(directory));
  const std::vector<TensorSpec> expected = ExpectedTensors(spec.config);
  const std::vector<Shard> shards =
      PlanShards(PlanTensors(spec, expected), spec.shard_bytes_max);
  TL_RETURN_IF_ERROR(CheckRoom(directory, BytesOf(shards)));
  ThreadPool alone{ThreadPool::Options{}};
  TL_RETURN_IF_ERROR(WriteWeights(spec, shards, directory,
                                  pool != nullptr ? *pool : alone, progress));
  const nlohmann::ordered_json generation = {
      {"bos_token_id", spec.config.bos_token_id},
      {"eos_token_id", spec.config.eos_token_ids},
      {"do_sample", false}};
  TL_RETURN_IF_ERROR(WriteWholeFile(directory + "/generation_config.json",
                                    generation.dump(2) + "\n"));
  TL_RETURN_IF_ERROR(
      WriteWholeFile(directory + "/tokenizer.json", tokenizer_text));
  // Last, since it is what makes the directory a checkpoint.
  return WriteWholeFile(directory + "/config.json", config_text);
}

}  // namespace trunkline::model
