#include "caravan/cost/published/errors.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "caravan/comm/measure/statistics.h"

namespace caravan::published {
namespace {

constexpr double kBytesOfGib = 1 << 30;

double median_of(const std::vector<double>& values) { return measure::quantile(values, 0.5); }

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// `ratios`: of prediction to answer.
Errors errors_of_ratios(const std::vector<double>& ratios) {
  if (ratios.empty()) return {};
  std::vector<double> errors;
  for (const double ratio : ratios) errors.push_back(std::abs(ratio - 1));
  std::ranges::sort(errors);
  const auto ninth = static_cast<size_t>(std::nearbyint(0.9 * static_cast<double>(errors.size() - 1)));
  return {static_cast<int64_t>(errors.size()), median_of(errors), errors[std::min(ninth, errors.size() - 1)],
          errors.back()};
}

/// Places in ascending order; equal values share the mean of theirs.
std::vector<double> places(const std::vector<double>& values) {
  std::vector<double> result;
  for (const double value : values) {
    const auto below = std::ranges::count_if(values, [&](double other) { return other < value; });
    const auto equal = std::ranges::count(values, value);
    result.push_back(static_cast<double>(below) + static_cast<double>(equal - 1) / 2);
  }
  return result;
}

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = places(a), y = places(b);
  const double mx = mean_of(x), my = mean_of(y);
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mx) * (y[i] - my);
    xx += (x[i] - mx) * (x[i] - mx);
    yy += (y[i] - my) * (y[i] - my);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 1;
}

/// A row with an answer.
struct Answered {
  const Row* row;
  const Prediction* prediction;
  double step_seconds;
};

Choices choices_of(const std::vector<Answered>& runs) {
  std::map<std::string, std::vector<Answered>> groups;
  for (const Answered& run : runs) {
    groups[fmt::format("{} {} {}", run.row->text("model"), run.row->text("num_gpus"), run.row->text("global_batch"))]
        .push_back(run);
  }
  Choices choices;
  std::vector<double> correlations, losses;
  for (const auto& [name, group] : groups) {
    std::set<std::string> layouts;
    std::vector<double> predicted, answers;
    for (const Answered& run : group) {
      layouts.insert(run.prediction->layout);
      predicted.push_back(run.prediction->step_seconds);
      answers.push_back(run.step_seconds);
    }
    if (layouts.size() < 3) continue;
    choices.rows += static_cast<int64_t>(group.size());
    correlations.push_back(spearman(predicted, answers));
    const auto chosen = std::ranges::min_element(predicted) - predicted.begin();
    losses.push_back(answers[static_cast<size_t>(chosen)] / *std::ranges::min_element(answers) - 1);
  }
  if (losses.empty()) return choices;
  choices.groups = static_cast<int64_t>(losses.size());
  choices.median_spearman = median_of(correlations);
  choices.mean_spearman = mean_of(correlations);
  const auto near = std::ranges::count_if(losses, [](double loss) { return loss <= 0.05; });
  choices.within = static_cast<double>(near) / static_cast<double>(losses.size());
  choices.mean_loss = mean_of(losses);
  choices.most_loss = *std::ranges::max_element(losses);
  return choices;
}

void compare_steps(const std::vector<Answered>& runs, SourceErrors& errors) {
  std::vector<double> ratios, fractions;
  for (const Answered& run : runs) {
    ratios.push_back(run.prediction->step_seconds / run.step_seconds);
    fractions.push_back(run.prediction->executed_flops / run.prediction->peak_flops / run.step_seconds);
  }
  errors.step = errors_of_ratios(ratios);
  errors.bias = median_of(ratios);
  errors.best_constant.median = HUGE_VAL;
  for (const double fraction : fractions) {
    std::vector<double> of_constant;
    for (const double other : fractions) of_constant.push_back(other / fraction);
    const Errors one = errors_of_ratios(of_constant);
    if (one.median >= errors.best_constant.median) continue;
    errors.best_constant = one;
    errors.best_fraction = fraction;
  }
  errors.choices = choices_of(runs);
}

}  // namespace

std::vector<SourceErrors> errors_of(const std::vector<Row>& rows, const std::vector<Prediction>& predictions) {
  std::map<std::string, std::vector<Answered>> steps;
  std::map<std::string, std::vector<double>> memories;
  std::set<std::string> names;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string name = rows[i].text("tier") + " " + rows[i].text("file");
    const auto step = rows[i].number("step_s"), memory = rows[i].number("mem_gb");
    if (step && *step > 0) steps[name].push_back({&rows[i], &predictions[i], *step});
    if (memory && *memory > 0) memories[name].push_back(predictions[i].memory_bytes / kBytesOfGib / *memory);
    if ((step && *step > 0) || (memory && *memory > 0)) names.insert(name);
  }
  std::vector<SourceErrors> all;
  for (const std::string& name : names) {
    SourceErrors errors{.name = name};
    if (!steps[name].empty()) compare_steps(steps[name], errors);
    errors.memory = errors_of_ratios(memories[name]);
    all.push_back(std::move(errors));
  }
  return all;
}

std::string to_text(const std::vector<SourceErrors>& errors) {
  if (errors.empty()) return "";
  const auto percent = [](double value) { return fmt::format("{:.1f}%", 100 * value); };
  std::string text =
      fmt::format("{:30} {:>5} {:>8} {:>8} {:>6} | {:>22} {:>8} | {:>6} {:>8} {:>8}\n", "step time: source", "runs",
                  "median", "9th dec.", "bias", "best constant: median", "9th dec.", "memory", "median", "9th dec.");
  std::vector<double> medians, deciles, constants, constant_deciles;
  const char first_tier = errors.front().name.front();
  for (const SourceErrors& one : errors) {
    text += fmt::format("{:30} {:5} {:>8} {:>8} {:6.3f} | {:>13} of {:.3f} {:>8} | {:6} {:>8} {:>8}\n", one.name,
                        one.step.count, percent(one.step.median), percent(one.step.ninth_decile), one.bias,
                        percent(one.best_constant.median), one.best_fraction, percent(one.best_constant.ninth_decile),
                        one.memory.count, percent(one.memory.median), percent(one.memory.ninth_decile));
    if (one.step.count < 4 || one.name.front() != first_tier) continue;
    medians.push_back(one.step.median);
    deciles.push_back(one.step.ninth_decile);
    constants.push_back(one.best_constant.median);
    constant_deciles.push_back(one.best_constant.ninth_decile);
  }
  text += fmt::format(
      "mean of sources of the first tier with 4 runs or more: median {}, ninth decile {}; best constant {}, {}\n",
      percent(mean_of(medians)), percent(mean_of(deciles)), percent(mean_of(constants)),
      percent(mean_of(constant_deciles)));
  for (const SourceErrors& one : errors) {
    if (one.choices.groups == 0) continue;
    text += fmt::format(
        "choice of a layout, {}: {} groups of {} runs; Spearman median {:.3f}, mean {:.3f}; within 5% of the fastest "
        "in "
        "{}, loss mean {}, most {}\n",
        one.name, one.choices.groups, one.choices.rows, one.choices.median_spearman, one.choices.mean_spearman,
        percent(one.choices.within), percent(one.choices.mean_loss), percent(one.choices.most_loss));
  }
  return text;
}

}  // namespace caravan::published
