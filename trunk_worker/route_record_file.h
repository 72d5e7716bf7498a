#pragma once

// A route record file (docs/route_records.md): one zstd stream of length-
// delimited RouteRecordEntry messages: a header, layers, a trailer.

#include <cstdint>
#include <fstream>
#include <istream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/route_record.pb.h"
#include "trunk_worker/route_record.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace trunkline::trunk {

class RouteRecordWriter {
 public:
  // Replaces what is at `path`.
  static absl::StatusOr<std::unique_ptr<RouteRecordWriter>> Create(
      const std::string& path);
  ~RouteRecordWriter();  // without Finish the file ends in the middle
  RouteRecordWriter(const RouteRecordWriter&) = delete;
  RouteRecordWriter& operator=(const RouteRecordWriter&) = delete;

  // Header first, trailer last; the caller's duty.
  absl::Status Append(const v1::RouteRecordEntry& entry);
  // Ends the stream and closes the file.
  absl::Status Finish();
  int64_t bytes_written() const { return bytes_written_; }

 private:
  RouteRecordWriter(std::string path, std::ofstream file, ZSTD_CCtx_s* stream);
  absl::Status Compress(const std::string& bytes, bool last);

  const std::string path_;
  std::ofstream file_;
  ZSTD_CCtx_s* const stream_;
  std::string message_, packed_;
  int64_t bytes_written_ = 0;
};

// Reads record by record, in bounded memory. Every error names the file, the
// record's number (0 is the header) and the field. After an error the reader is
// at its end.
class RouteRecordReader {
 public:
  // A message longer than this is refused.
  static constexpr size_t kMessageBytesMax = size_t{256} << 20;

  static absl::StatusOr<std::unique_ptr<RouteRecordReader>> Open(
      const std::string& path);
  // `name` stands for the file in errors.
  static absl::StatusOr<std::unique_ptr<RouteRecordReader>> Read(
      std::unique_ptr<std::istream> input, const std::string& name,
      size_t message_bytes_max = kMessageBytesMax);
  ~RouteRecordReader();
  RouteRecordReader(const RouteRecordReader&) = delete;
  RouteRecordReader& operator=(const RouteRecordReader&) = delete;

  const RecordingHeader& header() const { return header_; }
  // False at the end: then the trailer has been read, its totals are the sums
  // of the records, and nothing follows it.
  absl::StatusOr<bool> Next(RecordedRoutes* routes);
  const RecordingTrailer& trailer() const { return trailer_; }
  int64_t records() const { return number_ > 0 ? number_ - 1 : 0; }

 private:
  RouteRecordReader(std::unique_ptr<std::istream> input, std::string name,
                    size_t message_bytes_max, ZSTD_DCtx_s* stream);
  absl::Status ReadHeader();
  // The next message of the stream. OUT_OF_RANGE at its proper end.
  absl::Status ReadEntry(v1::RouteRecordEntry* entry);
  absl::StatusOr<uint64_t> ReadLength();
  // Makes `count` unpacked bytes available at unpacked_[at_]; fewer only at the
  // end of the input.
  absl::Status Fill(size_t count);
  size_t available() const { return unpacked_.size() - at_; }
  absl::Status CheckTotals() const;
  absl::Status Fault(const absl::Status& status) const;

  const std::unique_ptr<std::istream> input_;
  const std::string name_;
  const size_t message_bytes_max_;
  ZSTD_DCtx_s* const stream_;
  std::vector<char> packed_;
  size_t packed_at_ = 0, packed_end_ = 0;
  bool frame_ended_ = false;
  bool more_unpacked_ = false;  // zstd holds output that found no room
  std::string unpacked_;
  size_t at_ = 0;

  RecordingHeader header_;
  RecordingTrailer trailer_;
  int64_t number_ = 0;  // of the message that is read next
  bool ended_ = false;
  std::vector<RecordedLayerTotals> sums_;  // parallel to the header's layers
};

}  // namespace trunkline::trunk
