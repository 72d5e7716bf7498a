#include "trunk_worker/route_record_file.h"

#include <google/protobuf/io/coded_stream.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::trunk {
namespace {

// Fast enough to follow a recording, and scores do not shrink much further.
constexpr int kCompressionLevel = 3;
// A varint of 64 bits.
constexpr size_t kLengthBytesMax = 10;
// Memory of a window that a file may ask for: what the compressor's levels use.
constexpr int kWindowLogMax = 27;

absl::Status Truncated(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the file ends ", what,
                   ": it was cut off, or its recording never ended"));
}

std::string Cause() { return std::strerror(errno); }

}  // namespace

RouteRecordWriter::RouteRecordWriter(std::string path, std::ofstream file,
                                     ZSTD_CCtx_s* stream)
    : path_(std::move(path)), file_(std::move(file)), stream_(stream) {
  packed_.resize(ZSTD_CStreamOutSize());
}

RouteRecordWriter::~RouteRecordWriter() { ZSTD_freeCCtx(stream_); }

absl::StatusOr<std::unique_ptr<RouteRecordWriter>> RouteRecordWriter::Create(
    const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file.is_open())
    return absl::UnavailableError(
        absl::StrCat(path, ": can not be written: ", Cause()));
  ZSTD_CCtx* stream = ZSTD_createCCtx();
  if (stream == nullptr)
    return absl::ResourceExhaustedError("no memory for a zstd stream");
  ZSTD_CCtx_setParameter(stream, ZSTD_c_compressionLevel, kCompressionLevel);
  ZSTD_CCtx_setParameter(stream, ZSTD_c_checksumFlag, 1);
  return std::unique_ptr<RouteRecordWriter>(
      new RouteRecordWriter(path, std::move(file), stream));
}

absl::Status RouteRecordWriter::Append(const v1::RouteRecordEntry& entry) {
  const size_t bytes = entry.ByteSizeLong();
  std::array<uint8_t, kLengthBytesMax> length;
  uint8_t* const end =
      google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(
          bytes, length.data());
  message_.assign(length.data(), end);
  if (!entry.AppendToString(&message_))
    return absl::InternalError(
        absl::StrCat(path_, ": an entry of ", bytes, " bytes is too long"));
  return Compress(message_, false);
}

absl::Status RouteRecordWriter::Finish() {
  TL_RETURN_IF_ERROR(Compress("", true));
  file_.close();
  if (file_.fail())
    return absl::UnavailableError(
        absl::StrCat(path_, ": can not be closed: ", Cause()));
  return absl::OkStatus();
}

absl::Status RouteRecordWriter::Compress(const std::string& bytes, bool last) {
  ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
  while (true) {
    ZSTD_outBuffer out = {packed_.data(), packed_.size(), 0};
    const size_t left = ZSTD_compressStream2(
        stream_, &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left) != 0)
      return absl::InternalError(
          absl::StrCat(path_, ": zstd: ", ZSTD_getErrorName(left)));
    file_.write(packed_.data(), static_cast<std::streamsize>(out.pos));
    if (!file_.good())
      return absl::UnavailableError(
          absl::StrCat(path_, ": can not be written: ", Cause()));
    bytes_written_ += static_cast<int64_t>(out.pos);
    if (last ? left == 0 : in.pos == in.size) return absl::OkStatus();
  }
}

RouteRecordReader::RouteRecordReader(std::unique_ptr<std::istream> input,
                                     std::string name, size_t message_bytes_max,
                                     ZSTD_DCtx_s* stream)
    : input_(std::move(input)),
      name_(std::move(name)),
      message_bytes_max_(message_bytes_max),
      stream_(stream),
      packed_(ZSTD_DStreamInSize()) {}

RouteRecordReader::~RouteRecordReader() { ZSTD_freeDCtx(stream_); }

