#pragma once

#include <span>
#include <string>

#include "caravan/cost/simulate.h"

namespace caravan {

/// Predicted spans as an SVG document. For each rank a row of what it computes, with its waits, and one for the calls
/// over each axis; below, the time and a legend. Spans too narrow to be seen are drawn together with their neighbours.
std::string timeline_to_svg(std::span<const SimulatedStep::Span> spans, const std::string& title);

}  // namespace caravan
