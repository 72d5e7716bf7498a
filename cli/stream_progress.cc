#include "cli/stream_progress.h"

#include <utility>

#include "control/status_to_grpc.h"

namespace trunkline::cli {

StreamProgress::StreamProgress(v1::GenerateRequest request)
    : request_(std::move(request)) {}

void StreamProgress::Take(const v1::GenerateChunk& chunk) {
  v1::ResumePoint* resume = request_.mutable_resume();
  resume->mutable_token_ids()->MergeFrom(chunk.token_ids());
  // A token covers what came with it, so an older one is worth nothing now.
  resume->set_token(chunk.resume_token());
  if (chunk.has_usage()) last_ = chunk;
}

bool StreamProgress::MayGoOn(const absl::Status& status) {
  if (!absl::IsUnavailable(status) && !absl::IsResourceExhausted(status))
    return false;
  v1::StreamFailure failure;
  if (control::GetDetail(status, &failure) &&
      static_cast<int64_t>(failure.output_tokens()) == tokens())
    request_.mutable_resume()->set_token(failure.resume_token());
  if (!request_.resume().token().empty()) return true;
  // Nothing has arrived: the request may begin anew. Tokens without a way to go
  // on are from a server that gives none.
  if (tokens() > 0) return false;
  request_.clear_resume();
  return true;
}

}  // namespace trunkline::cli