absl::StatusOr<std::unique_ptr<RouteRecordReader>> RouteRecordReader::Open(
    const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is a directory, not a recording"));
  auto file = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!file->is_open())
    return absl::NotFoundError(
        absl::StrCat(path, ": can not be read: ", Cause()));
  return Read(std::move(file), path);
}

absl::StatusOr<std::unique_ptr<RouteRecordReader>> RouteRecordReader::Read(
    std::unique_ptr<std::istream> input, const std::string& name,
    size_t message_bytes_max) {
  ZSTD_DCtx* stream = ZSTD_createDCtx();
  if (stream == nullptr)
    return absl::ResourceExhaustedError("no memory for a zstd stream");
  ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, kWindowLogMax);
  std::unique_ptr<RouteRecordReader> reader(
      new RouteRecordReader(std::move(input), name, message_bytes_max, stream));
  const absl::Status header = reader->ReadHeader();
  if (!header.ok()) return reader->Fault(header);
  reader->number_ = 1;
  return reader;
}

absl::Status RouteRecordReader::Fault(const absl::Status& status) const {
  return Annotate(status, absl::StrCat(name_, ": record ", number_,
                                       number_ == 0 ? " (header)" : ""));
}

absl::Status RouteRecordReader::ReadHeader() {
  v1::RouteRecordEntry entry;
  const absl::Status read = ReadEntry(&entry);
  if (absl::IsOutOfRange(read)) return Truncated("before its header");
  TL_RETURN_IF_ERROR(read);
  if (!entry.has_header())
    return absl::InvalidArgumentError("magic: the first message is no header");
  TL_ASSIGN_OR_RETURN(header_, HeaderFromProto(entry.header()));
  sums_.resize(header_.layers.size());
  return absl::OkStatus();
}

absl::StatusOr<bool> RouteRecordReader::Next(RecordedRoutes* routes) {
  if (ended_) return false;
  ended_ = true;  // unless a record follows
  v1::RouteRecordEntry entry;
  const absl::Status read = ReadEntry(&entry);
  if (absl::IsOutOfRange(read)) return Fault(Truncated("without a trailer"));
  if (!read.ok()) return Fault(read);
  if (entry.has_layer()) {
    absl::StatusOr<RecordedRoutes> next =
        RoutesFromProto(entry.layer(), header_);
    if (!next.ok()) return Fault(next.status());
    *routes = *std::move(next);
    const auto at = static_cast<size_t>(header_.Find(routes->record.layer) -
                                        header_.layers.data());
    const RouteTotals counted = CountRoutes(*routes);
    ++sums_[at].records;
    sums_[at].routes.selected += counted.selected;
    sums_[at].routes.executed += counted.executed;
    ++number_;
    ended_ = false;
    return true;
  }
  if (!entry.has_trailer())
    return Fault(
        absl::InvalidArgumentError("entry: neither a layer nor the trailer"));
  absl::StatusOr<RecordingTrailer> trailer =
      TrailerFromProto(entry.trailer(), header_);
  if (!trailer.ok()) return Fault(Annotate(trailer.status(), "trailer"));
  trailer_ = *std::move(trailer);
  const absl::Status totals = CheckTotals();
  if (!totals.ok()) return Fault(Annotate(totals, "trailer"));
  const absl::Status end = ReadEntry(&entry);
  if (absl::IsOutOfRange(end)) return false;
  ++number_;
  if (!end.ok()) return Fault(end);
  return Fault(absl::InvalidArgumentError("entry: follows the trailer"));
}

