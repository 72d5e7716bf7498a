#include "trunk_worker/trunk_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace trunkline::trunk {
namespace {

using ::testing::HasSubstr;

TEST(TrunkOptionsTest, EachBadFlagIsNamedWithItsValue) {
  const std::vector<std::pair<std::function<void(TrunkOptions&)>, std::string>>
      cases = {
          {[](auto& o) { o.model_dir = ""; }, "--model"},
          {[](auto& o) { o.coordinator = "nowhere"; }, "nowhere"},
          {[](auto& o) { o.listen = "127.0.0.1:70000"; }, "70000"},
          {[](auto& o) { o.transport = "pigeon"; }, "pigeon"},
          {[](auto& o) { o.threads = -1; }, "--threads is \"-1\""},
          {[](auto& o) { o.cores = {-4}; }, "--cores is \"-4\""},
          {[](auto& o) { o.simd = "mmx"; }, "mmx"},
          {[](auto& o) { o.numerics = "fp8"; }, "fp8"},
          {[](auto& o) { o.sequences_max = 0; }, "--max-sequences is \"0\""},
          {[](auto& o) { o.sequence_tokens_max = -2; },
           "--max-sequence-tokens"},
          {[](auto& o) { o.state_memory_bytes = -1; }, "--state-memory"},
          {[](auto& o) { o.queue_max = -1; }, "--queue"},
          {[](auto& o) { o.rows_per_step = 1; }, "--rows-per-step is \"1\""},
          {[](auto& o) { o.prefill_chunk = 0; }, "--prefill-chunk"},
          {[](auto& o) { o.request_time_max = absl::ZeroDuration(); },
           "--request-time-max"},
          {[](auto& o) { o.unready_patience = -absl::Seconds(1); },
           "--unready-patience"},
          {[](auto& o) { o.worker_deadline = absl::ZeroDuration(); },
           "--worker-deadline"},
          {[](auto& o) { o.exchange_deadline = absl::ZeroDuration(); },
           "--exchange-deadline"},
          {[](auto& o) { o.stream_buffer_bytes = 1; }, "--stream-buffer"},
          {[](auto& o) { o.metrics_listen = "x"; }, "--metrics-listen"},
          {[](auto& o) { o.log_level = "loud"; }, "loud"},
      };
  for (const auto& [edit, message] : cases) {
    TrunkOptions options;
    options.model_dir = "model";
    edit(options);
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  TrunkOptions good;
  good.model_dir = "model";
  EXPECT_TRUE(good.Validate().ok()) << good.Validate();
}

}  // namespace
}  // namespace trunkline::trunk
