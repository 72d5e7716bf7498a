// The ucx backend and the network: cut links, strangers at the port, names and
// families of addresses, file descriptors.

#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "tests/contract/transport_peer.h"
#include "transport/address.h"
#include "transport/ucx/socket_address.h"
#include "transport/ucx/ucx_context.h"

namespace trunkline::transport {
namespace {

uint16_t PortOf(const std::string& address) {
  return ParseHostPort(address.substr(6))->port;
}

// Connects a plain socket; -1 when nobody is there.
int DialTcp(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

// The tcp ports that this process listens on: the dialled one and those that
// UCX opened for its data connections.
std::set<uint16_t> OwnListeningPorts() {
  std::set<std::string> inodes;
  DIR* const dir = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(dir)) {
    char target[64];
    const std::string path = absl::StrCat("/proc/self/fd/", entry->d_name);
    const ssize_t n = readlink(path.c_str(), target, sizeof target - 1);
    const std::string link(target, n > 0 ? static_cast<size_t>(n) : 0);
    if (link.rfind("socket:[", 0) == 0)
      inodes.insert(link.substr(8, link.size() - 9));
  }
  closedir(dir);
  std::set<uint16_t> ports;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, skip, inode;
    words >> slot >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) words >> skip;
    words >> inode;
    if (state != "0A" || !inodes.contains(inode)) continue;
    ports.insert(static_cast<uint16_t>(
        std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
  }
  return ports;
}

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* const dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

// Bytes of another protocol, or of none, at every port: the listener has no
// event of it and its real connections go on.
TEST(UcxNetwork, StrangersAtThePortDisturbNobody) {
  Options options;
  options.connect_timeout = absl::Seconds(1);
  Peer listener("ucx", options), dialer("ucx", options);
  const std::string address = listener.Listen();
  const ConnectionId there = dialer.Connect(address);
  ASSERT_TRUE(PumpUntil({&dialer, &listener},
                        [&] { return listener.accepted().size() == 1; }));
  const std::set<uint16_t> ports = OwnListeningPorts();
  ASSERT_TRUE(ports.contains(PortOf(address)));
  EXPECT_GE(ports.size(), 2u) << "the data ports should be here too";

  RandomStream random(3);
  std::vector<std::string> openings = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string(1, '\0'),
      std::string(64, '\0'),
      std::string(8, '\xff'),
      std::string(100000, 'A'),
      "",
  };
  for (int i = 0; i < 20; ++i) {
    std::string bytes;
    for (uint64_t n = random.NextBelow(3000); n > 0; --n)
      bytes += static_cast<char>(random.Next());
    openings.push_back(bytes);
  }
  std::vector<int> strangers;
  for (const uint16_t port : ports) {
    for (const std::string& bytes : openings) {
      const int fd = DialTcp(port);
      if (fd < 0) continue;
      // A port may refuse the rest of what it does not understand.
      if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) <
          0) {
        EXPECT_TRUE(errno == EPIPE || errno == ECONNRESET || errno == EAGAIN);
      }
      strangers.push_back(fd);
      dialer.Pump(absl::ZeroDuration());
      listener.Pump(absl::ZeroDuration());
    }
  }
  EXPECT_GT(strangers.size(), openings.size());
  PumpFor({&dialer, &listener}, absl::Milliseconds(300));
  for (size_t i = 0; i < strangers.size(); i += 2) close(strangers[i]);
  PumpFor({&dialer, &listener}, absl::Milliseconds(1300));
  EXPECT_EQ(listener.event_count(), 1u) << listener.Summary();

  dialer.Send(there, 1, 2 << 20);
  EXPECT_TRUE(PumpUntil({&dialer, &listener}, [&] {
    return listener.link(listener.accepted()[0]).received.size() == 1;
  }));
  Peer another("ucx", options);
  const ConnectionId new_one = another.Connect(address);
  EXPECT_TRUE(PumpUntil({&another, &listener},
                        [&] { return another.link(new_one).connected; }));
  for (size_t i = 1; i < strangers.size(); i += 2) close(strangers[i]);
}

