// Fixed capacity that can be served: a token's fate follows from its own
// sequence up to itself, however the sequence was cut into steps and whoever
// was beside it.

#include "routing/sequence_admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "common/random.h"
#include "routing/layer_record.h"
#include "routing/replay.h"
#include "routing/route_validator.h"
#include "routing/router_policy.h"

namespace trunkline::routing {
namespace {

using ::testing::HasSubstr;

AdmissionPolicy SequenceCapacity(double factor, int64_t group) {
  AdmissionPolicy p;
  p.kind = AdmissionKind::kFixedCapacity;
  p.capacity_factor = factor;
  p.scope = GroupScope::kSequence;
  p.group_tokens = group;
  p.arbitration = Arbitration::kTokenSlot;
  return p;
}

struct Fate {
  RouteFate fate;
  uint32_t gate_bits;
  friend bool operator==(const Fate&, const Fate&) = default;
};

struct Sequence {
  std::vector<float> scores;  // [tokens, experts]
  int64_t tokens = 0, done = 0;
  std::vector<uint32_t> used;
  std::vector<Fate> fates;  // as they were served
};

struct Case {
  RouterPolicy policy;
  AdmissionPolicy admission;
  std::vector<Sequence> sequences;
};

Case RandomCase(RandomStream& random) {
  Case c;
  c.policy.experts = static_cast<int64_t>(2 + random.NextBelow(15));
  c.policy.top_k = static_cast<int64_t>(
      1 + random.NextBelow(static_cast<uint64_t>(c.policy.experts)));
  c.policy.scale = 2.5f;
  c.admission =
      SequenceCapacity(0.1 + 0.1 * static_cast<double>(random.NextBelow(15)),
                       static_cast<int64_t>(1 + random.NextBelow(9)));
  if (random.NextBelow(2) == 0) {
    c.admission.overflow = Overflow::kDropRenormalize;
    c.admission.renormalize = RenormalizeRule::kSelectedSum;
  }
  c.sequences.resize(1 + random.NextBelow(4));
  for (Sequence& s : c.sequences) {
    s.tokens = static_cast<int64_t>(1 + random.NextBelow(20));
    // Few different scores: ties, and experts that many tokens want.
    for (int64_t i = 0; i < s.tokens * c.policy.experts; ++i)
      s.scores.push_back(0.125f * static_cast<float>(1 + random.NextBelow(7)));
    s.used.assign(static_cast<size_t>(c.policy.experts), 77);
  }
  return c;
}

// The whole sequence at once, by the slow admission of replay.
std::vector<Fate> Reference(const Case& c, const Sequence& s) {
  LayerRecord r;
  r.policy = RecordOf(c.policy, false);
  r.admission = c.admission;
  r.values = s.scores;
  const absl::Status status = FillRecord(s.tokens, &r);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(ValidateLayer(r).ok()) << ValidateLayer(r);
  std::vector<Fate> fates;
  for (size_t i = 0; i < r.table.gate.size(); ++i)
    fates.push_back(
        {r.table.fate[i], std::bit_cast<uint32_t>(r.table.gate[i])});
  return fates;
}

// One step of some sequences, each with some of what it has left; its record is
// right in every respect and replays to itself.
void ServeStep(RandomStream& random, Case* c) {
  std::vector<SequenceRows> rows;
  std::vector<Sequence*> of;
  std::vector<float> scores;
  LayerRecord r;
  int64_t total = 0;
  for (size_t i = 0; i < c->sequences.size(); ++i) {
    Sequence& s = c->sequences[i];
    const int64_t left = s.tokens - s.done;
    if (left == 0 || random.NextBelow(3) == 0) continue;
    const auto count =
        static_cast<int64_t>(1 + random.NextBelow(static_cast<uint64_t>(left)));
    const auto e = static_cast<size_t>(c->policy.experts);
    const auto from = s.scores.begin() + s.done * c->policy.experts;
    scores.insert(scores.end(), from, from + count * static_cast<int64_t>(e));
    rows.push_back({total, count, s.done, s.used, 0});
    of.push_back(&s);
    for (int64_t t = 0; t < count; ++t) {
      r.request_of_token.push_back(static_cast<uint32_t>(i));
      r.position_of_token.push_back(static_cast<uint32_t>(s.done + t));
    }
    total += count;
  }
  if (total == 0) return;
  RouteTable table;
  ASSERT_TRUE(SelectRoutes(c->policy, scores, total, {}, &table).ok());
  SequenceGroups groups;
  NameSequenceGroups(c->admission, rows, &groups);
  AdmitSequences(c->admission, rows, &table);
  int64_t dropped = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto k = static_cast<size_t>(c->policy.top_k);
    const auto begin = static_cast<size_t>(rows[i].row_begin) * k;
    const auto end = begin + static_cast<size_t>(rows[i].row_count) * k;
    int64_t counted = 0;
    for (size_t route = begin; route < end; ++route) {
      of[i]->fates.push_back(
          {table.fate[route], std::bit_cast<uint32_t>(table.gate[route])});
      counted += table.fate[route] == RouteFate::kDropped ? 1 : 0;
    }
    ASSERT_EQ(rows[i].dropped, counted);
    dropped += counted;
    of[i]->done += rows[i].row_count;
  }
  ASSERT_TRUE(CheckStepInvariants(c->policy, table, dropped).ok());
  ASSERT_FALSE(CheckStepInvariants(c->policy, table, dropped + 1).ok());
  r.policy = RecordOf(c->policy, false);
  r.admission = c->admission;
  r.values = scores;
  r.group_of_token = groups.group_of_token;
  r.occupancy = groups.occupancy;
  ASSERT_TRUE(FillRecord(total, &r).ok());
  EXPECT_EQ(r.table.fate, table.fate);
  EXPECT_EQ(r.table.gate, table.gate);
  const absl::Status valid = ValidateLayer(r);
  ASSERT_TRUE(valid.ok()) << valid;
  const absl::Status equal = ProveEqual(r);
  ASSERT_TRUE(equal.ok()) << equal;
}

TEST(SequenceAdmission, NeitherStepsNorNeighboursChangeAFateOrAGateBit) {
  int64_t dropped = 0, accepted = 0;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    RandomStream random(seed);
    Case c = RandomCase(random);
    const auto left = [&] {
      return std::any_of(c.sequences.begin(), c.sequences.end(),
                         [](const Sequence& s) { return s.done < s.tokens; });
    };
    while (left()) ServeStep(random, &c);
    for (const Sequence& s : c.sequences) {
      ASSERT_EQ(s.fates, Reference(c, s)) << "seed " << seed;
      for (const Fate& f : s.fates)
        (f.fate == RouteFate::kAccepted ? accepted : dropped)++;
    }
  }
  // Neither of the two is rare.
  EXPECT_GT(dropped, 100000);
  EXPECT_GT(accepted, 100000);
}

