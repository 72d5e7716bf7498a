#pragma once

#include <string>

namespace trunkline::testing {

// The body of http://address/path, address being "host:port" with a numeric
// host. Empty when nothing answers.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace trunkline::testing
