#include "expert_worker/cost_estimator.h"

namespace trunkline::expert {
namespace {

constexpr uint64_t kBatchesLeast = 16;
// What is left of a batch's weight after the next one: a few hundred count.
constexpr double kFade = 0.997;
// Below this share of what it could be, the determinant is noise.
constexpr double kTellApart = 1e-3;

}  // namespace

void CostEstimator::Add(uint64_t experts, uint64_t routes,
                        absl::Duration took) {
  if (experts == 0) return;
  const double e = static_cast<double>(experts);
  const double r = static_cast<double>(routes);
  const double t = absl::ToDoubleSeconds(took);
  // Batches count by their time's inverse square, or the largest would decide
  // alone: relative errors are what matters.
  const double weight = t > 0 ? 1 / (t * t) : 0;
  ee_ = kFade * ee_ + weight * e * e;
  er_ = kFade * er_ + weight * e * r;
  rr_ = kFade * rr_ + weight * r * r;
  et_ = kFade * et_ + weight * e * t;
  rt_ = kFade * rt_ + weight * r * t;
  ++batches_;
}

control::ExpertCosts CostEstimator::costs() const {
  if (batches_ < kBatchesLeast || ee_ <= 0 || rr_ <= 0) return {};
  const double determinant = ee_ * rr_ - er_ * er_;
  const control::ExpertCosts reads_alone = {.read_seconds = et_ / ee_,
                                            .row_seconds = 0};
  if (determinant <= kTellApart * ee_ * rr_) return reads_alone;
  const double read = (et_ * rr_ - rt_ * er_) / determinant;
  const double row = (rt_ * ee_ - et_ * er_) / determinant;
  // Noise may push one below zero: the other explains all then.
  if (row < 0) return reads_alone;
  if (read < 0) return {.read_seconds = 0, .row_seconds = rt_ / rr_};
  return {.read_seconds = read, .row_seconds = row};
}

}  // namespace trunkline::expert
