#include "sim/world.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/check.h"

namespace trunkline::sim {

World::World(uint64_t seed) : seed_(seed), random_(seed) {}

void World::At(absl::Time time, std::function<void()> action) {
  queue_.push({std::max(time, now_), next_order_++, std::move(action)});
}

bool World::RunOne(absl::Time end) {
  if (queue_.empty() || queue_.top().time > end) {
    now_ = std::max(now_, end);
    return false;
  }
  Action action = queue_.top();
  queue_.pop();
  now_ = action.time;
  ++actions_run_;
  action.run();
  return true;
}

absl::Duration World::Between(absl::Duration least, absl::Duration most) {
  const int64_t span = absl::ToInt64Nanoseconds(most - least);
  TL_CHECK_GE(span, 0);
  return least + absl::Nanoseconds(static_cast<int64_t>(
                     Below(static_cast<uint64_t>(span) + 1)));
}

void World::Record(const std::string& what) {
  const int64_t at = absl::ToInt64Nanoseconds(elapsed());
  uint64_t hash = SplitMix64(digest_ ^ static_cast<uint64_t>(at));
  for (const char c : what) hash = SplitMix64(hash ^ static_cast<uint8_t>(c));
  digest_ = hash;
  if (keep_lines_) {
    lines_.push_back(
        absl::StrFormat("%12.6f %s", static_cast<double>(at) * 1e-9, what));
  }
}

}  // namespace trunkline::sim
