#pragma once

// Watches a starting cluster from its own thread: how much is loaded, and
// whether every trunk serves. Ends by itself when all do.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace trunkline::cli {

class ClusterMonitor {
 public:
  struct Snapshot {
    bool ready = false;
    std::string waiting_for;                    // in words, when not ready
    int64_t bytes_loaded = 0, bytes_total = 0;  // of the routed experts
  };

  // Starts looking. wake_fd: an eventfd that is written after each change of
  // what Get returns; the caller's, and open until Stop.
  ClusterMonitor(std::string coordinator, std::vector<std::string> trunks,
                 int wake_fd);
  ~ClusterMonitor();  // stops; waits for a look that is under way
  ClusterMonitor(const ClusterMonitor&) = delete;
  ClusterMonitor& operator=(const ClusterMonitor&) = delete;

  Snapshot Get();

 private:
  void Run();
  Snapshot Look();

  const std::string coordinator_;
  const std::vector<std::string> trunks_;
  const int wake_fd_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable stopping_;
  bool stop_ = false;
  Snapshot snapshot_;
  std::thread thread_;
};

}  // namespace trunkline::cli
