#include "caravan/train/model/micro_batch.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/system/memory_limit.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/train/dataset/prepare.h"
#include "caravan/train/model/offload_choice.h"
#include "caravan/train/model/rehearse.h"

namespace caravan {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
/// Stands for a larger number of bytes than a tensor can have.
constexpr int64_t kTooMany = int64_t{1} << 61;

/// The rest is for memory that is not counted: the file cache, other programs, the allocator's cache.
constexpr double kUsedShare = 0.8;

/// "1.5 GiB" of a number that may exceed 61 bits.
std::string text_of(int64_t bytes) {
  return (bytes >= kTooMany ? "more than " : "") + format_bytes(std::min(bytes, kTooMany));
}

/// Ids and labels of a step.
double batch_bytes(const Recipe& recipe, int64_t rows) {
  return 16 * static_cast<double>(rows) * static_cast<double>(recipe.model.row_length() * recipe.data.task.sequences());
}

/// The values of all ranks.
std::vector<int64_t> of_ranks(Communicator& world, int64_t mine) {
  std::vector<int64_t> all(static_cast<size_t>(world.size()), 0);
  all[static_cast<size_t>(world.rank())] = mine;
  take_maxima(world, all, "memory of the ranks");
  return all;
}

constexpr const char* kCutFiner = "raise pipeline.micro_batches, or use memory.recompute";

/// What to do if that does not fit.
std::string advice_of(const Recipe& recipe, const MemoryPlan& plan) {
  if (recipe.pipeline.is_used()) return kCutFiner;
  const bool is_least = plan.is_chosen || plan.micro_batch <= row_parts(recipe);
  return is_least ? "use a smaller model or context" : "lower train.micro_batch, or set it to \"auto\"";
}

[[noreturn]] void refuse_memory(const Recipe& recipe, const RankPeak& peak, int64_t sequences, int64_t rows,
                                int64_t limit) {
  const int64_t states = peak.peak.state();
  throw ResourceError(
      {"train", "memory",
       fmt::format("a rank needs about {} with {} sequence{} at a time ({} of them for parameters, "
                   "gradients and the optimizer), but has {}",
                   text_of(peak.peak.total()), sequences, sequences > 1 ? "s" : "", text_of(states),
                   format_bytes(limit)),
       recipe.where("train.micro_batch"),
       batch_bytes(recipe, rows) > static_cast<double>(limit) / 2 ? "lower train.global_batch"
       : states > limit / 2
           ? "lower model.layers, model.width or the vocabulary, start fewer ranks on this host, or set "
             "offload.optimizer, offload.gradients and offload.parameters to \"disk\""
       : recipe.pipeline.is_used() ? kCutFiner
                                   : "lower model.context, model.layers or model.width, or start fewer ranks on "
                                     "this host"});
}

}  // namespace

std::string memory_needs(const MemoryPlan& plan) {
  const std::string of = plan.limit_bytes > 0 ? " of " + format_bytes(plan.limit_bytes) : "";
  return fmt::format("{}{} per rank at most, rank {} in {}", text_of(plan.peak_bytes()), of, plan.fullest.rank,
                     plan.fullest.event);
}

std::string memory_text(const MemoryPlan& plan) {
  if (!plan.fits()) return memory_needs(plan) + ": it may not fit; " + plan.advice;
  const bool has_spare = plan.limit_bytes <= 0 ||
                         static_cast<double>(plan.peak_bytes()) <= kUsedShare * static_cast<double>(plan.limit_bytes);
  return memory_needs(plan) + (has_spare ? "" : ": close to the limit");
}

MemoryPlan plan_memory(const Recipe& recipe, int num_ranks, int64_t limit_bytes, int64_t before, const PeakOf& peak_of,
                       bool is_budget) {
  const double used = is_budget ? 1 : kUsedShare;
  const BatchPlan batch = plan_batch(recipe, num_ranks);
  const int64_t parts = row_parts(recipe);
  MemoryPlan plan{.micro_batch = batch.micro_batch,
                  .limit_bytes = limit_bytes,
                  .usable_bytes = static_cast<int64_t>(used * static_cast<double>(limit_bytes)),
                  .is_chosen = recipe.train.micro_batch == kAutoMicroBatch && !recipe.pipeline.is_used()};
  std::map<int64_t, RankPeak> peaks;
  const auto peak = [&](int64_t sequences) -> const RankPeak& {
    const auto found = peaks.find(sequences);
    return found != peaks.end() ? found->second : peaks.emplace(sequences, peak_of(sequences)).first->second;
  };
  const auto fits = [&](int64_t sequences, double share) {
    return limit_bytes <= 0 ||
           static_cast<double>(peak(sequences).peak.total()) <= share * static_cast<double>(limit_bytes);
  };
  const bool keeps = plan.is_chosen && before > 0 && batch.rows() % before == 0 && before % parts == 0;
  if (keeps && fits(before, 1)) {
    plan.micro_batch = before;
  } else if (plan.is_chosen && limit_bytes > 0) {
    std::vector<int64_t> choices = divisors(batch.rows());
    std::erase_if(choices, [&](int64_t sequences) { return sequences % parts != 0; });
    // Fewer sequences need less, and mostly all fit.
    const auto fitting = [&](int64_t sequences) { return fits(sequences, used); };
    const bool all_fit = fitting(choices.back());
    const auto end = all_fit ? choices.end() : std::partition_point(choices.begin(), choices.end(), fitting);
    plan.micro_batch = end == choices.begin() ? parts : *(end - 1);
    if (!fits(plan.micro_batch, 1) && !is_budget) {
      refuse_memory(recipe, peak(plan.micro_batch), plan.micro_batch, batch.rows(), limit_bytes);
    }
  }
  plan.fullest = peak(plan.micro_batch);
  plan.advice = advice_of(recipe, plan);
  const bool states_fit = limit_bytes <= 0 || is_budget || plan.fullest.peak.state() <= limit_bytes;
  if (!states_fit) {
    const int64_t least = plan.is_chosen || !recipe.pipeline.is_used() ? parts : plan.micro_batch;
    refuse_memory(recipe, peak(least), least, batch.rows(), limit_bytes);
  }
  return plan;
}

