// trunkline replay as a person and a script use it: what docs/replay.md shows,
// the reference's numbers, and recordings that are not what they say.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/child_process.h"
#include "tests/trunk_worker/recorded_stream.h"

namespace trunkline::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kMatrix[] = TRUNKLINE_FIXTURES "/routing/matrix_8x4.json";

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// "..." stands for any number of lines.
bool Matches(const std::vector<std::string>& shown, size_t i,
             const std::vector<std::string>& printed, size_t k) {
  if (i == shown.size()) return k == printed.size();
  if (shown[i] == "...") {
    for (size_t skip = k; skip <= printed.size(); ++skip)
      if (Matches(shown, i + 1, printed, skip)) return true;
    return false;
  }
  return k < printed.size() && shown[i] == printed[k] &&
         Matches(shown, i + 1, printed, k + 1);
}

RunResult RunTrunkline(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TRUNKLINE_BINARY);
  return RunProgram(arguments, std::chrono::seconds(60));
}

// The commands are run from the source folder, whose files they name.
RunResult RunShown(const std::string& command) {
  const std::string program = "trunkline ";
  EXPECT_EQ(command.rfind(program, 0), 0u) << command;
  return RunProgram(
      {"/bin/sh", "-c",
       std::string("cd '") + TRUNKLINE_SOURCE_DIR + "' && '" +
           TRUNKLINE_BINARY + "' " + command.substr(program.size())},
      std::chrono::seconds(60));
}

TEST(ReplayDocs, ShowWhatTheProgramPrints) {
  const std::vector<std::string> doc =
      Lines(ReadFile(TRUNKLINE_SOURCE_DIR "/docs/replay.md"));
  int blocks = 0;
  for (size_t i = 0; i < doc.size(); ++i) {
    if (doc[i] != "```console") continue;
    ASSERT_EQ(doc[++i].rfind("$ ", 0), 0u) << "line " << i + 1;
    const std::string command = doc[i].substr(2);
    std::vector<std::string> shown;
    for (++i; i < doc.size() && doc[i] != "```"; ++i) shown.push_back(doc[i]);
    const RunResult result = RunShown(command);
    EXPECT_TRUE(Matches(shown, 0, Lines(result.out), 0))
        << command << "\nprints\n"
        << result.out << result.err;
    ++blocks;
  }
  EXPECT_GE(blocks, 7);
}

json RunJson(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"replay", "--scores", kMatrix});
  arguments.push_back("--json");
  const RunResult result = RunTrunkline(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out, nullptr, false)[0];
}
std::vector<uint32_t> WithoutExpert(const json& replay) {
  std::vector<uint32_t> tokens;
  const json& degrees = replay["tokens"]["degrees"];
  for (uint32_t t = 0; t < degrees.size(); ++t)
    if (degrees[t] == 0) tokens.push_back(t);
  return tokens;
}

TEST(ReplayMatrix, GivesTheNumbersOfTheReference) {
  const json fixture = json::parse(std::ifstream(kMatrix));
  const json& variants = fixture["variants"];

  json gshard = RunJson({"--policy", "gshard", "--draw", "0.25", "--admission",
                         "capacity:order=first-choices"});
  EXPECT_EQ(gshard["contracts"][0]["result"]["accepted"], 13);

  const json switched =
      RunJson({"--policy", "switch", "--admission", "capacity:order=source"});
  EXPECT_EQ(switched["contracts"][0]["result"]["accepted"], 6);
  EXPECT_THAT(WithoutExpert(switched), ::testing::ElementsAre(4, 7));

  const json choice = RunJson({"--policy", "expert-choice"});
  EXPECT_EQ(choice["tokens"]["degrees"], json::array({3, 3, 3, 3, 1, 1, 2, 0}));

  const json mixtral = RunJson({});
  EXPECT_EQ(mixtral["contracts"][0]["result"]["accepted"],
            variants["mixtral_dropless"]["executed_rows"]);
  EXPECT_EQ(mixtral["contracts"][0]["result"]["selected"],
            json::array({6, 5, 3, 2}));

  const json blocks = RunJson({"--sweep", "block-size=1,2,4,8"});
  std::vector<int> rows, tails;
  for (const json& point : blocks["points"]) {
    rows.push_back(point["result"]["represented_rows"]);
    tails.push_back(point["result"]["tail_rows"]);
  }
  EXPECT_THAT(rows, ::testing::ElementsAre(16, 18, 24, 32));
  EXPECT_THAT(tails, ::testing::ElementsAre(0, 2, 8, 16));

  const json capacity =
      json::parse(std::ifstream(TRUNKLINE_FIXTURES "/routing/capacity.json"));
  const json& expected = capacity["capacity_factor_sweep"]["rows"];
  const json sweep = RunJson({"--sweep", "capacity-factor=0.75,1.0,1.25,1.5"});
  ASSERT_EQ(sweep["points"].size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const json& result = sweep["points"][i]["result"];
    EXPECT_EQ(result["dropped"], expected[i]["dropped"]);
    EXPECT_EQ(result["unused_slots"], expected[i]["unused_slots"]);
    EXPECT_NEAR(result["utilization"], expected[i]["utilization"], 1e-12);
  }
}

