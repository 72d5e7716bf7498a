// Applies a policy record to scores, plainly: one row at a time, full sorts.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/status_macros.h"
#include "routing/policy_record.h"

namespace trunkline::routing {
namespace {

absl::Status CheckInput(const PolicyRecord& r, const RouterInput& in,
                        int64_t columns) {
  const auto wrong = [&](absl::string_view what, size_t got, int64_t expected) {
    return absl::InvalidArgumentError(absl::StrCat("router policy ", r.name,
                                                   ": ", what, " has ", got,
                                                   " values, not ", expected));
  };
  if (in.rows < 0 || in.rows > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows = ", in.rows, " can not be routed"));
  }
  if (in.values.size() != static_cast<size_t>(in.rows * columns)) {
    return wrong("scores", in.values.size(), in.rows * columns);
  }
  const int64_t bias = r.bias ? r.experts : 0;
  if (in.bias.size() != static_cast<size_t>(bias)) {
    return wrong("bias", in.bias.size(), bias);
  }
  const int64_t noise =
      r.noise == NoiseSource::kLogitNoise ? in.rows * columns : 0;
  if (in.noise.size() != static_cast<size_t>(noise)) {
    return wrong("noise", in.noise.size(), noise);
  }
  const int64_t draws = r.noise == NoiseSource::kSecondDraw ? in.rows : 0;
  if (in.draws.size() != static_cast<size_t>(draws)) {
    return wrong("draws", in.draws.size(), draws);
  }
  if (in.transformed && noise > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("router policy ", r.name,
                     ": noise is added to logits, the values are scores"));
  }
  const std::pair<absl::string_view, std::span<const float>> floats[] = {
      {"score", in.values}, {"bias", in.bias}, {"noise", in.noise}};
  for (const auto& [what, span] : floats) {
    for (size_t i = 0; i < span.size(); ++i) {
      if (std::isfinite(span[i])) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "router policy ", r.name, ": ", what, " ", i, " is not finite"));
    }
  }
  for (size_t i = 0; i < in.draws.size(); ++i) {
    if (in.draws[i] >= 0.0 && in.draws[i] < 1.0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("router policy ", r.name, ": draw ", i, " is ",
                     in.draws[i], ", not in [0, 1)"));
  }
  return absl::OkStatus();
}

template <typename Real>
void Softmax(std::vector<Real>* v) {
  const Real top = *std::max_element(v->begin(), v->end());
  Real sum = 0;
  for (Real& x : *v) sum += x = std::exp(x - top);
  for (Real& x : *v) x /= sum;
}

// One row in the precision of the record.
template <typename Real>
struct Row {
  std::vector<Real> logit;  // with noise; the scores themselves if transformed
  std::vector<Real> score;
  std::vector<Real> choice;  // score + bias, -inf outside the kept groups
};

template <typename Real>
void TransformRow(const PolicyRecord& r, const RouterInput& in, int64_t index,
                  Row<Real>* row) {
  const auto experts = static_cast<size_t>(r.experts);
  const size_t base = static_cast<size_t>(index) * experts;
  row->logit.resize(experts);
  for (size_t e = 0; e < experts; ++e) {
    float v = in.values[base + e];
    if (!in.transformed && r.precision == RouterPrecision::kBF16Logits) {
      v = RoundToBf16(v);
    }
    row->logit[e] = static_cast<Real>(v);
    if (!in.noise.empty()) {
      row->logit[e] += static_cast<Real>(in.noise[base + e]);
    }
  }
  row->score = row->logit;
  if (!in.transformed && r.transform == ScoreTransform::kSigmoid) {
    for (Real& x : row->score) x = Real{1} / (Real{1} + std::exp(-x));
  } else if (!in.transformed && r.transform == ScoreTransform::kSoftmax) {
    Softmax(&row->score);
  }
  row->choice = row->score;
  for (size_t e = 0; e < in.bias.size(); ++e) {
    row->choice[e] += static_cast<Real>(in.bias[e]);
  }
}

template <typename Real>
std::vector<size_t> DescendingOrder(const std::vector<Real>& v) {
  std::vector<size_t> order(v.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return v[a] > v[b]; });
  return order;
}

