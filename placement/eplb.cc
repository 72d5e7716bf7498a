#include "placement/eplb.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::placement {
namespace {

struct Packing {
  std::vector<int64_t> pack;  // [items]
  std::vector<int64_t> rank;  // [items], position within its pack
};

// Heaviest first into the lightest pack that has room; every pack gets the same
// number of items.
Packing PackEvenly(const std::vector<double>& weight, int64_t num_packs) {
  const int64_t items = static_cast<int64_t>(weight.size());
  const int64_t per_pack = items / num_packs;
  Packing packing{.pack = std::vector<int64_t>(weight.size()),
                  .rank = std::vector<int64_t>(weight.size())};
  if (per_pack == 1) {  // as published: the order stays, nothing is sorted
    std::iota(packing.pack.begin(), packing.pack.end(), 0);
    return packing;
  }
  std::vector<size_t> order(weight.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weight[a] > weight[b]; });
  std::vector<double> total(static_cast<size_t>(num_packs));
  std::vector<int64_t> count(static_cast<size_t>(num_packs));
  for (const size_t item : order) {
    size_t best = total.size();
    for (size_t p = 0; p < total.size(); ++p) {
      if (count[p] == per_pack) continue;
      if (best == total.size() || total[p] < total[best]) best = p;
    }
    packing.pack[item] = static_cast<int64_t>(best);
    packing.rank[item] = count[best]++;
    total[best] += weight[item];
  }
  return packing;
}

struct Copies {
  std::vector<int64_t> expert_of_copy;
  std::vector<int64_t> count;  // [experts]
};

// One copy each, then one more for whoever has the most load per copy.
Copies Replicate(const std::vector<double>& load, int64_t num_copies) {
  Copies copies;
  copies.expert_of_copy.resize(load.size());
  std::iota(copies.expert_of_copy.begin(), copies.expert_of_copy.end(), 0);
  copies.count.assign(load.size(), 1);
  while (static_cast<int64_t>(copies.expert_of_copy.size()) < num_copies) {
    size_t hottest = 0;
    for (size_t e = 1; e < load.size(); ++e) {
      if (load[e] / static_cast<double>(copies.count[e]) >
          load[hottest] / static_cast<double>(copies.count[hottest])) {
        hottest = e;
      }
    }
    copies.expert_of_copy.push_back(static_cast<int64_t>(hottest));
    ++copies.count[hottest];
  }
  return copies;
}

absl::Status Validate(const std::vector<double>& load, const EplbShape& shape) {
  const int64_t experts = static_cast<int64_t>(load.size());
  const auto invalid = [](const std::string& what) {
    return absl::InvalidArgumentError("eplb: " + what);
  };
  if (experts < 1 || shape.num_groups < 1 || shape.num_nodes < 1 ||
      shape.num_workers < 1) {
    return invalid(absl::StrCat(experts, " experts, ", shape.num_groups,
                                " groups, ", shape.num_nodes, " nodes, ",
                                shape.num_workers, " workers; all at least 1"));
  }
  if (experts % shape.num_groups != 0) {
    return invalid(absl::StrCat(experts, " experts do not divide into ",
                                shape.num_groups, " groups"));
  }
  if (shape.num_workers % shape.num_nodes != 0) {
    return invalid(absl::StrCat(shape.num_workers,
                                " workers do not divide over ", shape.num_nodes,
                                " nodes"));
  }
  if (shape.num_replicas % shape.num_workers != 0) {
    return invalid(absl::StrCat(shape.num_replicas,
                                " replicas do not divide over ",
                                shape.num_workers, " workers"));
  }
  if (shape.num_replicas < experts) {
    return invalid(absl::StrCat(shape.num_replicas, " replicas for ", experts,
                                " experts"));
  }
  for (size_t e = 0; e < load.size(); ++e) {
    if (!std::isfinite(load[e]) || load[e] < 0) {
      return invalid(absl::StrCat("load of expert ", e, " is ", load[e]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EplbResult> EplbPlace(const std::vector<double>& load,
                                     const EplbShape& shape) {
  TL_RETURN_IF_ERROR(Validate(load, shape));
  const bool hierarchical = shape.num_groups % shape.num_nodes == 0;
  const int64_t groups = hierarchical ? shape.num_groups : 1;
  const int64_t nodes = hierarchical ? shape.num_nodes : 1;
  const int64_t experts = static_cast<int64_t>(load.size());
  const int64_t group_size = experts / groups;
  const int64_t groups_per_node = groups / nodes;

  // Stage 1: groups to nodes. node_order lists the experts node by node.
  std::vector<double> group_load(static_cast<size_t>(groups));
  for (int64_t e = 0; e < experts; ++e) {
    group_load[static_cast<size_t>(e / group_size)] +=
        load[static_cast<size_t>(e)];
  }
  const Packing group_packing = PackEvenly(group_load, nodes);
  std::vector<int64_t> node_order(load.size());
  for (int64_t e = 0; e < experts; ++e) {
    const size_t group = static_cast<size_t>(e / group_size);
    const int64_t place = (group_packing.pack[group] * groups_per_node +
                           group_packing.rank[group]) *
                              group_size +
                          e % group_size;
    node_order[static_cast<size_t>(place)] = e;
  }

  // Stages 2 and 3, node by node.
  EplbResult result;
  result.expert_of_slot.resize(static_cast<size_t>(shape.num_replicas));
  result.copies.assign(load.size(), 0);
  const int64_t experts_per_node = experts / nodes;
  const int64_t slots_per_node = shape.num_replicas / nodes;
  const int64_t workers_per_node = shape.num_workers / nodes;
  const int64_t slots_per_worker = shape.num_replicas / shape.num_workers;
  for (int64_t node = 0; node < nodes; ++node) {
    const auto begin = node_order.begin() + node * experts_per_node;
    std::vector<double> node_load;
    for (int64_t i = 0; i < experts_per_node; ++i) {
      node_load.push_back(load[static_cast<size_t>(begin[i])]);
    }
    const Copies copies = Replicate(node_load, slots_per_node);
    std::vector<double> copy_load;
    for (const int64_t local : copies.expert_of_copy) {
      const size_t e = static_cast<size_t>(local);
      copy_load.push_back(node_load[e] / static_cast<double>(copies.count[e]));
    }
    const Packing packing = PackEvenly(copy_load, workers_per_node);
    for (size_t c = 0; c < copy_load.size(); ++c) {
      const int64_t expert = begin[copies.expert_of_copy[c]];
      const int64_t slot = node * slots_per_node +
                           packing.pack[c] * slots_per_worker + packing.rank[c];
      result.expert_of_slot[static_cast<size_t>(slot)] = expert;
      ++result.copies[static_cast<size_t>(expert)];
    }
  }
  return result;
}

}  // namespace trunkline::placement
