#include "cli/contract_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trunkline::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 8 tokens over 16 experts, as the serving router chooses.
SpecBase Base() {
  SpecBase base;
  base.contract.policy = routing::NemotronHPolicy(16, 4, 2, 1, true, 2.5);
  base.tokens = 8;
  return base;
}

absl::StatusOr<routing::RoutingContract> Make(const std::string& policy,
                                              const std::string& admission = "",
                                              const std::string& form = "") {
  return ContractFromText({policy, admission, form}, Base());
}

TEST(ContractSpec, NothingGivenIsTheRecordedContract) {
  const auto same = Make("");
  ASSERT_TRUE(same.ok());
  for (const char* text : {"recorded", "nemotron-h"}) {
    const auto named = Make(text);
    ASSERT_TRUE(named.ok()) << named.status();
    EXPECT_TRUE(routing::CompareContracts(*same, *named,
                                          routing::EquivalenceClaim::kForward)
                    .equivalent);
  }
}

TEST(ContractSpec, KeysChangeWhatTheyName) {
  auto c = Make(
      "recorded:top-k=2,groups=4,top-groups=2,normalize=false,scale=1,"
      "bias=false");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->policy.top_k, 2);
  EXPECT_EQ(c->policy.n_group, 4);
  EXPECT_EQ(c->policy.topk_group, 2);
  EXPECT_EQ(c->policy.gate_domain, routing::GateDomain::kScore);
  EXPECT_EQ(c->policy.scale, 1.0);
  EXPECT_FALSE(c->policy.bias);
  c = Make("gshard");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->policy.noise, routing::NoiseSource::kSecondDraw);
  EXPECT_EQ(c->policy.experts, 16);
  // 8 tokens x 4 over 16 experts.
  c = Make("expert-choice");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->policy.budget, 2);
  c = Make("expert-choice:tokens=5");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->policy.budget, 5);
}

TEST(ContractSpec, ServingTakesGroupsOfASequenceAndSaysWhyNothingElse) {
  const auto none = ServingAdmissionFromText("dropless");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, routing::AdmissionPolicy());
  const auto some = ServingAdmissionFromText(
      "capacity:factor=1.25,group=64,overflow="
      "renormalize");
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->scope, routing::GroupScope::kSequence);
  EXPECT_EQ(some->arbitration, routing::Arbitration::kTokenSlot);
  EXPECT_EQ(some->group_tokens, 64);
  EXPECT_EQ(some->renormalize, routing::RenormalizeRule::kSelectedSum);
  // What is shown is what may be written.
  const std::string shown = routing::SpecOf(*some);
  EXPECT_EQ(shown,
            "capacity:factor=1.25,scope=sequence,group=64,order=source,"
            "overflow=renormalize");
  EXPECT_EQ(*ServingAdmissionFromText(shown), *some);
  const auto why = [](const std::string& text) {
    return std::string(ServingAdmissionFromText(text).status().message());
  };
  EXPECT_THAT(why("capacity:factor=1"), HasSubstr("group_tokens"));
  EXPECT_THAT(why("capacity:group=8,scope=batch"),
              HasSubstr("who else is served"));
  EXPECT_THAT(why("capacity:group=8,order=gate"), HasSubstr("later token"));
  EXPECT_THAT(why("capacity:group=8,overflow=reroute,candidates=next-best,"
                  "weight=keep"),
              HasSubstr("whole group"));
  EXPECT_THAT(why("recorded"), HasSubstr("for a recording"));
  EXPECT_THAT(why("expert-choice"), HasSubstr("is not an admission"));
  EXPECT_THAT(why("capacity:groups=8"), HasSubstr("has no \"groups\""));
}

TEST(ContractSpec, WhatIsRetainedIsAnAxisOfMemoryAlone) {
  const auto save = ContractFromText({"", "", "", "save"}, Base());
  ASSERT_TRUE(save.ok()) << save.status();
  const auto none = ContractFromText({"", "", "", "none"}, Base());
  ASSERT_TRUE(none.ok()) << none.status();
  using routing::EquivalenceClaim;
  EXPECT_TRUE(
      routing::CompareContracts(*save, *none, EquivalenceClaim::kForward)
          .equivalent);
  EXPECT_FALSE(
      routing::CompareContracts(*save, *none, EquivalenceClaim::kMemory)
          .equivalent);
  EXPECT_THAT(
      std::string(
          ContractFromText({"", "", "", "all"}, Base()).status().message()),
      HasSubstr("none, save, rematerialize"));
}

TEST(ContractSpec, AdmissionAndFormHaveAllTheirChoices) {
  auto c = Make("", "capacity:factor=1.25,group=4,order=random,seed=9");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->admission.capacity_factor, 1.25);
  EXPECT_EQ(c->admission.group_tokens, 4);
  EXPECT_EQ(c->admission.arbitration, routing::Arbitration::kSeededRandom);
  EXPECT_EQ(c->admission.seed, 9u);
  c = Make("", "capacity:order=source,overflow=renormalize");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->admission.renormalize, routing::RenormalizeRule::kSelectedSum);
  c = Make(
      "", "capacity:overflow=reroute,candidates=list,fallback=3+1,weight=keep");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_THAT(c->admission.fallback, ElementsAre(ExpertId(3), ExpertId(1)));
  EXPECT_EQ(Make("", "", "fixed:rows=4")->representation.capacity, 4);
  EXPECT_EQ(Make("", "", "blocks:rows=8")->representation.block_rows, 8);
  EXPECT_EQ(Make("", "", "max-load")->representation.form,
            routing::RowForm::kMaxLoad);
}

TEST(ContractSpec, WhatIsNotKnownIsRefusedByName) {
  struct Case {
    ContractText text;
    const char* names;
  };
  const Case cases[] = {
      {{"mixtral", "", ""}, "mixtral"},
      {{"soft-moe", "", ""}, "no routes to replay"},
      {{":top-k=2", "", ""}, "no name"},
      {{"recorded:top-k", "", ""}, "key=value"},
      {{"recorded:top-k=2,top-k=3", "", ""}, "set twice"},
      {{"recorded:top-k=x", "", ""}, "top-k=x"},
      {{"recorded:top-k=17", "", ""}, "top_k"},
      {{"recorded:groups=3", "", ""}, "group"},
      {{"switch:top-k=2", "", ""}, "top-k"},
      {{"softmax-topk:bias=true", "", ""}, "bias"},
      {{"", "bounded", ""}, "bounded"},
      {{"", "dropless:factor=1", ""}, "factor"},
      {{"", "capacity:order=luck", ""}, "order=luck"},
      {{"", "capacity:factor=0", ""}, "capacity_factor"},
      {{"", "capacity:overflow=reroute", ""}, "reroute"},
      {{"", "capacity:fallback=a", ""}, "fallback=a"},
      {{"", "", "heap"}, "heap"},
      {{"", "", "blocks"}, "block"},
      {{"", "", "packed:rows=2"}, "rows"},
  };
  for (const Case& c : cases) {
    const auto contract = ContractFromText(c.text, Base());
    ASSERT_FALSE(contract.ok()) << c.names;
    EXPECT_EQ(contract.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(contract.status().message()), HasSubstr(c.names));
  }
}

}  // namespace
}  // namespace trunkline::cli
