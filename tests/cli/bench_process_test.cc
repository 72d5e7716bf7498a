// `trunkline synthesize` and `trunkline bench` as a person runs them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/numerics.h"
#include "tests/integration/child_process.h"

namespace trunkline::cli {
namespace {

using ::testing::HasSubstr;
using trunkline::testing::ReadFile;
using trunkline::testing::RunProgram;
using trunkline::testing::RunResult;
using trunkline::testing::TempDir;
using Strings = std::vector<std::string>;

constexpr auto kPatience = std::chrono::minutes(2);

RunResult Trunkline(Strings arguments) {
  arguments.insert(arguments.begin(), TRUNKLINE_BINARY);
  return RunProgram(arguments, kPatience);
}

class Bench : public ::testing::Test {
 protected:
  void SetUp() override {
    const RunResult made = Trunkline({"synthesize", "--shape", "tiny", model_});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_THAT(made.out, HasSubstr("layers MEM*EM-ME"));
  }
  TempDir dir_;
  const std::string model_ = dir_.path() + "/tiny";
};

TEST_F(Bench, WhatIsSynthesizedIsACheckpoint) {
  const RunResult seen = Trunkline({"inspect", model_});
  EXPECT_EQ(seen.exit_code, 0) << seen.err;
}

TEST_F(Bench, SynthesizeRefusesAFullDirectoryAndAnUnknownShape) {
  const RunResult again = Trunkline({"synthesize", "--shape", "tiny", model_});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("ALREADY_EXISTS"));
  const RunResult unknown =
      Trunkline({"synthesize", "--shape", "giant", model_ + "2"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("nano, lightning, super, ultra, tiny"));
  EXPECT_FALSE(std::filesystem::exists(model_ + "2"));
}

// A configuration is a shape too.
TEST_F(Bench, SynthesizeTakesAConfigurationForAShape) {
  const RunResult made =
      Trunkline({"synthesize", "--shape", model_ + "/config.json", "--layers",
                 "ME", "--dtype", "f32", model_ + "2"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("layers ME,"));
}

const Strings kShort = {"--streams", "1,3", "--contexts",      "0,100",
                        "--prefill", "70",  "--repeats",       "1",
                        "--seconds", "0",   "--rows-per-step", "32",
                        "--threads", "2",   "--json"};

nlohmann::json RunBench(const std::string& model, const Strings& more) {
  Strings arguments = {"bench", "--model", model};
  arguments.insert(arguments.end(), kShort.begin(), kShort.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  const RunResult run = Trunkline(arguments);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return nlohmann::json::parse(run.out, nullptr, false);
}

void ExpectAllCases(const nlohmann::json& json) {
  Strings names;
  for (const auto& step : json["steps"]) {
    names.push_back(step["name"]);
    EXPECT_GT(step["ratio"], 0);
    EXPECT_GT(step["experts"], 0);
    EXPECT_GT(step["phase_seconds"]["experts"], 0);
  }
  EXPECT_THAT(names,
              ::testing::ElementsAre("decode/1/0", "decode/3/0", "decode/1/100",
                                     "decode/3/100", "prefill/70"));
}

TEST_F(Bench, MeasuresEveryCaseInThisProcess) {
  ExpectAllCases(RunBench(model_, {}));
}

TEST_F(Bench, MeasuresEveryCaseOverExpertWorkers) {
  const nlohmann::json json = RunBench(model_, {"--experts", "2"});
  ExpectAllCases(json);
  EXPECT_EQ(json["run"]["expert_workers"], 2);
  EXPECT_GT(json["limits"]["ping_pong_seconds"], 0);
}

TEST_F(Bench, MeasuresEveryCaseInClassBf16Dot) {
  const absl::Status has =
      kernels::CheckMachineHas(kernels::Numerics::kBf16Dot);
  if (!has.ok()) GTEST_SKIP() << has.message();
  for (const Strings& more : {Strings{"--numerics", "bf16dot"},
                              {"--numerics", "bf16dot", "--experts", "2"}}) {
    const nlohmann::json json = RunBench(model_, more);
    ExpectAllCases(json);
    EXPECT_EQ(json["run"]["numerics"], "bf16dot");
    EXPECT_GT(json["limits"]["dot_all_threads"], 0);
    EXPECT_EQ(json["steps"].back()["bound"], "dot");
  }
}

TEST_F(Bench, CompareShowsTwoRunsSideBySide) {
  const std::string a = dir_.path() + "/a.json", b = dir_.path() + "/b.json";
  RunBench(model_, {"--json-file", a});
  RunBench(model_, {"--json-file", b});
  const std::string compare = TRUNKLINE_SOURCE_DIR "/bench/compare";
  const RunResult shown = RunProgram({compare, a, b}, kPatience);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("decode/3/100"));
  EXPECT_THAT(shown.out, HasSubstr("median"));
  const RunResult wrong =
      RunProgram({compare, a, model_ + "/config.json"}, kPatience);
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("neither of trunkline bench"));
}

TEST_F(Bench, NamesWhatItCanNotMeasure) {
  const RunResult none = Trunkline({"bench", "--model", dir_.path()});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("NOT_FOUND"));
  const RunResult large = Trunkline({"bench", "--model", model_, "--streams",
                                     "1000000", "--contexts", "10000000"});
  EXPECT_EQ(large.exit_code, 1);
  EXPECT_THAT(large.err, HasSubstr("RESOURCE_EXHAUSTED"));
}

}  // namespace
}  // namespace trunkline::cli
