// Peers that speak UCX, or knock at the door, but not as they should. The other
// end here is UCX itself with nothing of ours around it.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tests/contract/transport_peer.h"
#include "transport/address.h"
#include "transport/ucx/ucx_context.h"
#include "transport/ucx/wire.h"

namespace trunkline::transport::ucx {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return out;
}

// Knocks with the given bytes; the answer, or nothing when the door stays shut.
std::optional<DoorAnswer> KnockWith(Peer* listener, const std::string& address,
                                    const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in to = Loopback(ParseHostPort(address.substr(6))->port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 ||
      send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
    close(fd);
    return std::nullopt;
  }
  DoorAnswer answer;
  ssize_t got = -1;
  PumpUntil({listener}, [&] {
    got = recv(fd, &answer, sizeof answer, MSG_DONTWAIT);
    return got >= 0 || (errno != EAGAIN && errno != EINTR);
  });
  close(fd);
  if (got != static_cast<ssize_t>(sizeof answer)) return std::nullopt;
  return answer;
}

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// A UCX endpoint that sends whatever it is told.
class RawPeer {
 public:
  explicit RawPeer(uint16_t port) {
    auto context = UcxContext::Create(Reach::kHost);
    EXPECT_TRUE(context.ok()) << context.status();
    context_ = std::move(*context);
    auto worker = UcxWorker::Create(*context_);
    EXPECT_TRUE(worker.ok()) << worker.status();
    worker_ = std::move(*worker);
    // UCX crashes on a message that it has no handler for.
    for (const AmId id : {kAmHello, kAmChunk, kAmHeartbeat}) {
      ucp_am_handler_param_t handler{};
      handler.field_mask =
          UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
      handler.id = id;
      handler.cb = [](void*, const void*, size_t, void*, size_t,
                      const ucp_am_recv_param_t*) { return UCS_OK; };
      EXPECT_EQ(ucp_worker_set_am_recv_handler(worker_->get(), &handler),
                UCS_OK);
    }
    const sockaddr_in to = Loopback(port);
    ucp_ep_params_t params{};
    params.field_mask =
        UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
        UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&to);
    params.sockaddr.addrlen = sizeof to;
    params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t) {
      static_cast<RawPeer*>(arg)->down_ = true;
    };
    params.err_handler.arg = this;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    EXPECT_EQ(ucp_ep_create(worker_->get(), &params, &endpoint_), UCS_OK);
  }
  ~RawPeer() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* const request = ucp_ep_close_nbx(endpoint_, &param);
    const absl::Time end = absl::Now() + absl::Seconds(5);
    while (UCS_PTR_IS_PTR(request) && absl::Now() < end &&
           ucp_request_check_status(request) == UCS_INPROGRESS) {
      Progress();
    }
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    for (void* sent : requests_) {
      while (ucp_request_check_status(sent) == UCS_INPROGRESS &&
             absl::Now() < end) {
        Progress();
      }
      ucp_request_free(sent);
    }
  }

  void Send(unsigned am, const std::string& header, size_t payload) {
    // UCX reads both until the send is done.
    held_.push_back(header);
    held_.push_back(std::string(payload, 'p'));
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_REPLY;
    const std::string& held_header = *std::prev(held_.end(), 2);
    void* const request =
        ucp_am_send_nbx(endpoint_, am, held_header.data(), held_header.size(),
                        held_.back().data(), payload, &param);
    if (UCS_PTR_IS_PTR(request)) requests_.push_back(request);
  }
  void Progress() { worker_->Progress(); }
  bool down() const { return down_; }

 private:
  std::unique_ptr<UcxContext> context_;
  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  bool down_ = false;
  std::list<std::string> held_;
  std::vector<void*> requests_;
};

class UcxProtocol : public ::testing::Test {
 protected:
  UcxProtocol() { options_.connect_timeout = absl::Seconds(2); }

  void SetUp() override {
    listener_ = std::make_unique<Peer>("ucx", options_);
    address_ = listener_->Listen();
    good_ = std::make_unique<Peer>("ucx", options_);
    good_id_ = good_->Connect(address_);
    ASSERT_TRUE(PumpUntil({listener_.get(), good_.get()},
                          [&] { return good_->link(good_id_).connected; }));
  }

