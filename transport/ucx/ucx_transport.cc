#include "transport/ucx/ucx_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "transport/address.h"
#include "transport/buffer_pool.h"
#include "transport/connection_id.h"
#include "transport/ucx/host_resolver.h"
#include "transport/ucx/links.h"
#include "transport/ucx/socket_address.h"

namespace trunkline::transport {
namespace {

using ucx::Links;

constexpr char kScheme[] = "ucx";
// While messages move, the keeper looks this often whether the engine has gone
// off to compute; then it drives the worker in its place.
constexpr absl::Duration kKeeperLook = absl::Milliseconds(2);
// What a waking thread needs to get hold of a mutex.
constexpr absl::Duration kHandOver = absl::Microseconds(100);

absl::Time Now() { return Clock::Monotonic().Now(); }

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A file descriptor that one thread makes readable to end another's poll().
class WakeFd {
 public:
  WakeFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~WakeFd() {
    if (fd_ >= 0) close(fd_);
  }
  WakeFd(const WakeFd&) = delete;
  WakeFd& operator=(const WakeFd&) = delete;

  bool ok() const { return fd_ >= 0; }
  // The counter can only overflow, in which case the fd is readable anyway.
  void Signal() const {
    const uint64_t one = 1;
    if (write(fd_, &one, sizeof one) < 0) return;
  }
  void Drain() const {
    uint64_t count;
    if (read(fd_, &count, sizeof count) < 0) return;
  }
  // Until this fd or one of the others (-1: none) is readable, or `wait` has
  // passed.
  void WaitWith(int other, int another, absl::Duration wait) const {
    pollfd fds[3] = {
        {fd_, POLLIN, 0}, {other, POLLIN, 0}, {another, POLLIN, 0}};
    const timespec time = absl::ToTimespec(
        std::clamp(wait, absl::ZeroDuration(), absl::Hours(1)));
    ppoll(fds, 3, &time, nullptr);
    if ((fds[0].revents & POLLIN) != 0) Drain();
  }

 private:
  const int fd_;
};

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(const Options& options)
      : options_(options),
        pool_(options.pool_bytes_max),
        resolver_([this](ConnectionId id, auto addresses) {
          const Lock lock(this);
          links_->DialAddresses(id, std::move(addresses));
          NudgeEngine();
        }) {}

  ~UcxTransport() override {
    resolver_.Stop();
    if (keeper_.joinable()) {
      stop_ = true;
      keeper_wake_.Signal();
      keeper_.join();
    }
  }

  absl::Status Start() {
    if (!engine_wake_.ok() || !keeper_wake_.ok()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("ucx: no event descriptor: ", std::strerror(errno)));
    }
    TL_ASSIGN_OR_RETURN(links_, Links::Create(options_, &pool_));
    keeper_ = std::thread([this] { Keep(); });
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Listen(const std::string& address) override;
  absl::StatusOr<ConnectionId> Connect(const std::string& address) override;
  void Disconnect(ConnectionId connection) override;
  void Send(ConnectionId connection, Message message, uint64_t token) override;
  void Poll(absl::Duration max_wait, std::vector<Event>* events) override;
  void Wake() override;

  Message Allocate(size_t size) override {
    return Message{pool_.Take(size), size};
  }
  void Release(Message message) override {
    pool_.Give(std::move(message.buffer));
  }
  std::string Name() const override { return kScheme; }

 private:
  // The mutex, with a count of those who want it.
  class Lock {
   public:
    explicit Lock(UcxTransport* transport)
        : lock_(transport->mutex_, std::defer_lock) {
      transport->contenders_.fetch_add(1, std::memory_order_relaxed);
      lock_.lock();
      transport->contenders_.fetch_sub(1, std::memory_order_relaxed);
    }

   private:
    std::unique_lock<std::mutex> lock_;
  };

  // A Poll that spins would take the mutex again before a waiter has woken up:
  // it lets the waiters go first, for a bounded time.
  void LetOthersLock() const {
    if (contenders_.load(std::memory_order_relaxed) == 0) return;
    const absl::Time end = Now() + kHandOver;
    while (contenders_.load(std::memory_order_relaxed) > 0 && Now() < end)
      std::this_thread::yield();
  }
  // Under the mutex: the engine sleeps and something waits for it.
  void NudgeEngine() {
    if (engine_sleeps_ && (links_->has_events() || links_->has_sends()))
      engine_wake_.Signal();
  }
  void Sleep(absl::Duration wait);
  void Keep();

