#pragma once

// Mistakes inside the cores, made one at a time by the simulator's mutation
// check (tests/sim/mutation_test.cc) to prove that the checkers see them. That
// test compiles the cores concerned once more for itself, with
// TRUNKLINE_PLANTED_MISTAKES; everywhere else TL_PLANTED is the constant false
// and leaves no code behind.

#include <array>
#include <cstddef>
#include <cstdint>

namespace trunkline {

enum class PlantedMistake : uint8_t {
  kNone,
  kForgetProcess,        // membership: a repeated registration is a new process
  kIgnoreDrain,          // membership: draining workers get experts
  kRetireUnderSteps,     // driver: a version retires under steps in flight
  kKeepFailedStaging,    // driver: a change whose worker failed goes on
  kCoreAheadOfStore,     // durable half: memory keeps what was not committed
  kRetryTheLost,         // exchange: routes go again to the worker that is gone
  kServeAnotherVersion,  // expert worker: an unknown version is the newest
  kForgetLastDelivered,  // trunk: a resumed stream forgets a delivered token
  kRestIsIdleNow,        // coordinator: a trunk that is idle now is drained
  kBelieveWhatCame,      // peer loader: no digest is compared
  kTrustEveryAnswer,     // accuracy gate: no answer is ever wrong
  kCount
};

inline constexpr std::array<const char*,
                            static_cast<size_t>(PlantedMistake::kCount)>
    kPlantedMistakeNames = {"none",
                            "forget-process",
                            "ignore-drain",
                            "retire-under-steps",
                            "keep-failed-staging",
                            "core-ahead-of-store",
                            "retry-the-lost",
                            "serve-another-version",
                            "forget-last-delivered",
                            "rest-is-idle-now",
                            "believe-what-came",
                            "trust-every-answer"};

#ifdef TRUNKLINE_PLANTED_MISTAKES
// The test's; it has one thread.
extern PlantedMistake planted_mistake;
#define TL_PLANTED(mistake) \
  (::trunkline::planted_mistake == ::trunkline::PlantedMistake::mistake)
#else
#define TL_PLANTED(mistake) false
#endif

}  // namespace trunkline
