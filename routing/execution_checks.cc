#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "routing/layer_checks.h"

namespace trunkline::routing {
namespace {

using Broken = std::optional<std::string>;

bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// The layout that the record's table and form make. The checks below run after
// the representation check, so a layout that can not be made has been said.
std::optional<RowLayout> LayoutOf(const LayerRecord& r) {
  RowLayout layout;
  if (!LayOutRows(r.table, r.representation, &layout).ok() ||
      layout.represented_rows() != r.represented_rows) {
    return std::nullopt;
  }
  return layout;
}

Broken RowIdentity(const LayerRecord& r, const ExecutionEvidence* e) {
  const auto layout = LayoutOf(r);
  if (e == nullptr || !layout) return std::nullopt;
  const auto width = static_cast<size_t>(e->width);
  for (size_t row = 0; row < layout->route_of_row.size(); ++row) {
    const uint32_t route = layout->route_of_row[row];
    if (route == kPaddingRow) continue;
    const uint32_t token = r.table.token_id[route];
    for (size_t i = 0; i < width; ++i) {
      if (SameBits(e->input[row * width + i], e->hidden[token * width + i])) {
        continue;
      }
      return absl::StrCat("row ", row, ", element ", i,
                          " is not the hidden row of its token ", token);
    }
  }
  return std::nullopt;
}

Broken RowGates(const LayerRecord& r, const ExecutionEvidence* e) {
  const auto layout = LayoutOf(r);
  if (e == nullptr || !layout) return std::nullopt;
  for (size_t row = 0; row < layout->route_of_row.size(); ++row) {
    const uint32_t route = layout->route_of_row[row];
    if (route == kPaddingRow ||
        SameBits(e->row_gate[row], r.table.gate[route])) {
      continue;
    }
    return absl::StrCat("row ", row, " has the gate ", e->row_gate[row],
                        ", token ", r.table.token_id[route], ", slot ",
                        r.table.selected_slot[route], " has ",
                        r.table.gate[route]);
  }
  return std::nullopt;
}

Broken Padding(const LayerRecord& r, const ExecutionEvidence* e) {
  const auto layout = LayoutOf(r);
  if (e == nullptr || !layout) return std::nullopt;
  const auto width = static_cast<size_t>(e->width);
  for (size_t row = 0; row < layout->route_of_row.size(); ++row) {
    if (layout->route_of_row[row] != kPaddingRow) continue;
    if (e->row_gate[row] != 0.0f) {
      return absl::StrCat("padding row ", row, " has the gate ",
                          e->row_gate[row]);
    }
    for (size_t i = 0; i < width; ++i) {
      if (e->input[row * width + i] == 0.0f) continue;
      return absl::StrCat("padding row ", row, ", element ", i, " is ",
                          e->input[row * width + i]);
    }
  }
  return std::nullopt;
}

Broken Combine(const LayerRecord& r, const ExecutionEvidence* e) {
  const auto layout = LayoutOf(r);
  if (e == nullptr || !layout) return std::nullopt;
  const auto width = static_cast<size_t>(e->width);
  std::vector<float> sum(static_cast<size_t>(r.table.rows) * width, 0.0f);
  // Rows ascend by expert, so this adds in ascending expert id.
  for (size_t row = 0; row < layout->route_of_row.size(); ++row) {
    const uint32_t route = layout->route_of_row[row];
    if (route == kPaddingRow) continue;
    const size_t base = r.table.token_id[route] * width;
    for (size_t i = 0; i < width; ++i) {
      const float out = e->output[row * width + i];
      const float c = e->output_gated ? out : r.table.gate[route] * out;
      sum[base + i] = sum[base + i] + c;
    }
  }
  if (e->combined_bf16) {
    for (float& s : sum) s = RoundToBf16(s);
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    if (SameBits(sum[i], e->combined[i])) continue;
    return absl::StrCat("token ", i / width, ", element ", i % width, " is ",
                        e->combined[i],
                        "; its accepted routes, added in "
                        "ascending expert id, make ",
                        sum[i]);
  }
  return std::nullopt;
}

}  // namespace

std::vector<RouteCheck> ExecutionChecks() {
  return {
      {RouteContract::kRowIdentity, RowIdentity},
      {RouteContract::kRowGates, RowGates},
      {RouteContract::kPadding, Padding},
      {RouteContract::kCombine, Combine},
  };
}

std::optional<Violation> FindSoftViolation(
    const SoftAssignment& a, std::span<const uint32_t> request_of_token,
    std::span<const uint32_t> request_of_slot) {
  const auto rows = static_cast<size_t>(a.rows);
  const auto slots = static_cast<size_t>(a.slots);
  if (a.dispatch.size() != rows * slots || a.combine.size() != rows * slots ||
      request_of_token.size() != rows || request_of_slot.size() != slots) {
    return Violation{RouteContract::kShapes,
                     absl::StrCat("matrices or owners do not fit ", rows,
                                  " tokens and ", slots, " slots")};
  }
  for (size_t t = 0; t < rows; ++t) {
    for (size_t s = 0; s < slots; ++s) {
      if (request_of_token[t] == request_of_slot[s] ||
          (a.dispatch[t * slots + s] == 0.0 &&
           a.combine[t * slots + s] == 0.0)) {
        continue;
      }
      return Violation{RouteContract::kSoftScope,
                       absl::StrCat("token ", t, " of request ",
                                    request_of_token[t], " is mixed into slot ",
                                    s, " of request ", request_of_slot[s])};
    }
  }
  for (size_t s = 0; s < slots; ++s) {
    double sum = 0.0;
    for (size_t t = 0; t < rows; ++t) sum += a.dispatch[t * slots + s];
    if (std::abs(sum - 1.0) > 1e-6) {
      return Violation{
          RouteContract::kSoftAxes,
          absl::StrCat("slot ", s, " takes ", sum, " of the tokens, not 1")};
    }
  }
  for (size_t t = 0; t < rows; ++t) {
    double sum = 0.0;
    for (size_t s = 0; s < slots; ++s) sum += a.combine[t * slots + s];
    if (std::abs(sum - 1.0) > 1e-6) {
      return Violation{
          RouteContract::kSoftAxes,
          absl::StrCat("token ", t, " takes ", sum, " of the slots, not 1")};
    }
  }
  return std::nullopt;
}

std::optional<Violation> FindByteViolation(const TrafficShape& shape,
                                           const ByteClaims& claims) {
  const StageBytes peak = PeakPayload(shape);
  if (claims.peak_bytes != peak.bytes) {
    return Violation{RouteContract::kPeak,
                     absl::StrCat(claims.peak_bytes,
                                  " bytes are claimed, the largest "
                                  "stage (",
                                  peak.stage, ") has ", peak.bytes)};
  }
  const std::vector<StageBytes> traffic = ReferenceTraffic(shape);
  for (const StageBytes& claimed : claims.traffic) {
    const auto it = std::find_if(
        traffic.begin(), traffic.end(),
        [&](const StageBytes& s) { return s.stage == claimed.stage; });
    if (it != traffic.end() && it->bytes == claimed.bytes) continue;
    return Violation{
        RouteContract::kTraffic,
        absl::StrCat("stage ", claimed.stage, " is claimed to move ",
                     claimed.bytes, " bytes, not ",
                     it == traffic.end() ? std::string("a stage of the layer")
                                         : absl::StrCat(it->bytes))};
  }
  std::map<std::string, std::pair<int, int>> lives;
  for (const BufferLife& b : LayerBuffers(shape)) {
    lives[b.name] = {b.first_stage, b.last_stage};
  }
  for (const BufferLife& claimed : claims.lifetimes) {
    const auto it = lives.find(claimed.name);
    if (it != lives.end() && claimed.first_stage <= it->second.first &&
        claimed.last_stage >= it->second.second) {
      continue;
    }
    return Violation{
        RouteContract::kLifetimes,
        absl::StrCat("buffer ", claimed.name, " is claimed to live from stage ",
                     claimed.first_stage, " to ", claimed.last_stage,
                     ", which is not all of its uses")};
  }
  if (claims.network_bytes != 0 && !claims.network_measured) {
    return Violation{RouteContract::kMeasured,
                     absl::StrCat(claims.network_bytes,
                                  " bytes on the network were derived from "
                                  "the logical record")};
  }
  if (claims.runtime_seconds != 0.0 && !claims.runtime_measured) {
    return Violation{RouteContract::kMeasured,
                     absl::StrCat(claims.runtime_seconds,
                                  " seconds were derived from counts")};
  }
  return std::nullopt;
}

std::optional<Violation> FindReplayViolation(const LayerRecord& recorded,
                                             const LayerRecord& recovered) {
  const auto broken = [](const auto&... why) {
    return Violation{RouteContract::kReplay, absl::StrCat(why...)};
  };
  if (!recovered.replayed) {
    return broken("recovery chose routes again instead of using the record");
  }
  if (recovered.layer != recorded.layer || recovered.step != recorded.step) {
    return broken("recovery of layer ", recovered.layer.value,
                  " uses the record of layer ", recorded.layer.value);
  }
  if (recovered.noise != recorded.noise || recovered.draws != recorded.draws ||
      recovered.tied_rows != recorded.tied_rows) {
    return broken("the noise, the draws or the tie state differ");
  }
  const RouteTable& a = recorded.table;
  const RouteTable& b = recovered.table;
  if (a.token_id != b.token_id || a.selected_slot != b.selected_slot ||
      a.expert_id != b.expert_id || a.fate != b.fate) {
    return broken("the routes differ");
  }
  for (size_t i = 0; i < a.gate.size() && i < b.gate.size(); ++i) {
    if (!SameBits(a.gate[i], b.gate[i])) {
      return broken("the gate of token ", a.token_id[i], ", slot ",
                    a.selected_slot[i], " differs");
    }
  }
  return std::nullopt;
}

}  // namespace trunkline::routing
