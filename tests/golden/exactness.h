#pragma once

// A sequence's logits and tokens when it runs alone, to compare with.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/random.h"
#include "tests/golden/checkpoint_fixture.h"

namespace trunkline::testing {

class AloneScores {
 public:
  explicit AloneScores(
      const std::string& checkpoint,
      kernels::Numerics numerics = kernels::Numerics::kPortable)
      : directory_(checkpoint),
        model_(LoadedModel::Load(checkpoint, 1, numerics)) {
    const auto vocab =
        static_cast<uint64_t>(model_->checkpoint().config().vocab_size);
    RandomStream random(1);
    // Lengths around the block of keys, the convolution's reach and a chunk.
    for (size_t length : {1u, 2u, 3u, 5u, 63u, 64u, 65u, 131u}) {
      prompts_.emplace_back();
      for (size_t i = 0; i < length; ++i)
        prompts_.back().push_back(
            static_cast<int32_t>(random.NextBelow(vocab)));
    }
    for (const auto& prompt : prompts_)
      alone_.push_back(ScoreTogether(*model_, {prompt}, Options(256, 256))[0]);
  }

  static ScoreOptions Options(int64_t rows, int64_t chunk) {
    ScoreOptions options;
    options.batch = {.rows_max = rows, .prefill_chunk = chunk};
    options.max_tokens = 6;
    return options;
  }

  // Runs all prompts together and compares every bit.
  void ExpectSame(LoadedModel& model, const ScoreOptions& options) const {
    const std::vector<Scored> scored = ScoreTogether(model, prompts_, options);
    for (size_t i = 0; i < scored.size(); ++i) {
      EXPECT_EQ(scored[i].token_ids, alone_[i].token_ids) << "prompt " << i;
      ASSERT_EQ(scored[i].logits.size(), alone_[i].logits.size());
      EXPECT_EQ(std::memcmp(scored[i].logits.data(), alone_[i].logits.data(),
                            scored[i].logits.size() * sizeof(float)),
                0)
          << "prompt " << i;
    }
  }

  const std::string& directory() const { return directory_; }
  LoadedModel& model() const { return *model_; }

 private:
  const std::string directory_;
  const std::unique_ptr<LoadedModel> model_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<Scored> alone_;
};

}  // namespace trunkline::testing
