#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/model/checkpoint_builder.h"
#include "tests/model/mapped_pages.h"

namespace trunkline::model {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Checkpoint> OpenOk(const std::string& directory) {
  auto checkpoint = Checkpoint::Open(directory);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return checkpoint.ok() ? *checkpoint : nullptr;
}

std::string Bytes(const TensorView& view) {
  return std::string(reinterpret_cast<const char*>(view.data),
                     static_cast<size_t>(view.bytes()));
}

// Every tensor of trunk and routed experts by canonical name, through the maps.
std::map<std::string, std::string> AllWeights(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> weights;
  auto trunk = checkpoint.MapTrunk();
  EXPECT_TRUE(trunk.ok()) << trunk.status();
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.role == TensorRole::kMtp) continue;
    std::unique_ptr<WeightMap> expert;
    const WeightMap* map = trunk->get();
    if (tensor.role == TensorRole::kRoutedExpert) {
      auto mapped = checkpoint.MapExpert(tensor.layer, tensor.expert);
      EXPECT_TRUE(mapped.ok()) << mapped.status();
      expert = *std::move(mapped);
      map = expert.get();
    }
    auto view = map->Find(tensor.name);
    EXPECT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->shape, tensor.shape);
    EXPECT_EQ(view->dtype, tensor.dtype);
    EXPECT_EQ(view->bytes(), tensor.bytes);
    weights[tensor.name] = Bytes(*view);
  }
  return weights;
}

TEST(Checkpoint, OpensEveryFixture) {
  struct Fixture {
    const char* name;
    const char* pattern;
    DType activation;
    size_t tensors;
  };
  for (const Fixture& fixture :
       {Fixture{"tiny", "MEM*EMEM", DType::kF32, 155},
        Fixture{"tiny-dense", "M-M*-M-M", DType::kF32, 53},
        Fixture{"tiny-latent", "MEM*EMEM", DType::kF32, 161},
        Fixture{"tiny-bf16", "MEM*EMEM", DType::kBF16, 155}}) {
    const auto checkpoint =
        OpenOk(std::string(TRUNKLINE_FIXTURES "/checkpoints/") + fixture.name);
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(checkpoint->config().LayerPattern(), fixture.pattern);
    EXPECT_EQ(checkpoint->activation_dtype(), fixture.activation);
    EXPECT_EQ(checkpoint->tensors().size(), fixture.tensors);
    EXPECT_FALSE(checkpoint->config().tie_word_embeddings);
    EXPECT_EQ(AllWeights(*checkpoint).size(), fixture.tensors);
  }
}

TEST(Checkpoint, OpensTheDemoModelWithItsPredictionHead) {
  const auto checkpoint = OpenOk(TRUNKLINE_SOURCE_DIR "/models/demo");
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->config().LayerPattern(), "MEM*EMEM*E");
  EXPECT_EQ(checkpoint->config().mtp_layers.size(), 2u);
  EXPECT_EQ(checkpoint->generation_defaults().temperature, 0.8f);
  EXPECT_EQ(checkpoint->generation_defaults().eos_token_ids,
            std::vector<int32_t>{2});
  int mtp = 0;
  for (const TensorInfo& tensor : checkpoint->tensors())
    mtp += tensor.role == TensorRole::kMtp;
  // enorm, hnorm, eh_proj, norm, 4 projections; norm, router 2, experts 64,
  // shared 2, final norm.
  EXPECT_EQ(mtp, 8 + 70);
  auto trunk = checkpoint->MapTrunk();
  ASSERT_TRUE(trunk.ok());
  EXPECT_THAT((*trunk)->Find("mtp.layers.0.norm.weight").status().ToString(),
              HasSubstr("NOT_FOUND: no tensor mtp.layers.0.norm.weight"));
}

// The values that a view shows are the file's.
TEST(Checkpoint, ViewsShowTheBytesOfTheFile) {
  const std::string directory = TRUNKLINE_FIXTURES "/checkpoints/tiny";
  const EditableCheckpoint stored = EditableCheckpoint::Read(directory);
  const auto checkpoint = OpenOk(directory);
  ASSERT_NE(checkpoint, nullptr);
  const auto weights = AllWeights(*checkpoint);
  for (const TensorInfo& tensor : checkpoint->tensors())
    EXPECT_EQ(weights.at(tensor.name),
              stored.tensors.at(tensor.stored_name).data)
        << tensor.name;
}