// A port that takes connections and never says a word.
TEST(UcxNetwork, ASilentListenerIsGivenUpAfterTheConnectTimeout) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), length), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length);
  Options options;
  options.connect_timeout = absl::Milliseconds(500);
  Peer dialer("ucx", options);
  const absl::Time start = absl::Now();
  const ConnectionId id =
      dialer.Connect(absl::StrCat("127.0.0.1:", ntohs(at.sin_port)));
  ASSERT_TRUE(PumpUntil({&dialer}, [&] { return dialer.link(id).is_down(); }));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(490));
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(1500));
  EXPECT_NE(dialer.link(id).down->ToString().find("no answer"),
            std::string::npos)
      << *dialer.link(id).down;
  close(fd);
}

// localhost may mean ::1 first; the listener is on 127.0.0.1 only.
TEST(UcxNetwork, AHostNameIsLookedUpAndItsAddressesAreTriedInTurn) {
  // A root without /etc/hosts, as debootstrap leaves it, has no name at all.
  if (!ucx::LookUp({"localhost", 1}, /*numeric_only=*/false).ok())
    GTEST_SKIP() << "the resolver of this machine does not know localhost";
  Peer listener("ucx"), dialer("ucx");
  const uint16_t port = PortOf(listener.Listen());
  const ConnectionId id =
      dialer.Connect(absl::StrCat("ucx://localhost:", port));
  EXPECT_TRUE(PumpUntil({&dialer, &listener},
                        [&] { return dialer.link(id).connected; }));
}

TEST(UcxNetwork, AnUnknownHostIsAPeerThatIsDown) {
  Peer dialer("ucx");
  const ConnectionId id = dialer.Connect("ucx://no-such-host.invalid:1");
  ASSERT_TRUE(PumpUntil({&dialer}, [&] { return dialer.link(id).is_down(); }));
  EXPECT_EQ(dialer.link(id).down->code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(dialer.link(id).down->ToString().find("no-such-host.invalid"),
            std::string::npos);
}

// The peer is gone before its name is known.
TEST(UcxNetwork, DisconnectDuringTheLookUp) {
  Peer dialer("ucx");
  const ConnectionId id = dialer.Connect("ucx://localhost:1");
  dialer.transport().Disconnect(id);
  ASSERT_TRUE(PumpUntil({&dialer}, [&] { return dialer.link(id).is_down(); }));
  PumpFor({&dialer}, absl::Milliseconds(50));
  EXPECT_EQ(dialer.event_count(), 1u);
}

TEST(UcxNetwork, SpeaksIpv6) {
  Peer listener("ucx"), dialer("ucx");
  const auto address = listener.transport().Listen("[::1]:0");
  if (!address.ok()) GTEST_SKIP() << "no IPv6 here: " << address.status();
  EXPECT_EQ(address->rfind("ucx://[::1]:", 0), 0u) << *address;
  const ConnectionId id = dialer.Connect(*address);
  dialer.Send(id, 4, 1 << 20);
  EXPECT_TRUE(PumpUntil({&dialer, &listener}, [&] {
    return listener.accepted().size() == 1 &&
           listener.link(listener.accepted()[0]).received.size() == 1;
  }));
}

TEST(UcxNetwork, AListenerOnAllInterfacesNamesOneThatCanBeDialled) {
  Peer listener("ucx"), dialer("ucx");
  const auto address = listener.transport().Listen("0.0.0.0:0");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->find("0.0.0.0"), std::string::npos) << *address;
  const ConnectionId id = dialer.Connect(*address);
  EXPECT_TRUE(PumpUntil({&dialer, &listener},
                        [&] { return dialer.link(id).connected; }));
}

