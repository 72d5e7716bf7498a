#include "common/metric_registry.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"

namespace trunkline {
namespace {

using testing::HasSubstr;

std::string Get(const std::string& address) {
  uint32_t port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(port));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

TEST(MetricRegistry, ServesWhatComponentsCountOnAFreePort) {
  auto registry = std::make_shared<prometheus::Registry>();
  prometheus::Counter& counter = AddCounter(
      *registry, "trunkline_test_total", "What the test did.", {{"by", "me"}});
  const auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  counter.Increment(3);
  EXPECT_THAT(Get((*endpoint)->address()),
              HasSubstr("trunkline_test_total{by=\"me\"} 3"));
}

TEST(MetricRegistry, GivesTheSameHandleForTheSameNameAndLabels) {
  prometheus::Registry registry;
  prometheus::Gauge& a = AddGauge(registry, "trunkline_g", "g", {{"x", "1"}});
  prometheus::Gauge& b = AddGauge(registry, "trunkline_g", "g", {{"x", "1"}});
  prometheus::Gauge& c = AddGauge(registry, "trunkline_g", "g", {{"x", "2"}});
  EXPECT_EQ(&a, &b);
  EXPECT_NE(&a, &c);
  prometheus::Histogram& h =
      AddHistogram(registry, "trunkline_h", "h", {0.1, 1.0});
  h.Observe(0.5);
  EXPECT_THAT(MetricsText(registry),
              HasSubstr("trunkline_h_bucket{le=\"1\"} 1"));
}

TEST(MetricRegistry, SaysWhyItCanNotListen) {
  auto registry = std::make_shared<prometheus::Registry>();
  for (const char* bad :
       {"", "nowhere", ":1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"}) {
    const auto endpoint = MetricsEndpoint::Start(bad, registry);
    EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
  const auto first = MetricsEndpoint::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(first.ok());
  const auto second = MetricsEndpoint::Start((*first)->address(), registry);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr((*first)->address()));
}

}  // namespace
}  // namespace trunkline
