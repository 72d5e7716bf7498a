// The linearizability checker against histories whose verdict is known, and
// against every order of small random ones.

#include "sim/admin_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/random.h"

namespace trunkline::sim {
namespace {

absl::Time At(int64_t tick) {
  return absl::UnixEpoch() + absl::Milliseconds(tick);
}

RegisterOp Write(uint64_t value, int64_t asked, int64_t told) {
  RegisterOp op;
  op.is_write = true;
  op.value = value;
  op.asked = At(asked);
  if (told >= 0) op.told = At(told);
  return op;
}

RegisterOp Read(uint64_t value, int64_t asked, int64_t told) {
  RegisterOp op = Write(value, asked, told);
  op.is_write = false;
  return op;
}

TEST(ExplainRegister, AReadSeesTheLastAcknowledgedWrite) {
  EXPECT_EQ(ExplainRegister({Write(1, 0, 1), Read(1, 2, 3)}, 0), "");
  EXPECT_NE(ExplainRegister({Write(1, 0, 1), Read(0, 2, 3)}, 0), "");
}

TEST(ExplainRegister, AReadDuringAWriteSeesEitherValueButTimeNeverGoesBack) {
  EXPECT_EQ(ExplainRegister({Write(1, 0, 10), Read(0, 1, 2), Read(1, 3, 4)}, 0),
            "");
  EXPECT_NE(ExplainRegister({Write(1, 0, 10), Read(1, 1, 2), Read(0, 3, 4)}, 0),
            "");
}

TEST(ExplainRegister, AWriteOfUnknownFateMayTakeEffectLateOrNever) {
  EXPECT_EQ(ExplainRegister({Write(1, 0, -1), Read(0, 5, 6)}, 0), "");
  EXPECT_EQ(
      ExplainRegister({Write(1, 0, -1), Read(0, 5, 6), Read(1, 50, 51)}, 0),
      "");
  EXPECT_NE(ExplainRegister({Write(1, 0, -1), Read(1, 5, 6), Read(0, 7, 8)}, 0),
            "");
}

TEST(ExplainRegister, ARefusedWriteHasNoEffect) {
  RegisterOp refused = Write(1, 0, 1);
  refused.refused = true;
  EXPECT_EQ(ExplainRegister({refused, Read(0, 2, 3)}, 0), "");
  EXPECT_NE(ExplainRegister({refused, Read(1, 2, 3)}, 0), "");
}

// The plain reference: tries every order of every subset of the untold writes.
bool SomeOrderExplains(const std::vector<RegisterOp>& ops) {
  std::vector<size_t> untold, told;
  for (size_t i = 0; i < ops.size(); ++i)
    (ops[i].told == absl::InfiniteFuture() ? untold : told).push_back(i);
  for (uint64_t mask = 0; mask < uint64_t{1} << untold.size(); ++mask) {
    std::vector<size_t> order = told;
    for (size_t i = 0; i < untold.size(); ++i)
      if ((mask >> i & 1) != 0) order.push_back(untold[i]);
    std::sort(order.begin(), order.end());
    do {
      uint64_t value = 0;
      bool good = true;
      for (size_t i = 0; i < order.size() && good; ++i) {
        for (size_t j = i + 1; j < order.size(); ++j)
          good = good && ops[order[j]].told >= ops[order[i]].asked;
        const RegisterOp& op = ops[order[i]];
        if (op.is_write) value = op.value;
        good = good && (op.is_write || op.value == value);
      }
      if (good) return true;
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return false;
}

TEST(ExplainRegister, AgreesWithEveryOrderTriedOut) {
  int explained = 0, not_explained = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    RandomStream random(seed);
    std::vector<RegisterOp> ops;
    const uint64_t count = 2 + random.NextBelow(6);
    for (uint64_t i = 0; i < count; ++i) {
      const auto asked = static_cast<int64_t>(random.NextBelow(20));
      // Distinct ends: ties between a told and an asked have no order.
      const int64_t told =
          asked + 1 + 2 * static_cast<int64_t>(random.NextBelow(6));
      if (random.NextBelow(2) == 0) {
        ops.push_back(Write(random.NextBelow(3), 2 * asked,
                            random.NextBelow(5) == 0 ? -1 : 2 * told + 1));
      } else {
        ops.push_back(Read(random.NextBelow(3), 2 * asked, 2 * told + 1));
      }
    }
    const bool expected = SomeOrderExplains(ops);
    EXPECT_EQ(ExplainRegister(ops, 0).empty(), expected) << "seed " << seed;
    ++(expected ? explained : not_explained);
  }
  EXPECT_GT(explained, 300);
  EXPECT_GT(not_explained, 300);
}

// A store that is away for seconds leaves dozens of operations outstanding at
// once; the number of their orders must not matter.
TEST(ExplainRegister, ManyOutstandingOperationsAreExplained) {
  RandomStream random(5);
  std::vector<RegisterOp> ops;
  for (int64_t i = 0; i < 60; ++i) {
    const uint64_t value = random.NextBelow(3);
    if (i % 3 == 0) {
      ops.push_back(Read(value, i, 200 + i));
    } else {
      ops.push_back(Write(value, i, i % 5 == 0 ? -1 : 300 - i));
    }
  }
  EXPECT_EQ(ExplainRegister(ops, 0), "");
  // Nobody writes 7.
  ops.push_back(Read(7, 60, 400));
  EXPECT_NE(ExplainRegister(ops, 0), "");
}

TEST(AdminHistory, VersionsGrowInTheOrderTheyWereGiven) {
  AdminHistory good;
  const size_t a = good.BeginChange(At(0));
  good.EndChange(a, 4, At(1));
  const size_t b = good.BeginChange(At(2));
  good.EndChange(b, 5, At(3));
  good.OnActiveRead(4, At(4), At(5));
  good.OnActiveRead(5, At(6), At(7));
  EXPECT_EQ(good.Check(), "");

  AdminHistory twice = good;
  twice.EndChange(twice.BeginChange(At(8)), 5, At(9));
  EXPECT_NE(twice.Check(), "");

  AdminHistory back = good;
  back.OnActiveRead(4, At(8), At(9));
  EXPECT_NE(back.Check(), "");

  AdminHistory late = good;
  late.EndChange(late.BeginChange(At(8)), 3, At(9));
  EXPECT_NE(late.Check(), "");
}

}  // namespace
}  // namespace trunkline::sim
