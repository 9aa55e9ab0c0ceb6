#include "caravan/train/model/offload_choice.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/techniques/demands.h"
#include "caravan/techniques/offload/kinds.h"
#include "caravan/train/model/rehearse.h"

namespace caravan {
namespace {

bool is_auto(const Recipe& recipe, const char* kind) { return recipe.offload.text(kind) == "auto"; }

/// Delayed updates ask for some tiers.
bool allows_tiers(const Recipe& recipe) {
  return !recipe.offload.entry().check(recipe.offload, 1) &&
         !misfit_of_offload(recipe.data_parallel, recipe.offload, recipe.precision.compute != "fp32");
}

Recipe with_tiers(Recipe recipe, size_t num_kinds, const char* tier) {
  size_t left = num_kinds;
  for (const char* kind : kOffloadKinds) {
    if (!is_auto(recipe, kind)) continue;
    recipe.offload.set(kind, left > 0 ? std::string(tier) : std::string("none"));
    left -= left > 0 ? 1 : 0;
  }
  return recipe;
}

struct Need {
  int64_t bytes = 0;  ///< of the fullest rank
  bool fits = false;  ///< every rank's peak is within its own budget
};

/// By a rehearsed step of every rank.
Need need_of(const Recipe& recipe, int64_t vocabulary, Communicator& world) {
  const int64_t budget = device_budget(recipe);
  std::array<int64_t, 2> numbers{};  // peak; whether it exceeds the budget
  all_or_none(
      world,
      [&] {
        numbers[0] =
            fullest_of([&] {
              return std::vector<Rehearsal>{rehearse(recipe, vocabulary, world.size(), world.rank(), world.size())};
            }).peak.total();
        numbers[1] = budget > 0 && numbers[0] > budget ? 1 : 0;
      },
      "rehearsal");
  take_maxima(world, numbers, "offload");
  return {numbers[0], numbers[1] == 0};
}

/// What is offloaded, without what `before` offloads too.
std::string chosen_text(const Recipe& recipe, const Recipe* before = nullptr) {
  std::vector<std::string> all;
  for (const char* kind : kOffloadKinds) {
    const std::string& tier = recipe.offload.text(kind);
    if (before != nullptr && before->offload.text(kind) == tier) continue;
    if (tier != "none") all.push_back(fmt::format("offload.{} = \"{}\"", kind, tier));
  }
  return join(all);
}

/// What to do if a rank exceeds its budget: offload with the micro-batch of the recipe, else with the least.
std::string way_out(const Recipe& recipe, int64_t vocabulary, Communicator& world) {
  Recipe open = recipe;
  for (const char* kind : kOffloadKinds) {
    if (open.offload.text(kind) == "none") open.offload.set(kind, std::string("auto"));
  }
  Need last;
  const auto fits = [&](const Recipe& chosen) {
    last = need_of(chosen, vocabulary, world);
    return last.fits;
  };
  if (const auto least = least_offload(open, fits)) return "use " + chosen_text(*least, &recipe);
  const Recipe small = with_least_micro_batch([&] {
    Recipe any = open;
    if (!any.pipeline.is_used()) any.train.micro_batch = kAutoMicroBatch;
    return any;
  }());
  const std::string sequences = fmt::format("train.micro_batch = {}", small.train.micro_batch);
  const bool is_smaller = !small.pipeline.is_used() && small.train.micro_batch < recipe.train.micro_batch;
  if (is_smaller) {
    if (const auto least = least_offload(small, fits)) {
      const std::string tiers = chosen_text(*least, &recipe);
      return tiers.empty() ? "use " + sequences : fmt::format("use {} and {}", tiers, sequences);
    }
  }
  return fmt::format(
      "raise it, or use more ranks with data_parallel.technique = \"zero3\", tiling.tiles or memory.recompute = "
      "\"full\": with all of it offloaded{} a rank needs {}",
      is_smaller ? " and " + sequences : "", format_bytes(last.bytes));
}

}  // namespace

int64_t device_budget(const Recipe& recipe) {
  const std::string& text = recipe.offload.text("device_budget");
  return text.empty() ? 0 : parse_bytes(text).value_or(0);
}

std::optional<Recipe> least_offload(const Recipe& recipe, const std::function<bool(const Recipe&)>& fits) {
  const auto kinds = static_cast<size_t>(
      std::ranges::count_if(kOffloadKinds, [&](const char* kind) { return is_auto(recipe, kind); }));
  std::vector<std::pair<size_t, const char*>> choices{{0, "none"}};
  for (size_t i = 1; i <= kinds; ++i) choices.emplace_back(i, "host");
  for (size_t i = 1; i <= kinds && !recipe.offload.texts("disk_dirs").empty(); ++i) choices.emplace_back(i, "disk");
  for (const auto& [count, tier] : choices) {
    Recipe chosen = with_tiers(recipe, count, tier);
    if (allows_tiers(chosen) && fits(chosen)) return chosen;
  }
  return std::nullopt;
}

Recipe with_chosen_offload(const Recipe& recipe, const std::function<bool(const Recipe&)>& fits) {
  if (std::ranges::none_of(kOffloadKinds, [&](const char* kind) { return is_auto(recipe, kind); })) return recipe;
  if (device_budget(recipe) == 0) {
    recipe.refuse("offload.device_budget", "is not set, so that \"auto\" has nothing to fit",
                  "set it, such as \"4G\", or name tiers");
  }
  const std::optional<Recipe> chosen = least_offload(recipe, fits);
  return chosen ? *chosen : with_tiers(recipe, kOffloadKinds.size(), "host");
}

void resolve_offload(Recipe& recipe, int64_t vocabulary, Communicator& world) {
  recipe = with_chosen_offload(
      recipe, [&](const Recipe& chosen) { return need_of(with_least_micro_batch(chosen), vocabulary, world).fits; });
}

std::optional<int64_t> chunk_room(const Recipe& recipe, int64_t peak_bytes, const ChunkReport& chunks,
                                  int64_t limit_bytes) {
  const bool is_chosen = device_budget(recipe) > 0 && recipe.chunks.text("device") == "auto";
  if (!is_chosen || !chunks.is_used() || limit_bytes <= 0) return std::nullopt;
  const int64_t left = limit_bytes - peak_bytes;
  const int64_t more = left >= 0 ? left / chunks.chunk_bytes : -((-left + chunks.chunk_bytes - 1) / chunks.chunk_bytes);
  return std::max<int64_t>(chunks.slots + more, chunks.needed_slots) * chunks.chunk_bytes;
}

void resolve_chunks(Recipe& recipe, MemoryPlan& plan, int64_t vocabulary, Communicator& world) {
  const std::optional<int64_t> own = chunk_room(recipe, plan.own.peak.total(), plan.own.chunks, plan.limit_bytes);
  constexpr int64_t kNone = std::numeric_limits<int64_t>::min();
  const ChunkReport& chunks = plan.own.chunks;
  std::array<int64_t, 2> of_ranks{own ? -*own : kNone, chunks.num_chunks * chunks.chunk_bytes};  // minus the least; all
  take_maxima(world, of_ranks, "chunks");
  if (of_ranks[0] == kNone) return;
  const int64_t room = std::min(-of_ranks[0], of_ranks[1]);
  recipe.chunks.set("device", std::to_string(room));
  const auto slots = [&] { return std::min<int64_t>(room / chunks.chunk_bytes, chunks.num_chunks); };
  int64_t differs = chunks.is_used() && slots() != chunks.slots ? 1 : 0;
  take_maxima(world, {&differs, 1}, "chunks");
  if (differs == 0) return;
  const bool is_chosen = plan.is_chosen;
  plan = resolve_micro_batch(recipe, vocabulary, world);
  plan.is_chosen = is_chosen;
}

void check_budget(const Recipe& recipe, const MemoryPlan& plan, int64_t vocabulary, Communicator& world) {
  const int64_t budget = device_budget(recipe);
  const int64_t needed = plan.own.peak.total();
  std::vector<int64_t> excess(static_cast<size_t>(world.size()), 0);
  excess[static_cast<size_t>(world.rank())] = budget > 0 ? std::max<int64_t>(needed - budget, 0) : 0;
  take_maxima(world, excess, "offload");
  const auto worst = std::ranges::max_element(excess);
  if (*worst == 0) return;
  const int rank = static_cast<int>(worst - excess.begin());
  const std::string fact = fmt::format("rank {} needs {} in {}, but may use {}", rank, format_bytes(needed),
                                       plan.own.event, format_bytes(budget));
  throw ResourceError({"train", "offload.device_budget", broadcast_text(world, fact, rank, "offload"),
                       recipe.where("offload.device_budget"), way_out(recipe, vocabulary, world)});
}

std::string offload_text(const Recipe& recipe, const RankPeak& own) {
  const std::string chosen = chosen_text(recipe);
  if (chosen.empty()) return "";
  const auto bytes = [](double count) { return format_bytes(static_cast<int64_t>(count)); };
  std::string text = fmt::format("{}: {} of host memory a rank", chosen, format_bytes(own.host.total()));
  if (own.disk_bytes > 0) text += fmt::format(" and {} on disk", format_bytes(own.disk_bytes));
  text +=
      fmt::format("; a step moves {} to the host and {} back", bytes(own.moved.to_host), bytes(own.moved.from_host));
  if (own.disk_bytes > 0) {
    text += fmt::format(", writes {} to disk and reads {}", bytes(own.moved.to_disk), bytes(own.moved.from_disk));
  }
  if (recipe.offload.flag("delayed_update")) {
    const int64_t after = recipe.offload.whole("delay_after");
    text += "; updates are delayed by one step";
    if (after > 0) text += fmt::format(" after the first {}", after);
  }
  return text;
}

std::vector<std::string> chunk_lines(const ChunkReport& chunks) {
  if (!chunks.is_used()) return {};
  std::vector<std::string> lines{fmt::format(
      "{} chunk{} of {} bytes ({}) on a rank, {:.1f} % of them empty; room for {} on the device ({})",
      chunks.num_chunks, chunks.num_chunks == 1 ? "" : "s", chunks.chunk_bytes, format_bytes(chunks.chunk_bytes),
      100 * chunks.waste, chunks.slots, format_bytes(chunks.room_bytes()))};
  std::string text = fmt::format("{} micro-batch{}, as rehearsed, load", chunks.num_micro_batches,
                                 chunks.num_micro_batches == 1 ? "" : "es");
  const char* separator = " ";
  for (const ChunkReport::Loads& loads : chunks.policies) {
    text += fmt::format("{}{} chunks ({} bytes, {}) with \"{}\"", separator, loads.chunks, loads.bytes,
                        format_bytes(loads.bytes), loads.policy);
    separator = ", ";
  }
  lines.push_back(text + fmt::format("; no order loads fewer than {}", chunks.least));
  return lines;
}

}  // namespace caravan
