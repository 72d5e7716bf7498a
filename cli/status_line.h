#pragma once

// One line on a terminal that is drawn over and over, for progress. Nothing
// when stderr is not a terminal.

#include <string>

namespace trunkline::cli {

class StatusLine {
 public:
  StatusLine();
  ~StatusLine();  // clears
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool on_terminal() const { return on_terminal_; }
  void Draw(const std::string& text);
  // Before anything else is written to the terminal.
  void Clear();

 private:
  const bool on_terminal_;
  bool drawn_ = false;
};

}  // namespace trunkline::cli
