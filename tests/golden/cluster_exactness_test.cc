// One row, one answer, over a network: whatever the number of expert workers,
// the transport, the form of their answers, or a worker lost on the way.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "tests/golden/exactness.h"
#include "tests/integration/mini_cluster.h"

namespace trunkline::testing {
namespace {

// The cluster lives as long as the scores that use its link are taken.
void ExpectSameOver(const AloneScores& alone,
                    MiniClusterOptions cluster_options,
                    const ScoreOptions& base,
                    const std::function<void(MiniCluster&)>& disturb = {}) {
  std::unique_ptr<MiniCluster> cluster;
  ScoreOptions options = base;
  options.experts = [&](LoadedModel& model) {
    cluster = std::make_unique<MiniCluster>(model.shared_checkpoint(),
                                            model.context(), cluster_options);
    const absl::Status ready = cluster->WaitReady();
    TL_CHECK(ready.ok()) << ready;
    if (disturb) disturb(*cluster);
    return cluster->TakeLink();
  };
  alone.ExpectSame(alone.model(), options);
}

class ClusterExactness : public ::testing::TestWithParam<ClassCase> {
 protected:
  void SetUp() override {
    if (const absl::Status has = kernels::CheckMachineHas(GetParam().numerics);
        !has.ok()) {
      GTEST_SKIP() << has.message();
    }
    alone_ = std::make_unique<AloneScores>(DirectoryOf(GetParam().checkpoint),
                                           GetParam().numerics);
  }
  std::unique_ptr<AloneScores> alone_;
};

TEST_P(ClusterExactness, OneToFourWorkersOverBothTransportsChangeNoBit) {
  for (const char* transport : {"inprocess", "ucx"}) {
    for (int workers : {1, 2, 3, 4}) {
      SCOPED_TRACE(absl::StrCat(workers, " workers over ", transport));
      MiniClusterOptions options;
      options.workers = workers;
      options.transport = transport;
      ExpectSameOver(*alone_, options, AloneScores::Options(64, 16));
    }
  }
}

TEST_P(ClusterExactness, GatedAndUngatedAnswersAreTheSameBits) {
  for (const char* answer : {"auto", "gated-f32"}) {
    SCOPED_TRACE(answer);
    MiniClusterOptions options;
    options.answer = answer;
    ExpectSameOver(*alone_, options, AloneScores::Options(64, 16));
  }
}

// A worker that is gone before the first step: its routes go to replicas.
TEST_P(ClusterExactness, ALostWorkerWithReplicasChangesNoBit) {
  MiniClusterOptions options;
  options.workers = 3;
  options.replicas = 2;
  ExpectSameOver(*alone_, options, AloneScores::Options(64, 16),
                 [](MiniCluster& cluster) { cluster.Kill(1); });
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, ClusterExactness,
    ::testing::Values(ClassCase{"tiny"}, ClassCase{"tiny-latent"},
                      ClassCase{"tiny-bf16"},
                      ClassCase{"tiny-bf16", kernels::Numerics::kBf16Dot}),
    NameOf);

}  // namespace
}  // namespace trunkline::testing
