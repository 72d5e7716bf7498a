#include "cli/status_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "cli/format.h"

namespace trunkline::cli {
namespace {

int TerminalColumns() {
  winsize size{};
  const bool known =
      ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

StatusLine::StatusLine() : on_terminal_(isatty(STDERR_FILENO) != 0) {}
StatusLine::~StatusLine() { Clear(); }

void StatusLine::Draw(const std::string& text) {
  if (!on_terminal_) return;
  // Back to the start of the line, the text, and nothing of an older text. A
  // line that wraps could not be drawn over.
  std::fprintf(stderr, "\r%s\x1b[K",
               FitLine(text, TerminalColumns() - 1).c_str());
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