class ReplayFile : public ::testing::Test {
 protected:
  std::string Write(const std::vector<v1::RouteRecordEntry>& entries) {
    const std::string path = dir_.path() + "/r.tlrec";
    EXPECT_TRUE(trunk::WriteEntries(path, entries).ok());
    return path;
  }
  TempDir dir_;
  trunk::TestRecording recording_ = trunk::MakeTestRecording(5);
};

TEST_F(ReplayFile, OfWhatThePolicyMakesIsEqual) {
  const std::string path = Write(trunk::EntriesOf(recording_));
  int64_t routes = 0;
  for (const trunk::RecordedRoutes& r : recording_.routes)
    routes += r.record.table.size();
  const RunResult result = RunTrunkline({"replay", path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(std::to_string(routes) + " routes equal"));
}

// Consistent in itself, and yet not what the policy makes.
TEST_F(ReplayFile, NamesTheFirstRouteThatDiffers) {
  for (const bool gate : {true, false}) {
    trunk::TestRecording changed = recording_;
    routing::LayerRecord& r = changed.routes[2].record;
    if (gate) {
      r.table.gate[1] = std::nextafter(r.table.gate[1], 9.0f);
      r.selected_gate[1] = r.table.gate[1];
    } else {
      std::swap(r.values[0], r.values[r.table.expert_id[0].value]);
      r.values[0] += 0.001f;
    }
    const RunResult result =
        RunTrunkline({"replay", Write(trunk::EntriesOf(changed))});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("DATA_LOSS"));
    EXPECT_THAT(result.err, HasSubstr("record 3"));
    EXPECT_THAT(result.err, HasSubstr("step 2, layer 1"));
    if (gate) {
      EXPECT_THAT(result.err, HasSubstr("token 0, slot 1: gate"));
    }
  }
}

TEST_F(ReplayFile, ComparesEachLayerBesideItself) {
  const std::string path = Write(trunk::EntriesOf(recording_));
  const RunResult result =
      RunTrunkline({"replay", path, "--policy", "recorded:top-k=1", "--workers",
                    "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json layers = json::parse(result.out);
  ASSERT_EQ(layers.size(), 2u);
  const json& contracts = layers[1]["contracts"];
  EXPECT_EQ(contracts[0]["name"], "recorded");
  EXPECT_EQ(contracts[0]["result"]["accepted"].get<int64_t>(),
            4 * contracts[1]["result"]["accepted"].get<int64_t>());
  EXPECT_EQ(contracts[0]["result"]["workers"].size(), 2u);
}

TEST_F(ReplayFile, NeedsLogitsForAnotherTransform) {
  const std::string path = Write(trunk::EntriesOf(recording_));
  const RunResult refused =
      RunTrunkline({"replay", path, "--policy", "switch"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--recover-logits"));
  const RunResult taken =
      RunTrunkline({"replay", path, "--policy", "switch", "--recover-logits"});
  EXPECT_EQ(taken.exit_code, 0) << taken.err;
}

TEST_F(ReplayFile, DrawsOneLayer) {
  const std::string path = Write(trunk::EntriesOf(recording_));
  const std::string svg = dir_.path() + "/load.svg";
  const RunResult both =
      RunTrunkline({"replay", path, "--form", "max-load", "--svg", svg});
  EXPECT_EQ(both.exit_code, 1);
  EXPECT_THAT(both.err, HasSubstr("--layers"));
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"--form", "max-load"},
        {"--sweep", "capacity-factor=0.5,1"}}) {
    std::vector<std::string> arguments = {"replay", path,    "--layers",
                                          "4",      "--svg", svg};
    arguments.insert(arguments.end(), how.begin(), how.end());
    const RunResult one = RunTrunkline(arguments);
    EXPECT_EQ(one.exit_code, 0) << one.err;
    EXPECT_THAT(ReadFile(svg), HasSubstr("<svg"));
  }
}

TEST_F(ReplayFile, TellsUsageFromFailure) {
  const std::string path = Write(trunk::EntriesOf(recording_));
  const std::vector<std::vector<std::string>> usage = {
      {},
      {path, "--scores", kMatrix},
      {path, "--equivalent-for", "forward"},
      {path, "--against", "recorded"},
      {path, "--draw", "0.5"},
      {path, "--svg", "x.svg"},
      {path, "--recover-logits"},
      {"--scores", kMatrix, "--layers", "1"},
      {"--scores", kMatrix, "--draw", "2"},
      {path, "--workers", "0"},
      {path, "--placement", "p.json", "--workers", "2"}};
  for (std::vector<std::string> arguments : usage) {
    arguments.insert(arguments.begin(), "replay");
    EXPECT_EQ(RunTrunkline(arguments).exit_code, 2) << arguments.back();
  }
  const std::vector<std::vector<std::string>> failures = {
      {dir_.path() + "/none.tlrec"},
      {kMatrix},
      {"--scores", path},
      {path, "--sweep", "luck=1"},
      {path, "--sweep", "workers=1.5"},
      {path, "--sweep", "workers"},
      {path, "--policy", "luck"},
      {path, "--placement", dir_.path() + "/none.json"},
      {path, "--equivalent-for", "luck", "--against", "recorded"}};
  for (std::vector<std::string> arguments : failures) {
    arguments.insert(arguments.begin(), "replay");
    const RunResult result = RunTrunkline(arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments.back();
    EXPECT_THAT(result.err, HasSubstr("trunkline replay: "));
  }
}

}  // namespace
}  // namespace trunkline::testing
