#include "placement/incremental.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "common/random.h"
#include "placement/eplb.h"
#include "placement/layer_search.h"

namespace trunkline::placement {
namespace {

// Closer to perfect than this is not worth a byte.
constexpr double kCloseEnough = 0.97;
constexpr int kAttempts = 40;

using Holders = std::vector<std::vector<size_t>>;  // [experts] -> workers

// The eplb packs given to the workers that already hold most of them, so that
// as little as possible moves. Greedy, best overlap first.
Holders FitToCurrent(const EplbResult& eplb, size_t workers,
                     const CopySet& current) {
  const size_t slots = eplb.expert_of_slot.size() / workers;
  std::vector<std::tuple<int64_t, size_t, size_t>> overlaps;
  for (size_t pack = 0; pack < workers; ++pack) {
    for (size_t worker = 0; worker < workers; ++worker) {
      int64_t overlap = 0;
      for (size_t s = pack * slots; s < (pack + 1) * slots; ++s) {
        const size_t expert = static_cast<size_t>(eplb.expert_of_slot[s]);
        overlap += current.Has(expert, worker) ? 1 : 0;
      }
      overlaps.emplace_back(-overlap, pack, worker);
    }
  }
  std::sort(overlaps.begin(), overlaps.end());
  std::vector<bool> pack_done(workers), worker_done(workers);
  Holders holders(eplb.copies.size());
  for (const auto& [overlap, pack, worker] : overlaps) {
    if (pack_done[pack] || worker_done[worker]) continue;
    pack_done[pack] = worker_done[worker] = true;
    for (size_t s = pack * slots; s < (pack + 1) * slots; ++s) {
      auto& list = holders[static_cast<size_t>(eplb.expert_of_slot[s])];
      if (std::count(list.begin(), list.end(), worker) == 0) {
        list.push_back(worker);
      }
    }
  }
  return holders;
}

class Incremental {
 public:
  Incremental(const BalanceRequest& request, const PlacementMap& start)
      : request_(request), start_(start) {
    budget_.final_bytes = ShardBytes(start, request.layers, request.workers);
    budget_.staged_bytes =
        StagingBytes(request.held, start, request.layers, request.workers);
    budget_.moved_bytes_max = request.max_moved_bytes;
    alike_ = std::all_of(request.workers.begin(), request.workers.end(),
                         [&](const WorkerProfile& profile) {
                           return profile.speed == request.workers[0].speed &&
                                  profile.numerics_class ==
                                      request.workers[0].numerics_class &&
                                  profile.memory_bytes == 0;
                         });
  }

  PlacementMap Run() {
    for (size_t l = 0; l < request_.layers.size(); ++l) AddLayer(l);
    // The layer that loses most time goes first, so that a small budget is
    // spent where it helps most.
    while (true) {
      Layer* worst = nullptr;
      for (Layer& layer : layers_) {
        if (layer.done) continue;
        if (worst == nullptr || layer.loss() > worst->loss()) worst = &layer;
      }
      if (worst == nullptr) break;
      if (CloseEnough(*worst)) {
        worst->done = true;
      } else if (!worst->search->Step()) {
        StartOver(worst);
      }
    }
    return Result();
  }

 private:
  struct Layer {
    std::shared_ptr<const SearchLayer> fixed;
    std::unique_ptr<LayerSearch> search;
    double yardstick = std::numeric_limits<double>::infinity();
    Holders alternative;  // of the yardstick; empty: none
    bool done = false;
    double loss() const { return search->slowest() - search->ideal(); }
  };

  static bool CloseEnough(const Layer& layer) {
    const double slowest = layer.search->slowest();
    return slowest <= layer.yardstick &&
           layer.search->ideal() >= kCloseEnough * slowest;
  }

  size_t IndexOf(WorkerId worker) const {
    return static_cast<size_t>(FindProfile(request_.workers, worker) -
                               request_.workers.data());
  }

  void AddLayer(size_t l) {
    const MoeLayerShape& shape = request_.layers[l];
    const LayerLoad* load = FindLoad(request_.loads, shape.layer);
    if (load == nullptr ||
        std::accumulate(load->load.begin(), load->load.end(), 0.0) <= 0) {
      return;  // nothing to balance
    }
    SearchLayer fixed;
    fixed.load = load->load;
    fixed.expert_bytes = static_cast<uint64_t>(shape.expert_bytes);
    fixed.replicas_min = request_.replicas;
    Holders holders(load->load.size());
    int64_t copies = 0;
    for (size_t e = 0; e < holders.size(); ++e) {
      for (const Replica& replica : start_.layers[l].replicas[e]) {
        holders[e].push_back(IndexOf(replica.worker));
        ++copies;
      }
    }
    const int64_t workers = static_cast<int64_t>(request_.workers.size());
    fixed.worker_copies_max = request_.slots_per_worker != 0
                                  ? request_.slots_per_worker
                                  : shape.experts;
    fixed.copies_max =
        request_.slots_per_worker != 0
            ? request_.slots_per_worker * workers
            : std::max(copies, shape.experts * request_.replicas);
    CollectCopies(l, &fixed);
    Layer layer;
    layer.fixed = std::make_shared<const SearchLayer>(std::move(fixed));
    layer.search = std::make_unique<LayerSearch>(layer.fixed, request_.workers,
                                                 holders, &budget_);
    SetYardstick(&layer);
    index_.push_back(l);
    layers_.push_back(std::move(layer));
  }

