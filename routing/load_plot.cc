#include "routing/load_plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/check.h"

namespace trunkline::routing {
namespace {

constexpr double kWidth = 900, kHeight = 420;
constexpr double kLeft = 70, kRight = 20, kTop = 60, kBottom = 60;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = kHeight - kTop - kBottom;
// Told apart by most colour-blind eyes and on paper.
constexpr const char* kColors[] = {"#0072b2", "#e69f00", "#009e73",
                                   "#cc79a7", "#56b4e9", "#d55e00"};

const char* Color(size_t i) { return kColors[i % std::size(kColors)]; }

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Text(double x, double y, const char* anchor,
                 const std::string& text) {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y,
      anchor, Escape(text));
}

std::string Rule(double x1, double y1, double x2, double y2,
                 const char* color) {
  return absl::StrFormat(
      "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
      "stroke=\"%s\"/>\n",
      x1, y1, x2, y2, color);
}

// A round step that gives about five ticks.
double TickStep(double largest) {
  const double raw = largest / 5.0;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10.0 * power;
}

struct YAxis {
  double top = 1.0;
  double Y(double v) const { return kTop + kPlotHeight * (1.0 - v / top); }
};

std::string Frame(const std::string& title, const std::string& x_label,
                  const std::vector<std::string>& names, double largest,
                  YAxis* axis) {
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
      "height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"white\"/>\n",
      kWidth, kHeight, kWidth, kHeight);
  svg += Text(kWidth / 2, 20, "middle", title);
  svg += Text(kWidth / 2, kHeight - 10, "middle", x_label);
  const double step = TickStep(largest > 0.0 ? largest : 1.0);
  axis->top = std::max(1.0, std::ceil(largest / step)) * step;
  const auto ticks = static_cast<int>(std::round(axis->top / step));
  for (int i = 0; i <= ticks; ++i) {
    const double v = i * step;
    svg += Rule(kLeft, axis->Y(v), kWidth - kRight, axis->Y(v), "#dddddd");
    svg += Text(kLeft - 6, axis->Y(v) + 4, "end", absl::StrCat(v));
  }
  double x = kLeft;
  for (size_t i = 0; i < names.size(); ++i) {
    svg += absl::StrFormat(
        "<rect class=\"key\" x=\"%.1f\" y=\"32\" width=\"12\" height=\"12\" "
        "fill=\"%s\"/>\n",
        x, Color(i));
    svg += Text(x + 16, 42, "start", names[i]);
    x += 40 + 7.0 * static_cast<double>(names[i].size());
  }
  return svg;
}

}  // namespace

std::string BarPlot(const std::string& title, const std::string& x_label,
                    const std::vector<std::string>& categories,
                    const std::vector<Bars>& series) {
  double largest = 0.0;
  std::vector<std::string> names;
  for (const Bars& bars : series) {
    TL_CHECK_EQ(bars.values.size(), categories.size());
    names.push_back(bars.name);
    for (int64_t v : bars.values) {
      largest = std::max(largest, static_cast<double>(v));
    }
  }
  YAxis axis;
  std::string svg = Frame(title, x_label, names, largest, &axis);
  const auto count = static_cast<double>(categories.size());
  const double group = categories.empty() ? kPlotWidth : kPlotWidth / count;
  const double bar =
      series.empty() ? 0.0 : group * 0.8 / static_cast<double>(series.size());
  // Labels stay legible: with many categories only every n-th has one.
  const size_t every = std::max<size_t>(1, (categories.size() + 31) / 32);
  for (size_t c = 0; c < categories.size(); ++c) {
    const double left = kLeft + group * (static_cast<double>(c) + 0.1);
    for (size_t s = 0; s < series.size(); ++s) {
      const auto v = static_cast<double>(series[s].values[c]);
      svg += absl::StrFormat(
          "<rect class=\"bar\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" "
          "height=\"%.2f\" fill=\"%s\"><title>%s</title></rect>\n",
          left + bar * static_cast<double>(s), axis.Y(v), bar,
          axis.Y(0) - axis.Y(v), Color(s),
          Escape(absl::StrCat(categories[c], ", ", series[s].name, ": ",
                              series[s].values[c])));
    }
    if (c % every == 0) {
      svg += Text(left + group * 0.4, kHeight - kBottom + 18, "middle",
                  categories[c]);
    }
  }
  return svg + Rule(kLeft, axis.Y(0), kWidth - kRight, axis.Y(0), "#333333") +
         "</svg>\n";
}

std::string LinePlot(const std::string& title, const std::string& x_label,
                     const std::vector<double>& x,
                     const std::vector<Line>& lines) {
  double largest = 0.0;
  std::vector<std::string> names;
  for (const Line& line : lines) {
    TL_CHECK_EQ(line.y.size(), x.size());
    names.push_back(line.name);
    for (double v : line.y) largest = std::max(largest, v);
  }
  YAxis axis;
  std::string svg = Frame(title, x_label, names, largest, &axis);
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const double begin = x.empty() ? 0.0 : *low;
  const double span = x.empty() || *high == *low ? 1.0 : *high - *low;
  const auto at = [&](double v) {
    return kLeft + kPlotWidth * (v - begin) / span;
  };
  for (size_t l = 0; l < lines.size(); ++l) {
    std::string points;
    for (size_t i = 0; i < x.size(); ++i) {
      absl::StrAppend(
          &points, absl::StrFormat("%s%.2f,%.2f", i == 0 ? "" : " ", at(x[i]),
                                   axis.Y(lines[l].y[i])));
      svg += absl::StrFormat(
          "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"3\" fill=\"%s\">"
          "<title>%s</title></circle>\n",
          at(x[i]), axis.Y(lines[l].y[i]), Color(l),
          Escape(
              absl::StrCat(lines[l].name, " at ", x[i], ": ", lines[l].y[i])));
    }
    svg += absl::StrFormat(
        "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" "
        "points=\"%s\"/>\n",
        Color(l), points);
  }
  for (double v : x) {
    svg += Text(at(v), kHeight - kBottom + 18, "middle", absl::StrCat(v));
  }
  return svg + Rule(kLeft, axis.Y(0), kWidth - kRight, axis.Y(0), "#333333") +
         "</svg>\n";
}

}  // namespace trunkline::routing
