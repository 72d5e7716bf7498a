#include "trunk_worker/step_plan.h"

#include "common/check.h"

namespace trunkline::trunk {

void SampleStep(const StepPlan& plan, const StepLogits& logits,
                ThreadPool& pool, std::vector<SamplerScratch>* scratch,
                StepResult* result) {
  result->runs.assign(plan.runs.size(), RunResult());
  for (size_t i = 0; i < plan.runs.size(); ++i)
    result->runs[i].prompt_logprobs.resize(plan.runs[i].following.size());
  scratch->resize(pool.threads());

  // Statuses apart from the runs: several rows of one run are several tasks.
  std::vector<absl::Status>& statuses = result->row_statuses;
  statuses.assign(logits.rows.size(), absl::OkStatus());
  pool.ParallelFor(static_cast<int64_t>(logits.rows.size()), [&](int64_t task,
                                                                 int thread) {
    const auto [index, row] = logits.rows[task];
    const StepRun& run = plan.runs[index];
    RunResult& out = result->runs[index];
    SamplerScratch* memory = &(*scratch)[thread];
    const std::span<const float> values = logits[task];
    if (row < static_cast<int64_t>(run.following.size())) {
      statuses[task] = CheckLogits(values);
      if (!statuses[task].ok()) return;
      out.prompt_logprobs[row] =
          LogprobsOf(values, run.following[row], run.spec.logprobs, memory);
    }
    const bool last = row + 1 == static_cast<int64_t>(run.rows.tokens.size());
    if (!run.sample || !last) return;
    absl::StatusOr<SampledToken> token = SampleToken(values, run.spec, memory);
    if (token.ok()) {
      out.token = *std::move(token);
    } else {
      statuses[task] = token.status();
    }
  });
  for (size_t task = 0; task < statuses.size(); ++task) {
    absl::Status& status = result->runs[logits.rows[task].run].status;
    if (status.ok()) status = statuses[task];
  }
}

}  // namespace trunkline::trunk
