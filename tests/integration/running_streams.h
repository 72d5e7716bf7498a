#pragma once

// Streams that run for as long as a test disturbs the cluster around them, each
// checked against the text of a quiet cluster.

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/completion.h"
#include "tests/integration/process_cluster.h"

namespace trunkline::testing {

class RunningStreams {
 public:
  // Takes the reference texts now, while nothing happens.
  RunningStreams(const ProcessCluster& cluster, int streams, uint32_t tokens)
      : cluster_(cluster), tokens_(tokens) {
    const auto stub = cluster_.NewStub();
    for (int i = 0; i < streams; ++i) {
      const std::string prompt = "stream " + std::to_string(i) + " says";
      const Completion quiet = Stream(*stub, GreedyRequest(prompt, tokens_));
      EXPECT_TRUE(quiet.status.ok()) << quiet.status.error_message();
      prompts_.push_back(prompt);
      texts_.push_back(quiet.text);
    }
    for (int i = 0; i < streams; ++i) {
      threads_.emplace_back([this, i] { Run(static_cast<size_t>(i)); });
    }
  }
  ~RunningStreams() { Stop(); }

  // Lets the running ones end.
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  int finished() const { return finished_; }
  // What went wrong; empty: nothing.
  std::string faults() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return faults_;
  }

 private:
  void Run(size_t i) {
    const auto stub = cluster_.NewStub();
    while (!stop_) {
      const Completion got = Stream(*stub, GreedyRequest(prompts_[i], tokens_));
      if (!got.status.ok() || got.text != texts_[i]) {
        const std::lock_guard<std::mutex> lock(mutex_);
        faults_ += "stream " + std::to_string(i) + ": " +
                   (got.status.ok() ? "another text: " + got.text
                                    : got.status.error_message()) +
                   "\n";
        return;
      }
      ++finished_;
    }
  }

  const ProcessCluster& cluster_;
  const uint32_t tokens_;
  std::vector<std::string> prompts_, texts_;
  std::atomic<bool> stop_{false};
  std::atomic<int> finished_{0};
  std::mutex mutex_;
  std::string faults_;
  std::vector<std::thread> threads_;
};

}  // namespace trunkline::testing
