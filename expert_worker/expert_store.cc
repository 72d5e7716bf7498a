#include "expert_worker/expert_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"

namespace trunkline::expert {

namespace {

std::string ExpertName(ExpertKey key) {
  return absl::StrCat("expert ", key.expert.value, " of layer ",
                      key.layer.value);
}

const model::LayerSpec* FindMoeLayer(const model::ModelConfig& config,
                                     LayerIndex layer) {
  for (const model::LayerSpec& spec : config.layers) {
    if (spec.index == layer && spec.kind == model::LayerKind::kMoe)
      return &spec;
  }
  return nullptr;
}

}  // namespace

std::vector<ExpertKey> Shard::Experts() const {
  std::vector<ExpertKey> experts;
  experts.reserve(entries_.size());
  for (const auto& [key, unused] : entries_) experts.push_back(key);
  std::sort(experts.begin(), experts.end());
  return experts;
}

int64_t Shard::bytes() const {
  int64_t bytes = 0;
  for (const auto& [unused, weights] : entries_) bytes += weights->bytes();
  return bytes;
}

void MemoryAccount::Add(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  held_ += bytes;
}

void MemoryAccount::Subtract(int64_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ -= bytes;
  }
  fell_.notify_all();
}

int64_t MemoryAccount::held() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return held_;
}

bool MemoryAccount::WaitUntilAtMost(int64_t limit,
                                    absl::Duration patience) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return fell_.wait_for(lock, absl::ToChronoMicroseconds(patience),
                        [&] { return held_ <= limit; });
}

// One version under way or done. `progress` and `retired` belong to the store's
// mutex; the rest does not change.
struct ExpertStore::StagedVersion {
  std::vector<ExpertKey> experts;  // ascending, distinct
  OnProgress on_progress;
  StageProgress progress;
  bool retired = false;
};

ExpertStore::ExpertStore(std::shared_ptr<const model::Checkpoint> checkpoint,
                         const Options& options)
    : checkpoint_(std::move(checkpoint)),
      options_(options),
      account_(std::make_shared<MemoryAccount>()),
      digests_(options.digests != nullptr ? options.digests
                                          : std::make_shared<ExpertDigests>()),
      pool_(options.threads),
      loader_([this] { LoaderLoop(); }) {}

ExpertStore::~ExpertStore() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  loader_.join();
}

void ExpertStore::Stage(PlacementVersion version,
                        std::vector<ExpertKey> experts,
                        OnProgress on_progress) {
  std::sort(experts.begin(), experts.end());
  experts.erase(std::unique(experts.begin(), experts.end()), experts.end());
  auto stage = std::make_shared<StagedVersion>();
  stage->experts = std::move(experts);
  stage->on_progress = std::move(on_progress);
  stage->progress.version = version;
  for (const ExpertKey key : stage->experts) {
    // An expert that does not exist is reported by the load itself.
    if (absl::StatusOr<int64_t> bytes = PackedBytes(key); bytes.ok())
      stage->progress.bytes_total += *bytes;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = stages_.find(version);
    if (found != stages_.end() &&
        found->second->progress.state != StageState::kFailed)
      return;
    stages_[version] = stage;
    queue_.push_back(std::move(stage));
  }
  work_.notify_all();
}

void ExpertStore::Retire(PlacementVersion version) {
  std::shared_ptr<const Shard> shard;  // freed outside the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = stages_.find(version);
  if (found == stages_.end()) return;
  found->second->retired = true;
  shard = std::move(found->second->progress.shard);
  stages_.erase(found);
}

std::vector<StageProgress> ExpertStore::Versions() const {
  std::vector<StageProgress> versions;
  std::lock_guard<std::mutex> lock(mutex_);
  versions.reserve(stages_.size());
  for (const auto& [unused, stage] : stages_)
    versions.push_back(stage->progress);
  return versions;
}

absl::StatusOr<int64_t> ExpertStore::PackedBytes(ExpertKey key) const {
  const model::LayerSpec* layer =
      FindMoeLayer(checkpoint_->config(), key.layer);
  if (layer == nullptr || key.expert.value >= layer->moe.experts)
    return absl::NotFoundError(
        absl::StrCat(ExpertName(key), " is not in ", checkpoint_->directory()));
  // Weights keep their stored type; packing pads the last panel.
  DType dtype = checkpoint_->activation_dtype();
  for (const model::TensorInfo& tensor : checkpoint_->tensors()) {
    if (tensor.role == model::TensorRole::kRoutedExpert &&
        tensor.layer == key.layer) {
      dtype = tensor.dtype;
      break;
    }
  }
  const auto packed = [&](int64_t n, int64_t k) {
    return kernels::PackedMatrix::BytesFor(n, k, dtype, options_.numerics);
  };
  const int64_t input =
      layer->moe.expert_input(checkpoint_->config().hidden_size);
  const int64_t width = layer->moe.width;
  return packed(width, input) + packed(input, width);
}

