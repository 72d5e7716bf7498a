#pragma once

// From selected routes to accepted ones. Dropless is the serving default: every
// selected route is accepted. Fixed capacity gives each expert a number of rows
// per routing group and decides, in a declared order, who gets them; what a
// batch neighbour selects can then change a token's output, so it is opt-in.
// Pure.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "routing/route_table.h"

namespace trunkline::routing {

enum class AdmissionKind : uint8_t { kDropless = 0, kFixedCapacity = 1 };
// What a routing group is made of.
enum class GroupScope : uint8_t {
  kBatch = 0,  // tokens that stand together in a batch: for replay
  // Consecutive positions of one sequence, whatever steps they come in. A
  // token's fate then follows from its own sequence up to itself: the only
  // scope that can be served (docs/adr/0005).
  kSequence = 1,
};
// Who comes first when an expert's rows run out.
enum class Arbitration : uint8_t {
  kGateTokenSlot = 0,  // larger gate, then lower token, then lower slot
  kTokenSlot = 1,      // source order
  kSlotToken = 2,      // all first choices before all second ones
  kSeededRandom = 3,   // a number per (seed, token, slot)
};
enum class Overflow : uint8_t {
  kDrop = 0,             // the gate is lost: nothing is redistributed
  kDropRenormalize = 1,  // by the named rule
  kReroute = 2,          // to a candidate with room, by the named rules
};
enum class RenormalizeRule : uint8_t {
  kNone = 0,
  kSelectedSum = 1,  // a token's surviving gates are scaled so that their sum
                     // is the sum of all its selected gates
};
enum class RerouteCandidates : uint8_t {
  kNone = 0,
  kNextBestScore = 1,  // descending score, then lower id
  kDeclaredList = 2,   // AdmissionPolicy::fallback, in its order
};
enum class RerouteWeight : uint8_t {
  kNone = 0,
  kKeepGate = 1,    // the gate of the expert that had no room
  kScoreRatio = 2,  // that gate x (candidate's score / that expert's score)
};

absl::string_view Name(AdmissionKind v);
absl::string_view Name(GroupScope v);
absl::string_view Name(Arbitration v);
absl::string_view Name(Overflow v);
absl::string_view Name(RenormalizeRule v);
absl::string_view Name(RerouteCandidates v);
absl::string_view Name(RerouteWeight v);

struct AdmissionPolicy {
  AdmissionKind kind = AdmissionKind::kDropless;
  // The rest belongs to kFixedCapacity and has its default otherwise.
  double capacity_factor = 0.0;
  GroupScope scope = GroupScope::kBatch;
  // kBatch: consecutive tokens of one routing group; 0: all. kSequence: its
  // positions, at least 1; the capacity is that of a whole group.
  int64_t group_tokens = 0;
  Arbitration arbitration = Arbitration::kGateTokenSlot;
  uint64_t seed = 0;  // kSeededRandom
  Overflow overflow = Overflow::kDrop;
  RenormalizeRule renormalize = RenormalizeRule::kNone;
  RerouteCandidates candidates = RerouteCandidates::kNone;
  RerouteWeight weight = RerouteWeight::kNone;
  std::vector<ExpertId> fallback;  // kDeclaredList

  friend bool operator==(const AdmissionPolicy&,
                         const AdmissionPolicy&) = default;
};

// INVALID_ARGUMENT naming the field and why: for example a capacity in a policy
// that calls itself dropless, or a reroute without a weight rule.
absl::Status ValidateAdmission(const AdmissionPolicy& policy, int64_t experts);

// Whether a causal decoder can be served with it: FAILED_PRECONDITION with the
// reason why not, or what ValidateAdmission says.
absl::Status CheckServingAdmission(const AdmissionPolicy& policy,
                                   int64_t experts);
// As it is written on the command line: "dropless",
// "capacity:factor=1.25,scope=sequence,group=64,order=source,overflow=drop".
std::string SpecOf(const AdmissionPolicy& policy);

// Rows an expert has for a group of `tokens` tokens: ceil(capacity_factor x
// tokens x top_k / experts), in double, multiplied from the left.
int64_t ExpertCapacity(double capacity_factor, int64_t tokens, int64_t top_k,
                       int64_t experts);

// Rows of a group's experts that earlier tokens of the group have taken, tokens
// that are not in the table.
struct GroupOccupancy {
  uint32_t group = 0;
  std::vector<uint32_t> used;  // [experts]
  friend bool operator==(const GroupOccupancy&,
                         const GroupOccupancy&) = default;
};

struct AdmissionInput {
  // [rows, experts], for rerouting by score.
  std::span<const float> scores;
  // [rows] identity of each token's routing group. kBatch: instead of
  // group_tokens; empty: group_tokens decides. kSequence: always.
  std::span<const uint32_t> group_of_token;
  // kSequence: of the groups that began earlier, ascending by identity.
  std::span<const GroupOccupancy> occupancy;
};

// What happened to one routing group. Selected and executed are two ledgers.
struct GroupAdmission {
  uint32_t group = 0;
  int64_t tokens = 0;
  int64_t requested = 0;  // routes that asked for a row
  int64_t capacity = 0;   // rows an expert; dropless: 0, no limit
  int64_t accepted = 0;   // rerouted ones included
  int64_t rerouted = 0;
  int64_t dropped = 0;
  int64_t occupied = 0;  // rows that earlier tokens have taken
  int64_t unused = 0;  // experts x capacity - occupied - accepted; dropless: 0
  std::vector<int64_t> selected;  // [experts]
  std::vector<int64_t> executed;  // [experts]
};
struct AdmissionReport {
  std::vector<GroupAdmission> groups;  // ascending by identity
  // What selection said, also where admission changed it: [routes].
  std::vector<ExpertId> selected_expert;
  std::vector<float> selected_gate;
};

// Decides the fate of every route that selection took (kAccepted on entry;
// other routes are left alone), and under kReroute also its expert and gate.
absl::Status AdmitRoutes(const AdmissionPolicy& policy,
                         const AdmissionInput& input, RouteTable* table,
                         AdmissionReport* report);

}  // namespace trunkline::routing
