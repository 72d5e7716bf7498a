#include "tests/integration/stream_load.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace trunkline::testing {

std::vector<LoadText> UndisturbedTexts(ProcessCluster& cluster, int clients,
                                       uint32_t tokens) {
  std::vector<LoadText> texts;
  const auto stub = cluster.NewStub();
  for (int i = 0; i < clients; ++i) {
    LoadText one;
    one.request = GreedyRequest(kDemoPrompts[i % kDemoPromptCount], tokens);
    // A sampled text shows a changed bit that a greedy one may swallow.
    if (i % 2 == 1) {
      one.request.mutable_sampling()->set_temperature(0.9f);
      one.request.mutable_sampling()->set_seed(static_cast<uint64_t>(i));
    }
    const Completion answer = Stream(*stub, one.request);
    TL_CHECK(answer.status.ok()) << answer.status.error_message();
    TL_CHECK_EQ(answer.ids.size(), tokens);
    one.ids = answer.ids;
    one.text = answer.text;
    texts.push_back(std::move(one));
  }
  return texts;
}

StreamLoad::StreamLoad(const ProcessCluster& cluster,
                       std::vector<LoadText> texts, bool once)
    : texts_(std::move(texts)),
      clients_count_(static_cast<int>(texts_.size())) {
  for (int i = 0; i < clients_count_; ++i)
    clients_.emplace_back([this, i, &cluster, once] { Run(i, cluster, once); });
}

StreamLoad::~StreamLoad() { Stop(); }

void StreamLoad::Run(int client, const ProcessCluster& cluster, bool once) {
  const LoadText& wanted = texts_[static_cast<size_t>(client)];
  const auto stub = cluster.NewStub();
  do {
    TimedStream stream;
    stream.client = client;
    std::vector<int32_t> ids;
    std::string text;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::minutes(3));
    const auto reader = stub->GenerateStream(&context, wanted.request);
    v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) {
      text += chunk.text();
      if (chunk.token_ids().empty()) continue;
      if (ids.empty()) ++streaming_;
      ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
      stream.token_times.push_back(std::chrono::steady_clock::now());
      tokens_ += chunk.token_ids_size();
    }
    stream.status = reader->Finish();
    if (!ids.empty()) --streaming_;
    stream.as_undisturbed = ids == wanted.ids && text == wanted.text;
    const bool failed = !stream.status.ok();
    {
      std::lock_guard lock(mutex_);
      streams_.push_back(std::move(stream));
    }
    ++ended_;
    if (failed) return;  // the test will say so; a flood would bury it
  } while (!stopping_ && !once);
}

const std::vector<TimedStream>& StreamLoad::Stop() {
  stopping_ = true;
  for (std::thread& client : clients_) {
    if (client.joinable()) client.join();
  }
  return streams_;
}

namespace {

std::vector<Milliseconds> Gaps(const TimedStream& stream, SteadyTime from) {
  std::vector<Milliseconds> gaps;
  for (size_t i = 1; i < stream.token_times.size(); ++i) {
    if (stream.token_times[i] >= from)
      gaps.emplace_back(stream.token_times[i] - stream.token_times[i - 1]);
  }
  return gaps;
}

}  // namespace

Milliseconds MedianStep(const TimedStream& stream) {
  std::vector<Milliseconds> gaps = Gaps(stream, {});
  if (gaps.empty()) return Milliseconds(0);
  const auto middle =
      gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2);
  std::nth_element(gaps.begin(), middle, gaps.end());
  return *middle;
}

Milliseconds LongestPause(const TimedStream& stream, SteadyTime from) {
  const std::vector<Milliseconds> gaps = Gaps(stream, from);
  return gaps.empty() ? Milliseconds(0)
                      : *std::max_element(gaps.begin(), gaps.end());
}

}  // namespace trunkline::testing
