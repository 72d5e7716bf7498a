// Every policy against a reference written from the formulas, ten thousand
// cases each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/random.h"
#include "routing/policy_record.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::routing {
namespace {

// --- A reference written from the formulas: an expert's rank is the number of
// experts that beat it; everything in double; nothing is sorted.
struct PlainRow {
  std::vector<size_t> by_rank;
  std::vector<double> gate;  // parallel to by_rank
};

std::vector<double> PlainScores(const PolicyRecord& r,
                                const std::vector<double>& logit) {
  std::vector<double> score(logit.size());
  double sum = 0;
  for (double x : logit) sum += std::exp(x);
  for (size_t e = 0; e < logit.size(); ++e) {
    switch (r.transform) {
      case ScoreTransform::kIdentity:
        score[e] = logit[e];
        break;
      case ScoreTransform::kSigmoid:
        score[e] = 1.0 / (1.0 + std::exp(-logit[e]));
        break;
      case ScoreTransform::kSoftmax:
        score[e] = std::exp(logit[e]) / sum;
        break;
    }
  }
  return score;
}

size_t RankAmong(const std::vector<double>& v, size_t i,
                 const std::function<bool(size_t)>& counts) {
  size_t rank = 0;
  for (size_t j = 0; j < v.size(); ++j) {
    if (j == i || !counts(j)) continue;
    if (v[j] > v[i] || (v[j] == v[i] && j < i)) ++rank;
  }
  return rank;
}

PlainRow PlainTokenChoice(const PolicyRecord& r,
                          const std::vector<double>& logit,
                          const std::vector<float>& bias) {
  const std::vector<double> score = PlainScores(r, logit);
  std::vector<double> choice = score;
  for (size_t e = 0; e < bias.size(); ++e) {
    choice[e] += static_cast<double>(bias[e]);
  }
  const size_t size = score.size() / static_cast<size_t>(r.n_group);
  std::vector<double> group(static_cast<size_t>(r.n_group));
  for (size_t g = 0; g < group.size(); ++g) {
    for (size_t i = 0; i < size; ++i) {
      const auto inside = [&](size_t j) { return j / size == g; };
      const size_t e = g * size + i;
      if (RankAmong(choice, e, inside) < 2) group[g] += choice[e];
    }
  }
  std::vector<bool> kept(group.size());
  for (size_t g = 0; g < group.size(); ++g) {
    kept[g] = RankAmong(group, g, [](size_t) { return true; }) <
              static_cast<size_t>(r.topk_group);
  }
  const auto allowed = [&](size_t j) { return kept[j / size]; };
  PlainRow row;
  row.by_rank.resize(static_cast<size_t>(r.top_k));
  for (size_t e = 0; e < score.size(); ++e) {
    if (!allowed(e)) continue;
    const size_t rank = RankAmong(choice, e, allowed);
    if (rank < row.by_rank.size()) row.by_rank[rank] = e;
  }
  double sum = 0;
  for (size_t e : row.by_rank) {
    sum += r.gate_domain == GateDomain::kSelectedSoftmax ? std::exp(logit[e])
                                                         : score[e];
  }
  for (size_t e : row.by_rank) {
    double g = score[e];
    if (r.gate_domain == GateDomain::kSelectedSum) g /= sum + r.epsilon;
    if (r.gate_domain == GateDomain::kSelectedSoftmax) {
      g = std::exp(logit[e]) / sum;
    }
    row.gate.push_back(g * r.scale);
  }
  return row;
}

struct Case {
  int64_t rows = 0;
  std::vector<float> logits, bias, noise;
  std::vector<double> draws;
  RouterInput Input() const {
    RouterInput in;
    in.rows = rows;
    in.values = logits;
    in.bias = bias;
    in.noise = noise;
    in.draws = draws;
    return in;
  }
};

// Multiples of 1/8: ties are common and are ties in every precision, and what
// is not a tie is far from one.
Case RandomCase(RandomStream& random, const PolicyRecord& r) {
  Case c;
  c.rows = static_cast<int64_t>(random.NextBelow(5));
  const auto eighths = [&](size_t n) {
    std::vector<float> v(n);
    for (float& x : v) {
      x = (static_cast<float>(random.NextBelow(49)) - 24.0f) / 8.0f;
    }
    return v;
  };
  c.logits = eighths(static_cast<size_t>(c.rows * r.experts));
  if (r.noise == NoiseSource::kLogitNoise) c.noise = eighths(c.logits.size());
  if (r.bias) {
    c.bias.resize(static_cast<size_t>(r.experts));
    for (float& b : c.bias) {
      b = static_cast<float>(random.NextUnit() - 0.5);
    }
  }
  if (r.noise == NoiseSource::kSecondDraw) {
    for (int64_t t = 0; t < c.rows; ++t) c.draws.push_back(random.NextUnit());
  }
  return c;
}

void ExpectTokenChoice(const PolicyRecord& r, const Case& c,
                       const std::string& what) {
  RouteTable table;
  const absl::Status status = RouteByRecord(r, c.Input(), &table);
  ASSERT_TRUE(status.ok()) << what << ": " << status;
  ASSERT_EQ(table.size(), c.rows * r.top_k);
  size_t at = 0;
  for (int64_t t = 0; t < c.rows; ++t) {
    std::vector<double> logit;
    for (int64_t e = 0; e < r.experts; ++e) {
      const auto i = static_cast<size_t>(t * r.experts + e);
      logit.push_back(
          static_cast<double>(c.logits[i]) +
          (c.noise.empty() ? 0.0 : static_cast<double>(c.noise[i])));
    }
    const PlainRow plain = PlainTokenChoice(r, logit, c.bias);
    for (size_t s = 0; s < plain.by_rank.size(); ++s, ++at) {
      ASSERT_EQ(table.token_id[at], t);
      ASSERT_EQ(table.selected_slot[at], s);
      ASSERT_EQ(table.expert_id[at].value, plain.by_rank[s])
          << what << ", row " << t << ", slot " << s;
      ASSERT_NEAR(static_cast<double>(table.gate[at]), plain.gate[s], 1e-6)
          << what;
      bool taken = true;
      if (r.noise == NoiseSource::kSecondDraw && s == 1) {
        taken = c.draws[static_cast<size_t>(t)] < 2.0 * plain.gate[1];
      }
      ASSERT_EQ(table.fate[at],
                taken ? RouteFate::kAccepted : RouteFate::kNotDrawn);
    }
  }
}

using MakePolicy = std::function<PolicyRecord(RandomStream&)>;

void TenThousandCases(const MakePolicy& make) {
  RandomStream random(99);
  for (int i = 0; i < 10000; ++i) {
    PolicyRecord r = make(random);
    r.precision = RouterPrecision::kF64;
    ExpectTokenChoice(r, RandomCase(random, r), "case " + std::to_string(i));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

int64_t Experts(RandomStream& random) {
  return static_cast<int64_t>(2 + random.NextBelow(30));
}
int64_t TopK(RandomStream& random, int64_t experts) {
  return static_cast<int64_t>(1 +
                              random.NextBelow(static_cast<uint64_t>(experts)));
}

TEST(PolicyProperty, SigmoidWithGroupLimitAndBias) {
  TenThousandCases([](RandomStream& random) {
    const auto groups = static_cast<int64_t>(1 + random.NextBelow(5));
    const auto size = static_cast<int64_t>(1 + random.NextBelow(6));
    const int64_t kept = TopK(random, groups);
    PolicyRecord r =
        NemotronHPolicy(groups * size, TopK(random, kept * size), groups, kept,
                        random.NextBelow(2) == 0, 2.5);
    r.bias = random.NextBelow(2) == 0;
    return r;
  });
}
TEST(PolicyProperty, SoftmaxThenTopK) {
  TenThousandCases([](RandomStream& random) {
    const int64_t experts = Experts(random);
    return SoftmaxTopKPolicy(experts, TopK(random, experts), false);
  });
}
TEST(PolicyProperty, SoftmaxThenTopKRenormalized) {
  TenThousandCases([](RandomStream& random) {
    const int64_t experts = Experts(random);
    return SoftmaxTopKPolicy(experts, TopK(random, experts), true);
  });
}
TEST(PolicyProperty, TopKThenSoftmaxOverTheSelected) {
  TenThousandCases([](RandomStream& random) {
    const int64_t experts = Experts(random);
    return TopKSoftmaxPolicy(experts, TopK(random, experts));
  });
}
TEST(PolicyProperty, SwitchTopOne) {
  TenThousandCases(
      [](RandomStream& random) { return SwitchPolicy(Experts(random)); });
}
TEST(PolicyProperty, GShardTopTwoWithRecordedDraws) {
  TenThousandCases(
      [](RandomStream& random) { return GShardPolicy(Experts(random)); });
}
TEST(PolicyProperty, NoisyTopKWithRecordedNoise) {
  TenThousandCases([](RandomStream& random) {
    const int64_t experts = Experts(random);
    return NoisyTopKPolicy(experts, TopK(random, experts));
  });
}

// Ranks compare different rows, so the scores are given: equal ones are equal.
TEST(PolicyProperty, ExpertChoice) {
  RandomStream random(5);
  for (int i = 0; i < 10000; ++i) {
    const int64_t experts = Experts(random);
    const auto rows = static_cast<int64_t>(1 + random.NextBelow(4));
    PolicyRecord r = ExpertChoicePolicy(experts, TopK(random, rows));
    r.precision = RouterPrecision::kF64;
    Case c;
    do {
      c = RandomCase(random, r);
    } while (c.rows < r.budget);
    RouteTable table;
    RouterInput in = c.Input();
    in.transformed = true;
    ASSERT_TRUE(RouteByRecord(r, in, &table).ok());
    std::vector<std::vector<double>> score;
    for (int64_t t = 0; t < c.rows; ++t) {
      score.emplace_back(c.logits.begin() + t * experts,
                         c.logits.begin() + (t + 1) * experts);
    }
    size_t at = 0;
    for (int64_t t = 0; t < c.rows; ++t) {
      uint16_t slot = 0;
      for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
        std::vector<double> column;
        for (const auto& row : score) column.push_back(row[e]);
        if (RankAmong(column, static_cast<size_t>(t), [](size_t) {
              return true;
            }) >= static_cast<size_t>(r.budget)) {
          continue;
        }
        ASSERT_LT(at, static_cast<size_t>(table.size()));
        ASSERT_EQ(table.token_id[at], t);
        ASSERT_EQ(table.selected_slot[at], slot++);
        ASSERT_EQ(table.expert_id[at].value, e);
        ASSERT_NEAR(static_cast<double>(table.gate[at]),
                    column[static_cast<size_t>(t)], 1e-6);
        ++at;
      }
    }
    ASSERT_EQ(at, static_cast<size_t>(table.size()));
    ASSERT_EQ(table.size(), experts * r.budget);
  }
}

TEST(PolicyProperty, SoftMoeColumnsAndRowsSumToOne) {
  RandomStream random(6);
  for (int i = 0; i < 10000; ++i) {
    const PolicyRecord r =
        SoftMoePolicy(static_cast<int64_t>(1 + random.NextBelow(5)),
                      static_cast<int64_t>(1 + random.NextBelow(3)));
    const auto rows = static_cast<size_t>(1 + random.NextBelow(6));
    const auto slots = static_cast<size_t>(r.experts * r.budget);
    std::vector<float> logits(rows * slots);
    for (float& x : logits) {
      x = static_cast<float>(random.NextUnit() * 8 - 4);
    }
    RouterInput in;
    in.rows = static_cast<int64_t>(rows);
    in.values = logits;
    const auto a = SoftAssign(r, in);
    ASSERT_TRUE(a.ok()) << a.status();
    for (size_t t = 0; t < rows; ++t) {
      for (size_t s = 0; s < slots; ++s) {
        double column = 0, row = 0;
        for (size_t u = 0; u < rows; ++u) {
          column += std::exp(static_cast<double>(logits[u * slots + s]));
        }
        for (size_t u = 0; u < slots; ++u) {
          row += std::exp(static_cast<double>(logits[t * slots + u]));
        }
        const double x = std::exp(static_cast<double>(logits[t * slots + s]));
        ASSERT_NEAR(a->dispatch[t * slots + s], x / column, 1e-12);
        ASSERT_NEAR(a->combine[t * slots + s], x / row, 1e-12);
      }
    }
  }
}

// The plain path and the serving path are the same policy.
TEST(PolicyRecord, GivesTheServingPathsBitsForEveryServingPolicy) {
  RandomStream random(8);
  for (int i = 0; i < 10000; ++i) {
    const auto groups = static_cast<int64_t>(1 + random.NextBelow(4));
    const auto size = static_cast<int64_t>(1 + random.NextBelow(9));
    const int64_t kept = TopK(random, groups);
    PolicyRecord r = NemotronHPolicy(
        groups * size, TopK(random, kept * size), groups, kept,
        random.NextBelow(2) == 0,
        static_cast<double>(static_cast<float>(random.NextUnit() + 0.5)));
    r.bias = random.NextBelow(2) == 0;
    const auto serving = ServingPolicy(r);
    ASSERT_TRUE(serving.ok()) << serving.status();
    const auto rows = static_cast<int64_t>(random.NextBelow(4));
    std::vector<float> scores(static_cast<size_t>(rows * r.experts));
    for (float& s : scores) s = static_cast<float>(random.NextUnit());
    std::vector<float> bias(r.bias ? static_cast<size_t>(r.experts) : 0);
    for (float& b : bias) b = static_cast<float>(random.NextUnit() - 0.5);
    RouteTable fast, plain;
    ASSERT_TRUE(SelectRoutes(*serving, scores, rows, bias, &fast).ok());
    RouterInput in;
    in.rows = rows;
    in.values = scores;
    in.transformed = true;
    in.bias = bias;
    ASSERT_TRUE(RouteByRecord(r, in, &plain).ok());
    ASSERT_EQ(fast.expert_id, plain.expert_id);
    ASSERT_EQ(fast.token_id, plain.token_id);
    ASSERT_EQ(fast.selected_slot, plain.selected_slot);
    ASSERT_EQ(fast.fate, plain.fate);
    for (size_t j = 0; j < fast.gate.size(); ++j) {
      ASSERT_EQ(std::bit_cast<uint32_t>(fast.gate[j]),
                std::bit_cast<uint32_t>(plain.gate[j]));
    }
    const PolicyRecord back = RecordOf(*serving, r.bias);
    ASSERT_EQ(back.gate_domain, r.gate_domain);
    ASSERT_EQ(back.scale, r.scale);
  }
}

}  // namespace
}  // namespace trunkline::routing