  void CollectCopies(size_t l, SearchLayer* fixed) const {
    const auto collect = [&](const PlacementMap& map, CopySet* copies) {
      const LayerPlacement* layer = map.FindLayer(request_.layers[l].layer);
      if (layer == nullptr) return;
      for (size_t e = 0; e < layer->replicas.size(); ++e) {
        for (const Replica& replica : layer->replicas[e]) {
          if (FindProfile(request_.workers, replica.worker) == nullptr) {
            continue;
          }
          copies->Insert(e, IndexOf(replica.worker));
        }
      }
    };
    fixed->current = CopySet(fixed->load.size(), request_.workers.size());
    fixed->held = fixed->current;
    // What repair had to add is decided: it is not the search's to pay for.
    collect(start_, &fixed->current);
    for (const PlacementMap* map : request_.held) collect(*map, &fixed->held);
  }

  // Where eplb can be asked, the result should be no worse than its.
  void SetYardstick(Layer* layer) const {
    const int64_t workers = static_cast<int64_t>(request_.workers.size());
    const int64_t slots = layer->fixed->copies_max / workers;
    if (!alike_ || slots < 1) return;
    const absl::StatusOr<EplbResult> eplb =
        EplbPlace(layer->fixed->load, {.num_replicas = slots * workers,
                                       .num_groups = 1,
                                       .num_nodes = 1,
                                       .num_workers = workers});
    if (!eplb.ok()) return;  // fewer slots than experts
    layer->alternative =
        FitToCurrent(*eplb, request_.workers.size(), layer->fixed->current);
    // Its own claim: two copies on one worker count as two shares there.
    std::vector<double> rows(request_.workers.size());
    for (size_t s = 0; s < eplb->expert_of_slot.size(); ++s) {
      const size_t e = static_cast<size_t>(eplb->expert_of_slot[s]);
      rows[s / static_cast<size_t>(slots)] +=
          layer->fixed->load[e] / static_cast<double>(eplb->copies[e]);
    }
    layer->yardstick =
        *std::max_element(rows.begin(), rows.end()) / request_.workers[0].speed;
  }

  // The search is stuck in a local optimum that eplb beats. It goes on from
  // eplb's placement and from shaken copies of the best one, and keeps the best
  // of all. Deterministic: the shakes are a function of the layer alone.
  void StartOver(Layer* layer) {
    layer->done = true;
    if (layer->search->slowest() <= layer->yardstick) return;
    if (layer->alternative.empty()) return;
    LayerSearch best = *layer->search;
    SearchBudget best_budget = budget_;
    RandomStream random(request_.layers.size() + layer->fixed->load.size());
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      if (attempt == 0) {
        if (!TakeAlternative(layer)) continue;
      } else {
        layer->search = std::make_unique<LayerSearch>(best);
        budget_ = best_budget;
        for (int kick = 0; kick < 1 + attempt % 3; ++kick) {
          layer->search->Kick(random);
        }
      }
      while (!CloseEnough(*layer) && layer->search->Step()) {
      }
      if (layer->search->slowest() < best.slowest()) {
        best.TakeFrom(*layer->search);
        best_budget = budget_;
      }
      if (best.slowest() <= layer->yardstick) break;
    }
    layer->search->TakeFrom(best);
    budget_ = best_budget;
  }

  // False: moving there is not allowed.
  bool TakeAlternative(Layer* layer) {
    if (!Allowed(layer->alternative)) return false;
    SearchBudget budget = budget_;
    Account(*layer, layer->search->holders(), -1, &budget);
    Account(*layer, layer->alternative, +1, &budget);
    if (budget.moved_bytes > budget.moved_bytes_max) return false;
    budget_ = budget;
    layer->search = std::make_unique<LayerSearch>(
        layer->fixed, request_.workers, layer->alternative, &budget_);
    return true;
  }

  bool Allowed(const Holders& holders) const {
    std::set<std::string> domains;
    for (const WorkerProfile& profile : request_.workers) {
      domains.insert(profile.failure_domain);
    }
    for (const auto& list : holders) {
      if (static_cast<int64_t>(list.size()) < request_.replicas) return false;
      std::set<std::string> used;
      for (const size_t worker : list) {
        used.insert(request_.workers[worker].failure_domain);
      }
      if (used.size() < std::min(list.size(), domains.size())) return false;
    }
    return true;
  }

  // Adds or takes away one layer's share of the bytes.
  static void Account(const Layer& layer, const Holders& holders, int sign,
                      SearchBudget* budget) {
    const uint64_t bytes =
        layer.fixed->expert_bytes * static_cast<uint64_t>(sign);
    for (size_t e = 0; e < holders.size(); ++e) {
      for (const size_t worker : holders[e]) {
        budget->final_bytes[worker] += bytes;
        if (!layer.fixed->held.Has(e, worker)) {
          budget->staged_bytes[worker] += bytes;
        }
        if (!layer.fixed->current.Has(e, worker)) {
          budget->moved_bytes += bytes;
        }
      }
    }
  }

  PlacementMap Result() const {
    PlacementMap map = start_;
    for (size_t i = 0; i < layers_.size(); ++i) {
      auto& replicas = map.layers[index_[i]].replicas;
      const Holders& holders = layers_[i].search->holders();
      for (size_t e = 0; e < holders.size(); ++e) {
        replicas[e].clear();
        for (const size_t worker : holders[e]) {
          replicas[e].push_back(
              {.worker = request_.workers[worker].worker, .slot = 0});
        }
      }
    }
    AssignSlots(&map);
    map.version = PlacementVersion();
    return map;
  }

  const BalanceRequest& request_;
  const PlacementMap& start_;
  SearchBudget budget_;
  bool alike_ = false;  // eplb's premises hold
  std::vector<Layer> layers_;
  std::vector<size_t> index_;  // parallel to layers_: into request_.layers
};

}  // namespace

PlacementMap ImproveIncrementally(const BalanceRequest& request,
                                  const PlacementMap& start) {
  return Incremental(request, start).Run();
}

}  // namespace trunkline::placement
