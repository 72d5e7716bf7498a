// A manifest stands in for weights: it says of every expert what it must be,
// and fits one configuration only.

#include "model/expert_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_replace.h"
#include "model/checkpoint.h"
#include "tests/model/checkpoint_builder.h"

namespace trunkline::model {
namespace {

using testing::HasSubstr;

class ExpertManifestTest : public testing::Test {
 protected:
  ExpertManifestTest() {
    SmallModel small;
    small.pattern = "EME";
    small.moe.experts = 4;
    small.moe.top_k = 2;
    SynthesisSpec spec;
    spec.config = SmallConfig(small);
    spec.dtype = DType::kBF16;
    full_path_ = BuildCheckpoint(spec, directory_);
    full_ = *Checkpoint::Open(full_path_);
    manifest_ = *MakeExpertManifest(*full_);
    path_ = directory_.path() + "/thin";
    std::filesystem::create_directory(path_);
    WriteFile(path_ + "/config.json", ReadFile(full_path_ + "/config.json"));
  }
  absl::StatusOr<std::shared_ptr<const Checkpoint>> OpenWith(
      const std::string& manifest) {
    WriteFile(path_ + "/expert_manifest.json", manifest);
    return Checkpoint::Open(path_);
  }

  TempDirectory directory_;
  std::string full_path_, path_, manifest_;
  std::shared_ptr<const Checkpoint> full_;
};

TEST_F(ExpertManifestTest, StandsInForTheWeights) {
  const auto thin = OpenWith(manifest_);
  ASSERT_TRUE(thin.ok()) << thin.status();
  EXPECT_EQ((*thin)->digest(), full_->digest());
  EXPECT_EQ((*thin)->activation_dtype(), full_->activation_dtype());
  std::vector<TensorInfo> experts;
  for (const TensorInfo& tensor : full_->tensors()) {
    if (tensor.role == TensorRole::kRoutedExpert) experts.push_back(tensor);
  }
  ASSERT_EQ((*thin)->tensors().size(), experts.size());
  for (size_t i = 0; i < experts.size(); ++i) {
    EXPECT_EQ((*thin)->tensors()[i].name, experts[i].name);
    EXPECT_EQ((*thin)->tensors()[i].shape, experts[i].shape);
    EXPECT_EQ((*thin)->tensors()[i].dtype, experts[i].dtype);
    EXPECT_EQ((*thin)->tensors()[i].bytes, experts[i].bytes);
  }
  ASSERT_EQ((*thin)->expert_checksums().size(), 8u);
  EXPECT_TRUE(full_->expert_checksums().empty());
  for (const ExpertChecksum& expert : (*thin)->expert_checksums()) {
    const auto map = full_->MapExpert(expert.layer, expert.expert);
    const std::string base = "layers." + std::to_string(expert.layer.value) +
                             ".mixer.experts." +
                             std::to_string(expert.expert.value);
    const TensorView up = *(*map)->Find(base + ".up_proj.weight");
    const TensorView down = *(*map)->Find(base + ".down_proj.weight");
    const std::span<const std::byte> parts[] = {
        {up.data, static_cast<size_t>(up.bytes())},
        {down.data, static_cast<size_t>(down.bytes())}};
    EXPECT_EQ(DigestOfParts(parts), expert.digest);
  }
  const auto expert = (*thin)->MapExpert(LayerIndex(2), ExpertId(3));
  EXPECT_EQ(expert.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(expert.status().message()), HasSubstr(path_));
  EXPECT_EQ((*thin)->MapTrunk().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ExpertManifestTest, WeightsThatAreThereCountInstead) {
  WriteFile(full_path_ + "/expert_manifest.json", "not even JSON");
  const auto opened = Checkpoint::Open(full_path_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE((*opened)->MapExpert(LayerIndex(0), ExpertId(0)).ok());
}

TEST_F(ExpertManifestTest, WhatDoesNotFitIsNamed) {
  const auto refused = [&](const std::string& manifest,
                           const std::string& said) {
    const auto opened = OpenWith(manifest);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument)
        << said;
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(said));
    EXPECT_THAT(std::string(opened.status().message()),
                HasSubstr("expert_manifest.json"));
  };
  refused("{", "expert_manifest.json:1");
  refused("{}", "format is 0");
  refused(absl::StrReplaceAll(manifest_, {{"\"format\": 1", "\"format\": 2"}}),
          "format is 2");
  refused(absl::StrReplaceAll(manifest_, {{full_->digest(), "abc"}}),
          "\"abc\" is no digest");
  refused(absl::StrReplaceAll(manifest_, {{"\"BF16\"", "\"I8\""}}), "I8");
  refused(absl::StrReplaceAll(manifest_, {{"\"layer\": 2", "\"layer\": 3"}}),
          "moe layer 2 is missing");
  std::string config = ReadFile(path_ + "/config.json");
  nlohmann::json changed = nlohmann::json::parse(config);
  changed["routed_scaling_factor"] = 1.25;
  WriteFile(path_ + "/config.json", changed.dump());
  refused(manifest_, "another config.json");
}

}  // namespace
}  // namespace trunkline::model
