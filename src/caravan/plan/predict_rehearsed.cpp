#include "caravan/plan/predict_rehearsed.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "caravan/base/error.h"
#include "caravan/cost/extend_timeline.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/schedule/pipeline_schedule.h"

namespace caravan {
namespace {

/// Numbers that are linear in layers and micro-batches.
void add(Prediction& sum, const Prediction& one, double times) {
  sum.seconds += times * one.seconds;
  sum.computes += times * one.computes;
  sum.of_products += times * one.of_products;
  sum.idles += times * one.idles;
  sum.bubble += times * one.bubble;
  sum.on_host += times * one.on_host;
  sum.moved.to_host += times * one.moved.to_host;
  sum.moved.from_host += times * one.moved.from_host;
  sum.moved.to_disk += times * one.moved.to_disk;
  sum.moved.from_disk += times * one.moved.from_disk;
  for (const auto& [axis, seconds] : one.waits) sum.waits[axis] += times * seconds;
}

void add(MemoryBytes& sum, const MemoryBytes& one, double times) {
  for (size_t kind = 0; kind < sum.of.size(); ++kind) {
    sum.of[kind] += std::llround(times * static_cast<double>(one.of[kind]));
  }
}

/// See Prediction::bubble. The ranks of a pipeline end at different times, so all calls of all ranks wait for the last.
double bubble_of(const SimulatedStep& step) {
  if (step.ranks.size() < 2) return 0;
  const double last = std::ranges::max(step.ranks, {}, &SimulatedStep::OfRank::seconds).seconds;
  double sum = 0;
  for (const SimulatedStep::OfRank& rank : step.ranks) {
    sum += last - rank.seconds;
    for (const auto& [axis, seconds] : rank.exposed) {
      if (axis.starts_with("pp") || axis == "world") sum += seconds;
    }
  }
  return sum / static_cast<double>(step.ranks.size());
}

/// What offload adds to a step. Copies run beside it, the slower direction or the disk is the limit; the host steps
/// beside the next forward, a third of the computation, or with a delay beside all of it.
void add_offload(Prediction& prediction, const Hardware& hardware, int num_ranks, bool is_delayed) {
  const Rehearsal::Moved& moved = prediction.moved;
  if (moved.to_host + moved.from_host <= 0) return;
  const HostKind& host = hardware.host_of(prediction.fullest_rank);
  const double copies =
      std::max(moved.to_host, moved.from_host) / hardware.device_of(prediction.fullest_rank).host_bytes_per_second;
  double disk = 0;
  if (moved.to_disk + moved.from_disk > 0) {
    if (host.disk_read_bytes_per_second <= 0 || host.disk_write_bytes_per_second <= 0) {
      throw UsageError({"plan", "offload", "the hosts of this hardware have no disks", hardware.name,
                        "give disk_read and disk_write, or offload to the host"});
    }
    disk = static_cast<double>(std::min<int64_t>(host.devices, num_ranks)) *
           (moved.to_disk / host.disk_write_bytes_per_second + moved.from_disk / host.disk_read_bytes_per_second);
  }
  const double beside = is_delayed ? prediction.computes : prediction.computes / 3;
  const double steps = std::max(0.0, prediction.on_host - beside);
  const double link = std::max(0.0, copies - prediction.seconds);
  const double files = std::max(0.0, disk - prediction.seconds);
  if (steps + std::max(link, files) <= 0) return;
  prediction.waits[files > link ? "disk" : "host"] = steps + std::max(link, files);
  prediction.seconds += steps + std::max(link, files);
}

void add_rates(Prediction& prediction, const Hardware& hardware, int num_ranks, const StepWork& work) {
  prediction.rows_per_second = work.rows / prediction.seconds;
  prediction.tokens_per_second = work.tokens / prediction.seconds;
  double peak = 0;
  for (const auto& [host, device, num_devices] : hardware.used_hosts(num_ranks)) {
    const ProductRate& rate = HardwareCosts::rate_of(*device, work.dtype);
    peak += static_cast<double>(num_devices) * (rate.peak_flops > 0 ? rate.peak_flops : rate.flops);
  }
  prediction.utilisation = peak > 0 ? work.flops / prediction.seconds / peak : 0;
  const int64_t room = prediction.room_bytes;
  prediction.room_bytes = work.budget_bytes > 0 && (room <= 0 || work.budget_bytes < room) ? work.budget_bytes : room;
  prediction.host_room_bytes = hardware.host_of(prediction.fullest_rank).memory_bytes;
}

}  // namespace

std::pair<bool, double> badness(const Prediction& one, bool is_offloaded) {
  constexpr double kOffloadMargin = 1.1;
  if (one.fits()) return {false, one.seconds * (is_offloaded ? kOffloadMargin : 1)};
  const auto share = [](int64_t bytes, int64_t room) {
    return room > 0 ? static_cast<double>(bytes) / static_cast<double>(room) : 0;
  };
  return {true, std::max(share(one.memory.total(), one.room_bytes), share(one.host_bytes, one.host_room_bytes))};
}

std::string wait_name(const std::string& axis) { return axis == "world" ? "the last rank" : axis; }

int slowest_rank(const Hardware& hardware, int first, int count, const std::string& dtype) {
  if (hardware.is_uniform()) return first;
  int slowest = first;
  for (int rank = first; rank < first + count; ++rank) {
    const auto flops = [&](int of) { return HardwareCosts::rate_of(hardware.device_of(of), dtype).flops; };
    if (flops(rank) < flops(slowest)) slowest = rank;
  }
  return slowest;
}

int64_t room_of(const Hardware& hardware, int first, int count) {
  const auto room = [](const HardwareDevice& device) { return device.memory_bytes - device.reserved_bytes; };
  int64_t least = room(hardware.device_of(first));
  int64_t begin = 0;  // of a kind of hosts
  for (const HostKind& host : hardware.hosts) {
    const int64_t end = begin + host.count * host.devices;
    if (begin < first + count && end > first) least = std::min(least, room(hardware.device_of(begin)));
    begin = end;
  }
  return least;
}

Prediction predict_rehearsed(std::span<const Rehearsal> rehearsals, const StepCosts& costs,
                             std::vector<SimulatedStep::Span>* spans) {
  const auto simulated = [&](const auto& timeline_of, bool keeps) {
    std::vector<RankTimeline> ranks;
    for (const Rehearsal& one : rehearsals)
      ranks.push_back({one.rank, &timeline_of(one), &one.ranks_of_axis, one.slowest_rank});
    return simulate(ranks, costs, keeps);
  };
  const auto numbers_of = [](const SimulatedStep& step) {
    const auto slowest = std::ranges::max_element(step.ranks, {}, &SimulatedStep::OfRank::computes);
    Prediction one{.seconds = step.seconds, .computes = slowest->computes, .of_products = slowest->of_products};
    one.waits = slowest->exposed;
    one.idles = step.seconds - slowest->seconds;
    one.on_host = slowest->on_host;
    one.bubble = bubble_of(step);
    return one;
  };
  const SimulatedStep step =
      simulated([](const Rehearsal& one) -> const StepTimeline& { return one.timeline; }, spans != nullptr);
  if (spans != nullptr) *spans = step.spans;
  const Prediction base = numbers_of(step);
  Prediction prediction = base;
  for (size_t i = 0; i < rehearsals.front().shorter.size(); ++i) {
    const double times = rehearsals.front().shorter[i].times;
    const SimulatedStep shorter = simulated(
        [i](const Rehearsal& one) -> const StepTimeline& { return one.shorter[i].timeline; }, /*keeps=*/false);
    add(prediction, base, times);
    add(prediction, numbers_of(shorter), -times);
  }
  const double steps = rehearsals.front().num_steps;
  Prediction of_step;
  add(of_step, prediction, 1 / steps);
  for (const Rehearsal& one : rehearsals) {
    const auto share = [](const MemoryBytes& peak, int64_t room) {
      return static_cast<double>(peak.total()) / static_cast<double>(std::max<int64_t>(1, room));
    };
    if (share(one.peak, one.room_bytes) > share(of_step.memory, of_step.room_bytes)) {
      of_step.memory = one.peak;
      of_step.fullest_rank = one.rank;
      of_step.peak_event = one.peak_event;
      of_step.room_bytes = one.room_bytes;
    }
    const Rehearsal::Moved& own = one.moved;
    of_step.moved.to_host = std::max(of_step.moved.to_host, own.to_host);
    of_step.moved.from_host = std::max(of_step.moved.from_host, own.from_host);
    of_step.moved.to_disk = std::max(of_step.moved.to_disk, own.to_disk);
    of_step.moved.from_disk = std::max(of_step.moved.from_disk, own.from_disk);
    of_step.host_bytes = std::max(of_step.host_bytes, one.host.total());  // of all its ranks: complete()
  }
  return of_step;
}

RepeatedBatches RepeatedBatches::of(const PipelineChoice& pipeline, int64_t few, int64_t more, int64_t all) {
  const auto in_flight = [&](int64_t micro_batches) {
    double sum = 0;
    for (const HeldActivations& held : held_activations(pipeline_order(pipeline, static_cast<int>(micro_batches)))) {
      sum += static_cast<double>(held.activations);
    }
    return sum;
  };
  const double of_few = in_flight(few), of_more = in_flight(more), of_all = in_flight(all);
  const bool is_full = of_more == of_all || of_more == of_few;
  return {few, more, all, is_full ? 1 : (of_all - of_few) / (of_more - of_few)};
}

Prediction predict_repeated(std::span<const Rehearsal> few, std::vector<Rehearsal> more, const RepeatedBatches& batches,
                            const StepCosts& costs, bool* is_repeated) {
  if (is_repeated != nullptr) *is_repeated = false;
  const auto share = static_cast<double>(batches.all - batches.few) / static_cast<double>(batches.more - batches.few);
  const Prediction of_few = predict_rehearsed(few, costs), of_more = predict_rehearsed(more, costs);
  Prediction on_line;
  add_share(on_line, of_few, 1 - share);
  add_share(on_line, of_more, share);
  Prediction in_memory;
  add_share(in_memory, of_few, 1 - batches.memory_share);
  add_share(in_memory, of_more, batches.memory_share);
  on_line.memory = in_memory.memory;
  on_line.host_bytes = in_memory.host_bytes;
  const int64_t blocks = (batches.all - batches.few) / (batches.more - batches.few);
  for (size_t place = 0; place < few.size(); ++place) {
    auto extended = extend_timeline(few[place].timeline, more[place].timeline, blocks);
    if (!extended || !few[place].shorter.empty()) return on_line;
    more[place].timeline = std::move(*extended);
  }
  try {
    Prediction of_blocks = predict_rehearsed(more, costs);
    // What a timeline does not tell.
    of_blocks.memory = on_line.memory;
    of_blocks.host_bytes = on_line.host_bytes;
    of_blocks.moved = on_line.moved;
    of_blocks.on_host = on_line.on_host;
    if (is_repeated != nullptr) *is_repeated = true;
    return of_blocks;
  } catch (const InternalError&) {
    // Blocks of two ranks do not fit together: so few micro-batches do not show how more follow each other.
    return on_line;
  }
}

void add_share(Prediction& sum, const Prediction& one, double share) {
  add(sum, one, share);
  add(sum.memory, one.memory, share);
  sum.host_bytes += std::llround(share * static_cast<double>(one.host_bytes));
  sum.fullest_rank = one.fullest_rank;
  sum.room_bytes = one.room_bytes;
  sum.peak_event = one.peak_event;
}

void complete(Prediction& prediction, const Hardware& hardware, int num_ranks, const StepWork& work) {
  prediction.host_bytes *= std::min<int64_t>(hardware.host_of(prediction.fullest_rank).devices, num_ranks);
  add_offload(prediction, hardware, num_ranks, work.is_update_delayed);
  add_rates(prediction, hardware, num_ranks, work);
}

}  // namespace caravan
