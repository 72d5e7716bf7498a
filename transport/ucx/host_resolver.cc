#include "transport/ucx/host_resolver.h"

#include <utility>

namespace trunkline::transport::ucx {

void HostResolver::Stop() {
  std::thread thread;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    thread.swap(thread_);
  }
  changed_.notify_one();
  if (thread.joinable()) thread.join();
}

void HostResolver::Start(ConnectionId connection, const HostPort& address) {
  std::lock_guard lock(mutex_);
  if (stop_) return;
  waiting_.emplace_back(connection, address);
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  changed_.notify_one();
}

void HostResolver::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    const auto [connection, address] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    done_(connection, LookUp(address, false));
    lock.lock();
  }
}

}  // namespace trunkline::transport::ucx