// One model in every way that writers store it: all names, values and the
// digest are equal.
TEST(Checkpoint, EveryFormOfOneModelIsTheSameModel) {
  TempDirectory directory;
  SynthesisSpec plain;
  SmallModel model;
  model.moe.latent = 32;
  model.mtp_pattern = "*E";
  plain.config = SmallConfig(model);
  plain.seed = 7;
  std::vector<SynthesisSpec> forms(8, plain);
  forms[1].trunk_prefix = "model.";
  forms[2].config.wrapped = true;
  forms[3].stacked_experts = true;
  forms[4].shard_bytes_max = 100'000;
  forms[5].spelling = LayerTableSpelling::kBlocks;
  forms[6].spelling = LayerTableSpelling::kNamesNew;
  forms[7].config.wrapped = true;
  forms[7].stacked_experts = true;
  forms[7].shard_bytes_max = 300'000;
  forms[7].trunk_prefix = "model.";
  std::map<std::string, std::string> expected;
  std::string digest;
  for (size_t i = 0; i < forms.size(); ++i) {
    const auto checkpoint =
        OpenOk(BuildCheckpoint(forms[i], directory, std::to_string(i)));
    ASSERT_NE(checkpoint, nullptr) << i;
    EXPECT_EQ(checkpoint->files().size() > 1, forms[i].shard_bytes_max > 0);
    if (i == 0) {
      expected = AllWeights(*checkpoint);
      digest = checkpoint->digest();
      EXPECT_EQ(digest.size(), 32u);
      continue;
    }
    EXPECT_EQ(checkpoint->digest(), digest) << "form " << i;
    EXPECT_TRUE(AllWeights(*checkpoint) == expected) << "form " << i;
  }
}

TEST(Checkpoint, TheDigestTellsModelsApart) {
  TempDirectory directory;
  SynthesisSpec spec;
  spec.config = SmallConfig(SmallModel());
  std::set<std::string> digests;
  const auto add = [&](const std::string& path) {
    const auto checkpoint = OpenOk(path);
    if (checkpoint != nullptr) digests.insert(checkpoint->digest());
  };
  const std::string first = BuildCheckpoint(spec, directory, "first");
  add(first);
  spec.seed = 1;
  add(BuildCheckpoint(spec, directory, "seed"));
  spec.seed = 0;
  spec.dtype = DType::kF32;
  add(BuildCheckpoint(spec, directory, "dtype"));
  // The same tensors under another arithmetic.
  EditableCheckpoint edited = EditableCheckpoint::Read(first);
  edited.config["num_experts_per_tok"] = 5;
  edited.Write(directory.path() + "/topk");
  add(directory.path() + "/topk");
  edited = EditableCheckpoint::Read(first);
  edited.config["layer_norm_epsilon"] = 1.0000001e-5;
  edited.Write(directory.path() + "/eps");
  add(directory.path() + "/eps");
  // One bit at the end of the last expert.
  edited = EditableCheckpoint::Read(first);
  edited.tensors["backbone.layers.6.mixer.experts.15.down_proj.weight"]
      .data.back() ^= 1;
  edited.Write(directory.path() + "/bit");
  add(directory.path() + "/bit");
  EXPECT_EQ(digests.size(), 6u);
  // What does not touch the arithmetic does not touch the digest.
  edited = EditableCheckpoint::Read(first);
  edited.config["rope_theta"] = 5;
  edited.config["eos_token_id"] = {2, 11};
  edited.Write(directory.path() + "/rope");
  add(directory.path() + "/rope");
  EXPECT_EQ(digests.size(), 6u);
}

// The digests of the fixtures are the same on every machine and in every
// release: workers of two versions must agree. (A change of this contract is
// a change of the wire contract.)
TEST(Checkpoint, TheDigestOfTheDemoModelStays) {
  const auto checkpoint = OpenOk(TRUNKLINE_SOURCE_DIR "/models/demo");
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->digest(), "7c03d03746c554a704a21cc0aba90bda");
}

TEST(Checkpoint, AMissingHeadIsTiedAndAStoredOneWins) {
  TempDirectory directory;
  SynthesisSpec spec;
  spec.config = SmallConfig(SmallModel());
  const std::string path = BuildCheckpoint(spec, directory);
  EditableCheckpoint edited = EditableCheckpoint::Read(path);
  edited.config["tie_word_embeddings"] = true;  // a wrong flag
  edited.Write(directory.path() + "/flag");
  auto checkpoint = OpenOk(directory.path() + "/flag");
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_FALSE(checkpoint->config().tie_word_embeddings);
  EXPECT_EQ(checkpoint->digest(), OpenOk(path)->digest());

  edited.config["tie_word_embeddings"] = false;
  edited.tensors.erase("lm_head.weight");
  edited.Write(directory.path() + "/tied");
  checkpoint = OpenOk(directory.path() + "/tied");
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_TRUE(checkpoint->config().tie_word_embeddings);
  auto trunk = checkpoint->MapTrunk();
  ASSERT_TRUE(trunk.ok());
  auto head = (*trunk)->Find("lm_head.weight");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->data, (*trunk)->Find("embeddings.weight")->data);
}

