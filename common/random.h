#pragma once

// Counter-based random numbers: the i-th number of a seed is a pure function of
// (seed, i), so a resumed or re-batched sequence draws what it would have drawn
// alone. SplitMix64 (Steele, Lea, Flood 2014).

#include <cstdint>

namespace trunkline {

inline uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class RandomStream {
 public:
  explicit RandomStream(uint64_t seed, uint64_t position = 0)
      : seed_(SplitMix64(seed)), position_(position) {}
  uint64_t Next() {
    return SplitMix64(seed_ + 0x9e3779b97f4a7c15ull * position_++);
  }
  double NextUnit() {
    return static_cast<double>(Next() >> 11) * 0x1.0p-53;
  }  // [0, 1)
  uint64_t NextBelow(uint64_t limit) { return limit == 0 ? 0 : Next() % limit; }

 private:
  uint64_t seed_;
  uint64_t position_;
};

}  // namespace trunkline