void ExpertStore::LoaderLoop() {
  while (true) {
    std::shared_ptr<StagedVersion> stage;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      stage = std::move(queue_.front());
      queue_.pop_front();
    }
    Load(*stage);
  }
}

void ExpertStore::Load(StagedVersion& stage) {
  Shard::Entries entries;
  const absl::Status status = LoadMissing(stage, &entries);
  absl::erase_if(loaded_,
                 [](const auto& entry) { return entry.second.expired(); });
  if (Abandoned(stage)) return;
  Publish(stage, [&](StageProgress& progress) {
    progress.status = status;
    progress.state = status.ok() ? StageState::kReady : StageState::kFailed;
    if (status.ok()) {
      progress.shard = std::make_shared<Shard>(std::move(entries));
      progress.bytes_loaded = progress.bytes_total = progress.shard->bytes();
    }
  });
}

absl::Status ExpertStore::LoadMissing(StagedVersion& stage,
                                      Shard::Entries* entries) {
  std::vector<ExpertKey> missing;
  int64_t missing_bytes = 0;
  int64_t loaded_bytes = 0;
  for (const ExpertKey key : stage.experts) {
    TL_ASSIGN_OR_RETURN(const int64_t bytes, PackedBytes(key));
    const auto found = loaded_.find(key);
    std::shared_ptr<const kernels::MlpWeights> shared =
        found == loaded_.end() ? nullptr : found->second.lock();
    if (shared == nullptr) {
      missing.push_back(key);
      missing_bytes += bytes;
    } else {
      loaded_bytes += shared->bytes();
      (*entries)[key] = std::move(shared);
    }
  }
  TL_RETURN_IF_ERROR(CheckRoom(stage, missing_bytes, missing.size()));
  for (const ExpertKey key : missing) {
    if (Abandoned(stage)) return absl::CancelledError("retired while loading");
    TL_ASSIGN_OR_RETURN(std::shared_ptr<const kernels::MlpWeights> weights,
                        LoadExpert(stage, key));
    loaded_bytes += weights->bytes();
    loaded_[key] = weights;
    (*entries)[key] = std::move(weights);
    Publish(stage, [loaded_bytes](StageProgress& progress) {
      progress.bytes_loaded = loaded_bytes;
    });
  }
  return absl::OkStatus();
}

absl::Status ExpertStore::CheckRoom(const StagedVersion& stage,
                                    int64_t missing_bytes,
                                    size_t missing_count) const {
  const int64_t limit = options_.memory_limit_bytes;
  if (limit <= 0 || missing_bytes == 0) return absl::OkStatus();
  if (missing_bytes <= limit &&
      account_->WaitUntilAtMost(limit - missing_bytes, absl::ZeroDuration()))
    return absl::OkStatus();
  // Retired entries may still be in use by the batch under way: worth waiting
  // for only if the versions that stay leave room.
  int64_t kept_bytes = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Shard::Entries kept;
    for (const auto& [unused, other] : stages_) {
      if (other->progress.shard == nullptr) continue;
      for (const ExpertKey key : other->progress.shard->Experts())
        kept.try_emplace(key, nullptr);
    }
    for (const auto& [key, unused] : kept)
      kept_bytes += PackedBytes(key).value_or(0);
  }
  if (kept_bytes + missing_bytes <= limit &&
      account_->WaitUntilAtMost(limit - missing_bytes,
                                options_.release_patience))
    return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("placement version ", stage.progress.version.value,
                   " needs ", missing_bytes, " bytes more for ", missing_count,
                   " experts that are not loaded; ", account_->held(),
                   " bytes are held and the limit is ", limit, " bytes"));
}

absl::StatusOr<std::shared_ptr<const kernels::MlpWeights>>
ExpertStore::LoadExpert(StagedVersion& stage, ExpertKey key) {
  kernels::MlpWeights weights;
  absl::Status status = LoadFromDisk(key, &weights);
  if (!status.ok() && options_.peers != nullptr) {
    const absl::Status from_peer = LoadFromPeer(stage, key, &weights);
    status = from_peer.ok() ? from_peer
                            : absl::Status(from_peer.code(),
                                           absl::StrCat(status.message(), "; ",
                                                        from_peer.message()));
  }
  TL_RETURN_IF_ERROR(status);
  const int64_t bytes = weights.bytes();
  account_->Add(bytes);
  return std::shared_ptr<const kernels::MlpWeights>(
      new kernels::MlpWeights(std::move(weights)),
      [account = account_, bytes](const kernels::MlpWeights* entry) {
        delete entry;
        account->Subtract(bytes);
      });
}

