#pragma once

// SIGINT and SIGTERM as a thing to wait for. The handler only releases a
// semaphore; everything else happens on the thread that waits. One per process.

#include "absl/time/time.h"

namespace trunkline::cli {

class StopSignals {
 public:
  // Installs the handlers. Until Orderly is called, a signal ends the process
  // at once: there is nothing yet to stop in order.
  static void Install();
  // From now on the first signal releases Wait and the second ends the process
  // at once with exit code 130.
  static void Orderly();

  // Waits for a signal or a Release; false when max_wait is over first.
  static bool Wait(absl::Duration max_wait);
  // Releases one Wait, from any thread.
  static void Release();
  // The first signal that came, 0 when none has.
  static int Received();

  // Ends the process with exit code 1 when it still runs after that long: the
  // bound of an orderly stop that does not come to its end.
  static void EndProcessAfter(absl::Duration limit);
};

}  // namespace trunkline::cli
