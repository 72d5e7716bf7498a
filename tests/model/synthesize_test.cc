#include "model/synthesize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "common/float16.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "tests/model/checkpoint_builder.h"

namespace trunkline::model {
namespace {

using ::testing::HasSubstr;

SynthesisSpec SmallSpec() {
  SynthesisSpec spec;
  SmallModel model;
  model.pattern = "ME*-";
  spec.config = SmallConfig(model);
  return spec;
}

TEST(Synthesize, TheSameSpecGivesTheSameBytes) {
  TempDirectory directory;
  SynthesisSpec spec = SmallSpec();
  const std::string a = BuildCheckpoint(spec, directory, "a");
  const std::string b = BuildCheckpoint(spec, directory, "b");
  for (const char* file : {"/model.safetensors", "/config.json",
                           "/tokenizer.json", "/generation_config.json"}) {
    EXPECT_EQ(ReadFile(a + file), ReadFile(b + file)) << file;
  }
  spec.seed = 1;
  EXPECT_NE(
      ReadFile(a + "/model.safetensors"),
      ReadFile(BuildCheckpoint(spec, directory, "c") + "/model.safetensors"));
}

TEST(Synthesize, ThreadsAndShardsChangeNoElement) {
  TempDirectory directory;
  SynthesisSpec spec = SmallSpec();
  const std::string alone = BuildCheckpoint(spec, directory, "alone");
  ThreadPool::Options threads;
  threads.threads = 5;
  ThreadPool pool(threads);
  const std::string together = directory.path() + "/together";
  ASSERT_TRUE(SynthesizeCheckpoint(spec, together, nullptr, &pool).ok());
  EXPECT_EQ(ReadFile(alone + "/model.safetensors"),
            ReadFile(together + "/model.safetensors"));
  spec.shard_bytes_max = 100 << 10;
  const std::string sharded = BuildCheckpoint(spec, directory, "sharded");
  auto one = Checkpoint::Open(alone);
  auto many = Checkpoint::Open(sharded);
  ASSERT_TRUE(one.ok() && many.ok()) << many.status();
  EXPECT_GT((*many)->files().size(), 2u);
  EXPECT_EQ((*one)->digest(), (*many)->digest());
}

// The values are part of what benches and recorded results stand on.
TEST(Synthesize, ElementsAreAFunctionOfSeedNameAndIndex) {
  const SyntheticTensor tensor(42, "layers.0.mixer.in_proj.weight", {328, 64});
  EXPECT_EQ(
      tensor.At(7),
      SyntheticTensor(42, "layers.0.mixer.in_proj.weight", {328, 64}).At(7));
  EXPECT_NE(tensor.At(7), tensor.At(8));
  EXPECT_NE(
      tensor.At(7),
      SyntheticTensor(43, "layers.0.mixer.in_proj.weight", {328, 64}).At(7));
  EXPECT_NE(
      tensor.At(7),
      SyntheticTensor(42, "layers.2.mixer.in_proj.weight", {328, 64}).At(7));
}

// A projection keeps the size of its input: variance 1 / columns.
TEST(Synthesize, ProjectionsHaveTheVarianceOfTheirInputs) {
  const SyntheticTensor tensor(0, "layers.0.mixer.in_proj.weight", {328, 64});
  double sum = 0, squares = 0;
  constexpr int kElements = 328 * 64;
  for (int i = 0; i < kElements; ++i) {
    sum += tensor.At(i);
    squares += double{tensor.At(i)} * tensor.At(i);
  }
  EXPECT_NEAR(sum / kElements, 0, 0.005);
  EXPECT_NEAR(squares / kElements * 64, 1, 0.05);
}

TEST(Synthesize, RefusesASecondCheckpointInOnePlace) {
  TempDirectory directory;
  const std::string path = BuildCheckpoint(SmallSpec(), directory);
  EXPECT_EQ(SynthesizeCheckpoint(SmallSpec(), path).code(),
            absl::StatusCode::kAlreadyExists);
}

// Whatever it is: nothing of the user's is mixed with a checkpoint.
TEST(Synthesize, RefusesADirectoryThatIsNotEmpty) {
  TempDirectory directory;
  WriteFile(directory.path() + "/notes.txt", "mine");
  const absl::Status status =
      SynthesizeCheckpoint(SmallSpec(), directory.path());
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(status.ToString(), HasSubstr("notes.txt"));
}

// Two hundred dense layers of 4 TB each fit no disk.
TEST(Synthesize, LooksAtTheDiskBeforeItWrites) {
  TempDirectory directory;
  SmallModel model;
  model.pattern = "M" + std::string(200, '-');
  model.hidden_size = 1 << 20;
  model.dense_width = 1 << 20;
  SynthesisSpec spec;
  spec.config = SmallConfig(model);
  const std::string path = directory.path() + "/large";
  const absl::Status status = SynthesizeCheckpoint(spec, path);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("GiB are free"));
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

class SynthesizeDType : public ::testing::TestWithParam<DType> {};

TEST_P(SynthesizeDType, IsWhatTheCheckpointOpensAs) {
  TempDirectory directory;
  SynthesisSpec spec = SmallSpec();
  spec.dtype = GetParam();
  spec.router_dtype = GetParam();
  auto checkpoint = Checkpoint::Open(BuildCheckpoint(spec, directory));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const TensorInfo& tensor : (*checkpoint)->tensors()) {
    const bool bias =
        tensor.name.find("e_score_correction_bias") != std::string::npos;
    EXPECT_EQ(tensor.dtype, bias ? DType::kF32 : GetParam()) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SynthesizeDType,
                         ::testing::Values(DType::kF32, DType::kF16,
                                           DType::kBF16),
                         [](const auto& param) {
                           return std::string(DTypeName(param.param));
                         });

TEST(Synthesize, AHalfIsTheNearestOneToTheElement) {
  TempDirectory directory;
  SynthesisSpec spec = SmallSpec();
  spec.dtype = DType::kF16;
  const EditableCheckpoint stored =
      EditableCheckpoint::Read(BuildCheckpoint(spec, directory));
  const EditableTensor& head = stored.tensors.at("lm_head.weight");
  const SyntheticTensor values(spec.seed, "lm_head.weight", head.shape);
  for (int64_t i = 0; i < 512 * 64; ++i) {
    HalfBits bits = 0;
    std::memcpy(&bits, head.data.data() + 2 * i, 2);
    const float value = values.At(i);
    const float error = std::abs(HalfToFloat(bits) - value);
    for (const int step : {-1, 1}) {
      EXPECT_LE(
          error,
          std::abs(HalfToFloat(static_cast<HalfBits>(bits + step)) - value))
          << i;
    }
  }
}

TEST(Synthesize, NamesWhatItCanNotWrite) {
  TempDirectory directory;
  SynthesisSpec spec = SmallSpec();
  spec.config.layers[1].moe.top_k = 99;
  EXPECT_THAT(SynthesizeCheckpoint(spec, directory.path() + "/x").ToString(),
              HasSubstr("num_experts_per_tok 99"));
  EXPECT_THAT(
      SynthesizeCheckpoint(SmallSpec(), directory.path() + "/no/such/parent")
          .ToString(),
      HasSubstr("/no/such/parent: can not create"));
}

TEST(Synthesize, ReportsProgressUpToAllBytes) {
  TempDirectory directory;
  int64_t last = 0, all = 0;
  ASSERT_TRUE(SynthesizeCheckpoint(SmallSpec(), directory.path() + "/x",
                                   [&](int64_t written, int64_t total) {
                                     EXPECT_GT(written, last);
                                     last = written;
                                     all = total;
                                   })
                  .ok());
  EXPECT_EQ(last, all);
  auto checkpoint = Checkpoint::Open(directory.path() + "/x");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  int64_t stored = 0;
  for (const TensorInfo& tensor : (*checkpoint)->tensors())
    stored += tensor.bytes;
  EXPECT_EQ(all, stored);
}

// Every id decodes, and text comes back from its ids.
TEST(Synthesize, TheTokenizerCoversTheVocabulary) {
  auto text = SyntheticTokenizerJson(1500);
  ASSERT_TRUE(text.ok()) << text.status();
  auto tokenizer = Tokenizer::Parse(*text, "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 1500);
  for (int32_t id = 0; id < 1500; ++id)
    EXPECT_TRUE((*tokenizer)->TokenBytes(id).ok()) << id;
  const std::string sentence = "Über 3 Brücken, \t\n  go!";
  auto ids = (*tokenizer)->Encode(sentence, {});
  ASSERT_TRUE(ids.ok()) << ids.status();
  auto back = (*tokenizer)->Decode(*ids, true);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, sentence);
  EXPECT_EQ(SyntheticTokenizerJson(200).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace trunkline::model
