#include <algorithm>
#include <cmath>
#include <numbers>

#include "caravan/optim/entries/rate_keys.h"

namespace caravan {
namespace {

/// How far step `done` of `steps`, counted from 1, is in its cycle: 1 at the last step of each. A cycle is `growth`
/// times as long as the one before; their ends are rounded to whole steps, so that each reaches its end.
double part_of_cycle(int64_t done, int64_t steps, int64_t cycles, double growth) {
  double whole = 0;
  for (int64_t i = 0; i < cycles; ++i) whole += std::pow(growth, static_cast<double>(i));
  double so_far = 0;
  int64_t begin = 0;
  for (int64_t i = 0; i < cycles; ++i) {
    so_far += std::pow(growth, static_cast<double>(i));
    const int64_t end = std::llround(static_cast<double>(steps) * (so_far / whole));
    if (done <= end) return static_cast<double>(done - begin) / static_cast<double>(end - begin);
    begin = end;
  }
  return 1;
}

}  // namespace

Entry cosine_with_restarts_entry() {
  return {.family = "learning_rate",
          .name = "cosine_with_restarts",
          .summary = "falls along half a cosine to final_lr_fraction of lr, and begins again at lr, in each cycle",
          .paper = "Loshchilov and Hutter, \"SGDR: stochastic gradient descent with warm restarts\", arXiv 1608.03983",
          .keys = {final_lr_fraction_key(),
                   {{"cycles", OnResume::listed}, "cycles after the warm-up", int64_t{4}, whole_number({1, 100})},
                   {{"cycle_growth", OnResume::listed},
                    "length of a cycle relative to the one before",
                    1.0,
                    real_number({1, 10})}},
          .rate =
              [](const Setting& setting, int64_t step, int64_t warmup, int64_t total) {
                const int64_t steps = std::max<int64_t>(total - warmup, 1);
                const double t =
                    part_of_cycle(step + 1 - warmup, steps, setting.whole("cycles"), setting.real("cycle_growth"));
                const double last = setting.real("final_lr_fraction");
                return last + (1 - last) * 0.5 * (1 + std::cos(std::numbers::pi * t));
              },
          .mistaken = {{"sgdr", "'sgdr' is \"cosine_with_restarts\""}}};
}

}  // namespace caravan
