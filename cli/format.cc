#include "cli/format.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"

namespace trunkline::cli {
namespace {

// Three digits, as many of them behind the point as fit.
std::string ThreeDigits(double value) {
  if (value < 9.995) return absl::StrFormat("%.2f", value);
  if (value < 99.95) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.0f", value);
}

std::string Scaled(int64_t value, double step,
                   const std::vector<std::string>& units) {
  double scaled = static_cast<double>(value);
  size_t unit = 0;
  // 999.6 would be shown as 1000: the next unit takes it.
  while (std::fabs(scaled) >= step - 0.5 && unit + 1 < units.size()) {
    scaled /= step;
    ++unit;
  }
  if (unit == 0) return absl::StrCat(value, units[0]);
  return absl::StrCat(scaled < 0 ? "-" : "", ThreeDigits(std::fabs(scaled)),
                      units[unit]);
}

}  // namespace

std::string HumanBytes(int64_t bytes) {
  return Scaled(bytes, 1024,
                {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"});
}

std::string HumanCount(int64_t count) {
  return Scaled(count, 1000, {"", " k", " M", " B", " T"});
}

std::string HumanDuration(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds < 0.9995) return absl::StrFormat("%.0f ms", seconds * 1000);
  if (seconds < 59.95) return absl::StrFormat("%.1f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh%02dm", whole / 3600, whole / 60 % 60);
}

Table::Table(std::vector<std::string> header, std::vector<Align> align)
    : align_(std::move(align)) {
  AddRow(std::move(header));
}

void Table::AddRow(std::vector<std::string> cells) {
  TL_CHECK_EQ(cells.size(), align_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> width(align_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      width[i] = std::max(width[i], row[i].size());
    }
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(width[i] - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += align_[i] == Align::kRight ? pad + row[i] : row[i] + pad;
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

std::string ProgressBar(int64_t done, int64_t total, int width, int64_t tick) {
  std::string bar(static_cast<size_t>(width), '.');
  if (total <= 0) {
    const int64_t path = 2 * (width - 1);
    const int64_t step = path == 0 ? 0 : tick % path;
    bar[static_cast<size_t>(step < width ? step : path - step)] = '#';
    return absl::StrCat("[", bar, "]");
  }
  const double part = std::clamp(
      static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  std::fill_n(bar.begin(), static_cast<int64_t>(part * width), '#');
  return absl::StrFormat("[%s] %3.0f%%", bar, std::floor(part * 100));
}

std::string FitLine(const std::string& text, int columns) {
  std::string line = text.substr(0, text.find('\n'));
  const size_t limit = static_cast<size_t>(std::max(columns, 4));
  if (line.size() <= limit && line.size() == text.size()) return line;
  size_t keep = std::min(line.size(), limit - 3);
  while (keep > 0 && keep < line.size() &&
         (static_cast<uint8_t>(line[keep]) & 0xC0) == 0x80) {
    --keep;
  }
  return line.substr(0, keep) + "...";
}

}  // namespace trunkline::cli
