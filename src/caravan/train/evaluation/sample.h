#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "caravan/recipe/recipe.h"
#include "caravan/train/folder/run_state.h"

namespace caravan {

/// The text that a run makes of sample.prompt: every rank takes part in the forward passes. The first that holds the
/// logits samples, and sends the token to the others. `show` gets the text piece by piece. Returns nothing if
/// stop_requested() was true on any rank; it may be empty.
std::optional<std::string> sample_text(RunState& state, const Recipe& recipe,
                                       const std::function<bool()>& stop_requested,
                                       const std::function<void(std::string_view)>& show);

}  // namespace caravan
