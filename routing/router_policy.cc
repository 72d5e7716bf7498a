#include "routing/router_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace trunkline::routing {
namespace {

// The experts of a row are looked at in blocks of this many, so that the
// comparison with the worst choice so far is one vector operation for most of
// them.
constexpr int64_t kBlock = 16;

struct Block {
  std::array<float, kBlock> corrected;
  bool finite = true;  // scores and corrected scores
  bool any_above = false;
};

uint32_t IsNotFinite(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return static_cast<uint32_t>((bits & 0x7f800000u) == 0x7f800000u);
}

// corrected = score + bias for `count` experts, and whether any of them is
// above `threshold`.
void LoadBlock(const float* score, const float* bias, int64_t count,
               float threshold, Block* block) {
  uint32_t bad = 0;
  uint32_t above = 0;
  if (count == kBlock && bias != nullptr) {
    for (int64_t i = 0; i < kBlock; ++i) {
      const float c = score[i] + bias[i];
      block->corrected[static_cast<size_t>(i)] = c;
      bad |= IsNotFinite(score[i]) | IsNotFinite(c);
      above |= static_cast<uint32_t>(c > threshold);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const float c = bias != nullptr ? score[i] + bias[i] : score[i];
      block->corrected[static_cast<size_t>(i)] = c;
      bad |= IsNotFinite(score[i]) | IsNotFinite(c);
      above |= static_cast<uint32_t>(c > threshold);
    }
  }
  block->finite = bad == 0;
  block->any_above = above != 0;
}

// The best `capacity` experts seen so far, best first. The arrays are the
// route table's own. Experts are offered in ascending id, and a newcomer only
// passes those that are strictly worse, so equal scores keep the lower id
// first.
struct BestList {
  float* corrected;
  ExpertId* id;
  int64_t capacity;
  int64_t count = 0;

  float Threshold() const {
    return count < capacity ? -std::numeric_limits<float>::infinity()
                            : corrected[capacity - 1];
  }
  void Offer(float c, int64_t expert) {
    if (count == capacity) {
      if (!(c > corrected[capacity - 1])) return;
    } else {
      ++count;
    }
    int64_t at = count - 1;
    while (at > 0 && corrected[at - 1] < c) {
      corrected[at] = corrected[at - 1];
      id[at] = id[at - 1];
      --at;
    }
    corrected[at] = c;
    id[at] = ExpertId(static_cast<uint32_t>(expert));
  }
};

absl::Status NotFiniteError(std::span<const float> row,
                            std::span<const float> bias, int64_t row_index,
                            int64_t begin, int64_t end) {
  for (int64_t e = begin; e < end; ++e) {
    const auto i = static_cast<size_t>(e);
    if (!std::isfinite(row[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("router score of row ", row_index, ", expert ", e,
                       " is not finite: ", row[i]));
    }
    if (!bias.empty() && !std::isfinite(row[i] + bias[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "router score ", row[i], " plus bias ", bias[i], " of row ",
          row_index, ", expert ", e, " is not finite"));
    }
  }
  return absl::InternalError("a block of finite scores was taken for another");
}

absl::Status OfferRange(std::span<const float> row, std::span<const float> bias,
                        int64_t row_index, int64_t begin, int64_t end,
                        BestList* best) {
  Block block;
  for (int64_t e = begin; e < end; e += kBlock) {
    const int64_t count = std::min(kBlock, end - e);
    LoadBlock(row.data() + e, bias.empty() ? nullptr : bias.data() + e, count,
              best->Threshold(), &block);
    if (!block.finite) {
      return NotFiniteError(row, bias, row_index, e, e + count);
    }
    if (!block.any_above) continue;
    for (int64_t i = 0; i < count; ++i) {
      best->Offer(block.corrected[static_cast<size_t>(i)], e + i);
    }
  }
  return absl::OkStatus();
}

// Marks the groups that stay. A group's score is the sum of its two largest
// corrected scores, or the one it has.
absl::Status KeepGroups(const RouterPolicy& policy, std::span<const float> row,
                        std::span<const float> bias, int64_t row_index,
                        std::array<bool, kGroupsMax>* keep) {
  const int64_t group_size = policy.experts / policy.n_group;
  std::array<float, kGroupsMax> score;
  std::array<ExpertId, kGroupsMax> group;  // ids of groups, not of experts
  BestList best{score.data(), group.data(), policy.topk_group};
  for (int64_t g = 0; g < policy.n_group; ++g) {
    std::array<float, 2> top;
    std::array<ExpertId, 2> id;
    BestList two{top.data(), id.data(), std::min<int64_t>(2, group_size)};
    const absl::Status status = OfferRange(row, bias, row_index, g * group_size,
                                           (g + 1) * group_size, &two);
    if (!status.ok()) return status;
    best.Offer(group_size > 1 ? top[0] + top[1] : top[0], g);
  }
  std::fill_n(keep->begin(), policy.n_group, false);
  for (int64_t i = 0; i < best.count; ++i) {
    (*keep)[group[static_cast<size_t>(i)].value] = true;
  }
  return absl::OkStatus();
}

absl::Status SelectRow(const RouterPolicy& policy, std::span<const float> row,
                       std::span<const float> bias, int64_t row_index,
                       BestList* best) {
  if (policy.n_group == 1) {
    return OfferRange(row, bias, row_index, 0, policy.experts, best);
  }
  std::array<bool, kGroupsMax> keep;
  absl::Status status = KeepGroups(policy, row, bias, row_index, &keep);
  const int64_t group_size = policy.experts / policy.n_group;
  for (int64_t g = 0; status.ok() && g < policy.n_group; ++g) {
    if (!keep[static_cast<size_t>(g)]) continue;
    status = OfferRange(row, bias, row_index, g * group_size,
                        (g + 1) * group_size, best);
  }
  return status;
}

void WeighRow(const RouterPolicy& policy, std::span<const float> row,
              const ExpertId* ids, float* gates) {
  float sum = 0.0f;
  for (int64_t s = 0; s < policy.top_k; ++s) {
    gates[s] = row[ids[s].value];
    sum += gates[s];
  }
  const float denominator = sum + 1e-20f;
  for (int64_t s = 0; s < policy.top_k; ++s) {
    if (policy.normalize) gates[s] = gates[s] / denominator;
    gates[s] = gates[s] * policy.scale;
  }
}

absl::Status FieldError(absl::string_view field, int64_t value,
                        absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("router policy: ", field, " = ", value, ": ", why));
}

}  // namespace

