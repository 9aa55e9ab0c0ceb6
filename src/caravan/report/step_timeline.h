#pragma once

#include <filesystem>
#include <string>

namespace caravan {

/// What the ranks do in the last step of a trace (--trace), as an SVG: as draw_timeline draws
/// them. At most the first kMostTimelineRanks. Throws DataError for a file that is not a trace, or has no step.
std::string step_timeline(const std::filesystem::path& trace);
inline constexpr int kMostTimelineRanks = 16;

}  // namespace caravan