  // A raw peer that has been let in.
  std::unique_ptr<RawPeer> Enter() {
    const auto answer =
        KnockWith(listener_.get(), address_, BytesOf(DoorKnock{}));
    EXPECT_TRUE(answer.has_value());
    if (!answer.has_value()) return nullptr;
    EXPECT_EQ(answer->verdict, DoorVerdict::kWelcome);
    ticket_ = answer->ticket;
    return std::make_unique<RawPeer>(answer->port);
  }

  // Until the listener has thrown the raw peer out.
  bool IsThrownOut(RawPeer* raw) {
    return PumpUntil({listener_.get(), good_.get()}, [&] {
      raw->Progress();
      return raw->down();
    });
  }

  std::unique_ptr<RawPeer> EnterAndGreet() {
    const size_t before = listener_->accepted().size();
    auto raw = Enter();
    raw->Send(kAmHello, BytesOf(Hello{.ticket = ticket_}), 0);
    EXPECT_TRUE(PumpUntil({listener_.get(), good_.get()}, [&] {
      raw->Progress();
      return listener_->accepted().size() == before + 1;
    }));
    return raw;
  }

  // The well-behaved connection has seen nothing of it all.
  void TearDown() override {
    const size_t before = good_->done_count();
    good_->Send(good_id_, 1, 1 << 20);
    EXPECT_TRUE(PumpUntil({listener_.get(), good_.get()},
                          [&] { return good_->done_count() == before + 1; }));
    EXPECT_FALSE(good_->link(good_id_).is_down());
  }

  Options options_;
  std::unique_ptr<Peer> listener_;
  std::unique_ptr<Peer> good_;
  ConnectionId good_id_;
  std::string address_;
  uint64_t ticket_ = 0;
};

TEST_F(UcxProtocol, AKnockOfAnotherVersionIsToldOurs) {
  DoorKnock knock;
  knock.version = kWireVersion + 7;
  const auto answer = KnockWith(listener_.get(), address_, BytesOf(knock));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->verdict, DoorVerdict::kOtherVersion);
  EXPECT_EQ(answer->version, kWireVersion);
  EXPECT_EQ(answer->port, 0);
}

TEST_F(UcxProtocol, AKnockWithoutTheMagicGetsNoAnswer) {
  DoorKnock knock;
  knock.magic ^= 1;
  EXPECT_FALSE(KnockWith(listener_.get(), address_, BytesOf(knock)));
}

// The door of something else, or of a later version of ours.
TEST_F(UcxProtocol, AnAnswerThatIsNotOursIsNamed) {
  const struct {
    DoorAnswer answer;
    const char* words;
  } cases[] = {{{.magic = 1}, "no Trunkline"},
               {{.version = kWireVersion + 1}, "version 2"},
               {{.verdict = DoorVerdict::kFull}, "no more connections"}};
  for (const auto& c : cases) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at = Loopback(0);
    socklen_t length = sizeof at;
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), length), 0);
    ASSERT_EQ(listen(fd, 1), 0);
    getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length);
    const ConnectionId id =
        good_->Connect("127.0.0.1:" + std::to_string(ntohs(at.sin_port)));
    const int guest = accept(fd, nullptr, nullptr);
    ASSERT_EQ(send(guest, &c.answer, sizeof c.answer, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof c.answer));
    ASSERT_TRUE(PumpUntil({good_.get(), listener_.get()},
                          [&] { return good_->link(id).is_down(); }));
    EXPECT_NE(good_->link(id).down->ToString().find(c.words), std::string::npos)
        << *good_->link(id).down;
    close(guest);
    close(fd);
  }
}

TEST_F(UcxProtocol, AGreetingMustBeOurs) {
  const Hello wrong_magic{.magic = 1};
  const Hello wrong_version{.version = kWireVersion + 1};
  const Hello wrong_ticket{.ticket = 12345};
  for (const std::string& hello :
       {BytesOf(wrong_magic), BytesOf(wrong_version), BytesOf(wrong_ticket),
        std::string("hi"), std::string()}) {
    auto raw = Enter();
    ASSERT_NE(raw, nullptr);
    raw->Send(kAmHello, hello, 0);
    EXPECT_TRUE(IsThrownOut(raw.get()));
  }
  EXPECT_EQ(listener_->accepted().size(), 1u) << "no event of the others";
}

TEST_F(UcxProtocol, AMessageBeforeTheGreetingEndsTheConnection) {
  auto raw = Enter();
  ASSERT_NE(raw, nullptr);
  raw->Send(kAmChunk, BytesOf(ChunkHeader{0, 3, 0}), 3);
  EXPECT_TRUE(IsThrownOut(raw.get()));
  EXPECT_EQ(listener_->accepted().size(), 1u);
}