absl::Status ValidatePolicy(const RouterPolicy& policy) {
  const RouterPolicy& p = policy;
  if (p.experts < 1 || p.experts > std::numeric_limits<int32_t>::max()) {
    return FieldError("experts", p.experts, "must be 1 or more");
  }
  if (p.top_k < 1 || p.top_k > p.experts) {
    return FieldError(
        "top_k", p.top_k,
        absl::StrCat("must be between 1 and the number of experts, ",
                     p.experts));
  }
  if (p.top_k > std::numeric_limits<uint16_t>::max()) {
    return FieldError("top_k", p.top_k, "a slot is a 16-bit number");
  }
  if (p.n_group < 1 || p.n_group > kGroupsMax) {
    return FieldError("n_group", p.n_group,
                      absl::StrCat("must be between 1 and ", kGroupsMax));
  }
  if (p.experts % p.n_group != 0) {
    return FieldError("n_group", p.n_group,
                      absl::StrCat("does not divide ", p.experts, " experts"));
  }
  if (p.topk_group < 1 || p.topk_group > p.n_group) {
    return FieldError(
        "topk_group", p.topk_group,
        absl::StrCat("must be between 1 and n_group, ", p.n_group));
  }
  if (p.topk_group * (p.experts / p.n_group) < p.top_k) {
    return FieldError("topk_group", p.topk_group,
                      absl::StrCat("the kept groups hold fewer than top_k = ",
                                   p.top_k, " experts"));
  }
  if (!std::isfinite(p.scale) || !(p.scale > 0.0f)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "router policy: scale = ", p.scale, ": must be finite and above zero"));
  }
  return absl::OkStatus();
}

absl::Status SelectRoutes(const RouterPolicy& policy,
                          std::span<const float> scores, int64_t rows,
                          std::span<const float> bias, RouteTable* table) {
  absl::Status status = ValidatePolicy(policy);
  if (!status.ok()) return status;
  const auto experts = static_cast<size_t>(policy.experts);
  const auto top_k = static_cast<size_t>(policy.top_k);
  if (rows < 0 || rows > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows = ", rows, " can not be routed"));
  }
  if (scores.size() != static_cast<size_t>(rows) * experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("router scores have ", scores.size(), " values, not ",
                     rows, " rows times ", policy.experts, " experts"));
  }
  if (!bias.empty() && bias.size() != experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("router bias has ", bias.size(), " values, not ",
                     policy.experts, " (one an expert)"));
  }
  table->Clear(rows, policy.experts, policy.top_k);
  const size_t routes = static_cast<size_t>(rows) * top_k;
  table->token_id.resize(routes);
  table->selected_slot.resize(routes);
  table->expert_id.resize(routes);
  table->gate.resize(routes);
  table->fate.resize(routes, RouteFate::kAccepted);
  for (int64_t r = 0; r < rows; ++r) {
    const size_t base = static_cast<size_t>(r) * top_k;
    const auto row = scores.subspan(static_cast<size_t>(r) * experts, experts);
    // The gate array holds the corrected scores until the row is decided.
    BestList best{table->gate.data() + base, table->expert_id.data() + base,
                  policy.top_k};
    status = SelectRow(policy, row, bias, r, &best);
    if (!status.ok()) {
      table->Clear(0, policy.experts, policy.top_k);
      return status;
    }
    WeighRow(policy, row, best.id, best.corrected);
    for (size_t s = 0; s < top_k; ++s) {
      table->token_id[base + s] = static_cast<uint32_t>(r);
      table->selected_slot[base + s] = static_cast<uint16_t>(s);
    }
  }
  return absl::OkStatus();
}

}  // namespace trunkline::routing
