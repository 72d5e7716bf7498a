#include "sim/fiber.h"

#include <utility>

#include "common/check.h"

namespace trunkline::sim {

Fiber::Fiber(std::function<void()> body)
    : thread_([this, body = std::move(body)] {
        {
          std::unique_lock<std::mutex> lock(mutex_);
          turn_.wait(lock, [this] { return bodys_turn_; });
        }
        body();
        const std::lock_guard<std::mutex> lock(mutex_);
        finished_ = true;
        bodys_turn_ = false;
        turn_.notify_all();
      }) {}

Fiber::~Fiber() {
  TL_CHECK(finished_) << "a fiber is dropped in the middle of its work";
  thread_.join();
}

void Fiber::Resume() { PassTurn(true); }

void Fiber::Yield() { PassTurn(false); }

void Fiber::PassTurn(bool to_body) {
  std::unique_lock<std::mutex> lock(mutex_);
  bodys_turn_ = to_body;
  turn_.notify_all();
  turn_.wait(lock, [&] { return bodys_turn_ != to_body; });
}

}  // namespace trunkline::sim
