#pragma once

// Protocol bugs that the mutation check plants, one at a time, to prove that
// the checkers bite. Each is the whole of a mistake that somebody could make in
// a core or its edge, planted where the simulator joins the two. Nothing but
// that check sets one; the processes do not link this folder.

#include <array>
#include <cstdint>

namespace trunkline::sim {

enum class PlantedBug : uint8_t {
  kNone,
  kForgetStepsInFlight,  // a trunk reports no version in flight
  kClaimUnseenViews,     // it says that it follows views that it has dropped
  kReadyWhileLoading,    // a worker reports a version that it does not serve
  kStaleMap,             // after a change it takes a neighbour's weights
  kDropOldAtOnce,        // it drops a version that is only draining
  kFollowDeposed,        // views of an older epoch are followed
  kNoFence,              // the store takes a deposed leader's write
  kSayBeforeCommit,      // a failed write is acknowledged
  kReplayTornTail,       // half a transaction counts after a restart
  kKeepAnswers,          // some messages are not given back when done with
  kNoDeadlines,          // a lost message is waited for without end
  kNeverJoinAgain,       // a worker that lost its lease goes on beating
  kDrainedTooEarly,      // drained is shown while versions name the worker
  kMaskDeadExperts,      // what no worker answered counts as zero
  kNoChecksum,           // damaged bytes are believed
  kAnswersByArrival,     // rows of a batch get each other's sums
  kCount
};

inline constexpr std::array<const char*,
                            static_cast<size_t>(PlantedBug::kCount)>
    kPlantedBugNames = {"none",
                        "forget-steps-in-flight",
                        "claim-unseen-views",
                        "ready-while-loading",
                        "stale-map",
                        "drop-old-at-once",
                        "follow-deposed",
                        "no-fence",
                        "say-before-commit",
                        "replay-torn-tail",
                        "keep-answers",
                        "no-deadlines",
                        "never-join-again",
                        "drained-too-early",
                        "mask-dead-experts",
                        "no-checksum",
                        "answers-by-arrival"};

inline const char* Name(PlantedBug bug) {
  return kPlantedBugNames[static_cast<size_t>(bug)];
}

}  // namespace trunkline::sim
