#pragma once

// Between rows in the trunk's memory and frames on the wire: writes a worker's
// share of a layer, and finds in the answers what combine adds. Pure.

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "dispatch/combine_plan.h"
#include "dispatch/dispatch_plan.h"
#include "dispatch/expert_frame.h"
#include "dispatch/layer_exchange.h"
#include "kernels/combine_rows.h"
#include "trunk_worker/expert_exchange.h"

namespace trunkline::trunk {

// bf16 activations lose nothing as bf16 on the wire.
inline DType RowDType(kernels::Activation activation) {
  return activation == kernels::Activation::kBf16 ? DType::kBF16 : DType::kF32;
}

size_t ShareBytes(const MoeCall& call, const dispatch::WorkerShare& share);
// header: everything but counts, width and type. `frame` is ShareBytes long, on
// a 64-byte boundary; sealed when this returns.
void WriteShare(dispatch::FrameHeader header, const MoeCall& call,
                const dispatch::WorkerShare& share, std::span<std::byte> frame);

// Whether the rows of an answer can be added with the promised bits:
// INVALID_ARGUMENT naming the field when their width or type says no.
absl::Status CheckAnswerRows(const MoeCall& call,
                             const dispatch::FrameHeader& answer);

// For each entry of plan.order: where its row lies and how it counts. answers
// are numbered as the exchange was told.
void FillContributions(const routing::RouteTable& table,
                       const dispatch::CombinePlan& plan,
                       std::span<const dispatch::RouteAnswer> routes,
                       std::span<const dispatch::AnswerFrameView> answers,
                       std::vector<kernels::Contribution>* contributions);

// After combine: the number of routes that were added, and what each of them
// added, for a call that asks.
void ReportContributions(const MoeCall& call, const dispatch::CombinePlan& plan,
                         std::span<const kernels::Contribution> contributions);

// What routing promises and both implementations of ExpertExchange rely on.
// INVALID_ARGUMENT naming the route and the field.
absl::Status CheckMoeCall(const MoeCall& call);

}  // namespace trunkline::trunk
