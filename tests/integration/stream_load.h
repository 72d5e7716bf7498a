#pragma once

// Clients that keep a cluster busy: each asks for its text over and over until
// it is told to stop, holds every answer against the undisturbed one, and
// remembers when each token came.

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "proto/generation.grpc.pb.h"
#include "tests/integration/completion.h"
#include "tests/integration/process_cluster.h"

namespace trunkline::testing {

using SteadyTime = std::chrono::steady_clock::time_point;

// What each client asks for; client i uses entry i.
struct LoadText {
  v1::GenerateRequest request;
  std::vector<int32_t> ids;  // of the undisturbed run
  std::string text;
};
// `clients` requests of `tokens` tokens each, greedy and sampled, and their
// undisturbed answers, one after the other.
std::vector<LoadText> UndisturbedTexts(ProcessCluster& cluster, int clients,
                                       uint32_t tokens);

struct TimedStream {
  int client = 0;
  grpc::Status status;
  bool as_undisturbed = false;
  std::vector<SteadyTime> token_times;
};

class StreamLoad {
 public:
  // once: every client asks one time only.
  StreamLoad(const ProcessCluster& cluster, std::vector<LoadText> texts,
             bool once = false);
  ~StreamLoad();  // Stop
  StreamLoad(const StreamLoad&) = delete;
  StreamLoad& operator=(const StreamLoad&) = delete;

  int64_t tokens() const { return tokens_; }  // received so far, of all
  int64_t streams_ended() const { return ended_; }
  // Every client has a stream that has made at least one token.
  bool AllStreaming() const { return streaming_ == clients_count_; }
  // Lets running streams finish, begins no new ones. Idempotent.
  const std::vector<TimedStream>& Stop();

 private:
  void Run(int client, const ProcessCluster& cluster, bool once);

  const std::vector<LoadText> texts_;
  const int clients_count_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> tokens_{0}, ended_{0};
  std::atomic<int> streaming_{0};
  std::mutex mutex_;
  std::vector<TimedStream> streams_;  // guarded by mutex_
  std::vector<std::thread> clients_;
};

using Milliseconds = std::chrono::duration<double, std::milli>;
Milliseconds MedianStep(const TimedStream& stream);
// The longest gap between two tokens of which the second came after `from`.
Milliseconds LongestPause(const TimedStream& stream, SteadyTime from = {});

}  // namespace trunkline::testing