TEST(UcxNetwork, AddressesThatNoSocketHasAreInvalid) {
  Peer peer("ucx");
  for (const char* address :
       {"ucx://127.0.0.1", "127.0.0.1:99999", "ucx://:80", "::1:80",
        "ucx://[::1]", "ucx://a b:1", "ucx://127.0.0.1:0"}) {
    EXPECT_EQ(peer.transport().Connect(address).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
  EXPECT_EQ(peer.transport().Listen("1.2.3.4:0").status().code(),
            absl::StatusCode::kUnavailable)
      << "an address of another machine";
}

TEST(UcxNetwork, TwoHundredConnectionsLeaveNoDescriptorBehind) {
  Peer listener("ucx"), dialer("ucx");
  const std::string address = listener.Listen();
  size_t before = 0;
  for (int i = 0; i < 200; ++i) {
    const ConnectionId id = dialer.Connect(address);
    ASSERT_TRUE(PumpUntil({&dialer, &listener}, [&] {
      return dialer.link(id).connected;
    })) << i;
    if (i % 2 == 0) {
      dialer.transport().Disconnect(id);
    } else {
      ASSERT_TRUE(PumpUntil({&dialer, &listener}, [&] {
        return listener.link(listener.accepted().back()).up();
      }));
      listener.transport().Disconnect(listener.accepted().back());
    }
    ASSERT_TRUE(PumpUntil({&dialer, &listener}, [&] {
      return dialer.link(id).is_down() &&
             listener.accepted().size() == static_cast<size_t>(i) + 1 &&
             listener.link(listener.accepted().back()).is_down();
    })) << i;
    if (i == 9) before = OpenDescriptors();
  }
  EXPECT_TRUE(PumpUntil(
      {&dialer, &listener}, [&] { return OpenDescriptors() <= before + 4; },
      absl::Seconds(5)))
      << OpenDescriptors() << " descriptors, " << before << " after ten";
}

// Settings for transports that the operator has ruled out are not made: UCX
// would warn of them.
TEST(UcxNetwork, KnowsWhichTransportsTheOperatorLeaves) {
  using ucx::AnyInUse;
  EXPECT_TRUE(AnyInUse(nullptr, {"tcp"}));
  EXPECT_TRUE(AnyInUse("all", {"tcp"}));
  EXPECT_TRUE(AnyInUse("rc,tcp", {"tcp"}));
  EXPECT_FALSE(AnyInUse("rc,self", {"tcp"}));
  EXPECT_FALSE(AnyInUse("^tcp", {"tcp"}));
  EXPECT_TRUE(AnyInUse("^cma", {"tcp"}));
  EXPECT_TRUE(AnyInUse("tcp,posix", {"posix", "sysv"}));
  EXPECT_FALSE(AnyInUse("tcp", {"posix", "sysv"}));
  EXPECT_TRUE(AnyInUse("tcp", {}));
  EXPECT_TRUE(AnyInUse("tcp,sm", {"posix", "sysv"}));
  EXPECT_FALSE(AnyInUse("^shm", {"posix", "sysv"}));
  EXPECT_FALSE(AnyInUse("^mm", {"posix", "sysv"}));
}

// Over the network there is no shared memory: a process that is killed while it
// writes there would silence all others. Nor does a container of the same IPC
// namespace get into it, whose signals would not wake us.
TEST(UcxNetwork, OnlyTheHostsOwnPeersMeetInSharedMemory) {
  using ucx::Reach;
  using ucx::SharedMemoryInUse;
  using ucx::TransportsFor;
  EXPECT_EQ(TransportsFor(Reach::kNetwork, nullptr), "^sm");
  EXPECT_EQ(TransportsFor(Reach::kNetwork, "all"), "^sm");
  EXPECT_EQ(TransportsFor(Reach::kNetwork, "^ud"), "^ud,sm");
  EXPECT_EQ(TransportsFor(Reach::kNetwork, "tcp,sysv,cma,rc"), "tcp,rc");
  EXPECT_EQ(TransportsFor(Reach::kNetwork, "tcp,shm"), "tcp");
  EXPECT_EQ(TransportsFor(Reach::kNetwork, "sysv,self"), "self");
  EXPECT_EQ(TransportsFor(Reach::kNetwork, "sm"), "sm");
  EXPECT_EQ(TransportsFor(Reach::kHost, nullptr), "^posix");
  EXPECT_EQ(TransportsFor(Reach::kHost, "tcp,posix"), "tcp,posix");
  EXPECT_TRUE(SharedMemoryInUse(nullptr));
  EXPECT_TRUE(SharedMemoryInUse("tcp,shm"));
  EXPECT_FALSE(SharedMemoryInUse("tcp,cma"));
  EXPECT_FALSE(SharedMemoryInUse("^sm"));
}

// The operator's word goes before ours.
TEST(UcxNetwork, ATransportListThatFitsNoDeviceIsUnavailable) {
  setenv("UCX_TLS", "no_such_transport", 1);
  auto made = MakeTransport("ucx", {});
  unsetenv("UCX_TLS");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace trunkline::transport
