#include "apps/caravan/plan/plan_job.h"

#include <optional>
#include <string>

#include <fmt/format.h>

#include "apps/caravan/plan/plan_budget.h"
#include "caravan/base/text.h"
#include "caravan/plan/checkpoint_size.h"
#include "caravan/plan/plan_text.h"
#include "caravan/plan/time_range.h"

namespace caravan::app {
namespace {

void print_goodput(const Goodput& goodput) {
  print_fact("goodput", to_text(goodput));
  std::string text = fmt::format("a checkpoint has {}", format_bytes(goodput.total_bytes));
  if (!goodput.assumed.empty()) text += "; assumed: " + join(goodput.assumed);
  print_fact("", text);
}

void print_budget(const PlannedJob& job, const Prediction& best, double share, std::optional<double> of_hour) {
  const double tokens = tokens_of_budget(job.arguments);
  if (tokens <= 0) return;
  const std::string what = format_count(tokens) + " tokens";
  if (share <= 0) return print_fact("budget", what + ": never, failures come faster than checkpoints");
  const double seconds = tokens / best.tokens_per_second / share;
  const TimeRange range = time_range(seconds, time_error_of(job.hardware, job.num_ranks));
  std::string text =
      fmt::format("{}: {} ({})", what, duration_text(seconds), duration_range_text(range.low, range.high));
  if (of_hour) {
    const double cost = *of_hour * seconds / 3600;
    text += fmt::format(", which cost {:.{}f}", cost, cost < 100 ? 2 : 0);
  }
  print_fact("budget", text);
}

}  // namespace

void print_fact(const char* name, const std::string& value) { fmt::print("{:<10}{}\n", name, value); }

std::string step_text(const PlannedJob& job, double seconds) {
  const TimeRange range = time_range(seconds, time_error_of(job.hardware, job.num_ranks));
  return fmt::format("{} ({})", step_seconds_text(seconds), range.to_text());
}

void print_job(const PlannedJob& job, const PlannedLayout& best) {
  const Prediction& one = best.prediction;
  const auto goodput =
      goodput_on(job.hardware, job.num_ranks, checkpoint_size(best.recipe, job.vocabulary, job.num_ranks), one.seconds,
                 best.recipe.checkpoint.async);
  if (goodput) print_goodput(*goodput);
  const double share = goodput ? goodput->share : 1;
  const std::optional<double> of_hour = price_of_hour(job.hardware, job.num_ranks);
  if (of_hour && share > 0) {
    const double of_tokens = *of_hour / 3600 / one.tokens_per_second / share * 1e9;
    print_fact("price", fmt::format("{:.2f} an hour, {:.2f} for 1 G tokens", *of_hour, of_tokens));
  }
  print_budget(job, one, share, of_hour);
}

}  // namespace caravan::app
