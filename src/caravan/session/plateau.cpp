#include <array>
#include <charconv>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "caravan/session/kept.h"

namespace caravan {
namespace {

using Plateau = torch::optim::ReduceLROnPlateauScheduler;

/// Names a private member in an explicit instantiation, where C++ checks no access: torch has no other way to it.
template <class Tag, auto Member>
struct Opened {
  friend auto& member(Tag /*tag*/, Plateau& scheduler) { return scheduler.*Member; }
};

#define CARAVAN_OPEN(name)                          \
  struct Tag_##name {};                             \
  auto& member(Tag_##name tag, Plateau& scheduler); \
  template struct Opened<Tag_##name, &Plateau::name>;
CARAVAN_OPEN(mode)
CARAVAN_OPEN(factor)
CARAVAN_OPEN(patience)
CARAVAN_OPEN(threshold)
CARAVAN_OPEN(threshold_mode)
CARAVAN_OPEN(cooldown)
CARAVAN_OPEN(min_lrs)
CARAVAN_OPEN(eps)
CARAVAN_OPEN(cooldown_counter)
CARAVAN_OPEN(best)
CARAVAN_OPEN(last_epoch)
CARAVAN_OPEN(num_bad_epochs)
#undef CARAVAN_OPEN

std::string options_of(Plateau& own) {
  return fmt::format("mode {}, factor {}, patience {}, threshold {} {}, cooldown {}, min_lr {}, eps {}",
                     member(Tag_mode(), own) == Plateau::min ? "min" : "max", member(Tag_factor(), own),
                     member(Tag_patience(), own), member(Tag_threshold(), own),
                     member(Tag_threshold_mode(), own) == Plateau::rel ? "rel" : "abs", member(Tag_cooldown(), own),
                     fmt::join(member(Tag_min_lrs(), own), " "), member(Tag_eps(), own));
}

std::string progress_of(Plateau& own) {
  return fmt::format("best metric {}, bad epochs {}, cooldown left {}, epochs {}", member(Tag_best(), own),
                     member(Tag_num_bad_epochs(), own), member(Tag_cooldown_counter(), own),
                     member(Tag_last_epoch(), own));
}

/// The options in a line, and what a metric has led to in another.
std::string text_of(Plateau& own) {
  return fmt::format("{}\n{} {} {} {}", options_of(own), member(Tag_best(), own), member(Tag_num_bad_epochs(), own),
                     member(Tag_cooldown_counter(), own), member(Tag_last_epoch(), own));
}

void read_text(Plateau& own, const std::string& text) {
  if (text.empty()) return;  // of what stood in for a scheduler
  std::istringstream lines(text);
  std::string options, best;
  std::getline(lines, options);
  if (options != options_of(own)) {
    throw std::runtime_error(fmt::format("its scheduler has {}, and the one in the checkpoint {}", options_of(own),
                                         options.empty() ? "none" : options));
  }
  std::array<int, 3> counts{};
  lines >> best >> counts[0] >> counts[1] >> counts[2];
  float number = 0;
  const auto read = std::from_chars(best.data(), best.data() + best.size(), number);
  if (!lines || read.ec != std::errc()) throw std::runtime_error("it is no state of a ReduceLROnPlateauScheduler");
  member(Tag_best(), own) = number;
  member(Tag_num_bad_epochs(), own) = counts[0];
  member(Tag_cooldown_counter(), own) = counts[1];
  member(Tag_last_epoch(), own) = counts[2];
}

}  // namespace

Kept::Kept(Plateau& scheduler)
    : Kept([&scheduler] { return text_of(scheduler); },
           [&scheduler](const std::string& text) { read_text(scheduler, text); }) {
  shown_ = [&scheduler] { return std::vector{progress_of(scheduler), options_of(scheduler)}; };
}

}  // namespace caravan