// The largest capacity that may be asked for does not wrap around.
TEST(SequenceAdmission, ACapacityBeyondEveryCounterDropsNothing) {
  AdmissionPolicy admission = SequenceCapacity(1e6, int64_t{1} << 24);
  ASSERT_TRUE(CheckServingAdmission(admission, 2).ok());
  RouterPolicy policy;
  policy.experts = 2;
  policy.top_k = 1;
  std::vector<float> scores;
  for (int t = 0; t < 100; ++t) scores.insert(scores.end(), {0.9f, 0.1f});
  RouteTable table;
  ASSERT_TRUE(SelectRoutes(policy, scores, 100, {}, &table).ok());
  std::vector<uint32_t> used(2, 0);
  SequenceRows rows{0, 100, 0, used, 0};
  AdmitSequences(admission, {&rows, 1}, &table);
  EXPECT_EQ(rows.dropped, 0);
  EXPECT_EQ(used, (std::vector<uint32_t>{100, 0}));
}

// Capacity is at least one row, and a token names an expert once.
TEST(SequenceAdmission, AGroupOfOneTokenNeverDrops) {
  RandomStream random(5);
  Case c = RandomCase(random);
  c.admission = SequenceCapacity(0.01, 1);
  for (Sequence& s : c.sequences) {
    for (const Fate& f : Reference(c, s))
      EXPECT_EQ(f.fate, RouteFate::kAccepted);
  }
}