TEST(Checkpoint, TakesEmbedTokensAndDropsTheTowersOfAWrapper) {
  TempDirectory directory;
  SynthesisSpec spec;
  spec.config = SmallConfig(SmallModel());
  spec.config.wrapped = true;
  const std::string path = BuildCheckpoint(spec, directory);
  EditableCheckpoint edited = EditableCheckpoint::Read(path);
  edited.tensors["language_model.backbone.embed_tokens.weight"] =
      edited.tensors["language_model.backbone.embeddings.weight"];
  edited.tensors.erase("language_model.backbone.embeddings.weight");
  edited.tensors["vision_model.blocks.0.attn.weight"] = {
      "F8_E4M3", {2, 2}, "abcd"};
  edited.tensors["sound_encoder.x"] = {"I64", {1}, "abcdefgh"};
  edited.tensors["mlp1.0.weight"] = {"BF16", {1}, "ab"};
  edited.Write(directory.path() + "/towers");
  const auto checkpoint = OpenOk(directory.path() + "/towers");
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->digest(), OpenOk(path)->digest());
}

TEST(Checkpoint, SmallTensorsMayStayInF32) {
  TempDirectory directory;
  SynthesisSpec spec;
  spec.config = SmallConfig(SmallModel());
  const std::string path = BuildCheckpoint(spec, directory);
  EditableCheckpoint edited = EditableCheckpoint::Read(path);
  for (const char* name :
       {"backbone.layers.0.mixer.A_log", "backbone.layers.0.mixer.dt_bias",
        "backbone.layers.0.mixer.conv1d.weight", "backbone.norm_f.weight"}) {
    EditableTensor& tensor = edited.tensors.at(name);
    tensor.dtype = "F32";
    tensor.data += tensor.data;  // twice the bytes
  }
  edited.Write(directory.path() + "/f32");
  const auto checkpoint = OpenOk(directory.path() + "/f32");
  ASSERT_NE(checkpoint, nullptr);
  auto trunk = checkpoint->MapTrunk();
  EXPECT_EQ((*trunk)->Find("layers.0.mixer.A_log")->dtype, DType::kF32);
  EXPECT_EQ(checkpoint->activation_dtype(), DType::kBF16);
}

TEST(Checkpoint, F16ProjectionsGiveF32Activations) {
  TempDirectory directory;
  SynthesisSpec spec;
  spec.config = SmallConfig(SmallModel());
  EditableCheckpoint edited =
      EditableCheckpoint::Read(BuildCheckpoint(spec, directory));
  for (auto& [name, tensor] : edited.tensors) {
    if (tensor.dtype == "BF16") tensor.dtype = "F16";
  }
  edited.Write(directory.path() + "/f16");
  const auto checkpoint = OpenOk(directory.path() + "/f16");
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->activation_dtype(), DType::kF32);
}

TEST(Checkpoint, NamesTheExpertThatIsNotThere) {
  const auto checkpoint = OpenOk(TRUNKLINE_FIXTURES "/checkpoints/tiny");
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_THAT(
      checkpoint->MapExpert(LayerIndex(1), ExpertId(16)).status().ToString(),
      HasSubstr("layer 1 has no expert 16"));
  EXPECT_THAT(
      checkpoint->MapExpert(LayerIndex(0), ExpertId(0)).status().ToString(),
      HasSubstr("layer 0 is no moe layer"));
  EXPECT_EQ(checkpoint->MapExpert(LayerIndex(99), ExpertId(0)).status().code(),
            absl::StatusCode::kNotFound);
}

// Touching a page behind a file's end would end the process, so mapping looks
// at the file again.
TEST(Checkpoint, AFileThatShrankIsAnError) {
  TempDirectory directory;
  SynthesisSpec spec;
  spec.config = SmallConfig(SmallModel());
  const std::string path = BuildCheckpoint(spec, directory);
  const auto checkpoint = OpenOk(path);
  ASSERT_NE(checkpoint, nullptr);
  ASSERT_EQ(truncate((path + "/model.safetensors").c_str(), 4096), 0);
  const absl::Status status = checkpoint->MapTrunk().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("the file has 4096 bytes"));
}

// --- Who maps what. The kernel's own list of mappings is the witness. ---

// A model whose tensors are larger than a page, so that pages tell them apart.
std::string WidePath(const TempDirectory& directory, bool stacked) {
  SmallModel model;
  model.pattern = "ME*E";
  model.vocab_size = 1024;
  model.hidden_size = 128;
  model.moe.width = 64;
  SynthesisSpec spec;
  spec.config = SmallConfig(model);
  spec.stacked_experts = stacked;
  return BuildCheckpoint(spec, directory, stacked ? "stacked" : "plain");
}

