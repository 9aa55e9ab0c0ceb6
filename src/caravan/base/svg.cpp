#include "caravan/base/svg.h"

#include <fmt/format.h>

namespace caravan::svg {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string document(double width, double height, const std::string& body) {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
      "font-family=\"sans-serif\">\n{2}</svg>\n",
      width, height, body);
}

std::string box(double x, double y, double width, double height, std::string_view fill, double border) {
  return fmt::format(R"(<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" fill="{}" stroke="#555" )"
                     "stroke-width=\"{:g}\"/>\n",
                     x, y, width, height, fill, border);
}

std::string words(double x, double y, double size, std::string_view text, std::string_view anchor) {
  return fmt::format(R"(<text x="{:.2f}" y="{:.2f}" font-size="{:.1f}" text-anchor="{}">{}</text>)"
                     "\n",
                     x, y, size, anchor, escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view color, double width, double opacity) {
  return fmt::format(R"(<line x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}" stroke="{}" stroke-width="{:.1f}" )"
                     "stroke-opacity=\"{:.1f}\"/>\n",
                     x1, y1, x2, y2, color, width, opacity);
}

}  // namespace caravan::svg
