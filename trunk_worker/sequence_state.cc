#include "trunk_worker/sequence_state.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/attention.h"
#include "kernels/mamba.h"

namespace trunkline::trunk {
namespace {

int64_t Aligned(int64_t bytes) {
  constexpr int64_t kAlign = AlignedBuffer::kAlignment;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

StateLayout StateLayout::For(const model::ModelConfig& config,
                             kernels::Activation activation,
                             const routing::AdmissionPolicy& admission) {
  StateLayout layout;
  for (const model::LayerSpec& spec : config.layers) {
    Layer layer;
    layer.kind = spec.kind;
    if (spec.kind == model::LayerKind::kMamba) {
      const model::MambaShape& m = spec.mamba;
      layer.conv_offset = layout.slot_bytes;
      layout.slot_bytes += Aligned(
          kernels::ConvStateBytes(m.conv_dim(), m.conv_kernel, activation));
      layer.scan_offset = layout.slot_bytes;
      layout.slot_bytes +=
          Aligned(kernels::ScanStateBytes(m.heads, m.head_dim, m.state_size));
    } else if (spec.kind == model::LayerKind::kAttention) {
      const model::AttentionShape& a = spec.attention;
      layer.kv_offset = layout.kv_block_bytes;
      layer.kv_ordinal = layout.attention_layers++;
      layout.kv_block_bytes +=
          Aligned(kernels::KvBlockBytes(a.kv_heads, a.head_dim, activation));
    } else if (spec.kind == model::LayerKind::kMoe &&
               admission.kind == routing::AdmissionKind::kFixedCapacity) {
      layer.experts = spec.moe.experts;
      layer.used_offset = layout.slot_bytes;
      layout.slot_bytes +=
          Aligned(layer.experts * static_cast<int64_t>(sizeof(uint32_t)));
    }
    layout.layers.push_back(layer);
  }
  return layout;
}

int64_t StateLayout::BlocksFor(int64_t tokens) const {
  if (attention_layers == 0) return 0;
  return (tokens + kernels::kKvBlock - 1) / kernels::kKvBlock;
}

int64_t StateLayout::SequenceBytes(int64_t tokens) const {
  return slot_bytes + BlocksFor(tokens) * kv_block_bytes;
}

SequenceState::SequenceState(SequencePool* pool, uint32_t slot,
                             int64_t tokens_max)
    : pool_(pool), slot_(slot), tokens_max_(tokens_max) {
  blocks_reserved_ = pool_->layout_.BlocksFor(tokens_max);
  blocks_.reserve(blocks_reserved_);
  layer_blocks_.resize(pool_->layout_.attention_layers);
  for (auto& blocks : layer_blocks_) blocks.reserve(blocks_reserved_);
}

SequenceState::~SequenceState() {
  for (std::byte* block : blocks_) pool_->kv_.GiveBack(block);
  pool_->kv_.Unreserve(blocks_reserved_);
  pool_->free_slots_.push_back(slot_);
}

void SequenceState::BeginStep(int64_t rows) {
  TL_CHECK_EQ(rows_in_step_, 0) << "the state is half advanced";
  TL_CHECK_GT(rows, 0);
  TL_CHECK_LE(length_ + rows, tokens_max_);
  rows_in_step_ = rows;
  const StateLayout& layout = pool_->layout_;
  const size_t needed = layout.BlocksFor(length_ + rows);
  while (blocks_.size() < needed) {
    std::byte* block = pool_->kv_.TakeReserved();
    --blocks_reserved_;
    blocks_.push_back(block);
    for (const StateLayout::Layer& layer : layout.layers) {
      if (layer.kind == model::LayerKind::kAttention)
        layer_blocks_[layer.kv_ordinal].push_back(block + layer.kv_offset);
    }
  }
}

void SequenceState::CommitStep() {
  TL_CHECK_GT(rows_in_step_, 0);
  length_ += rows_in_step_;
  rows_in_step_ = 0;
}

std::byte* SequenceState::conv_state(LayerIndex layer) {
  return pool_->slot_data(slot_) +
         pool_->layout_.layers[layer.value].conv_offset;
}

std::byte* SequenceState::scan_state(LayerIndex layer) {
  return pool_->slot_data(slot_) +
         pool_->layout_.layers[layer.value].scan_offset;
}

std::span<uint32_t> SequenceState::expert_rows_used(LayerIndex layer) {
  const StateLayout::Layer& at = pool_->layout_.layers[layer.value];
  return {reinterpret_cast<uint32_t*>(pool_->slot_data(slot_) + at.used_offset),
          static_cast<size_t>(at.experts)};
}

std::span<std::byte* const> SequenceState::kv_blocks(LayerIndex layer) const {
  return layer_blocks_[pool_->layout_.layers[layer.value].kv_ordinal];
}

absl::StatusOr<std::unique_ptr<SequencePool>> SequencePool::Create(
    StateLayout layout, const Options& options) {
  TL_CHECK_GT(options.sequences_max, 0);
  TL_CHECK_GT(options.tokens_max, 0);
  const int64_t slots = layout.slot_bytes * options.sequences_max;
  int64_t blocks = layout.BlocksFor(options.tokens_max) * options.sequences_max;
  if (options.memory_bytes > 0 && layout.kv_block_bytes > 0) {
    blocks =
        std::min(blocks, std::max<int64_t>(0, options.memory_bytes - slots) /
                             layout.kv_block_bytes);
  }
  const int64_t least =
      slots + layout.BlocksFor(options.tokens_max) * layout.kv_block_bytes;
  if (options.memory_bytes > 0 && options.memory_bytes < least) {
    return absl::InvalidArgumentError(absl::StrCat(
        "state memory of ", options.memory_bytes, " bytes is too small: ",
        options.sequences_max, " sequences need ", slots,
        " bytes of Mamba state, and one sequence of ", options.tokens_max,
        " tokens needs ", least - slots, " bytes of keys and values"));
  }
  return std::unique_ptr<SequencePool>(
      new SequencePool(std::move(layout), options, blocks));
}

SequencePool::SequencePool(StateLayout layout, const Options& options,
                           int64_t blocks)
    : layout_(std::move(layout)),
      options_(options),
      slots_(static_cast<size_t>(layout_.slot_bytes * options.sequences_max)),
      kv_(layout_.kv_block_bytes, blocks) {
  for (int64_t i = options_.sequences_max; i-- > 0;)
    free_slots_.push_back(static_cast<uint32_t>(i));
}

SequencePool::~SequencePool() { TL_CHECK_EQ(sequences(), 0); }

absl::Status SequencePool::CanAdmit(int64_t tokens) const {
  if (free_slots_.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all ", options_.sequences_max, " sequence slots are in use"));
  }
  const int64_t blocks = layout_.BlocksFor(tokens);
  if (!kv_.CanReserve(blocks)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the request needs ", blocks * kv_.block_bytes(),
                     " bytes of keys and values for up to ", tokens,
                     " tokens; ", kv_.available() * kv_.block_bytes(), " of ",
                     kv_.blocks() * kv_.block_bytes(), " are free"));
  }
  return absl::OkStatus();
}

std::unique_ptr<SequenceState> SequencePool::Admit(int64_t tokens) {
  TL_CHECK(CanAdmit(tokens).ok());
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  kv_.Reserve(layout_.BlocksFor(tokens));
  if (layout_.slot_bytes > 0)
    std::memset(slot_data(slot), 0, layout_.slot_bytes);
  return std::unique_ptr<SequenceState>(new SequenceState(this, slot, tokens));
}

int64_t SequencePool::bytes_total() const {
  return layout_.slot_bytes * options_.sequences_max +
         kv_.blocks() * kv_.block_bytes();
}

int64_t SequencePool::bytes_used() const {
  return layout_.slot_bytes * sequences() +
         (kv_.reserved() + kv_.taken()) * kv_.block_bytes();
}

}  // namespace trunkline::trunk