struct Coverage {
  int64_t owned = 0;    // bytes of the tensors that were asked for
  int64_t foreign = 0;  // whole pages of other tensors alone
};

// Splits what is mapped of the file by whether `owns` claims the tensor. A page
// at the border of two tensors belongs to both and is counted for neither.
template <typename Owns>
Coverage Measure(const Checkpoint& checkpoint, Owns owns) {
  const MappedPages pages = MappedPages::OfFile(checkpoint.files()[0]);
  Coverage coverage;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (owns(tensor)) {
      coverage.owned += pages.BytesIn(tensor.offset, tensor.bytes);
    } else {
      coverage.foreign +=
          pages.WholePagesIn(tensor.offset, tensor.bytes) * pages.page_bytes();
    }
  }
  return coverage;
}

TEST(WeightPartition, OpeningMapsNothing) {
  TempDirectory directory;
  const auto checkpoint = OpenOk(WidePath(directory, false));
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(MappedPages::OfFile(checkpoint->files()[0]).bytes(), 0);
}

TEST(WeightPartition, TheTrunkNeverMapsRoutedExperts) {
  TempDirectory directory;
  for (const bool stacked : {false, true}) {
    const auto checkpoint = OpenOk(WidePath(directory, stacked));
    ASSERT_NE(checkpoint, nullptr);
    auto trunk = checkpoint->MapTrunk();
    ASSERT_TRUE(trunk.ok()) << trunk.status();
    const auto owns = [](const TensorInfo& tensor) {
      return tensor.role == TensorRole::kTrunk;
    };
    const Coverage coverage = Measure(*checkpoint, owns);
    int64_t trunk_bytes = 0;
    for (const TensorInfo& tensor : checkpoint->tensors())
      trunk_bytes += owns(tensor) ? tensor.bytes : 0;
    EXPECT_EQ(coverage.owned, trunk_bytes);
    EXPECT_EQ(coverage.foreign, 0);
    EXPECT_EQ(MappedPages::OfFile(checkpoint->files()[0]).bytes(),
              (*trunk)->mapped_bytes());
  }
}

TEST(WeightPartition, AnExpertWorkerMapsItsExpertsAlone) {
  TempDirectory directory;
  for (const bool stacked : {false, true}) {
    const auto checkpoint = OpenOk(WidePath(directory, stacked));
    ASSERT_NE(checkpoint, nullptr);
    std::vector<std::unique_ptr<WeightMap>> maps;
    for (const uint32_t expert : {3u, 11u}) {
      auto map = checkpoint->MapExpert(LayerIndex(1), ExpertId(expert));
      ASSERT_TRUE(map.ok()) << map.status();
      maps.push_back(*std::move(map));
    }
    const auto owns = [](const TensorInfo& tensor) {
      return tensor.layer == LayerIndex(1) &&
             (tensor.expert == ExpertId(3) || tensor.expert == ExpertId(11));
    };
    const Coverage coverage = Measure(*checkpoint, owns);
    EXPECT_EQ(coverage.owned, 2 * 2 * 64 * 128 * 2);
    EXPECT_EQ(coverage.foreign, 0);
    maps.clear();
    EXPECT_EQ(MappedPages::OfFile(checkpoint->files()[0]).bytes(), 0);
  }
}

TEST(WeightPartition, ReleasedPagesAreReadAgain) {
  TempDirectory directory;
  const auto checkpoint = OpenOk(WidePath(directory, false));
  ASSERT_NE(checkpoint, nullptr);
  auto trunk = checkpoint->MapTrunk();
  ASSERT_TRUE(trunk.ok());
  const TensorView embedding = *(*trunk)->Find("embeddings.weight");
  const std::string before = Bytes(embedding);
  EXPECT_GT(MappedPages::OfFile(checkpoint->files()[0]).resident_bytes(), 0);
  (*trunk)->ReleasePages();
  EXPECT_EQ(MappedPages::OfFile(checkpoint->files()[0]).resident_bytes(), 0);
  EXPECT_EQ(Bytes(embedding), before);
}

// The maps keep the file's pages alive after the checkpoint is gone.
TEST(WeightPartition, AMapOutlivesItsCheckpoint) {
  TempDirectory directory;
  auto checkpoint = OpenOk(WidePath(directory, false));
  ASSERT_NE(checkpoint, nullptr);
  auto expert = checkpoint->MapExpert(LayerIndex(3), ExpertId(2));
  ASSERT_TRUE(expert.ok());
  const std::string name = "layers.3.mixer.experts.2.up_proj.weight";
  const std::string before = Bytes(*(*expert)->Find(name));
  checkpoint.reset();
  EXPECT_EQ(Bytes(*(*expert)->Find(name)), before);
}

}  // namespace
}  // namespace trunkline::model
