#pragma once

#include <map>
#include <span>
#include <string>

namespace caravan {

/// What a rank does for some time, as a trace has it: rows "compute", "wait", and one for each axis.
struct DrawnSpan {
  int rank = 0;
  std::string row{};
  std::string what{};
  double begin = 0, end = 0;  ///< seconds
};

/// Spans as an SVG document. For each rank a row of what it computes, with its waits, and one for each other row;
/// below, the time and a legend. Nested spans are lower. What is too narrow to be seen is drawn with its neighbours.
/// `names`: of ranks, if they have others than "rank 3".
std::string draw_timeline(std::span<const DrawnSpan> spans, const std::string& title,
                          const std::map<int, std::string>& names = {});

}  // namespace caravan
