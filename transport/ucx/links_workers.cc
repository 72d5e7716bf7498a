// Which worker a connection belongs to, and how long a worker lives.

#include <sys/epoll.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "transport/ucx/links.h"

namespace trunkline::transport::ucx {
namespace {

// A worker is a dozen descriptors and some megabytes of shared memory. Beyond
// these the peers of the host are served over tcp, like those of the network.
constexpr size_t kHostWorkersMax = 32;
// How long a worker without a connection may take to end what is under way.
constexpr absl::Duration kRetireTime = absl::Seconds(2);

}  // namespace

absl::Status Links::Start() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ucx: no event descriptor: ", std::strerror(errno)));
  }
  TL_RETURN_IF_ERROR(door_.Open());
  TL_ASSIGN_OR_RETURN(network_, UcxContext::Create(Reach::kNetwork));
  if (SharedMemoryInUse(std::getenv("UCX_TLS"))) {
    TL_ASSIGN_OR_RETURN(host_, UcxContext::Create(Reach::kHost));
  }
  return AddWorker(Reach::kNetwork).status();
}

absl::StatusOr<LinkWorker*> Links::AddWorker(Reach reach) {
  auto worker = std::make_unique<LinkWorker>();
  worker->links = this;
  worker->reach = reach;
  TL_ASSIGN_OR_RETURN(
      worker->ucx,
      UcxWorker::Create(reach == Reach::kHost ? *host_ : *network_));
  TL_RETURN_IF_ERROR(SetHandlers(worker.get()));
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, worker->ucx->efd(), &event) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "ucx: a worker can't be waited for: ", std::strerror(errno)));
  }
  workers_.push_back(std::move(worker));
  return workers_.back().get();
}

absl::Status Links::SetHandlers(LinkWorker* worker) {
  // From the top down, and every one of them: UCX 1.13 makes its table as long
  // as the first id needs, and calls whatever lies in a slot nobody has set.
  for (unsigned id = kAmIds; id-- > 0;) {
    ucp_am_handler_param_t param{};
    param.field_mask =
        UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
        UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = id;
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    param.cb = id == kAmHello       ? &OnHello
               : id == kAmChunk     ? &OnChunk
               : id == kAmHeartbeat ? &OnHeartbeat
                                    : &OnUnknown;
    param.arg = worker;
    const ucs_status_t status =
        ucp_worker_set_am_recv_handler(worker->ucx->get(), &param);
    if (status != UCS_OK) {
      return absl::UnavailableError(
          absl::StrCat("ucx: no message handler: ", Describe(status)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LinkWorker*> Links::WorkerFor(const SocketAddress& peer) {
  LinkWorker* const network = workers_.front().get();
  if (host_ == nullptr || workers_.size() > kHostWorkersMax ||
      !IsOfThisHost(peer)) {
    return network;
  }
  return AddWorker(Reach::kHost);
}

void Links::Retire() {
  for (auto it = workers_.begin(); it != workers_.end();) {
    LinkWorker* const worker = it->get();
    CloseIdleListeners(worker);
    Reap(worker);
    if (worker->reach == Reach::kNetwork || worker->connections > 0 ||
        worker->tickets > 0) {
      ++it;
      continue;
    }
    if (worker->retire_by == absl::InfiniteFuture())
      worker->retire_by = now_ + kRetireTime;
    if (worker->has_work() && now_ < worker->retire_by) {
      ++it;
      continue;
    }
    epoll_ctl(epoll_, EPOLL_CTL_DEL, worker->ucx->efd(), nullptr);
    it = workers_.erase(it);
  }
}

}  // namespace trunkline::transport::ucx
