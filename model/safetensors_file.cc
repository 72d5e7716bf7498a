#include "model/safetensors_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace trunkline::model {
namespace {

absl::Status SystemError(const std::string& path, absl::string_view action,
                         int error) {
  const std::string text =
      absl::StrCat(path, ": can not ", action, ": ", strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM)
    return absl::PermissionDeniedError(text);
  if (error == ENOMEM || error == EMFILE || error == ENFILE)
    return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

absl::Status ReadFully(int fd, const std::string& path, int64_t offset,
                       int64_t bytes, char* out) {
  while (bytes > 0) {
    const ssize_t got = pread(fd, out, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path, "read", errno);
    if (got == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": the file ends at byte ", offset,
                       "; it was longer when it was opened"));
    }
    out += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

}  // namespace

MappedRange::MappedRange(MappedRange&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      offset_(std::exchange(other.offset_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

MappedRange& MappedRange::operator=(MappedRange&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(offset_, other.offset_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedRange::~MappedRange() {
  if (address_ != nullptr) munmap(address_, static_cast<size_t>(bytes_));
}

const std::byte* MappedRange::At(int64_t offset) const {
  TL_CHECK(offset >= offset_ && offset <= offset_ + bytes_)
      << offset << " is outside [" << offset_ << ", " << offset_ + bytes_
      << ")";
  return static_cast<const std::byte*>(address_) + (offset - offset_);
}

void MappedRange::Release() const {
  if (address_ == nullptr) return;
  madvise(address_, static_cast<size_t>(bytes_), MADV_DONTNEED);
}

absl::StatusOr<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  file->fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file->fd_ < 0) return SystemError(path, "open", errno);
  struct stat stat_buffer;
  if (fstat(file->fd_, &stat_buffer) != 0)
    return SystemError(path, "stat", errno);
  if (!S_ISREG(stat_buffer.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a regular file"));
  }
  file->file_bytes_ = stat_buffer.st_size;

  std::string prefix(
      static_cast<size_t>(std::min<int64_t>(file->file_bytes_, 8)), '\0');
  TL_RETURN_IF_ERROR(ReadFully(
      file->fd_, path, 0, static_cast<int64_t>(prefix.size()), prefix.data()));
  if (prefix.size() == 8) {
    uint64_t length = 0;
    for (int i = 0; i < 8; ++i)
      length |= uint64_t{static_cast<uint8_t>(prefix[i])} << (8 * i);
    // A length beyond these bounds is refused by the parser, from the 8 bytes.
    const int64_t readable =
        std::min(file->file_bytes_ - 8, kSafetensorsHeaderBytesMax);
    if (length <= static_cast<uint64_t>(readable)) {
      prefix.resize(8 + length);
      TL_RETURN_IF_ERROR(ReadFully(
          file->fd_, path, 8, static_cast<int64_t>(length), prefix.data() + 8));
    }
  }
  TL_ASSIGN_OR_RETURN(file->header_,
                      ParseSafetensorsHeader(prefix, file->file_bytes_, path));
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

SafetensorsFile::~SafetensorsFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<MappedRange> SafetensorsFile::Map(int64_t offset,
                                                 int64_t bytes) const {
  TL_CHECK(offset >= 0 && bytes > 0 && bytes <= file_bytes_ - offset)
      << offset << " + " << bytes << " in " << path_;
  struct stat stat_buffer;
  if (fstat(fd_, &stat_buffer) != 0) return SystemError(path_, "stat", errno);
  if (stat_buffer.st_size < file_bytes_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": the file has ", stat_buffer.st_size,
                     " bytes; it had ", file_bytes_, " when it was opened"));
  }
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t begin = offset / page * page;
  MappedRange range;
  range.offset_ = begin;
  range.bytes_ = offset + bytes - begin;
  void* address = mmap(nullptr, static_cast<size_t>(range.bytes_), PROT_READ,
                       MAP_PRIVATE, fd_, begin);
  if (address == MAP_FAILED) return SystemError(path_, "map", errno);
  range.address_ = address;
  return range;
}

absl::Status SafetensorsFile::Read(int64_t offset, int64_t bytes,
                                   void* out) const {
  return ReadFully(fd_, path_, offset, bytes, static_cast<char*>(out));
}

}  // namespace trunkline::model
