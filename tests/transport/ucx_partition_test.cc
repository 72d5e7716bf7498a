// Cut and slow links between network namespaces. They need the right to make
// namespaces; without it the tests are skipped.

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/transport/child_process.h"

namespace trunkline::transport {
namespace {

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> out;
  std::string word;
  for (const char c : text + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      out.push_back(std::move(word));
      word.clear();
    }
  }
  return out;
}

bool Succeeds(const std::string& command) {
  ChildProcess child(Words(command));
  return child.started() && child.Wait() == 0;
}

// UCX takes the devices that are up when it starts, and a new link takes a
// moment to carry anything.
bool WaitForLink(const std::string& space) {
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (absl::Now() < end) {
    ChildProcess child(Words("ip -n " + space + " -br link show eth0"));
    const auto line = child.ReadLine("eth0");
    if (line.has_value() && line->find("LOWER_UP") != std::string::npos &&
        line->find(" UP ") != std::string::npos) {
      return true;
    }
  }
  return false;
}

// Two namespaces, 10.213.7.1 and 10.213.7.2, with one link between them.
class UcxPartition : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "not root: no network namespaces";
    const std::string pid = std::to_string(getpid());
    a_ = "tl-a-" + pid;
    b_ = "tl-b-" + pid;
    if (!Succeeds("ip netns add " + a_) || !Succeeds("ip netns add " + b_) ||
        !Succeeds("ip -n " + a_ +
                  " link add eth0 type veth peer name eth0 netns " + b_)) {
      GTEST_SKIP() << "no network namespaces, no veth or no ip command here";
    }
    for (const auto& [space, address] :
         {std::pair{a_, "10.213.7.1/24"}, std::pair{b_, "10.213.7.2/24"}}) {
      ASSERT_TRUE(
          Succeeds("ip -n " + space + " addr add " + address + " dev eth0"));
      ASSERT_TRUE(Succeeds("ip -n " + space + " link set eth0 up"));
      ASSERT_TRUE(Succeeds("ip -n " + space + " link set lo up"));
    }
    ASSERT_TRUE(WaitForLink(a_) && WaitForLink(b_));
  }

  void TearDown() override {
    serve_.reset();
    dial_.reset();
    Succeeds("ip netns del " + a_);
    Succeeds("ip netns del " + b_);
  }

  // UCX would find shared memory between the two: they are on one machine.
  std::unique_ptr<ChildProcess> PeerIn(const std::string& space,
                                       const std::string& role,
                                       const std::string& address, long count,
                                       size_t bytes) {
    return std::make_unique<ChildProcess>(std::vector<std::string>{
        "ip", "netns", "exec", space, "env", "UCX_TLS=tcp", TRUNKLINE_UCX_PEER,
        role, address, std::to_string(count), std::to_string(bytes), "600"});
  }

  // The dialer sends `count` messages of `bytes` to the listener.
  void StartBoth(long count, size_t bytes) {
    serve_ = PeerIn(a_, "serve", "10.213.7.1:0", 0, 0);
    const auto address = serve_->ReadLine("listening ");
    ASSERT_TRUE(address.has_value());
    dial_ = PeerIn(b_, "dial", *address, count, bytes);
    ASSERT_TRUE(serve_->ReadLine("up").has_value());
    ASSERT_TRUE(dial_->ReadLine("up").has_value());
  }

  void CutAndExpectBothDown() {
    ASSERT_TRUE(Succeeds("ip -n " + a_ + " link set eth0 down"));
    const absl::Time cut = absl::Now();
    EXPECT_TRUE(serve_->ReadLine("down ").has_value());
    EXPECT_TRUE(dial_->ReadLine("down ").has_value());
    // peer_timeout, a tick of the keeper, and a machine that is shared.
    EXPECT_LT(absl::Now() - cut, absl::Milliseconds(600 + 900));
  }

  std::string a_, b_;
  std::unique_ptr<ChildProcess> serve_, dial_;
};

// UCX itself reports this on one side only, or on none.
TEST_F(UcxPartition, ACutLinkIsNoticedOnBothSidesWhileIdle) {
  ASSERT_NO_FATAL_FAILURE(StartBoth(0, 0));
  CutAndExpectBothDown();
}

TEST_F(UcxPartition, ACutLinkIsNoticedOnBothSidesWhileSending) {
  ASSERT_NO_FATAL_FAILURE(StartBoth(-1, 300 << 10));
  ASSERT_TRUE(serve_->ReadLine("received 20").has_value());
  CutAndExpectBothDown();
}

// Forty megabytes take more than three seconds here. Heartbeats and messages
// share the link, and nobody is taken for dead.
TEST_F(UcxPartition, ASlowLinkFullOfLargeMessagesLosesNobody) {
  for (const std::string& space : {a_, b_}) {
    if (!Succeeds("ip netns exec " + space +
                  " tc qdisc add dev eth0 root tbf rate 100mbit burst "
                  "64kb latency 400ms")) {
      GTEST_SKIP() << "no tc with tbf here";
    }
  }
  const absl::Time start = absl::Now();
  ASSERT_NO_FATAL_FAILURE(StartBoth(4, 10 << 20));
  EXPECT_TRUE(dial_->ReadLine("sent", absl::Seconds(60)).has_value());
  EXPECT_TRUE(serve_->ReadLine("received 4", absl::Seconds(60)).has_value());
  EXPECT_GT(absl::Now() - start, absl::Seconds(2)) << "the link was not slow";
}

}  // namespace
}  // namespace trunkline::transport
