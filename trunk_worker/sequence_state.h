#pragma once

// What a sequence remembers between steps, by layer kind: attention layers own
// keys and values in blocks, mamba layers own convolution rows and the SSM
// state; mlp layers own nothing, nor do moe layers unless their capacity is
// fixed: then they own what the sequence's routing group has taken.
//
// A sequence is admitted with room for its longest possible length and keeps
// that promise until it ends; all counts return to what they were. One thread
// (the engine's).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/aligned_buffer.h"
#include "common/ids.h"
#include "kernels/kernel_context.h"
#include "model/model_config.h"
#include "routing/admission.h"
#include "trunk_worker/kv_blocks.h"

namespace trunkline::trunk {

// Where each layer's state lies, from the layer table alone.
struct StateLayout {
  struct Layer {
    model::LayerKind kind = model::LayerKind::kMlp;
    int64_t conv_offset = 0;  // mamba: in the sequence's slot
    int64_t scan_offset = 0;  // mamba
    int64_t kv_offset = 0;    // attention: in each KV block
    size_t kv_ordinal = 0;    // attention: 0 for the first attention layer
    int64_t used_offset = 0;  // moe under fixed capacity: in the slot
    int64_t experts = 0;      // moe under fixed capacity, else 0
  };
  std::vector<Layer> layers;
  size_t attention_layers = 0;
  int64_t slot_bytes = 0;      // conv and SSM state of one sequence, and what
                               // its routing groups have taken
  int64_t kv_block_bytes = 0;  // all attention layers, kKvBlock positions

  static StateLayout For(const model::ModelConfig& config,
                         kernels::Activation activation,
                         const routing::AdmissionPolicy& admission = {});
  int64_t BlocksFor(int64_t tokens) const;  // 0 without attention layers
  // Memory that one sequence of this length occupies.
  int64_t SequenceBytes(int64_t tokens) const;
};

class SequencePool;

// One sequence's state. Returns everything to its pool when destroyed.
class SequenceState {
 public:
  ~SequenceState();
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  int64_t length() const { return length_; }  // positions computed so far
  int64_t tokens_max() const { return tokens_max_; }

  // A step is applied once: Begin before any layer touches the state, Commit
  // when all have. A state that began and never committed is half advanced; it
  // can only be destroyed, and beginning again is a programmer's error.
  void BeginStep(int64_t rows);  // also takes the KV blocks that rows need
  void CommitStep();

  std::byte* conv_state(LayerIndex layer);
  std::byte* scan_state(LayerIndex layer);
  std::span<std::byte* const> kv_blocks(LayerIndex layer) const;
  // Of a moe layer under fixed capacity: [experts] rows that the routing group
  // under way has given away (routing/sequence_admission.h).
  std::span<uint32_t> expert_rows_used(LayerIndex layer);

 private:
  friend class SequencePool;
  SequenceState(SequencePool* pool, uint32_t slot, int64_t tokens_max);

  SequencePool* const pool_;
  const uint32_t slot_;
  const int64_t tokens_max_;
  int64_t blocks_reserved_ = 0;  // not yet taken
  int64_t length_ = 0;
  int64_t rows_in_step_ = 0;  // 0: no step under way
  std::vector<std::byte*> blocks_;
  // [attention layer][block]: what Attention wants to see.
  std::vector<std::vector<std::byte*>> layer_blocks_;
};

class SequencePool {
 public:
  struct Options {
    int64_t sequences_max = 64;
    int64_t tokens_max = 8192;  // of one sequence
    int64_t memory_bytes = 0;   // slots and KV blocks together; 0: as much as
                                // sequences_max full sequences need
  };
  // INVALID_ARGUMENT when not even one full sequence fits beside the slots,
  // naming what is needed.
  static absl::StatusOr<std::unique_ptr<SequencePool>> Create(
      StateLayout layout, const Options& options);
  ~SequencePool();

  // Why a sequence of this length can not start now: RESOURCE_EXHAUSTED naming
  // what is short; OK when it can.
  absl::Status CanAdmit(int64_t tokens) const;
  // Zeroed state with room for `tokens` positions. CanAdmit was OK.
  std::unique_ptr<SequenceState> Admit(int64_t tokens);

  int64_t sequences_max() const { return options_.sequences_max; }
  int64_t sequences() const {
    return options_.sequences_max - static_cast<int64_t>(free_slots_.size());
  }
  int64_t tokens_max() const { return options_.tokens_max; }
  int64_t bytes_total() const;
  // Slots in use and blocks taken or reserved: what admission counts.
  int64_t bytes_used() const;
  const KvBlockPool& kv() const { return kv_; }

 private:
  friend class SequenceState;
  SequencePool(StateLayout layout, const Options& options, int64_t blocks);
  std::byte* slot_data(uint32_t slot) {
    return slots_.data() + layout_.slot_bytes * slot;
  }

  const StateLayout layout_;
  const Options options_;
  AlignedBuffer slots_;
  std::vector<uint32_t> free_slots_;
  KvBlockPool kv_;
};

}  // namespace trunkline::trunk
