#pragma once

// Chunks of a recording into a file that is whole whatever happens to the
// stream: one that breaks off gets a trailer that says so.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/route_record.pb.h"
#include "trunk_worker/route_record_file.h"

namespace trunkline::cli {

class RecordingSink {
 public:
  // The file is made when the first chunk comes.
  explicit RecordingSink(std::string path) : path_(std::move(path)) {}

  // INTERNAL for a stream whose messages stand in no order of a recording.
  absl::Status Add(const v1::RecordChunk& chunk);
  // Nothing when nothing came.
  absl::Status Finish();

  bool has_header() const { return writer_ != nullptr; }
  uint64_t recording_id() const { return recording_id_; }
  int64_t records() const { return records_; }
  int64_t bytes_written() const {
    return writer_ == nullptr ? 0 : writer_->bytes_written();
  }
  // One line for people, after Finish.
  std::string Summary() const;

 private:
  absl::Status Begin(const v1::RouteRecordEntry& entry);
  absl::Status Count(const v1::RoutedLayer& layer);

  const std::string path_;
  std::unique_ptr<trunk::RouteRecordWriter> writer_;
  uint64_t recording_id_ = 0;
  int64_t records_ = 0;
  bool ended_ = false;
  v1::RouteRecordTrailer trailer_;  // sums until the stream's own comes
};

}  // namespace trunkline::cli
