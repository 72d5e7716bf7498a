#include "routing/residency_ledger.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trunkline::routing {
namespace {

template <typename... Args>
absl::Status Bad(const Args&... why) {
  return absl::InvalidArgumentError(absl::StrCat("residency: ", why...));
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

absl::Status ValidateShape(const RoutedLayerShape& s) {
  if (s.width < 1) return Bad("width = ", s.width);
  if (s.experts < 1) return Bad("experts = ", s.experts);
  if (s.top_k < 1 || s.top_k > s.experts) {
    return Bad("top_k = ", s.top_k, " of ", s.experts, " experts");
  }
  if (s.element_bytes < 1) return Bad("element_bytes = ", s.element_bytes);
  if (s.projections.empty()) return Bad("an expert without projections");
  for (const Projection& p : s.projections) {
    if (p.rows < 1 || p.columns < 1) {
      return Bad("projection ", p.name, " is ", ShapeText({p.rows, p.columns}));
    }
  }
  return absl::OkStatus();
}

ResidencyLedger TakeLedger(const RoutedLayerShape& s) {
  ResidencyLedger l;
  l.router_params = s.experts * s.width;
  for (const Projection& p : s.projections) {
    l.expert_params += p.rows * p.columns;
  }
  l.all_expert_params = s.experts * l.expert_params;
  l.stored_params = l.router_params + l.all_expert_params;
  l.active_expert_params = s.top_k * l.expert_params;
  l.active_params = l.router_params + l.active_expert_params;
  l.active_flops = 2 * l.active_params;
  l.resident_bytes = l.stored_params * s.element_bytes;
  return l;
}

absl::Status CheckTensors(const RoutedLayerShape& shape,
                          std::span<const NamedTensor> tensors) {
  absl::Status status = ValidateShape(shape);
  if (!status.ok()) return status;
  std::map<std::string, std::vector<int64_t>> expected;
  expected["gate.weight"] = {shape.experts, shape.width};
  for (int64_t e = 0; e < shape.experts; ++e) {
    for (const Projection& p : shape.projections) {
      expected[absl::StrCat("experts.", e, ".", p.name, ".weight")] = {
          p.rows, p.columns};
    }
  }
  std::set<std::string> seen;
  for (const NamedTensor& t : tensors) {
    const auto it = expected.find(t.name);
    if (it == expected.end()) {
      return Bad("tensor ", t.name, " belongs to no part of a layer of ",
                 shape.experts, " experts");
    }
    if (!seen.insert(t.name).second) {
      return Bad("tensor ", t.name, " occurs twice");
    }
    if (t.shape == it->second) continue;
    const bool transposed = t.shape.size() == 2 &&
                            t.shape[0] == it->second[1] &&
                            t.shape[1] == it->second[0];
    return Bad("tensor ", t.name, " is ", ShapeText(t.shape), ", expected ",
               ShapeText(it->second),
               transposed ? ": its axes are swapped" : "",
               t.name == "gate.weight" && t.shape.size() == 2 &&
                       t.shape[0] == shape.top_k
                   ? ": it has top_k rows, the router has one an expert"
                   : "");
  }
  for (const auto& [name, unused] : expected) {
    if (!seen.contains(name)) return Bad("tensor ", name, " is missing");
  }
  return absl::OkStatus();
}

int64_t ResidentBytes(const RoutedLayerShape& shape, const ResidentPart& part) {
  const ResidencyLedger l = TakeLedger(shape);
  const int64_t params =
      (part.router ? l.router_params : 0) +
      static_cast<int64_t>(part.experts.size()) * l.expert_params;
  return params * shape.element_bytes;
}

absl::Status CheckPlacement(const RoutedLayerShape& shape,
                            std::span<const ResidentPart> parts) {
  absl::Status status = ValidateShape(shape);
  if (!status.ok()) return status;
  bool router = false;
  std::vector<bool> held(static_cast<size_t>(shape.experts), false);
  for (const ResidentPart& part : parts) {
    router |= part.router;
    std::set<ExpertId> own;
    for (ExpertId e : part.experts) {
      if (e.value >= shape.experts) {
        return Bad("worker ", part.worker.value, " holds expert ", e.value,
                   " of ", shape.experts);
      }
      if (!own.insert(e).second) {
        return Bad("worker ", part.worker.value, " holds expert ", e.value,
                   " twice");
      }
      held[e.value] = true;
    }
  }
  for (size_t e = 0; e < held.size(); ++e) {
    if (!held[e]) return Bad("no worker holds expert ", e);
  }
  if (!router) return Bad("no worker holds the router");
  return absl::OkStatus();
}

absl::Status CheckStated(const RoutedLayerShape& shape,
                         const ResidencyLedger& stated) {
  absl::Status status = ValidateShape(shape);
  if (!status.ok()) return status;
  const ResidencyLedger l = TakeLedger(shape);
  const std::pair<const char*, int64_t ResidencyLedger::*> quantities[] = {
      {"router_params", &ResidencyLedger::router_params},
      {"expert_params", &ResidencyLedger::expert_params},
      {"all_expert_params", &ResidencyLedger::all_expert_params},
      {"stored_params", &ResidencyLedger::stored_params},
      {"active_expert_params", &ResidencyLedger::active_expert_params},
      {"active_params", &ResidencyLedger::active_params},
      {"active_flops", &ResidencyLedger::active_flops},
      {"resident_bytes", &ResidencyLedger::resident_bytes}};
  for (const auto& [name, member] : quantities) {
    if (stated.*member == l.*member) continue;
    return Bad(name, " is stated as ", stated.*member, ", the shape makes ",
               l.*member);
  }
  return absl::OkStatus();
}

}  // namespace trunkline::routing
