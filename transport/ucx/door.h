#pragma once

// The port that the world sees. UCX 1.13 ends the process when a stranger sends
// its connection manager the wrong bytes, so its listener does not stand open:
// a dialer first knocks here, over plain tcp, and is told where UCX listens for
// it and by which ticket it will be known. Whoever does not knock properly is
// shown out.
//
//   dialer                         listener
//   connect, Knock  ------------>  magic and version are checked
//                   <------------  Answer: welcome, port and ticket; or why not
//   UCX connect to the port, Hello with the ticket
//
// Nothing here blocks. Needs its owner's mutex for every call.

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/transport.h"
#include "transport/ucx/socket_address.h"
#include "transport/ucx/wire.h"

namespace trunkline::transport::ucx {

class Door {
 public:
  // A dialer that has knocked properly; Admit answers it.
  struct Visitor {
    int fd = -1;
    std::string name;  // its address
    SocketAddress peer;
    SocketAddress local;  // the address of ours that it has reached
  };
  // What came of a Knock of ours.
  struct Reply {
    ConnectionId connection;
    absl::Status status;    // why the door stayed shut
    SocketAddress address;  // of the peer's UCX listener
    uint64_t ticket = 0;
  };

  // `patience`: how long a stranger may take to knock.
  explicit Door(absl::Duration patience) : patience_(patience) {}
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  absl::Status Open();
  // ALREADY_EXISTS when the port is taken. Returns the bound address.
  absl::StatusOr<SocketAddress> Listen(const SocketAddress& address);
  void Knock(ConnectionId connection, const SocketAddress& address);
  void Forget(ConnectionId connection);

  // Readable when Run has something to do.
  int fd() const { return epoll_; }
  void Run(absl::Time now, std::vector<Visitor>* visitors,
           std::vector<Reply>* replies);
  // Sends the answer and closes.
  static void Admit(const Visitor& visitor, const DoorAnswer& answer);

 private:
  struct Guest {  // has connected, has not knocked yet
    int fd = -1;
    absl::Time deadline;
    size_t got = 0;
    std::byte bytes[sizeof(DoorKnock)];
  };
  struct Call {  // a Knock of ours
    ConnectionId connection;
    int fd = -1;
    SocketAddress address;
    bool knocked = false;
    size_t got = 0;
    std::byte bytes[sizeof(DoorAnswer)];
  };

  void AcceptGuests(int listener, absl::Time now);
  // Each returns false when its fd is to be closed; `fd` -1: has moved on.
  bool HearGuest(Guest* guest, std::vector<Visitor>* visitors);
  bool HearCall(Call* call, Reply* reply);
  void Watch(int fd, uint32_t events);

  const absl::Duration patience_;
  int epoll_ = -1;
  std::vector<int> listeners_;
  std::list<Guest> guests_;  // oldest first
  std::list<Call> calls_;
};

}  // namespace trunkline::transport::ucx
