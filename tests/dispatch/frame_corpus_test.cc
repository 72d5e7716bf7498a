// Holds the seed corpora of the frame fuzz targets to the format: every seed
// that is named valid decodes, every other one does not. With
// TRUNKLINE_WRITE_CORPUS set to tests/fuzz/corpus it writes the seeds first.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "dispatch/frame_layout.h"
#include "tests/dispatch/frame_builder.h"

namespace trunkline::dispatch {
namespace {

using Seeds = std::map<std::string, FrameBytes>;

void AddMutations(const std::string& name, const FrameBytes& good,
                  Seeds* seeds) {
  namespace at = header_offset;
  const std::pair<std::string, size_t> fields[] = {
      {"magic", at::kMagic},       {"version", at::kWireVersion},
      {"kind", at::kKind},         {"dtype", at::kRowDType},
      {"rows", at::kRowCount},     {"routes", at::kRouteCount},
      {"width", at::kRowWidth},    {"flags", at::kFlags},
      {"refusal", at::kRefusal},   {"payload", at::kPayloadBytes},
      {"checksum", at::kChecksum}, {"reserved", at::kReserved}};
  for (const auto& [field, offset] : fields) {
    FrameBytes bad(good);
    bad.bytes()[offset] ^= std::byte{0x41};
    seeds->emplace("bad_" + name + "_" + field, bad);
  }
  FrameBytes cut(good.size() - 1);
  std::copy_n(good.bytes().begin(), cut.size(), cut.bytes().begin());
  seeds->emplace("bad_" + name + "_cut", cut);
}

Seeds DispatchSeeds() {
  RandomStream random(77);
  Seeds seeds;
  seeds.emplace("valid_small", Write(SmallDispatch()));
  for (int i = 0; i < 4; ++i) {
    seeds.emplace("valid_random_" + std::to_string(i),
                  Write(RandomDispatch(random)));
  }
  AddMutations("small", seeds.at("valid_small"), &seeds);
  return seeds;
}

Seeds AnswerSeeds() {
  RandomStream random(78);
  Seeds seeds;
  for (int i = 0; i < 4; ++i) {
    seeds.emplace("valid_random_" + std::to_string(i),
                  Write(RandomAnswer(random)));
  }
  AddMutations("random", seeds.at("valid_random_0"), &seeds);
  FrameHeader header;
  header.refusal = RefusalCode::kUnknownVersion;
  FrameBytes refusal(RefusalFrameBytes(3));
  WriteRefusalFrame(header, "old", refusal.bytes());
  SealFrame(refusal.bytes());
  seeds.emplace("valid_refusal", refusal);
  AddMutations("refusal", refusal, &seeds);
  return seeds;
}

void CheckCorpus(const std::string& target, const Seeds& seeds) {
  const std::string folder =
      std::string(TRUNKLINE_SOURCE_DIR) + "/tests/fuzz/corpus/" + target;
  if (const char* root = std::getenv("TRUNKLINE_WRITE_CORPUS")) {
    const std::string out = std::string(root) + "/" + target;
    std::filesystem::create_directories(out);
    for (const auto& [name, frame] : seeds) {
      std::ofstream(out + "/" + name, std::ios::binary)
          .write(reinterpret_cast<const char*>(frame.bytes().data()),
                 static_cast<std::streamsize>(frame.size()));
    }
  }
  for (const auto& [name, frame] : seeds) {
    std::ifstream in(folder + "/" + name, std::ios::binary);
    ASSERT_TRUE(in.good()) << folder << "/" << name << " is missing";
    const std::string bytes((std::istreambuf_iterator<char>(in)),
                            std::istreambuf_iterator<char>());
    FrameBytes read(bytes.size());
    std::memcpy(read.bytes().data(), bytes.data(), bytes.size());
    const bool decodes = DecodeDispatch(read.bytes()).ok() ||
                         DecodeAnswer(read.bytes()).ok() ||
                         DecodeRefusal(read.bytes()).ok();
    EXPECT_EQ(decodes, name.rfind("valid_", 0) == 0) << name;
    // Seeds of an older format would fuzz nothing but the first check.
    EXPECT_TRUE(std::ranges::equal(frame.bytes(), read.bytes())) << name;
  }
}

TEST(FrameCorpus, DispatchSeedsAreOfTheCurrentFormat) {
  CheckCorpus("dispatch_frame_fuzz", DispatchSeeds());
}
TEST(FrameCorpus, AnswerSeedsAreOfTheCurrentFormat) {
  CheckCorpus("answer_frame_fuzz", AnswerSeeds());
}

}  // namespace
}  // namespace trunkline::dispatch