RankPeak fullest_of(const std::function<std::vector<Rehearsal>()>& rehearse_some) {
  RankPeak fullest;
  try {
    for (Rehearsal& rehearsal : rehearse_some()) {
      if (rehearsal.peak.total() <= fullest.peak.total()) continue;
      fullest = {rehearsal.peak,       rehearsal.rank,  std::move(rehearsal.peak_event),
                 rehearsal.held_bytes, rehearsal.host,  rehearsal.disk_bytes,
                 rehearsal.moved,      rehearsal.chunks};
    }
  } catch (const c10::Error& error) {
    if (std::string_view(error.what_without_backtrace()).find("overflow") == std::string_view::npos) throw;
    fullest.peak[MemoryKind::parameters] = kTooMany;
    fullest.event = "tensors of more than 2^63 bytes";
  }
  return fullest;
}

Recipe with_micro_batch(Recipe recipe, int64_t micro_batch) {
  if (!recipe.pipeline.is_used()) recipe.train.micro_batch = micro_batch;
  return recipe;
}

Recipe with_least_micro_batch(const Recipe& recipe) {
  return recipe.train.micro_batch == kAutoMicroBatch ? with_micro_batch(recipe, row_parts(recipe)) : recipe;
}

MemoryPlan resolve_micro_batch(Recipe& recipe, int64_t vocabulary, Communicator& world, int64_t before) {
  const std::string host = host_name();
  const std::vector<std::string> hosts = gather_texts(world, host, "hosts");
  const auto on_host = static_cast<int>(std::count(hosts.begin(), hosts.end(), host));
  const int64_t share = memory_share(usable_memory_bytes(), on_host);
  const int64_t budget = device_budget(recipe);
  const int64_t mine = budget > 0 && (share <= 0 || budget < share) ? budget : share;
  const std::string_view backend = world.backend();
  const bool has_shared = backend == "thread" || backend.starts_with("shm");
  const int ranks_per_host = has_shared ? on_host : 0;
  std::array<int64_t, 2> numbers{mine > 0 ? -mine : -kUnknown, before};  // minus the minimum, and the maximum
  take_maxima(world, numbers, "memory of the ranks");
  const int64_t least = -numbers[0];
  std::map<int64_t, RankPeak> owns;  // by micro-batch
  std::map<int64_t, int64_t> held;   // by all ranks
  const auto fullest = [&](int64_t micro_batch) {
    RankPeak& own = owns[micro_batch];
    const Recipe resolved = with_micro_batch(recipe, micro_batch);
    const auto rehearse_own = [&] {
      return std::vector<Rehearsal>{rehearse(resolved, vocabulary, world.size(), world.rank(), ranks_per_host)};
    };
    all_or_none(
        world, [&] { own = fullest_of(rehearse_own); }, "rehearsal");
    const std::vector<int64_t> totals = of_ranks(world, own.peak.total());
    const std::vector<int64_t> blocks = of_ranks(world, own.held_bytes);
    held[micro_batch] = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
    RankPeak most;
    most.rank = static_cast<int>(std::ranges::max_element(totals) - totals.begin());
    if (world.rank() == most.rank) most = own;
    most.event = broadcast_text(world, own.event, most.rank, "memory of the ranks");
    take_maxima(world, most.peak.of, "memory of the ranks");
    return most;
  };
  MemoryPlan plan = plan_memory(recipe, world.size(), least == kUnknown ? 0 : least, numbers[1], fullest,
                                budget > 0 && least == budget);
  recipe.train.micro_batch = plan.micro_batch;
  plan.own = owns.at(plan.micro_batch);
  // BLAS libraries have generated code in the rehearsal. Ranks that are threads share a process, so one of them counts
  // it.
  const bool counts = backend != "thread" || world.rank() == 0;
  const std::vector<int64_t> started = of_ranks(world, counts ? anonymous_bytes() : 0);
  plan.resident_bytes = resident_bytes(
      backend, world.size(), std::accumulate(started.begin(), started.end(), int64_t{0}), held.at(plan.micro_batch));
  return plan;
}

}  // namespace caravan