absl::Status ExpertStore::Pack(const TensorView& up, const TensorView& down,
                               kernels::MlpWeights* weights) {
  TL_ASSIGN_OR_RETURN(
      weights->up, kernels::PackedMatrix::Pack(up, pool_, options_.numerics));
  TL_ASSIGN_OR_RETURN(weights->down, kernels::PackedMatrix::Pack(
                                         down, pool_, options_.numerics));
  return absl::OkStatus();
}

absl::Status ExpertStore::LoadFromDisk(ExpertKey key,
                                       kernels::MlpWeights* weights) {
  TL_ASSIGN_OR_RETURN(const std::unique_ptr<model::WeightMap> map,
                      checkpoint_->MapExpert(key.layer, key.expert));
  const std::string base = absl::StrCat("layers.", key.layer.value,
                                        ".mixer.experts.", key.expert.value);
  TL_ASSIGN_OR_RETURN(const TensorView up, map->Find(base + ".up_proj.weight"));
  TL_ASSIGN_OR_RETURN(const TensorView down,
                      map->Find(base + ".down_proj.weight"));
  const std::span<const std::byte> parts[kShardParts] = {
      {up.data, static_cast<size_t>(up.bytes())},
      {down.data, static_cast<size_t>(down.bytes())}};
  const ExpertDigest digest = model::DigestOfParts(parts);
  const std::optional<ExpertDigest> known = digests_->Find(key);
  if (known.has_value() && *known != digest) {
    return absl::DataLossError(
        absl::StrCat(checkpoint_->directory(), ": ", ExpertName(key),
                     " has digest ", model::DigestHex(digest),
                     " on this disk, it must be ", model::DigestHex(*known)));
  }
  TL_RETURN_IF_ERROR(Pack(up, down, weights));
  digests_->Set(key, digest);
  std::lock_guard<std::mutex> lock(mutex_);
  ++sources_.disk_experts;
  sources_.disk_bytes += parts[0].size() + parts[1].size();
  return absl::OkStatus();
}

// What comes is what the file would hold, so from there on the way is the same.
absl::Status ExpertStore::LoadFromPeer(StagedVersion& stage, ExpertKey key,
                                       kernels::MlpWeights* weights) {
  ExpertRequest request;
  request.key = key;
  request.digest = digests_->Find(key);
  TensorView views[kShardParts];
  size_t found = 0;
  for (const model::TensorInfo& tensor : checkpoint_->tensors()) {
    if (tensor.role != model::TensorRole::kRoutedExpert ||
        tensor.layer != key.layer || tensor.expert != key.expert) {
      continue;
    }
    // An expert's two tensors follow each other in the list, up first.
    if (found == kShardParts || tensor.shape.size() != 2) {
      return absl::InternalError(ExpertName(key) + " is not two matrices");
    }
    views[found].name = tensor.name;
    views[found].dtype = tensor.dtype;
    views[found].shape = tensor.shape;
    request.parts[found] = {.rows = tensor.shape[0],
                            .columns = tensor.shape[1],
                            .dtype = tensor.dtype};
    ++found;
  }
  if (found != kShardParts) {
    return absl::NotFoundError(ExpertName(key) + " is not in the model");
  }
  absl::StatusOr<FetchedExpert> fetched = options_.peers->Fetch(
      request, [this, &stage] { return Abandoned(stage); });
  {
    std::lock_guard<std::mutex> lock(mutex_);
    sources_.peers = options_.peers->counts();
  }
  if (!fetched.ok()) return fetched.status();
  digests_->Set(key, fetched->digest);
  for (size_t p = 0; p < kShardParts; ++p) {
    views[p].data = fetched->parts[p].data();
  }
  return Pack(views[0], views[1], weights);
}

ExpertStore::Sources ExpertStore::sources() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sources_;
}

bool ExpertStore::Abandoned(const StagedVersion& stage) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stop_ || stage.retired;
}

void ExpertStore::Publish(StagedVersion& stage,
                          const std::function<void(StageProgress&)>& edit) {
  StageProgress copy;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    edit(stage.progress);
    copy = stage.progress;
    // Retired in this very moment: nobody asks for the shard any more, and
    // keeping it would keep its memory.
    if (stage.retired) stage.progress.shard = nullptr;
  }
  if (stage.on_progress) stage.on_progress(copy);
}

}  // namespace trunkline::expert
