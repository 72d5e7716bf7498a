#include "model/out_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::model {

absl::Status FileError(const std::string& path, const char* action) {
  const int error = errno;
  const std::string text =
      absl::StrCat(path, ": can not ", action, ": ", strerror(error));
  if (error == ENOSPC || error == EDQUOT)
    return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

OutFile::OutFile(std::string path)
    : path_(std::move(path)), partial_(path_ + ".partial") {}

OutFile::~OutFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(partial_.c_str());
}

absl::Status OutFile::Create() {
  fd_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  return fd_ < 0 ? FileError(partial_, "create") : absl::OkStatus();
}

absl::Status OutFile::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(partial_, "write");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status OutFile::Finish() {
  if (close(std::exchange(fd_, -1)) != 0) return FileError(partial_, "close");
  if (rename(partial_.c_str(), path_.c_str()) != 0)
    return FileError(path_, "rename to");
  return absl::OkStatus();
}

absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes) {
  OutFile file(path);
  TL_RETURN_IF_ERROR(file.Create());
  TL_RETURN_IF_ERROR(file.Write(bytes));
  return file.Finish();
}

}  // namespace trunkline::model
