#pragma once

#include <string>

#include "caravan/schedule/pipeline.h"

namespace caravan {

/// How passes of a kind are drawn.
struct PassLook {
  const char* letter;
  const char* name;
  const char* color;
  const char* later;  ///< for the later stages of a rank
};
PassLook look_of(Pass::Kind kind);

/// The timeline as text, a row for each rank, at most `width` columns: a pass is its letter (F forward, C recompute, B
/// backward, W weight gradients) and, if there is room, its micro-batch; "." stands for a bubble.
std::string to_text(const Timeline& timeline, int width);

/// The timeline as an SVG document: a row for each rank; passes in colours with their micro-batches, darker for the
/// later stages of a rank; arrows for messages to another rank; a legend.
std::string to_svg(const Timeline& timeline, const std::vector<int>& rank_of_stage, const std::string& title);

}  // namespace caravan
