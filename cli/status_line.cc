#include "cli/status_line.h"

#include <unistd.h>

#include <cstdio>

namespace trunkline::cli {

StatusLine::StatusLine() : on_terminal_(isatty(STDERR_FILENO) != 0) {}
StatusLine::~StatusLine() { Clear(); }

void StatusLine::Draw(const std::string& text) {
  if (!on_terminal_) return;
  // Back to the start of the line, the text, and nothing of an older text.
  std::fprintf(stderr, "\r%s\x1b[K", text.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void StatusLine::Clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace trunkline::cli
