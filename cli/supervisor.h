#pragma once

// Runs the processes of `trunkline up` from the first to the last: starts them
// as addresses become known, passes their output on, reports deaths, stops them
// in order. One thread, which sleeps in poll; a ClusterMonitor looks at the
// cluster meanwhile.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "cli/cluster_monitor.h"
#include "cli/line_reader.h"
#include "cli/status_line.h"
#include "cli/up_plan.h"

namespace trunkline::cli {

class Supervisor {
 public:
  // flags have been checked.
  explicit Supervisor(const UpFlags& flags);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Returns the exit code. Call from the process's main thread, once, before
  // any other thread exists.
  int Run();

 private:
  struct Member {
    UpProcess plan;
    std::unique_ptr<ChildProcess> process;
    LineReader announcements, output;
    std::string address, metrics_address;  // empty until it listens
    int64_t bytes_done = 0, bytes_total = 0;
    bool end_reported = false;
  };

  absl::Status CatchSignals();
  absl::Status Start(UpProcess plan);
  absl::Status StartWorkers();
  // Waits for something to happen and takes it in.
  void WaitForEvents();
  int PollTimeoutMs() const;
  void TakeSignals();
  void TakeAnnouncements(Member* member);
  void TakeOutput(Member* member);
  void TakeEnds();
  void OnUnexpectedEnd(const Member& member);

  absl::Status Advance();  // starts what can be started, notices readiness
  absl::Status AnnounceReady();
  bool AllListen() const;  // of those that were started
  // Their addresses with commas between.
  std::string Coordinators() const;
  void DrawProgress();

  void Stop(int exit_code);
  void AdvanceStop();
  bool AllEnded() const;

  std::string LogFile(const std::string& name) const;
  void Say(const std::string& line);       // to stdout
  void Complain(const std::string& line);  // to stderr

  const UpFlags flags_;
  const std::string program_;
  const absl::Time started_;
  int signal_fd_ = -1, wake_fd_ = -1;
  std::vector<std::unique_ptr<Member>> members_;  // coordinators first
  std::unique_ptr<ClusterMonitor> monitor_;
  StatusLine status_line_;
  int64_t ticks_ = 0;
  bool workers_started_ = false;
  bool ready_ = false;

  bool stopping_ = false;
  int exit_code_ = 0;
  UpRole stop_stage_ = UpRole::kTrunk;
  absl::Time stop_stage_end_;  // then its processes are killed
  bool stage_signalled_ = false;
};

}  // namespace trunkline::cli
