#include "trunk_worker/expert_link_frames.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace trunkline::trunk {

size_t ShareBytes(const MoeCall& call, const dispatch::WorkerShare& share) {
  return dispatch::DispatchFrameBytes(
      static_cast<uint32_t>(share.rows.size()),
      static_cast<uint32_t>(share.routes.size()),
      static_cast<uint32_t>(call.width), RowDType(call.activation));
}

void WriteShare(dispatch::FrameHeader header, const MoeCall& call,
                const dispatch::WorkerShare& share,
                std::span<std::byte> frame) {
  header.kind = dispatch::FrameKind::kDispatch;
  header.row_dtype = RowDType(call.activation);
  header.row_count = static_cast<uint32_t>(share.rows.size());
  header.route_count = static_cast<uint32_t>(share.routes.size());
  header.row_width = static_cast<uint32_t>(call.width);
  const dispatch::DispatchFrameWriter writer =
      dispatch::BeginDispatchFrame(header, frame);
  const routing::RouteTable& table = *call.routes;
  for (size_t i = 0; i < share.routes.size(); ++i) {
    const uint32_t r = share.routes[i];
    writer.token_id[i] = table.token_id[r];
    writer.slot[i] = table.selected_slot[r];
    writer.expert_id[i] = table.expert_id[r].value;
    writer.row_index[i] = share.row_of_route[i];
    writer.gate[i] = table.gate[r];
  }
  for (size_t i = 0; i < share.rows.size(); ++i) {
    const float* from =
        call.rows + static_cast<int64_t>(share.rows[i]) * call.row_stride;
    std::byte* to = writer.rows + i * writer.row_stride;
    if (header.row_dtype == DType::kBF16)
      kernels::NarrowRow(from, call.width, reinterpret_cast<uint16_t*>(to));
    else
      std::memcpy(to, from, static_cast<size_t>(call.width) * sizeof(float));
  }
  dispatch::SealFrame(frame);
}

absl::Status CheckAnswerRows(const MoeCall& call,
                             const dispatch::FrameHeader& answer) {
  if (answer.row_width != static_cast<uint64_t>(call.width))
    return absl::InvalidArgumentError(
        absl::StrCat("answer rows of width ", answer.row_width, " where ",
                     call.width, " was asked for"));
  if (answer.row_dtype == DType::kF32) return absl::OkStatus();
  if (answer.row_dtype == DType::kBF16 && !answer.gated &&
      call.activation == kernels::Activation::kBf16)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "answer rows of type ", DTypeName(answer.row_dtype),
      answer.gated ? ", gated," : ", ungated,", " would round the output"));
}

void FillContributions(const routing::RouteTable& table,
                       const dispatch::CombinePlan& plan,
                       std::span<const dispatch::RouteAnswer> routes,
                       std::span<const dispatch::AnswerFrameView> answers,
                       std::vector<kernels::Contribution>* contributions) {
  contributions->resize(plan.order.size());
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const uint32_t r = plan.order[i];
    const dispatch::AnswerFrameView& answer = answers[routes[r].answer];
    kernels::Contribution& c = (*contributions)[i];
    c.values = answer.rows.data() + routes[r].row * answer.row_stride;
    c.gate = table.gate[r];
    c.gated = answer.header.gated;
    c.dtype = answer.header.row_dtype;
  }
}

void ReportContributions(const MoeCall& call, const dispatch::CombinePlan& plan,
                         std::span<const kernels::Contribution> contributions) {
  if (call.routes_added != nullptr) *call.routes_added = contributions.size();
  if (call.executed == nullptr || !call.executed->wants_contributions) return;
  const auto width = static_cast<size_t>(call.width);
  std::vector<float>& rows = call.executed->contributions;
  rows.assign(static_cast<size_t>(call.routes->size()) * width, 0.0f);
  for (size_t i = 0; i < contributions.size(); ++i) {
    const kernels::Contribution& c = contributions[i];
    float* row = rows.data() + plan.order[i] * width;
    if (c.dtype == DType::kBF16)
      kernels::WidenRow(reinterpret_cast<const uint16_t*>(c.values), call.width,
                        row);
    else
      std::memcpy(row, c.values, width * sizeof(float));
    if (!c.gated) kernels::GateRow(row, c.gate, call.width, row);
  }
}

absl::Status CheckMoeCall(const MoeCall& call) {
  const routing::RouteTable& table = *call.routes;
  for (int64_t r = 0; r < table.size(); ++r) {
    const auto bad = [&](const char* field, auto value) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", call.layer.value, ", route ", r, ": ", field, " ", value));
    };
    if (table.token_id[r] >= table.rows) return bad("token", table.token_id[r]);
    if (table.expert_id[r].value >= table.experts)
      return bad("expert", table.expert_id[r].value);
    if (!std::isfinite(table.gate[r])) return bad("gate", table.gate[r]);
  }
  return absl::OkStatus();
}

}  // namespace trunkline::trunk
