#pragma once

// One request over all the streams that it takes to answer it: what has
// arrived, and what to ask the next server when a stream breaks off. Pure.

#include <string>

#include "absl/status/status.h"
#include "proto/generation.pb.h"

namespace trunkline::cli {

class StreamProgress {
 public:
  explicit StreamProgress(v1::GenerateRequest request);

  void Take(const v1::GenerateChunk& chunk);
  // How the stream ended. True: another one may go on (the server went away, or
  // has no room). False: it is over, with this status.
  bool MayGoOn(const absl::Status& status);
  // What the next stream is asked.
  const v1::GenerateRequest& request() const { return request_; }

  int tokens() const { return request_.resume().token_ids_size(); }
  // The chunk with the end of the text, once it has arrived.
  const v1::GenerateChunk& last() const { return last_; }

 private:
  v1::GenerateRequest request_;  // its resume point grows
  v1::GenerateChunk last_;
};

}  // namespace trunkline::cli
