#pragma once

// The expected values of tests/fixtures/routing, and how their inputs are made.

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "common/random.h"
#include "nlohmann/json.hpp"

namespace trunkline::routing {

inline nlohmann::json LoadRoutingFixture(const std::string& name) {
  const std::string path =
      std::string(TRUNKLINE_FIXTURES) + "/routing/" + name + ".json";
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  return nlohmann::json::parse(in);
}

// The SplitMix64 sequence that the fixtures' generator names.
class FixtureGenerator {
 public:
  explicit FixtureGenerator(uint64_t seed) : state_(seed) {}
  float Score() {
    return static_cast<float>((Next() >> 40) % 58983 + 3277) / 65536.0f;
  }
  float Bias() {
    return static_cast<float>(static_cast<int64_t>((Next() >> 40) % 6555) -
                              3277) /
           65536.0f;
  }

 private:
  uint64_t Next() {
    const uint64_t value = SplitMix64(state_);
    state_ += 0x9e3779b97f4a7c15ull;
    return value;
  }
  uint64_t state_;
};

}  // namespace trunkline::routing
