#include "transport/ucx/door.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/address.h"

namespace trunkline::transport::ucx {
namespace {

// Strangers that have connected and say nothing; the oldest gives way.
constexpr size_t kGuestsMax = 256;
constexpr int kBacklog = 512;

absl::Status Errno(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

int NewSocket(int family) {
  return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

// Reads what is still missing of a fixed-size block. True while the other side
// may yet complete it.
bool ReadBlock(int fd, std::byte* bytes, size_t size, size_t* got) {
  while (*got < size) {
    const ssize_t n = recv(fd, bytes + *got, size - *got, 0);
    if (n > 0) {
      *got += static_cast<size_t>(n);
    } else {
      return n < 0 && (errno == EAGAIN || errno == EINTR);
    }
  }
  return true;
}

}  // namespace

Door::~Door() {
  for (int fd : listeners_) close(fd);
  for (const Guest& guest : guests_) close(guest.fd);
  for (const Call& call : calls_) close(call.fd);
  if (epoll_ >= 0) close(epoll_);
}

absl::Status Door::Open() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  return epoll_ >= 0 ? absl::OkStatus() : Errno("ucx: epoll");
}

void Door::Watch(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

absl::StatusOr<SocketAddress> Door::Listen(const SocketAddress& address) {
  const std::string where = FormatHostPort(ToHostPort(address));
  const int fd = NewSocket(address.get()->sa_family);
  if (fd < 0) return Errno(absl::StrCat("can't listen on ucx://", where));
  // A restarted listener must not wait for its old connections to time out.
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  SocketAddress bound = address;
  bound.length = sizeof bound.storage;
  if (bind(fd, address.get(), address.length) != 0 ||
      listen(fd, kBacklog) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage),
                  &bound.length) != 0) {
    const absl::Status why =
        errno == EADDRINUSE
            ? absl::AlreadyExistsError(
                  absl::StrCat("ucx://", where, " is in use"))
            : Errno(absl::StrCat("can't listen on ucx://", where));
    close(fd);
    return why;
  }
  listeners_.push_back(fd);
  // Edge: without descriptors left, a caller in the backlog must not keep the
  // watcher running; Run looks again anyway.
  Watch(fd, EPOLLIN | EPOLLET);
  return bound;
}

void Door::Knock(ConnectionId connection, const SocketAddress& address) {
  Call call;
  call.connection = connection;
  call.address = address;
  call.fd = NewSocket(address.get()->sa_family);
  // A failure shows when Run looks at the call: SO_ERROR, or a socket that
  // never was.
  if (call.fd >= 0) {
    if (connect(call.fd, address.get(), address.length) != 0 &&
        errno != EINPROGRESS) {
      close(std::exchange(call.fd, -1));
    } else {
      Watch(call.fd, EPOLLIN | EPOLLOUT | EPOLLET);
    }
  }
  calls_.push_back(call);
}

void Door::Forget(ConnectionId connection) {
  calls_.remove_if([&](const Call& call) {
    if (call.connection != connection) return false;
    if (call.fd >= 0) close(call.fd);
    return true;
  });
}

void Door::AcceptGuests(int listener, absl::Time now) {
  while (true) {
    const int fd =
        accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (guests_.size() >= kGuestsMax) {
      close(guests_.front().fd);
      guests_.pop_front();
    }
    Guest& guest = guests_.emplace_back();
    guest.fd = fd;
    guest.deadline = now + patience_;
    Watch(fd, EPOLLIN | EPOLLET);
  }
}

bool Door::HearGuest(Guest* guest, std::vector<Visitor>* visitors) {
  if (!ReadBlock(guest->fd, guest->bytes, sizeof guest->bytes, &guest->got))
    return false;
  if (guest->got < sizeof guest->bytes) return true;
  DoorKnock knock;
  std::memcpy(&knock, guest->bytes, sizeof knock);
  if (knock.magic != kMagic) return false;
  Visitor visitor;
  visitor.fd = guest->fd;
  visitor.peer.length = visitor.local.length = sizeof visitor.peer.storage;
  if (getpeername(guest->fd, reinterpret_cast<sockaddr*>(&visitor.peer.storage),
                  &visitor.peer.length) != 0 ||
      getsockname(guest->fd,
                  reinterpret_cast<sockaddr*>(&visitor.local.storage),
                  &visitor.local.length) != 0) {
    return false;
  }
  visitor.name = FormatHostPort(ToHostPort(visitor.peer));
  if (knock.version != kWireVersion) {
    Admit(visitor, {.verdict = DoorVerdict::kOtherVersion});
  } else {
    visitors->push_back(std::move(visitor));
  }
  guest->fd = -1;
  return false;
}

void Door::Admit(const Visitor& visitor, const DoorAnswer& answer) {
  // A new connection's send buffer has room for an answer; a visitor that has
  // gone gets none.
  if (send(visitor.fd, &answer, sizeof answer, MSG_NOSIGNAL) < 0) {
    close(visitor.fd);
    return;
  }
  close(visitor.fd);
}

bool Door::HearCall(Call* call, Reply* reply) {
  reply->connection = call->connection;
  reply->status = absl::OkStatus();
  if (call->fd < 0) {
    reply->status = absl::UnavailableError("no route or no socket");
    return false;
  }
  if (!call->knocked) {
    const DoorKnock knock;
    const ssize_t n = send(call->fd, &knock, sizeof knock, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == ENOTCONN)) return true;
    if (n != static_cast<ssize_t>(sizeof knock)) {
      reply->status = absl::UnavailableError(std::strerror(errno));
      return false;
    }
    call->knocked = true;
  }
  if (!ReadBlock(call->fd, call->bytes, sizeof call->bytes, &call->got)) {
    reply->status = absl::UnavailableError("it hung up");
    return false;
  }
  if (call->got < sizeof call->bytes) return true;
  DoorAnswer answer;
  std::memcpy(&answer, call->bytes, sizeof answer);
  if (answer.magic != kMagic) {
    reply->status =
        absl::FailedPreconditionError("what listens there is no Trunkline");
  } else if (answer.version != kWireVersion ||
             answer.verdict == DoorVerdict::kOtherVersion) {
    reply->status = absl::FailedPreconditionError(
        absl::StrCat("it speaks transport version ", answer.version,
                     ", this is version ", kWireVersion));
  } else if (answer.verdict != DoorVerdict::kWelcome) {
    reply->status = absl::UnavailableError("it takes no more connections");
  } else {
    reply->address = answer.has_ipv4 != 0
                         ? FromIpv4(answer.ipv4, answer.port)
                         : WithPort(call->address, answer.port);
    reply->ticket = answer.ticket;
  }
  return false;
}

void Door::Run(absl::Time now, std::vector<Visitor>* visitors,
               std::vector<Reply>* replies) {
  // The sets are small and connections rare: everyone is asked, and the events
  // only say that somebody has something to say.
  epoll_event events[16];
  epoll_wait(epoll_, events, 16, 0);
  for (int listener : listeners_) AcceptGuests(listener, now);
  guests_.remove_if([&](Guest& guest) {
    const bool stays = HearGuest(&guest, visitors) && now < guest.deadline;
    if (!stays && guest.fd >= 0) close(guest.fd);
    return !stays;
  });
  calls_.remove_if([&](Call& call) {
    Reply reply;
    if (HearCall(&call, &reply)) return false;
    if (call.fd >= 0) close(call.fd);
    replies->push_back(std::move(reply));
    return true;
  });
}

}  // namespace trunkline::transport::ucx
