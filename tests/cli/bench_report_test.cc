#include "cli/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace trunkline::cli {
namespace {

using testing::HasSubstr;
using trunk::StepPhase;

// Every phase takes another power of two, so that a sum says what is in it.
PhaseSeconds PowersOfTwo() {
  PhaseSeconds phases{};
  for (size_t p = 0; p < phases.size(); ++p)
    phases[p] = static_cast<double>(1 << p);
  return phases;
}

double Bit(StepPhase phase) {
  return static_cast<double>(1 << static_cast<int>(phase));
}

TEST(BenchReport, EveryPhaseIsInExactlyOneGroup) {
  double sum = 0;
  for (const PhaseGroup& group : PhaseGroups(PowersOfTwo()))
    sum += group.seconds;
  EXPECT_EQ(sum, static_cast<double>((1 << trunk::kStepPhases) - 1));
}

TEST(BenchReport, SmallPartsAreWhatReadsNoLargeMatrix) {
  EXPECT_EQ(SmallPartsSeconds(PowersOfTwo()),
            Bit(StepPhase::kMambaScan) + Bit(StepPhase::kAttention) +
                Bit(StepPhase::kRouter) + Bit(StepPhase::kNorm) +
                Bit(StepPhase::kCombine) + Bit(StepPhase::kSample));
}

TEST(BenchReport, PhaseNamesDiffer) {
  std::vector<std::string> names;
  for (int p = 0; p < trunk::kStepPhases; ++p) {
    const auto name = trunk::StepPhaseName(static_cast<StepPhase>(p));
    names.emplace_back(name.data(), name.size());
    EXPECT_NE(names.back(), "?");
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

BenchReport ASmallReport() {
  BenchReport report;
  report.model = "m";
  report.layers = "MEM*E";
  report.threads = 2;
  report.repeats = 3;
  report.weight_bytes = int64_t{2} << 30;
  report.load_seconds = 2;
  report.page_cache_rate = 4.0 * (1 << 30);
  report.resident_bytes = report.resident_peak_bytes = int64_t{2} << 30;
  StepFigures step;
  step.what = {false, 8, 2048};
  step.tokens_per_second = 100;
  step.seconds = 0.08;
  step.work = 4e9;
  step.rate = 40e9;
  step.limit = 50e9;
  step.ratio = 0.8;
  step.phases = PowersOfTwo();
  report.steps = {step};
  report.skipped = {"decode/32/0: why"};
  return report;
}

TEST(BenchReport, TextHasFigureLimitAndRatioOnEachLine) {
  const std::string text = BenchText(ASmallReport());
  EXPECT_THAT(text, HasSubstr("decode/8/2048  100.0  80.00  40.0 GB/s  50.0 "
                              "GB/s  0.800"));
  EXPECT_THAT(text, HasSubstr("ratio 0.25"));  // of loading
  EXPECT_THAT(text, HasSubstr("left out: decode/32/0: why"));
}

// Prefill is held to the peak of the class, and the text says which.
TEST(BenchReport, PrefillsLimitIsThatOfTheClass) {
  BenchReport report = ASmallReport();
  report.steps[0].what = {true, 512, 0};
  report.dot_one_thread = 100e9;
  report.dot_all_threads = 200e9;
  EXPECT_THAT(BenchText(report), HasSubstr("class portable"));
  EXPECT_THAT(BenchText(report), HasSubstr("against fma peak"));
  EXPECT_THAT(BenchText(report),
              HasSubstr("dot     100.0 GFLOP/s with 1 thread, 200.0 GFLOP/s"));
  EXPECT_EQ(BenchJson(report)["steps"][0]["bound"], "fma");
  report.numerics = kernels::Numerics::kBf16Dot;
  EXPECT_THAT(BenchText(report), HasSubstr("class bf16dot"));
  EXPECT_THAT(BenchText(report), HasSubstr("against dot peak"));
  EXPECT_EQ(BenchJson(report)["steps"][0]["bound"], "dot");
  EXPECT_EQ(BenchJson(report)["run"]["numerics"], "bf16dot");
  EXPECT_EQ(BenchJson(report)["limits"]["dot_all_threads"], 200e9);
}

TEST(BenchReport, JsonHasWhatTheTablesShow) {
  const nlohmann::ordered_json json = BenchJson(ASmallReport());
  EXPECT_EQ(json["format"], "trunkline-bench-1");
  const auto& step = json["steps"][0];
  EXPECT_EQ(step["name"], "decode/8/2048");
  EXPECT_EQ(step["ratio"], 0.8);
  EXPECT_EQ(step["phase_seconds"].size(),
            static_cast<size_t>(trunk::kStepPhases));
  EXPECT_EQ(step["phase_seconds"]["head"], Bit(StepPhase::kHead));
}

}  // namespace
}  // namespace trunkline::cli
