#pragma once

#include <string>
#include <string_view>

namespace caravan::svg {

/// `text` with the special characters of XML and HTML escaped.
std::string escaped(std::string_view text);

/// The document around `body`, with a view of `width` x `height` and a sans-serif font.
std::string document(double width, double height, const std::string& body);

/// A filled rectangle with a border of this width.
std::string box(double x, double y, double width, double height, std::string_view fill, double border = 0.5);

/// `x` is the left end, the middle or the right end: anchor "start", "middle" or "end".
std::string words(double x, double y, double size, std::string_view text, std::string_view anchor = "start");

std::string line(double x1, double y1, double x2, double y2, std::string_view color, double width = 1,
                 double opacity = 1);

}  // namespace caravan::svg
