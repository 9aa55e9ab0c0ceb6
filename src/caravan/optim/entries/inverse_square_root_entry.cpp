#include <cmath>

#include "caravan/registry/registry.h"

namespace caravan {
namespace {

constexpr int64_t kUsualTimescale = 10000;  ///< without a warm-up: what transformers takes

}  // namespace

Entry inverse_square_root_entry() {
  return {.family = "learning_rate",
          .name = "inverse_square_root",
          .summary = "falls as the inverse square root of the step, whatever the length of the run",
          .paper = "Vaswani et al., \"Attention is all you need\", arXiv 1706.03762",
          .keys = {{{"timescale", OnResume::listed},
                    "steps in which the fall begins; 0: warmup_steps, or 10,000 without a warm-up",
                    int64_t{0},
                    whole_number({0})}},
          .rate =
              [](const Setting& setting, int64_t step, int64_t warmup, int64_t) {
                const int64_t own = setting.whole("timescale");
                const int64_t usual = warmup > 0 ? warmup : kUsualTimescale;
                const auto timescale = static_cast<double>(own > 0 ? own : usual);
                return std::sqrt(timescale / (timescale + static_cast<double>(step + 1 - warmup)));
              },
          .mistaken = {{"inverse_sqrt", "'inverse_sqrt' is \"inverse_square_root\""},
                       {"rsqrt", "'rsqrt' is \"inverse_square_root\""},
                       {"noam", "'noam' is \"inverse_square_root\""}}};
}

}  // namespace caravan
