#include "expert_worker/expert_runner.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/combine_rows.h"

namespace trunkline::expert {

namespace {

float* Grow(AlignedBuffer& buffer, size_t floats) {
  // A quarter more than asked, so that slowly growing batches settle.
  if (buffer.size() < floats * sizeof(float))
    buffer = AlignedBuffer((floats + floats / 4) * sizeof(float));
  return buffer.as<float>();
}

}  // namespace

ExpertRunner::ExpertRunner(const kernels::KernelContext& context,
                           kernels::Activation activation, AnswerForm answer,
                           const Clock* clock)
    : context_(context),
      activation_(activation),
      answer_(answer),
      clock_(clock) {
  TL_CHECK(answer == AnswerForm::kGatedF32 ||
           activation == kernels::Activation::kBf16)
      << "an ungated bf16 answer would round f32 outputs";
}

size_t ExpertRunner::AnswerBytes(const BatchFrame& frame) const {
  return dispatch::AnswerFrameBytes(
      frame.view.header.route_count, frame.view.header.row_width,
      answer_ == AnswerForm::kGatedF32 ? DType::kF32 : DType::kBF16);
}

absl::Status ExpertRunner::Run(const Batch& batch, const Shard& shard,
                               std::span<const std::span<std::byte>> answers) {
  TL_CHECK_EQ(answers.size(), batch.frames.size());
  const absl::Time start = clock_->Now();
  TL_RETURN_IF_ERROR(FindGroups(batch, shard));
  GatherRows(batch);

  kernels::GroupedMlpArgs args;
  args.x = x_.as<float>();
  args.x_stride = batch.row_width;
  args.row_index = row_index_.data();
  args.groups = groups_;
  args.y = Grow(y_, batch.routes.order.size() * batch.row_width);
  args.y_stride = batch.row_width;
  args.out = activation_;
  if (!groups_.empty()) kernels::GroupedMlp(context_, args, &scratch_);

  WriteAnswers(batch, answers);
  last_compute_ = clock_->Now() - start;
  for (size_t f = 0; f < answers.size(); ++f) {
    dispatch::SetAnswerTimings(
        answers[f],
        static_cast<uint64_t>(
            absl::ToInt64Nanoseconds(start - batch.frames[f].received)),
        static_cast<uint64_t>(absl::ToInt64Nanoseconds(last_compute_)));
    dispatch::SealFrame(answers[f]);
  }
  return absl::OkStatus();
}

absl::Status ExpertRunner::FindGroups(const Batch& batch, const Shard& shard) {
  groups_.clear();
  for (const ExpertGroup& group : batch.routes.groups) {
    const kernels::MlpWeights* weights =
        shard.Find({batch.layer, group.expert});
    if (weights == nullptr)
      return absl::InternalError(absl::StrCat(
          "expert ", group.expert.value, " of layer ", batch.layer.value,
          " is not loaded for placement version ", batch.version.value));
    groups_.push_back({weights, group.begin, group.count});
  }
  return absl::OkStatus();
}

void ExpertRunner::GatherRows(const Batch& batch) {
  first_row_.clear();
  frame_of_row_.clear();
  for (uint32_t f = 0; f < batch.frames.size(); ++f) {
    first_row_.push_back(static_cast<uint32_t>(frame_of_row_.size()));
    frame_of_row_.insert(frame_of_row_.end(),
                         batch.frames[f].view.header.row_count, f);
  }
  const int64_t width = batch.row_width;
  float* const x = Grow(x_, frame_of_row_.size() * batch.row_width);
  context_.pool->ParallelFor(
      static_cast<int64_t>(frame_of_row_.size()), [&](int64_t row, int) {
        const uint32_t f = frame_of_row_[row];
        const dispatch::DispatchFrameView& view = batch.frames[f].view;
        const std::byte* from =
            view.rows.data() + (row - first_row_[f]) * view.row_stride;
        if (view.header.row_dtype == DType::kBF16)
          kernels::WidenRow(reinterpret_cast<const uint16_t*>(from), width,
                            x + row * width);
        else
          std::memcpy(x + row * width, from, width * sizeof(float));
      });

  row_index_.resize(batch.routes.order.size());
  for (size_t i = 0; i < row_index_.size(); ++i) {
    const RouteRef route = batch.routes.order[i];
    row_index_[i] = first_row_[route.frame] +
                    batch.frames[route.frame].view.row_index[route.route];
  }
}

void ExpertRunner::WriteAnswers(const Batch& batch,
                                std::span<const std::span<std::byte>> answers) {
  const bool gated = answer_ == AnswerForm::kGatedF32;
  std::vector<dispatch::AnswerFrameWriter> writers;
  writers.reserve(answers.size());
  for (size_t f = 0; f < answers.size(); ++f) {
    const dispatch::DispatchFrameView& view = batch.frames[f].view;
    dispatch::FrameHeader header = view.header;
    header.kind = dispatch::FrameKind::kAnswer;
    header.gated = gated;
    header.row_dtype = gated ? DType::kF32 : DType::kBF16;
    header.row_count = header.route_count;
    writers.push_back(dispatch::BeginAnswerFrame(header, answers[f]));
    dispatch::AnswerFrameWriter& writer = writers.back();
    for (size_t i = 0; i < view.token_id.size(); ++i) {
      writer.token_id[i] = view.token_id[i];
      writer.slot[i] = view.slot[i];
      writer.expert_id[i] = view.expert_id[i];
    }
  }
  const int64_t width = batch.row_width;
  const float* const y = y_.as<float>();
  context_.pool->ParallelFor(
      static_cast<int64_t>(batch.routes.order.size()), [&](int64_t i, int) {
        const RouteRef route = batch.routes.order[i];
        std::byte* to = writers[route.frame].rows +
                        route.route * writers[route.frame].row_stride;
        if (gated)
          kernels::GateRow(y + i * width,
                           batch.frames[route.frame].view.gate[route.route],
                           width, reinterpret_cast<float*>(to));
        else
          kernels::NarrowRow(y + i * width, width,
                             reinterpret_cast<uint16_t*>(to));
      });
}

}  // namespace trunkline::expert
