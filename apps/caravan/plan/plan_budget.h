#pragma once

#include <optional>

#include "apps/caravan/options/options.h"
#include "caravan/cost/hardware.h"

namespace caravan::app {

/// What the first `num_ranks` devices cost an hour; nothing if the price of one is unknown.
std::optional<double> price_of_hour(const Hardware& hardware, int64_t num_ranks);

/// Tokens of --budget; 0 without it. Throws UsageError for a text that is no number of tokens.
double tokens_of_budget(const PlanArguments& arguments);

/// Throws UsageError for a --budget that is no number of tokens, or without prices.
void check_budget(const PlanArguments& arguments, const Hardware& hardware);

}  // namespace caravan::app
