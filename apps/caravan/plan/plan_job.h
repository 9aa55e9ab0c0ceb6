#pragma once

#include <optional>

#include "apps/caravan/options/options.h"
#include "caravan/cost/hardware.h"
#include "caravan/plan/goodput.h"
#include "caravan/plan/search.h"

namespace caravan::app {

/// Where a plan is made.
struct PlannedJob {
  const PlanArguments& arguments;
  const Hardware& hardware;
  int num_ranks;
  int64_t vocabulary;
};

/// "hardware  8 hosts ..": a line, or the next one of its name.
void print_fact(const char* name, const std::string& value);

/// "8.264 s (7.38 to 9.39 s)": a step with the error of its prediction.
std::string step_text(const PlannedJob& job, double seconds);

/// Lines about a long run with the best layout: its goodput, price and the budget.
void print_job(const PlannedJob& job, const PlannedLayout& best);

}  // namespace caravan::app
