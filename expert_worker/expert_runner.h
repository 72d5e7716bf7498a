#pragma once

// The arithmetic of a batch: widens the frames' rows, runs them through their
// experts in one grouped product, and writes one answer frame per dispatch
// frame. Knows no network: the caller brings the memory of the answers.
//
// Not thread-safe; called by the engine thread, which owns the context's pool.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/aligned_buffer.h"
#include "common/clock.h"
#include "expert_worker/expert_store.h"
#include "expert_worker/expert_worker.h"
#include "kernels/kernel_context.h"
#include "kernels/mlp.h"

namespace trunkline::expert {

// What an answer row holds. Both give the trunk the same bits (architecture.md,
// "Wire format of the data plane").
enum class AnswerForm : uint8_t {
  kGatedF32,     // gate * output, 4 bytes an element
  kUngatedBf16,  // the expert's output, 2 bytes; exact for bf16 activations
                 // only
};

class ExpertRunner {
 public:
  // answer kUngatedBf16 needs activation kBf16.
  ExpertRunner(const kernels::KernelContext& context,
               kernels::Activation activation, AnswerForm answer,
               const Clock* clock);

  // Size of the answer to a frame.
  size_t AnswerBytes(const BatchFrame& frame) const;

  // answers[i]: AnswerBytes(batch.frames[i]) bytes on a 64-byte boundary,
  // filled and sealed. INTERNAL naming layer and expert when the shard lacks
  // one that the core said is owned: then no answer is complete.
  absl::Status Run(const Batch& batch, const Shard& shard,
                   std::span<const std::span<std::byte>> answers);

  absl::Duration last_compute() const { return last_compute_; }

 private:
  absl::Status FindGroups(const Batch& batch, const Shard& shard);
  void GatherRows(const Batch& batch);
  void WriteAnswers(const Batch& batch,
                    std::span<const std::span<std::byte>> answers);

  const kernels::KernelContext context_;
  const kernels::Activation activation_;
  const AnswerForm answer_;
  const Clock* const clock_;

  // Kept between batches, so that the step path allocates only when it grows.
  std::vector<kernels::MlpGroup> groups_;
  std::vector<uint32_t> first_row_;  // [frames] of the gathered rows
  std::vector<uint32_t> row_index_;  // [routes] grouped route -> gathered row
  std::vector<uint32_t> frame_of_row_;
  AlignedBuffer x_;  // [rows, width] f32
  AlignedBuffer y_;  // [routes, width] f32
  kernels::MlpScratch scratch_;
  absl::Duration last_compute_;
};

}  // namespace trunkline::expert
