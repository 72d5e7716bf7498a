#include "transport/address.h"

#include <gtest/gtest.h>

#include "common/random.h"

namespace trunkline::transport {
namespace {

TEST(TransportAddress, ReadsHostNamesAndBothKindsOfNumbers) {
  const struct {
    const char* text;
    const char* host;
    uint16_t port;
  } cases[] = {{"127.0.0.1:80", "127.0.0.1", 80},
               {"worker-1.experts.svc:65535", "worker-1.experts.svc", 65535},
               {"[::1]:0", "::1", 0},
               {"[fe80::1%eth0]:7", "fe80::1%eth0", 7},
               {"0.0.0.0:1", "0.0.0.0", 1}};
  for (const auto& c : cases) {
    const auto parsed = ParseHostPort(c.text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->host, c.host);
    EXPECT_EQ(parsed->port, c.port);
    EXPECT_EQ(FormatHostPort(*parsed), c.text);
  }
}

TEST(TransportAddress, ABadOneIsAnErrorThatShowsIt) {
  for (const std::string text :
       {"",         ":",        "host",        "host:",  ":80",    "host:65536",
        "host:-1",  "host:8o",  "host:000080", "::1:80", "[::1]",  "[::1]80",
        "[::1",     "[]:80",    "[name]:80",   "a b:80", "a/b:80", "host:80\n",
        "h\0st:80", "host: 80", "host:+80"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.status().ToString().find(text), std::string::npos);
  }
  EXPECT_FALSE(ParseHostPort(std::string(254, 'a') + ":1").ok());
}

TEST(TransportAddress, TheSchemeMustBeTheTransportsOwn) {
  EXPECT_EQ(*StripScheme("ucx://h:1", "ucx"), "h:1");
  EXPECT_EQ(*StripScheme("h:1", "ucx"), "h:1");
  const auto other = StripScheme("inprocess://h", "ucx");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().ToString().find("inprocess"), std::string::npos);
  EXPECT_FALSE(StripScheme("ucx://", "ucx").ok());
}

// Whatever the bytes, the answer is a status or a pair that prints back to the
// same text.
TEST(TransportAddress, RandomTextIsReadBackOrRefused) {
  RandomStream random(7);
  const std::string alphabet = "[]:.%-_a1b2/ \x01";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = random.NextBelow(12); n > 0; --n)
      text += alphabet[random.NextBelow(alphabet.size())];
    const auto parsed = ParseHostPort(text);
    if (!parsed.ok()) continue;
    const auto again = ParseHostPort(FormatHostPort(*parsed));
    ASSERT_TRUE(again.ok()) << text;
    EXPECT_EQ(again->host, parsed->host);
    EXPECT_EQ(again->port, parsed->port);
  }
}

}  // namespace
}  // namespace trunkline::transport