TEST_F(UcxProtocol, ASilentVisitorIsThrownOutAfterTheConnectTimeout) {
  auto raw = Enter();
  ASSERT_NE(raw, nullptr);
  const absl::Time start = absl::Now();
  EXPECT_TRUE(IsThrownOut(raw.get()));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(listener_->accepted().size(), 1u);
}

TEST_F(UcxProtocol, BadChunksEndTheirConnectionWithTheReason) {
  const struct {
    std::string header;
    size_t payload;
    const char* words;
  } cases[] = {
      {"short", 10, "chunk header"},
      {BytesOf(ChunkHeader{0, uint64_t{1} << 40, 0}), 10, "message_bytes_max"},
      {BytesOf(ChunkHeader{900, 10, 0}), 10, "is due"},
      {BytesOf(ChunkHeader{0, 10, 0}), 11, "chunk of 11"},
      {BytesOf(ChunkHeader{0, 2 << 20, 7}), 1 << 20, "at 7"},
      {BytesOf(ChunkHeader{0, 4 << 20, 0}), 3 << 20, "chunk of 3145728"},
  };
  size_t connections = 1;
  for (const auto& c : cases) {
    auto raw = Enter();
    ASSERT_NE(raw, nullptr);
    raw->Send(kAmHello, BytesOf(Hello{.ticket = ticket_}), 0);
    raw->Send(kAmChunk, c.header, c.payload);
    ASSERT_TRUE(IsThrownOut(raw.get())) << c.words;
    ++connections;
    ASSERT_TRUE(PumpUntil({listener_.get(), good_.get()}, [&] {
      return listener_->accepted().size() == connections &&
             listener_->link(listener_->accepted().back()).is_down();
    }));
    const absl::Status& why =
        *listener_->link(listener_->accepted().back()).down;
    EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_NE(why.ToString().find(c.words), std::string::npos) << why;
  }
}

// A kind of message that this version does not know. Those that UCX drops
// leave a peer without heartbeats, which goes down for its silence.
TEST_F(UcxProtocol, AnUnknownKindOfMessageEndsItsConnectionOnly) {
  for (const unsigned am : {3u, 4u, 31u, 32u, 200u, 65535u}) {
    auto raw = EnterAndGreet();
    raw->Send(am, "header", 100);
    const ConnectionId id = listener_->accepted().back();
    ASSERT_TRUE(PumpUntil({listener_.get(), good_.get()}, [&] {
      raw->Progress();
      return listener_->link(id).is_down();
    }));
    EXPECT_NE(listener_->link(id).down->ToString().find(
                  am < kAmIds ? "unknown kind of message" : "no sign of life"),
              std::string::npos)
        << am << ": " << *listener_->link(id).down;
  }
}

TEST_F(UcxProtocol, APeerWithoutHeartbeatsGoesDown) {
  auto raw = EnterAndGreet();
  const ConnectionId id = listener_->accepted().back();
  const absl::Time start = absl::Now();
  ASSERT_TRUE(PumpUntil({listener_.get(), good_.get()}, [&] {
    raw->Progress();
    return listener_->link(id).is_down();
  }));
  EXPECT_GE(absl::Now() - start, options_.peer_timeout / 2);
  EXPECT_NE(listener_->link(id).down->ToString().find("no sign of life"),
            std::string::npos);
}

// A message alone is a sign of life too.
TEST_F(UcxProtocol, MessagesKeepAPeerAliveWithoutHeartbeats) {
  auto raw = EnterAndGreet();
  const ConnectionId id = listener_->accepted().back();
  const absl::Time end = absl::Now() + 3 * options_.peer_timeout;
  absl::Time next = absl::Now();
  uint64_t sequence = 0;
  PumpUntil({listener_.get(), good_.get()}, [&] {
    if (absl::Now() >= next) {
      raw->Send(kAmChunk, BytesOf(ChunkHeader{sequence++, 4, 0}), 4);
      next += absl::Milliseconds(100);
    }
    raw->Progress();
    return absl::Now() >= end;
  });
  EXPECT_FALSE(listener_->link(id).is_down()) << *listener_->link(id).down;
  EXPECT_GT(listener_->link(id).received.size(), 10u);
}

}  // namespace
}  // namespace trunkline::transport::ucx
