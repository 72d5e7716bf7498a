#pragma once

// Small SVG pictures of loads and sweeps: text in, text out, no library.

#include <cstdint>
#include <string>
#include <vector>

namespace trunkline::routing {

struct Bars {
  std::string name;
  std::vector<int64_t> values;  // one a category, 0 or more
};
// Grouped bars: one group a category, one bar a series.
std::string BarPlot(const std::string& title, const std::string& x_label,
                    const std::vector<std::string>& categories,
                    const std::vector<Bars>& series);

struct Line {
  std::string name;
  std::vector<double> y;  // parallel to x
};
// Lines over shared x values; the y axis starts at zero.
std::string LinePlot(const std::string& title, const std::string& x_label,
                     const std::vector<double>& x,
                     const std::vector<Line>& lines);

}  // namespace trunkline::routing
