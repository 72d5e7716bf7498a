#pragma once

// A file that gets its name only when it is complete: whoever finds it under
// that name finds all of it. Until then it is NAME.partial, removed when the
// writer gives up.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trunkline::model {

// errno of a failed action on `path`: RESOURCE_EXHAUSTED without room,
// UNAVAILABLE for the rest.
absl::Status FileError(const std::string& path, const char* action);

class OutFile {
 public:
  explicit OutFile(std::string path);
  ~OutFile();
  OutFile(const OutFile&) = delete;
  OutFile& operator=(const OutFile&) = delete;

  absl::Status Create();
  absl::Status Write(absl::string_view bytes);
  absl::Status Finish();

 private:
  const std::string path_;
  const std::string partial_;
  int fd_ = -1;
};

// Create, Write, Finish.
absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes);

}  // namespace trunkline::model
