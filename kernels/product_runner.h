#pragma once

// Runs a set of matrix products over the threads of a pool: the work of all of
// them is cut into panel ranges of about equal cost, so that a thread that ends
// early takes what is left of any of them. K is never split (contract 1), so
// the cut changes no bit.

#include <cstdint>
#include <span>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/panel_product.h"
#include "kernels/thread_scratch.h"

namespace trunkline::kernels {

struct Product {
  RowSource source;
  const PackedMatrix* w = nullptr;
  ProductOutput output;
};

// Owned by the calling thread; grows once, then no run allocates.
class ProductRunner {
 public:
  // y of all products. Returns when they are done.
  void Run(ThreadPool& pool, std::span<const Product> products);

 private:
  // How one product is cut.
  struct Cut {
    int64_t task_begin = 0;     // of this product's tasks among all
    int64_t panel_ranges = 0;   // of equal size, give or take a panel
    int64_t tile_ranges = 0;    // 0: direct
    int64_t packed_offset = 0;  // floats
    int64_t pack_begin = 0;     // of this product's tiles among all
  };

  void Plan(const ThreadPool& pool, std::span<const Product> products);
  size_t CutOf(int64_t task) const;
  size_t PackCutOf(int64_t tile) const;
  void PackRows(ThreadPool& pool, std::span<const Product> products);
  void RunTask(std::span<const Product> products, int64_t task) const;

  std::vector<Cut> cuts_;
  int64_t tasks_ = 0;
  int64_t pack_tiles_ = 0;
  int64_t packed_floats_ = 0;
  const float* packed_ = nullptr;
  ThreadScratch packed_rows_;
};

}  // namespace trunkline::kernels
