#include "transport/inprocess/inprocess_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "transport/address.h"
#include "transport/connection_id.h"
#include "transport/inprocess/node.h"
#include "transport/inprocess/registry.h"

namespace trunkline::transport {
namespace {

using inprocess::Node;
using inprocess::Registry;

constexpr char kScheme[] = "inprocess";

class InprocessTransport final : public Transport {
 public:
  explicit InprocessTransport(const Options& options)
      : node_(std::make_shared<Node>(options)),
        pool_(Registry::OfThisProcess().Pool(options.pool_bytes_max)) {}

  ~InprocessTransport() override {
    Registry::OfThisProcess().RemoveAllOf(node_.get());
    node_->Shutdown();
  }

  absl::StatusOr<std::string> Listen(const std::string& address) override {
    TL_ASSIGN_OR_RETURN(const std::string name, StripScheme(address, kScheme));
    TL_ASSIGN_OR_RETURN(const std::string taken,
                        Registry::OfThisProcess().Add(name, node_));
    return absl::StrCat(kScheme, "://", taken);
  }

  absl::StatusOr<ConnectionId> Connect(const std::string& address) override {
    TL_ASSIGN_OR_RETURN(const std::string name, StripScheme(address, kScheme));
    const ConnectionId connection = NextConnectionId();
    if (auto listener = Registry::OfThisProcess().Find(name)) {
      Node::Join(node_, connection, listener);
    } else {
      node_->RefuseConnect(connection,
                           absl::UnavailableError(absl::StrCat(
                               "nobody listens on ", kScheme, "://", name)));
    }
    return connection;
  }

  void Disconnect(ConnectionId connection) override {
    node_->Disconnect(connection, absl::CancelledError("disconnected"),
                      absl::UnavailableError("the peer disconnected"));
  }

  void Send(ConnectionId connection, Message message, uint64_t token) override {
    node_->Send(node_, connection, std::move(message), token);
  }

  void Poll(absl::Duration max_wait, std::vector<Event>* events) override {
    node_->Poll(max_wait, events);
  }

  void Wake() override { node_->Wake(); }

  Message Allocate(size_t size) override {
    return Message{pool_->Take(size), size};
  }

  void Release(Message message) override {
    pool_->Give(std::move(message.buffer));
  }

  std::string Name() const override { return kScheme; }

 private:
  const std::shared_ptr<Node> node_;
  const std::shared_ptr<BufferPool> pool_;
};

}  // namespace

std::unique_ptr<Transport> MakeInprocessTransport(const Options& options) {
  return std::make_unique<InprocessTransport>(options);
}

}  // namespace trunkline::transport
