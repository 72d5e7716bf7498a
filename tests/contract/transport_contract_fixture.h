#pragma once

// The fixture of the transport contract: a listener, a dialer and a connection
// between them, of the backend that the suite is instantiated with.

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/contract/transport_peer.h"

namespace trunkline::transport {

class TransportContract : public ::testing::TestWithParam<std::string> {
 protected:
  // A listener and one connection to it, both ends up.
  struct Pair {
    explicit Pair(const std::string& kind,
                  const Options& dialer_options = PatientOptions(),
                  const Options& listener_options = PatientOptions())
        : listener(kind, listener_options), dialer(kind, dialer_options) {
      address = listener.Listen();
      there = dialer.Connect(address);
      EXPECT_TRUE(PumpUntil({&dialer, &listener}, [&] {
        return dialer.link(there).connected && !listener.accepted().empty();
      }));
      if (!listener.accepted().empty()) here = listener.accepted()[0];
    }
    std::vector<Peer*> both() { return {&dialer, &listener}; }

    Peer listener;
    Peer dialer;
    std::string address;
    ConnectionId there;  // the dialer's name of the connection
    ConnectionId here;   // the listener's
  };
};

}  // namespace trunkline::transport
