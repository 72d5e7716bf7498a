#pragma once

// Code that waits in the middle of a call, run in simulated time: it has a
// thread of its own, but only ever runs while its owner waits for it, so a run
// stays a function of its seed.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace trunkline::sim {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  // The body has ended.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The owner's: runs the body until it yields or ends.
  void Resume();
  // The body's: gives the owner its turn until the next Resume.
  void Yield();
  bool finished() const { return finished_; }

 private:
  void PassTurn(bool to_body);

  std::mutex mutex_;
  std::condition_variable turn_;
  bool bodys_turn_ = false;  // by mutex_
  bool finished_ = false;    // read in the owner's turn only
  std::thread thread_;
};

}  // namespace trunkline::sim