// Everything that was seen is in the file or counted as left out.
absl::Status RouteRecordReader::CheckTotals() const {
  for (size_t i = 0; i < sums_.size(); ++i) {
    const RecordedLayerTotals& said = trailer_.layers[i];
    const RecordedLayerTotals& sum = sums_[i];
    const auto check = [&](absl::string_view field, uint64_t total,
                           uint64_t in_file) -> absl::Status {
      if (total == in_file) return absl::OkStatus();
      return absl::DataLossError(absl::StrCat("layers[", i, "].", field, ": ",
                                              total, " where the records have ",
                                              in_file));
    };
    TL_RETURN_IF_ERROR(check("records", said.records, sum.records));
    TL_RETURN_IF_ERROR(check("selected",
                             said.routes.selected - said.left_out.selected,
                             sum.routes.selected));
    TL_RETURN_IF_ERROR(check("executed",
                             said.routes.executed - said.left_out.executed,
                             sum.routes.executed));
    if (!said.has_counters) continue;
    TL_RETURN_IF_ERROR(check("at_end.selected",
                             said.at_end.selected - said.at_begin.selected,
                             said.routes.selected));
    TL_RETURN_IF_ERROR(check("at_end.executed",
                             said.at_end.executed - said.at_begin.executed,
                             said.routes.executed));
  }
  return absl::OkStatus();
}

absl::Status RouteRecordReader::ReadEntry(v1::RouteRecordEntry* entry) {
  TL_ASSIGN_OR_RETURN(const uint64_t length, ReadLength());
  if (length > message_bytes_max_)
    return absl::InvalidArgumentError(
        absl::StrCat("length: ", length, " bytes are more than the ",
                     message_bytes_max_, " that a message may have"));
  TL_RETURN_IF_ERROR(Fill(length));
  if (available() < length)
    return Truncated(absl::StrCat("after ", available(), " of a message's ",
                                  length, " bytes"));
  const bool parsed =
      entry->ParseFromArray(unpacked_.data() + at_, static_cast<int>(length));
  at_ += length;
  if (!parsed)
    return absl::InvalidArgumentError(
        absl::StrCat("entry: ", length, " bytes are no RouteRecordEntry"));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RouteRecordReader::ReadLength() {
  TL_RETURN_IF_ERROR(Fill(kLengthBytesMax));
  if (available() == 0) {
    if (!frame_ended_) return Truncated("inside its zstd stream");
    return absl::OutOfRangeError("the end");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytesMax; ++i) {
    if (i >= available()) return Truncated("inside a message's length");
    const auto byte = static_cast<uint8_t>(unpacked_[at_ + i]);
    length |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte >= 0x80) continue;
    at_ += i + 1;
    return length;
  }
  return absl::InvalidArgumentError("length: is no varint of 64 bits");
}

// Memory grows with what the stream really holds, not with what a length says.
absl::Status RouteRecordReader::Fill(size_t count) {
  if (available() >= count) return absl::OkStatus();
  unpacked_.erase(0, at_);
  at_ = 0;
  while (unpacked_.size() < count) {
    if (packed_at_ == packed_end_ && !more_unpacked_) {
      input_->read(packed_.data(),
                   static_cast<std::streamsize>(packed_.size()));
      packed_at_ = 0;
      packed_end_ = static_cast<size_t>(input_->gcount());
      if (packed_end_ == 0) return absl::OkStatus();
    }
    if (frame_ended_)
      return absl::InvalidArgumentError(
          "zstd: bytes follow the end of the stream");
    const size_t before = unpacked_.size();
    unpacked_.resize(before + ZSTD_DStreamOutSize());
    ZSTD_inBuffer in = {packed_.data(), packed_end_, packed_at_};
    ZSTD_outBuffer out = {unpacked_.data(), unpacked_.size(), before};
    const size_t left = ZSTD_decompressStream(stream_, &out, &in);
    more_unpacked_ = out.pos == out.size;
    unpacked_.resize(out.pos);
    packed_at_ = in.pos;
    if (ZSTD_isError(left) != 0)
      return absl::DataLossError(
          absl::StrCat("zstd: ", ZSTD_getErrorName(left),
                       number_ == 0 ? ": this is no route record" : ""));
    frame_ended_ = left == 0;
    if (frame_ended_) more_unpacked_ = false;
  }
  return absl::OkStatus();
}

}  // namespace trunkline::trunk