template <typename Real>
void LimitGroups(const PolicyRecord& r, std::vector<Real>* choice) {
  if (r.n_group == 1) return;
  const auto groups = static_cast<size_t>(r.n_group);
  const size_t size = choice->size() / groups;
  std::vector<Real> score(groups);
  for (size_t g = 0; g < groups; ++g) {
    std::vector<Real> members(
        choice->begin() + static_cast<int64_t>(g * size),
        choice->begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(members.begin(), members.end(), std::greater<Real>());
    score[g] = size > 1 ? members[0] + members[1] : members[0];
  }
  const std::vector<size_t> order = DescendingOrder(score);
  for (size_t i = static_cast<size_t>(r.topk_group); i < groups; ++i) {
    for (size_t e = 0; e < size; ++e) {
      (*choice)[order[i] * size + e] = -std::numeric_limits<Real>::infinity();
    }
  }
}

template <typename Real>
std::vector<Real> Gates(const PolicyRecord& r, const Row<Real>& row,
                        std::span<const size_t> chosen) {
  std::vector<Real> gates;
  for (size_t e : chosen) {
    gates.push_back(r.gate_domain == GateDomain::kSelectedSoftmax
                        ? row.logit[e]
                        : row.score[e]);
  }
  if (r.gate_domain == GateDomain::kSelectedSoftmax) {
    Softmax(&gates);
  } else if (r.gate_domain == GateDomain::kSelectedSum) {
    Real sum = 0;
    for (Real g : gates) sum += g;
    sum += static_cast<Real>(r.epsilon);
    for (Real& g : gates) g /= sum;
  }
  for (Real& g : gates) g *= static_cast<Real>(r.scale);
  return gates;
}

template <typename Real>
absl::Status TokenChoice(const PolicyRecord& r, const RouterInput& in,
                         RouteTable* table, std::vector<double>* margins) {
  const auto k = static_cast<size_t>(r.top_k);
  Row<Real> row;
  for (int64_t t = 0; t < in.rows; ++t) {
    TransformRow(r, in, t, &row);
    LimitGroups(r, &row.choice);
    const std::vector<size_t> order = DescendingOrder(row.choice);
    const std::span<const size_t> chosen = std::span(order).first(k);
    if (margins != nullptr) {
      margins->push_back(k == order.size()
                             ? std::numeric_limits<double>::infinity()
                             : static_cast<double>(row.choice[order[k - 1]] -
                                                   row.choice[order[k]]));
      continue;
    }
    const std::vector<Real> gates = Gates(r, row, chosen);
    for (size_t s = 0; s < k; ++s) {
      if (!std::isfinite(static_cast<double>(gates[s]))) {
        return absl::InvalidArgumentError(absl::StrCat(
            "router policy ", r.name, ": the gates of row ", t,
            " are not finite (their scores sum to zero or overflow)"));
      }
      const bool drawn = r.noise != NoiseSource::kSecondDraw || s == 0 ||
                         in.draws[static_cast<size_t>(t)] <
                             2.0 * static_cast<double>(gates[s]);
      table->Add(static_cast<uint32_t>(t), static_cast<uint16_t>(s),
                 ExpertId(static_cast<uint32_t>(chosen[s])),
                 static_cast<float>(gates[s]),
                 drawn ? RouteFate::kAccepted : RouteFate::kNotDrawn);
    }
  }
  return absl::OkStatus();
}

template <typename Real>
absl::Status ExpertChoice(const PolicyRecord& r, const RouterInput& in,
                          RouteTable* table) {
  const auto experts = static_cast<size_t>(r.experts);
  const auto rows = static_cast<size_t>(in.rows);
  if (r.budget > in.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("router policy ", r.name, ": budget: each expert takes ",
                     r.budget, " tokens of ", in.rows));
  }
  std::vector<std::vector<Real>> column(experts, std::vector<Real>(rows));
  Row<Real> row;
  for (size_t t = 0; t < rows; ++t) {
    TransformRow(r, in, static_cast<int64_t>(t), &row);
    for (size_t e = 0; e < experts; ++e) column[e][t] = row.score[e];
  }
  std::vector<std::vector<size_t>> experts_of(rows);
  for (size_t e = 0; e < experts; ++e) {
    const std::vector<size_t> order = DescendingOrder(column[e]);
    for (size_t i = 0; i < static_cast<size_t>(r.budget); ++i) {
      experts_of[order[i]].push_back(e);
    }
  }
  for (size_t t = 0; t < rows; ++t) {
    for (size_t s = 0; s < experts_of[t].size(); ++s) {
      const size_t e = experts_of[t][s];
      table->Add(static_cast<uint32_t>(t), static_cast<uint16_t>(s),
                 ExpertId(static_cast<uint32_t>(e)),
                 static_cast<float>(column[e][t]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RouteByRecord(const PolicyRecord& r, const RouterInput& in,
                           RouteTable* table) {
  table->Clear(0, r.experts, r.top_k);
  TL_RETURN_IF_ERROR(ValidateRecord(r));
  if (r.owner == SelectionOwner::kSoft) {
    return absl::InvalidArgumentError(absl::StrCat(
        "router policy ", r.name, ": a soft assignment has no routes"));
  }
  TL_RETURN_IF_ERROR(CheckInput(r, in, r.experts));
  table->Clear(in.rows, r.experts, r.top_k);
  const bool wide = r.precision == RouterPrecision::kF64;
  if (r.owner == SelectionOwner::kExpert) {
    return wide ? ExpertChoice<double>(r, in, table)
                : ExpertChoice<float>(r, in, table);
  }
  return wide ? TokenChoice<double>(r, in, table, nullptr)
              : TokenChoice<float>(r, in, table, nullptr);
}

absl::StatusOr<std::vector<double>> BoundaryMargins(const PolicyRecord& r,
                                                    const RouterInput& in) {
  TL_RETURN_IF_ERROR(ValidateRecord(r));
  if (r.owner != SelectionOwner::kToken) {
    return absl::InvalidArgumentError(absl::StrCat(
        "router policy ", r.name, ": tokens have no boundary to choose at"));
  }
  TL_RETURN_IF_ERROR(CheckInput(r, in, r.experts));
  std::vector<double> margins;
  TL_RETURN_IF_ERROR(r.precision == RouterPrecision::kF64
                         ? TokenChoice<double>(r, in, nullptr, &margins)
                         : TokenChoice<float>(r, in, nullptr, &margins));
  return margins;
}

absl::StatusOr<SoftAssignment> SoftAssign(const PolicyRecord& r,
                                          const RouterInput& in) {
  TL_RETURN_IF_ERROR(ValidateRecord(r));
  if (r.owner != SelectionOwner::kSoft) {
    return absl::InvalidArgumentError(
        absl::StrCat("router policy ", r.name, " is not a soft assignment"));
  }
  SoftAssignment a;
  a.rows = in.rows;
  a.slots = r.experts * r.budget;
  TL_RETURN_IF_ERROR(CheckInput(r, in, a.slots));
  if (in.transformed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "router policy ", r.name, ": soft assignment starts from logits"));
  }
  const auto rows = static_cast<size_t>(a.rows);
  const auto slots = static_cast<size_t>(a.slots);
  a.dispatch.resize(rows * slots);
  a.combine.resize(rows * slots);
  if (rows == 0) return a;
  std::vector<double> line(rows);
  for (size_t s = 0; s < slots; ++s) {
    for (size_t t = 0; t < rows; ++t) {
      line[t] = static_cast<double>(in.values[t * slots + s]);
    }
    Softmax(&line);
    for (size_t t = 0; t < rows; ++t) a.dispatch[t * slots + s] = line[t];
  }
  line.resize(slots);
  for (size_t t = 0; t < rows; ++t) {
    for (size_t s = 0; s < slots; ++s) {
      line[s] = static_cast<double>(in.values[t * slots + s]);
    }
    Softmax(&line);
    std::copy(line.begin(), line.end(),
              a.combine.begin() + static_cast<int64_t>(t * slots));
  }
  return a;
}

}  // namespace trunkline::routing
