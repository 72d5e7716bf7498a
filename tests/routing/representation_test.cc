#include "routing/representation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/random.h"
#include "routing/route_ledger.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::routing {
namespace {

using ::testing::HasSubstr;

RepresentationPolicy Form(RowForm form, int64_t capacity, int64_t block) {
  RepresentationPolicy p;
  p.form = form;
  p.capacity = capacity;
  p.block_rows = block;
  return p;
}

// 16 routes, [6, 5, 3, 2] an expert, as the matrix of the reference.
RouteTable Loaded() {
  RouteTable table;
  table.Clear(8, 4, 2);
  const auto file = LoadRoutingFixture("matrix_8x4");
  for (const auto& r : file["capacity_arbitration_8x4"]["routes"]) {
    table.Add(r["token"], r["slot"], ExpertId(r["expert"].get<uint32_t>()),
              r["gate"].get<float>());
  }
  return table;
}

TEST(Representation, ReproducesBlockRowsAndTails) {
  const auto file = LoadRoutingFixture("capacity");
  const RouteTable table = Loaded();
  for (const auto& row : file["block_rounding"]["rows"]) {
    RowLayout layout;
    ASSERT_TRUE(
        LayOutRows(table, Form(RowForm::kBlocks, 0, row["block"]), &layout)
            .ok());
    const LayoutLedger ledger = TakeLedger(layout);
    EXPECT_EQ(ledger.represented_rows, row["represented_rows"].get<int64_t>());
    EXPECT_EQ(ledger.tail_rows, row["tail_rows"].get<int64_t>());
    EXPECT_EQ(ledger.semantic_rows, row["semantic_routes"].get<int64_t>());
    for (size_t e = 0; e < 4; ++e) {
      EXPECT_EQ(layout.expert_begin[e + 1] - layout.expert_begin[e],
                row["rows_per_expert"][e].get<uint32_t>());
    }
  }
  const auto v = LoadRoutingFixture("matrix_8x4")["variants"]["megablocks"];
  RowLayout layout;
  ASSERT_TRUE(
      LayOutRows(table, Form(RowForm::kBlocks, 0, v["B"]), &layout).ok());
  EXPECT_EQ(layout.semantic_rows(), v["semantic_routes"].get<int64_t>());
  EXPECT_EQ(layout.represented_rows(), v["represented_rows"].get<int64_t>());
  EXPECT_EQ(layout.tail_rows(), v["tail_rows"].get<int64_t>());
}

TEST(Representation, ReproducesTheRowsOfEachForm) {
  const auto rows = LoadRoutingFixture("capacity")["representations"]["rows"];
  RouteTable table = Loaded();
  const auto lay = [&](const RepresentationPolicy& policy) {
    RowLayout layout;
    EXPECT_TRUE(LayOutRows(table, policy, &layout).ok());
    return TakeLedger(layout);
  };
  LayoutLedger l = lay(Form(RowForm::kPacked, 0, 0));
  EXPECT_EQ(l.represented_rows, rows[0]["rows"].get<int64_t>());
  EXPECT_EQ(l.semantic_rows, rows[0]["executed"].get<int64_t>());
  EXPECT_EQ(l.tail_rows, 0);
  l = lay(Form(RowForm::kMaxLoad, 0, 0));
  EXPECT_EQ(l.represented_rows, rows[2]["rows"].get<int64_t>());
  EXPECT_EQ(l.semantic_rows, rows[2]["executed"].get<int64_t>());
  EXPECT_EQ(l.tail_rows, rows[2]["slack"].get<int64_t>());
  l = lay(Form(RowForm::kBlocks, 0, 2));
  EXPECT_EQ(l.represented_rows, rows[3]["rows"].get<int64_t>());
  EXPECT_EQ(l.semantic_rows, rows[3]["executed"].get<int64_t>());
  EXPECT_EQ(l.tail_rows, rows[3]["tail"].get<int64_t>());
  AdmissionPolicy capacity;
  capacity.kind = AdmissionKind::kFixedCapacity;
  capacity.capacity_factor = 1.0;
  AdmissionReport report;
  ASSERT_TRUE(AdmitRoutes(capacity, {}, &table, &report).ok());
  l = lay(Form(RowForm::kFixed, 4, 0));
  EXPECT_EQ(l.represented_rows, rows[1]["rows"].get<int64_t>());
  EXPECT_EQ(l.semantic_rows, rows[1]["executed"].get<int64_t>());
  EXPECT_EQ(l.tail_rows, rows[1]["unused"].get<int64_t>());
  EXPECT_EQ(report.groups[0].dropped, rows[1]["dropped"].get<int64_t>());
}

TEST(Representation, PacksTheThreeTokenExample) {
  const auto file = LoadRoutingFixture("dispatch_combine");
  const auto& d = file["dispatch_combine"];
  RouteTable table;
  table.Clear(3, 3, 2);
  for (const auto& r : d["routes"]) {
    table.Add(r["token"], r["slot"], ExpertId(r["expert"].get<uint32_t>()),
              r["gate"].get<float>());
  }
  RowLayout layout;
  ASSERT_TRUE(LayOutRows(table, {}, &layout).ok());
  EXPECT_EQ(layout.expert_begin, d["offsets"].get<std::vector<uint32_t>>());
  EXPECT_EQ(layout.expert_rows, d["counts"].get<std::vector<uint32_t>>());
  for (const auto& p : d["packed"]) {
    const auto row = p["packed_row"].get<size_t>();
    const uint32_t r = layout.route_of_row[row];
    EXPECT_EQ("r" + std::to_string(r), p["route"].get<std::string>());
    EXPECT_EQ(table.token_id[r], p["token"].get<uint32_t>());
    EXPECT_EQ(table.selected_slot[r], p["slot"].get<uint16_t>());
    const uint32_t e = table.expert_id[r].value;
    EXPECT_EQ(e, p["expert"].get<uint32_t>());
    EXPECT_EQ(row - layout.expert_begin[e],
              p["expert_local_row"].get<size_t>());
    const auto& hidden = d["hidden"][table.token_id[r]];
    EXPECT_EQ(hidden, p["input"]);
    const double gate = d["routes"][r]["gate"];
    for (size_t i = 0; i < 2; ++i) {
      const double x = hidden[i];
      const double shift[2][2] = {{1, -1}, {0.5, 2}};
      const double y = (e == 0 ? 2 * x : -x) + shift[e][i];
      EXPECT_NEAR(y, p["expert_output"][i].get<double>(), 1e-12);
      EXPECT_NEAR(gate * y, p["weighted"][i].get<double>(), 1e-12);
    }
  }
  // The incidence of tokens with themselves: the routes of each.
  for (uint32_t t = 0; t < 3; ++t) {
    EXPECT_EQ(std::count(table.token_id.begin(), table.token_id.end(), t),
              d["incidence_PtP_diag"][t].get<int64_t>());
  }
}

// --- The same accepted relation gives the same bits in every form.

constexpr size_t kWidth = 5;

std::vector<float> ExpertOutput(uint32_t expert, const float* x) {
  std::vector<float> y(kWidth);
  for (size_t i = 0; i < kWidth; ++i) {
    const float up =
        x[i] * (0.3f + static_cast<float>(expert)) - x[(i + 1) % kWidth] * 0.7f;
    const float act = up > 0.0f ? up * up : 0.0f;
    y[i] = act * 0.9f - x[(i + 2) % kWidth] * 0.11f;
  }
  return y;
}

// One token at a time, its experts in ascending order.
std::vector<float> Direct(const RouteTable& t, const std::vector<float>& x) {
  std::vector<float> y(static_cast<size_t>(t.rows) * kWidth, 0.0f);
  for (uint32_t token = 0; token < t.rows; ++token) {
    for (uint32_t e = 0; e < t.experts; ++e) {
      for (size_t r = 0; r < t.token_id.size(); ++r) {
        if (t.token_id[r] != token || t.expert_id[r].value != e ||
            t.fate[r] != RouteFate::kAccepted) {
          continue;
        }
        const auto out = ExpertOutput(e, x.data() + token * kWidth);
        for (size_t i = 0; i < kWidth; ++i) {
          const float c = t.gate[r] * out[i];
          y[token * kWidth + i] += c;
        }
      }
    }
  }
  return y;
}

// Gather into represented rows, run whole blocks of an expert, combine.
std::vector<float> Through(const RowLayout& l, const RouteTable& t,
                           const std::vector<float>& x) {
  const auto rows = static_cast<size_t>(l.represented_rows());
  std::vector<float> in(rows * kWidth, 0.0f);
  for (size_t row = 0; row < rows; ++row) {
    if (l.route_of_row[row] == kPaddingRow) continue;
    const size_t token = t.token_id[l.route_of_row[row]];
    std::copy_n(x.begin() + static_cast<int64_t>(token * kWidth), kWidth,
                in.begin() + static_cast<int64_t>(row * kWidth));
  }
  std::vector<float> out(rows * kWidth);
  for (uint32_t e = 0; e < t.experts; ++e) {
    for (uint32_t row = l.expert_begin[e]; row < l.expert_begin[e + 1]; ++row) {
      const auto y = ExpertOutput(e, in.data() + row * kWidth);
      std::copy(y.begin(), y.end(),
                out.begin() + static_cast<int64_t>(row * kWidth));
    }
  }
  std::vector<float> y(static_cast<size_t>(t.rows) * kWidth, 0.0f);
  // Rows ascend by expert, so walking them adds in ascending expert id.
  for (size_t row = 0; row < rows; ++row) {
    const uint32_t r = l.route_of_row[row];
    if (r == kPaddingRow) continue;
    for (size_t i = 0; i < kWidth; ++i) {
      const float c = t.gate[r] * out[row * kWidth + i];
      y[t.token_id[r] * kWidth + i] += c;
    }
  }
  return y;
}

TEST(Representation, GivesTheSameBitsAsTokenwiseEvaluationInEveryForm) {
  RandomStream random(41);
  RowLayout layout;  // reused
  for (int i = 0; i < 10000; ++i) {
    const auto experts = static_cast<uint32_t>(1 + random.NextBelow(8));
    const auto k = static_cast<uint32_t>(1 + random.NextBelow(experts));
    const auto rows = static_cast<uint32_t>(random.NextBelow(9));
    RouteTable t;
    t.Clear(rows, experts, k);
    for (uint32_t token = 0; token < rows; ++token) {
      std::vector<uint32_t> ids(experts);
      std::iota(ids.begin(), ids.end(), 0u);
      for (uint32_t s = 0; s < k; ++s) {
        std::swap(ids[s], ids[s + random.NextBelow(experts - s)]);
        t.Add(token, static_cast<uint16_t>(s), ExpertId(ids[s]),
              static_cast<float>(random.NextUnit()),
              random.NextBelow(5) == 0 ? RouteFate::kDropped
                                       : RouteFate::kAccepted);
      }
    }
    std::vector<float> x(rows * kWidth);
    for (float& v : x) v = static_cast<float>(random.NextUnit() * 4 - 2);
    const std::vector<float> direct = Direct(t, x);
    for (const RepresentationPolicy& policy :
         {Form(RowForm::kPacked, 0, 0), Form(RowForm::kFixed, rows + 1, 0),
          Form(RowForm::kMaxLoad, 0, 0), Form(RowForm::kBlocks, 0, 1),
          Form(RowForm::kBlocks, 0, 3), Form(RowForm::kBlocks, 0, 8)}) {
      ASSERT_TRUE(LayOutRows(t, policy, &layout).ok());
      const std::vector<float> y = Through(layout, t, x);
      for (size_t j = 0; j < y.size(); ++j) {
        ASSERT_EQ(std::bit_cast<uint32_t>(y[j]),
                  std::bit_cast<uint32_t>(direct[j]))
            << Name(policy.form);
      }
      // Every accepted route has one row, and nothing else has one.
      for (uint32_t r = 0; r < t.size(); ++r) {
        const uint32_t row = layout.row_of_route[r];
        if (t.fate[r] != RouteFate::kAccepted) {
          ASSERT_EQ(row, kPaddingRow);
        } else {
          ASSERT_EQ(layout.route_of_row[row], r);
        }
      }
    }
  }
}

// Small integers, so that every sum is exact.
TEST(Representation, RunsTheTinyReluSquaredExperts) {
  const auto file = LoadRoutingFixture("dispatch_combine");
  const auto& c = file["relu2_experts_tiny"];
  const auto& up = c["up[E,I,H]"];
  const auto& down = c["down[E,H,I]"];
  RouteTable table;
  table.Clear(2, 3, 2);
  for (uint32_t t = 0; t < 2; ++t) {
    for (uint16_t s = 0; s < 2; ++s) {
      table.Add(t, s, ExpertId(c["ids"][t][s].get<uint32_t>()),
                c["weights"][t][s].get<float>());
    }
  }
  RowLayout layout;
  ASSERT_TRUE(LayOutRows(table, Form(RowForm::kBlocks, 0, 2), &layout).ok());
  std::vector<std::vector<float>> y(2, std::vector<float>(2, 0.0f));
  for (const uint32_t r : layout.route_of_row) {
    if (r == kPaddingRow) continue;
    const uint32_t e = table.expert_id[r].value;
    const auto& x = c["hidden"][table.token_id[r]];
    const auto& pair = c["pairs"][r];
    ASSERT_EQ(pair["expert"].get<uint32_t>(), e);
    std::vector<float> act;
    for (size_t i = 0; i < 3; ++i) {
      const float u = up[e][i][0].get<float>() * x[0].get<float>() +
                      up[e][i][1].get<float>() * x[1].get<float>();
      act.push_back(u > 0 ? u * u : 0);
    }
    EXPECT_EQ(act, pair["act"].get<std::vector<float>>());
    for (size_t h = 0; h < 2; ++h) {
      float out = 0;
      for (size_t i = 0; i < 3; ++i) {
        out += down[e][h][i].get<float>() * act[i];
      }
      EXPECT_EQ(out, pair["y"][h].get<float>());
      const float gated = table.gate[r] * out;
      y[table.token_id[r]][h] += gated;
    }
  }
  EXPECT_EQ(y, c["output"].get<std::vector<std::vector<float>>>());
}

TEST(Representation, RefusesToDropWhatAdmissionAccepted) {
  RowLayout layout;
  const absl::Status status =
      LayOutRows(Loaded(), Form(RowForm::kFixed, 5, 0), &layout);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expert 0 has 6 accepted routes"));
  EXPECT_TRUE(LayOutRows(Loaded(), Form(RowForm::kFixed, 6, 0), &layout).ok());
}

TEST(Representation, RefusesPoliciesThatDoNotSayEnough) {
  for (const RepresentationPolicy& bad :
       {Form(RowForm::kFixed, 0, 0), Form(RowForm::kBlocks, 0, 0),
        Form(RowForm::kPacked, 4, 0), Form(RowForm::kPacked, 0, 4),
        Form(RowForm::kBlocks, 0, -2), Form(RowForm::kFixed, -1, 0),
        Form(static_cast<RowForm>(9), 0, 0)}) {
    EXPECT_EQ(ValidateRepresentation(bad).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace trunkline::routing