TEST(SequenceAdmission, WhatALaterTokenCouldChangeIsRefusedWithTheReason) {
  const AdmissionPolicy good = SequenceCapacity(1.25, 64);
  EXPECT_TRUE(CheckServingAdmission(good, 8).ok());
  EXPECT_TRUE(CheckServingAdmission({}, 8).ok());
  const auto why = [&](auto change) {
    AdmissionPolicy p = good;
    change(p);
    return std::string(CheckServingAdmission(p, 8).message());
  };
  EXPECT_THAT(why([](auto& p) { p.scope = GroupScope::kBatch; }),
              HasSubstr("depend on who else is served"));
  for (const Arbitration order :
       {Arbitration::kGateTokenSlot, Arbitration::kSlotToken,
        Arbitration::kSeededRandom}) {
    EXPECT_THAT(why([&](auto& p) { p.arbitration = order; }),
                HasSubstr("lets a later token of the sequence take"));
  }
  EXPECT_THAT(why([](auto& p) {
                p.overflow = Overflow::kReroute;
                p.candidates = RerouteCandidates::kNextBestScore;
                p.weight = RerouteWeight::kKeepGate;
              }),
              HasSubstr("when the whole group has come"));
  EXPECT_THAT(why([](auto& p) { p.group_tokens = 0; }),
              HasSubstr("it has 1 to 16777216"));
  EXPECT_THAT(why([](auto& p) { p.group_tokens = int64_t{1} << 33; }),
              HasSubstr("it has 1 to 16777216"));
  EXPECT_THAT(why([](auto& p) { p.capacity_factor = 0; }),
              HasSubstr("capacity_factor"));
}

// A step in the middle of a group, for mutations.
LayerRecord MidGroupRecord() {
  LayerRecord r;
  RouterPolicy policy;
  policy.experts = 4;
  policy.top_k = 2;
  r.policy = RecordOf(policy, false);
  r.admission = SequenceCapacity(0.5, 4);  // one row an expert
  r.values = {0.9f, 0.8f, 0.1f, 0.2f, 0.9f, 0.1f, 0.8f, 0.2f};
  r.request_of_token = {7, 7};
  r.position_of_token = {5, 6};
  r.group_of_token = {0, 0};
  r.occupancy = {{0, {1, 0, 0, 1}}};
  EXPECT_TRUE(FillRecord(2, &r).ok());
  return r;
}

TEST(SequenceAdmission, ARecordInTheMiddleOfAGroupCarriesWhatWasTaken) {
  const LayerRecord r = MidGroupRecord();
  EXPECT_TRUE(ValidateLayer(r).ok()) << ValidateLayer(r);
  EXPECT_EQ(r.table.fate, (std::vector<RouteFate>{
                              RouteFate::kDropped, RouteFate::kAccepted,
                              RouteFate::kDropped, RouteFate::kAccepted}));
  const auto broken = [&](auto change) {
    LayerRecord bad = r;
    change(bad);
    return std::string(ValidateLayer(bad).message());
  };
  EXPECT_THAT(broken([](auto& b) { b.occupancy.clear(); }),
              HasSubstr("group identity"));
  EXPECT_THAT(broken([](auto& b) { b.occupancy[0].used[0] = 2; }),
              HasSubstr("group identity"));
  EXPECT_THAT(broken([](auto& b) {
                b.occupancy[0].used = {1, 0, 0, 0};
              }),
              HasSubstr("group identity"));
  EXPECT_THAT(broken([](auto& b) {
                b.occupancy[0].used = {0, 1, 0, 1};
              }),
              HasSubstr("admission"));
  EXPECT_THAT(broken([](auto& b) { b.occupancy[0].used.pop_back(); }),
              HasSubstr("shapes"));
  EXPECT_THAT(broken([](auto& b) {
                b.position_of_token = {7, 8};
              }),
              HasSubstr("group identity"));
  EXPECT_THAT(broken([](auto& b) { b.position_of_token.clear(); }),
              HasSubstr("shapes"));
  EXPECT_THAT(broken([](auto& b) {
                b.request_of_token = {7, 8};
              }),
              HasSubstr("group identity"));
}

// Its history was made under its own contract.
TEST(SequenceAdmission, AnotherContractNeedsAGroupFromItsBeginning) {
  const LayerRecord r = MidGroupRecord();
  RoutingContract contract = ContractOf(r);
  EXPECT_TRUE(Reroute(r, contract).ok());
  contract.admission.capacity_factor = 1.0;
  EXPECT_THAT(std::string(Reroute(r, contract).status().message()),
              HasSubstr("is not in the record"));
  contract.admission = {};
  EXPECT_TRUE(Reroute(r, contract).ok());
}

}  // namespace
}  // namespace trunkline::routing
