#include "kernels/mlp.h"

#include "tests/kernels/kernel_test_support.h"

namespace trunkline::kernels {
namespace {

class GroupedMlpTest : public OnEveryTarget {};

// Groups of none, one, a few and many rows in one call, rows gathered by index.
TEST_P(GroupedMlpTest, EqualsTheReference) {
  Source source(41);
  MlpScratch scratch;
  for (int round = 0; round < 12; ++round) {
    ThreadPool& pool = PoolOf(static_cast<int>(source.Between(1, 3)));
    const Activation out =
        round % 2 == 0 ? Activation::kBf16 : Activation::kF32;
    const DType dtype = round % 3 == 0 ? DType::kF32 : DType::kBF16;
    const RandomGroups groups(source, pool, dtype, out);
    Rows y = groups.Output();
    Rows expected = y;
    reference::GroupedMlp(groups.Args(expected, out));
    KernelContext context{&pool};
    GroupedMlp(context, groups.Args(y, out), &scratch);
    ASSERT_TRUE(SameBits(y, expected)) << "round " << round;
  }
}

// The shared expert and a dense layer: one group, rows in place.
TEST_P(GroupedMlpTest, OneGroupWithoutIndexEqualsTheReference) {
  Source source(42);
  ThreadPool& pool = PoolOf(2);
  MlpWeights weights;
  weights.up = RandomMatrix(source, pool, 96, 64, DType::kBF16);
  weights.down = RandomMatrix(source, pool, 64, 96, DType::kBF16);
  MlpScratch scratch;
  for (int64_t rows = 0; rows <= 17; ++rows) {
    const Rows x = source.FilledRows(rows, 64, 64, Activation::kBf16);
    Rows y(rows, 64, 64);
    Rows expected = y;
    const MlpGroup group{&weights, 0, rows};
    GroupedMlpArgs args;
    args.x = x.data();
    args.x_stride = 64;
    args.groups = {&group, 1};
    args.y_stride = 64;
    args.out = Activation::kBf16;
    args.y = expected.data();
    reference::GroupedMlp(args);
    args.y = y.data();
    KernelContext context{&pool};
    GroupedMlp(context, args, &scratch);
    ASSERT_TRUE(SameBits(y, expected)) << rows << " rows";
  }
}

// A route's answer is the same whoever else asked the expert.
TEST_P(GroupedMlpTest, ARowsBitsDoNotDependOnItsGroup) {
  Source source(43);
  ThreadPool& pool = PoolOf(2);
  std::vector<MlpWeights> weights(2);
  for (MlpWeights& w : weights) {
    w.up = RandomMatrix(source, pool, 70, 40, DType::kBF16);
    w.down = RandomMatrix(source, pool, 40, 70, DType::kBF16);
  }
  const Rows x = source.FilledRows(30, 40, 40, Activation::kBf16);
  const MlpGroup both[] = {{&weights[0], 0, 27}, {&weights[1], 27, 3}};
  Rows together(30, 40, 40);
  MlpScratch scratch;
  KernelContext context{&pool};
  GroupedMlpArgs args;
  args.x = x.data();
  args.x_stride = 40;
  args.groups = both;
  args.y = together.data();
  args.y_stride = 40;
  args.out = Activation::kBf16;
  GroupedMlp(context, args, &scratch);
  Rows alone(30, 40, 40);
  for (uint32_t row = 0; row < 30; ++row) {
    const MlpGroup one{&weights[row < 27 ? 0 : 1], 0, 1};
    args.row_index = &row;
    args.groups = {&one, 1};
    args.y = alone.data() + row * 40;
    GroupedMlp(context, args, &scratch);
  }
  EXPECT_TRUE(SameBits(alone, together));
}

TRUNKLINE_ON_EVERY_TARGET(GroupedMlpTest);

}  // namespace
}  // namespace trunkline::kernels
