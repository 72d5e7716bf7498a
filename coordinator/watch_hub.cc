#include "coordinator/watch_hub.h"

#include "absl/strings/str_cat.h"
#include "control/status_to_grpc.h"

namespace trunkline::coordinator {

class WatchHub::Watcher : public Stream {
 public:
  explicit Watcher(WatchHub* hub) : hub_(hub) {}

  void OnWriteDone(bool ok) override {
    {
      const std::lock_guard<std::mutex> lock(hub_->mutex_);
      writing = false;
      sending.reset();
      if (!ok && end.ok()) end = absl::CancelledError("the stream is broken");
    }
    hub_->Pump(self);
  }
  void OnCancel() override {
    {
      const std::lock_guard<std::mutex> lock(hub_->mutex_);
      if (end.ok()) end = absl::CancelledError("the follower went away");
    }
    hub_->Pump(self);
  }
  void OnDone() override {
    // Keeps this alive to the end of the call.
    const std::shared_ptr<Watcher> keep = std::move(self);
    hub_->Remove(keep);
  }

  // Set once, before gRPC knows the stream; dropped by OnDone.
  std::shared_ptr<Watcher> self;

  // Guarded by the hub's mutex.
  CoordinatorHost::SharedView sending, sent;
  bool writing = false;
  bool finished = false;
  absl::Status end;  // not OK: end the stream when the write is done

 private:
  WatchHub* const hub_;
};

WatchHub::Stream* WatchHub::Open(const absl::Status& refusal) {
  const auto watcher = std::make_shared<Watcher>(this);
  watcher->self = watcher;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    watcher->end = ended_.ok() ? refusal : ended_;
    if (watcher->end.ok() &&
        static_cast<int64_t>(watchers_.size()) >= watchers_max_) {
      watcher->end = absl::ResourceExhaustedError(
          absl::StrCat(watchers_.size(), " streams follow the view, at most ",
                       watchers_max_));
    }
    watchers_.insert(watcher);
    metrics_->OnWatchers(watchers_.size());
  }
  Pump(watcher);
  return watcher.get();
}

void WatchHub::Publish(CoordinatorHost::SharedView view) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    newest_ = std::move(view);
  }
  PumpAll();
}

void WatchHub::EndAll(const absl::Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = status;
    for (const std::shared_ptr<Watcher>& watcher : watchers_) {
      if (watcher->end.ok()) watcher->end = status;
    }
  }
  PumpAll();
}

void WatchHub::Reopen() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_ = absl::OkStatus();
  newest_ = nullptr;
}

void WatchHub::PumpAll() {
  std::vector<std::shared_ptr<Watcher>> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    all.assign(watchers_.begin(), watchers_.end());
  }
  for (const std::shared_ptr<Watcher>& watcher : all) Pump(watcher);
}

void WatchHub::Pump(const std::shared_ptr<Watcher>& watcher) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (watcher->writing || watcher->finished) return;
  if (!watcher->end.ok()) {
    watcher->finished = true;
    const grpc::Status status = control::ToGrpc(watcher->end);
    lock.unlock();
    watcher->Finish(status);
    return;
  }
  if (newest_ == nullptr || newest_ == watcher->sent) return;
  watcher->writing = true;
  watcher->sending = newest_;
  watcher->sent = newest_;
  const control::wire::ClusterView* message = newest_.get();
  lock.unlock();
  watcher->StartWrite(message);
}

void WatchHub::Remove(const std::shared_ptr<Watcher>& watcher) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watchers_.erase(watcher);
  metrics_->OnWatchers(watchers_.size());
}

}  // namespace trunkline::coordinator