  const Options options_;
  BufferPool pool_;
  WakeFd engine_wake_;
  WakeFd keeper_wake_;
  std::atomic<bool> woken_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> contenders_{0};

  std::mutex mutex_;
  std::unique_ptr<Links> links_;  // mutex_
  bool engine_polls_ = false;     // mutex_; the engine is inside Poll
  bool engine_sleeps_ = false;    // mutex_; and waits for a descriptor there

  ucx::HostResolver resolver_;
  std::thread keeper_;
};

absl::StatusOr<std::string> UcxTransport::Listen(const std::string& address) {
  TL_ASSIGN_OR_RETURN(const std::string rest, StripScheme(address, kScheme));
  TL_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(rest));
  TL_ASSIGN_OR_RETURN(const auto addresses, ucx::LookUp(host_port, false));
  const Lock lock(this);
  TL_ASSIGN_OR_RETURN(const ucx::SocketAddress bound,
                      links_->Listen(addresses.front()));
  return absl::StrCat(kScheme, "://",
                      FormatHostPort(ucx::DialableAddress(bound)));
}

absl::StatusOr<ConnectionId> UcxTransport::Connect(const std::string& address) {
  TL_ASSIGN_OR_RETURN(const std::string rest, StripScheme(address, kScheme));
  TL_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(rest));
  if (host_port.port == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bad address \"", address, "\": nobody listens on port 0"));
  }
  const ConnectionId id = NextConnectionId();
  auto numeric = ucx::LookUp(host_port, true);
  {
    const Lock lock(this);
    links_->Dial(id, FormatHostPort(host_port));
    if (numeric.ok()) links_->DialAddresses(id, std::move(numeric));
    NudgeEngine();
    if (numeric.ok()) return id;
  }
  resolver_.Start(id, host_port);
  return id;
}

void UcxTransport::Disconnect(ConnectionId connection) {
  const Lock lock(this);
  links_->Disconnect(connection);
  NudgeEngine();
}

void UcxTransport::Send(ConnectionId connection, Message message,
                        uint64_t token) {
  const Lock lock(this);
  links_->Send(connection, std::move(message), token);
  NudgeEngine();
}

void UcxTransport::Wake() {
  woken_ = true;
  engine_wake_.Signal();
}

void UcxTransport::Sleep(absl::Duration wait) {
  int efd;
  {
    const Lock lock(this);
    if (links_->has_events() || !links_->Arm()) return;
    engine_sleeps_ = true;
    efd = links_->efd();
  }
  engine_wake_.WaitWith(efd, -1, wait);
  const Lock lock(this);
  engine_sleeps_ = false;
}

void UcxTransport::Poll(absl::Duration max_wait, std::vector<Event>* events) {
  const absl::Time start = Now();
  const absl::Time end = start + max_wait;
  const absl::Time spin_end = start + std::min(max_wait, options_.spin);
  absl::Time now = start;
  while (true) {
    LetOthersLock();
    {
      const Lock lock(this);
      engine_polls_ = true;
      links_->Drive();
      const bool leave =
          links_->TakeEvents(events) || woken_.exchange(false) || now >= end;
      if (leave) {
        engine_polls_ = false;
        return;
      }
    }
    if (now >= spin_end) {
      Sleep(end - now);
    } else {
      Relax();
    }
    now = Now();
  }
}

void UcxTransport::Keep() {
  uint64_t seen_activity = 0;
  while (!stop_) {
    int efd = -1;
    int door;
    absl::Duration wait;
    {
      const Lock lock(this);
      const absl::Time now = Now();
      door = links_->door_fd();
      links_->RunDoor();
      if (!engine_polls_ || now >= links_->next_tick()) links_->Drive();
      NudgeEngine();
      wait = links_->next_tick() - now;
      if (!engine_polls_ && links_->has_connections()) {
        if (!links_->Arm()) continue;  // there is more to do at once
        efd = links_->efd();
      } else if (links_->activity() != seen_activity) {
        seen_activity = links_->activity();
        wait = std::min(wait, kKeeperLook);
      }
    }
    keeper_wake_.WaitWith(efd, door, wait);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(
    const Options& options) {
  auto transport = std::make_unique<UcxTransport>(options);
  TL_RETURN_IF_ERROR(transport->Start());
  return transport;
}

}  // namespace trunkline::transport
