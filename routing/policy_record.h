#pragma once

// A router policy as a record: everything that decides which routes a matrix of
// scores becomes, so that a recorded layer can be routed again, or routed by
// another policy, offline. Pure. Serving uses the narrow, fast RouterPolicy
// (router_policy.h); ServingPolicy says whether a record can become one.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "routing/route_table.h"
#include "routing/router_policy.h"

namespace trunkline::routing {

enum class ScoreTransform : uint8_t {
  kIdentity = 0,  // logits choose as they are
  kSigmoid = 1,
  kSoftmax = 2,  // over all experts of the token
};
// Whose budget it is: the axis along which scores are ranked.
enum class SelectionOwner : uint8_t {
  kToken = 0,   // each token takes its top_k experts
  kExpert = 1,  // each expert takes its budget of tokens (Expert Choice)
  kSoft = 2,    // every slot is a mixture of all tokens (Soft MoE)
};
enum class TieRule : uint8_t { kLowerId = 0, kUnspecified = 1 };
// What the gates of a token are normalised over.
enum class GateDomain : uint8_t {
  kScore = 0,            // not at all: the gate is the score
  kSelectedSum = 1,      // score / (sum of the selected scores + epsilon)
  kSelectedSoftmax = 2,  // softmax over the selected logits
};
// Where randomness came from. It is always recorded, never drawn here.
enum class NoiseSource : uint8_t {
  kNone = 0,
  kLogitNoise = 1,  // added to the logits: [rows, experts]
  kSecondDraw = 2,  // a uniform number a token: the second route is taken when
                    // draw < 2 x its gate
};
enum class RouterPrecision : uint8_t {
  kF32 = 0,
  kBF16Logits = 1,  // logits rounded to bf16, then as kF32
  kF64 = 2,
};

absl::string_view Name(ScoreTransform v);
absl::string_view Name(SelectionOwner v);
absl::string_view Name(TieRule v);
absl::string_view Name(GateDomain v);
absl::string_view Name(NoiseSource v);
absl::string_view Name(RouterPrecision v);

struct PolicyRecord {
  std::string name;
  int64_t experts = 0;
  int64_t top_k = 0;  // kToken: experts a token
  ScoreTransform transform = ScoreTransform::kSigmoid;
  SelectionOwner owner = SelectionOwner::kToken;
  bool bias = false;  // added to the scores for the choice, never for the gate
  int64_t n_group = 1;  // group limit as in router_policy.h
  int64_t topk_group = 1;
  TieRule tie = TieRule::kLowerId;
  GateDomain gate_domain = GateDomain::kScore;
  double epsilon = 0.0;  // kSelectedSum only
  double scale = 1.0;
  NoiseSource noise = NoiseSource::kNone;
  RouterPrecision precision = RouterPrecision::kF32;
  int64_t budget = 0;  // kExpert: tokens an expert; kSoft: slots an expert

  friend bool operator==(const PolicyRecord&, const PolicyRecord&) = default;
};

// The policies that are known by name.
PolicyRecord NemotronHPolicy(int64_t experts, int64_t top_k, int64_t n_group,
                             int64_t topk_group, bool normalize, double scale);
PolicyRecord SoftmaxTopKPolicy(int64_t experts, int64_t top_k,
                               bool renormalize);
PolicyRecord TopKSoftmaxPolicy(int64_t experts, int64_t top_k);
PolicyRecord SwitchPolicy(int64_t experts);
PolicyRecord GShardPolicy(int64_t experts);
PolicyRecord NoisyTopKPolicy(int64_t experts, int64_t top_k);
PolicyRecord ExpertChoicePolicy(int64_t experts, int64_t tokens_per_expert);
PolicyRecord SoftMoePolicy(int64_t experts, int64_t slots_per_expert);

// INVALID_ARGUMENT naming the field and why the combination is not well
// defined. Nothing is guessed.
absl::Status ValidateRecord(const PolicyRecord& record);

// The fast policy that serves the same routes, or FAILED_PRECONDITION with the
// reason why a causal decoder can not be served with this record.
absl::StatusOr<RouterPolicy> ServingPolicy(const PolicyRecord& record);
PolicyRecord RecordOf(const RouterPolicy& policy, bool bias);

// What a policy is applied to. Spans outlive the call.
struct RouterInput {
  int64_t rows = 0;
  std::span<const float> values;  // [rows, experts]
  // The values are scores: the record's transform has been applied to them (a
  // recorded layer has these, so that replay repeats no exponential).
  bool transformed = false;
  std::span<const float> bias;    // [experts] when the record has a bias
  std::span<const float> noise;   // [rows, experts] for kLogitNoise
  std::span<const double> draws;  // [rows] for kSecondDraw
};

// Routes by any record whose owner is kToken or kExpert. kToken: rows x top_k
// routes in (row, slot) order; a second route that its draw declines is
// kNotDrawn. kExpert: the routes of a token ascend by expert, slots count them,
// top_k of the table is 0. Slow and plain; SelectRoutes is the serving path.
// All routes are accepted otherwise: admission comes after.
absl::Status RouteByRecord(const PolicyRecord& record, const RouterInput& input,
                           RouteTable* table);

// Per row: the lowest chosen score less the best one that was not chosen
// (inside the kept groups). Infinite when everything was chosen. kToken only.
absl::StatusOr<std::vector<double>> BoundaryMargins(const PolicyRecord& record,
                                                    const RouterInput& input);

// Soft MoE: weights of tokens in slots (columns sum to one) and of slots in
// tokens (rows sum to one). Slots of expert e: e * budget .. + budget - 1.
// input.values: [rows, experts * budget] logits.
struct SoftAssignment {
  int64_t rows = 0;
  int64_t slots = 0;
  std::vector<double> dispatch;  // [rows, slots]
  std::vector<double> combine;   // [rows, slots]
};
absl::StatusOr<SoftAssignment> SoftAssign(const PolicyRecord& record,
                                          const RouterInput& input);

}  // namespace trunkline::routing
