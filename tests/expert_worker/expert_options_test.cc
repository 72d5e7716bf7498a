// Every option that makes no sense is an error that names it.

#include "expert_worker/expert_options.h"

#include <gtest/gtest.h>

#include <functional>

namespace trunkline::expert {
namespace {

ExpertOptions Good() {
  ExpertOptions options;
  options.model_dir = "/some/model";
  options.coordinator = "127.0.0.1:7000";
  return options;
}

TEST(ExpertOptions, DefaultsWithModelAndCoordinatorAreValid) {
  EXPECT_TRUE(Good().Validate().ok()) << Good().Validate();
}

TEST(ExpertOptions, WhatMakesNoSenseIsNamed) {
  struct Case {
    std::function<void(ExpertOptions&)> edit;
    const char* names;
  };
  const std::vector<Case> cases = {
      {[](auto& o) { o.model_dir = ""; }, "model"},
      {[](auto& o) { o.coordinator = ""; }, "coordinator"},
      {[](auto& o) { o.coordinator = "host"; }, "coordinator"},
      {[](auto& o) { o.coordinator = "host:0"; }, "coordinator"},
      {[](auto& o) { o.coordinator = "host:65536"; }, "coordinator"},
      {[](auto& o) { o.listen = "127.0.0.1:x"; }, "listen"},
      {[](auto& o) { o.listen = "0.0.0.0:0"; }, "advertise-host"},
      {[](auto& o) { o.transport = "pigeon"; }, "pigeon"},
      {[](auto& o) { o.threads = -1; }, "threads"},
      {[](auto& o) {
         o.cores = {0, -2};
       },
       "cores"},
      {[](auto& o) { o.answer = "both"; }, "answer"},
      {[](auto& o) { o.memory_limit_bytes = -1; }, "memory-limit"},
      {[](auto& o) { o.limits.queued_frames_max = 0; }, "queued-frames"},
      {[](auto& o) { o.limits.held_bytes_max = 0; }, "held-bytes"},
      {[](auto& o) { o.limits.batch_routes_max = 0; }, "batch-routes"},
      {[](auto& o) { o.metrics_listen = "9000"; }, "metrics-listen"},
      {[](auto& o) { o.handover_timeout = -absl::Seconds(1); },
       "handover-timeout"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    ExpertOptions options = Good();
    cases[i].edit(options);
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_NE(std::string(status.message()).find(cases[i].names),
              std::string::npos)
        << i << ": " << status;
  }
}

// An f32 model's outputs would be rounded by a bf16 answer.
TEST(ExpertOptions, UngatedAnswersAreChosenForBf16ActivationsOnly) {
  using kernels::Activation;
  EXPECT_EQ(ChooseAnswerForm("auto", Activation::kBf16),
            AnswerForm::kUngatedBf16);
  EXPECT_EQ(ChooseAnswerForm("auto", Activation::kF32), AnswerForm::kGatedF32);
  EXPECT_EQ(ChooseAnswerForm("gated-f32", Activation::kBf16),
            AnswerForm::kGatedF32);
}

}  // namespace
}  // namespace trunkline::expert
