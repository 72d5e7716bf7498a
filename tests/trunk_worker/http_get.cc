#include "tests/trunk_worker/http_get.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace trunkline::testing {

std::string HttpGet(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(std::stoi(address.substr(colon + 1)));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  std::string all;
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request =
        "GET " + path + " HTTP/1.0\r\nHost: " + address + "\r\n\r\n";
    std::array<char, 4096> buffer;
    if (write(fd, request.data(), request.size()) ==
        static_cast<ssize_t>(request.size())) {
      ssize_t got = 0;
      while ((got = read(fd, buffer.data(), buffer.size())) > 0)
        all.append(buffer.data(), got);
    }
  }
  close(fd);
  const size_t body = all.find("\r\n\r\n");
  return body == std::string::npos ? "" : all.substr(body + 4);
}

}  // namespace trunkline::testing
