#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/launch/check_run.h"
#include "apps/caravan/launch/ranks.h"
#include "apps/caravan/options/vocabulary.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/system/cores.h"
#include "caravan/base/system/memory_limit.h"
#include "caravan/base/text.h"
#include "caravan/memory/bandwidths.h"
#include "caravan/nn/experts/expert_rows.h"
#include "caravan/plan/neighbours.h"
#include "caravan/plan/predict.h"
#include "caravan/train/model/micro_batch.h"
#include "caravan/train/model/offload_choice.h"
#include "caravan/train/model/rehearse.h"

namespace caravan::app {
namespace {

constexpr std::clock_t kForNeighbours = 5 * CLOCKS_PER_SEC / 2;  ///< of processor time

struct Inspected {
  Recipe recipe;  ///< with its micro-batch
  Vocabulary vocabulary;
  int num_ranks;
  int ranks_per_host;
  double link_gbit_s;
  int64_t memory_bytes;  ///< of a rank; 0: that of this host
};

void print(const std::string& name, const std::string& value) { fmt::print("  {:<24}{}\n", name, value); }

std::string bytes_line(int64_t bytes) { return fmt::format("{:>16} bytes  ({})", bytes, format_bytes(bytes)); }

std::vector<Rehearsal> rehearsals_of(const Inspected& of, const Recipe& recipe) {
  return rehearse_telling_ranks(recipe, of.vocabulary.size, of.num_ranks, of.ranks_per_host);
}

/// Ranks that can be started here share this host's memory; that of other hosts is unknown. Ranks that share cores are
/// planned for other hosts if they do not fit this one. `rehearsed` receives the rehearsals, by micro-batch.
MemoryPlan memory_of(const Inspected& of, std::map<int64_t, std::vector<Rehearsal>>& rehearsed) {
  const auto peak_of = [&](int64_t micro_batch) {
    const Recipe recipe = with_micro_batch(of.recipe, micro_batch);
    std::vector<Rehearsal>& own = rehearsed[micro_batch];
    return fullest_of([&] { return own = rehearsals_of(of, recipe); });
  };
  const auto plan = [&](int64_t limit) { return plan_memory(of.recipe, of.num_ranks, limit, 0, peak_of); };
  const bool is_local = of.num_ranks <= most_local_ranks();
  if (const int64_t budget = device_budget(of.recipe); budget > 0) {
    return plan_memory(of.recipe, of.num_ranks, budget, 0, peak_of, /*is_budget=*/true);
  }
  if (of.memory_bytes > 0) {
    try {
      return plan(of.memory_bytes);
    } catch (const ResourceError&) {  // the verdict reports it for the smallest possible number of sequences
      const Recipe some = with_least_micro_batch(of.recipe);
      MemoryPlan needs = plan_memory(some, of.num_ranks, 0, 0, peak_of);
      needs.limit_bytes = of.memory_bytes;
      return needs;
    }
  }
  if (!is_local) fmt::print("memory of other hosts is unknown: --memory says how much a rank has\n");
  try {
    return plan(is_local ? memory_share(usable_memory_bytes(), of.num_ranks) : 0);
  } catch (const ResourceError&) {
    if (of.num_ranks <= num_usable_cores() || of.recipe.comm.backend == "thread") throw;
    fmt::print("{} ranks do not fit this host's memory: planned for other hosts, see --memory\n", of.num_ranks);
    return plan(0);
  }
}

/// As a run chooses its offload.
Recipe with_offload(const Inspected& of) {
  return with_chosen_offload(of.recipe, [&](const Recipe& recipe) {
    const auto rehearse_some = [&] { return rehearsals_of(of, with_least_micro_batch(recipe)); };
    return fullest_of(rehearse_some).peak.total() <= device_budget(recipe);
  });
}

void print_verdict(const MemoryPlan& memory, double sent) {
  const char* verdict = !memory.fits() ? "does not fit" : memory.limit_bytes > 0 ? "fits" : "needs";
  fmt::print("{}: {}; sends {} a step\n", verdict, memory.fits() ? memory_text(memory) : memory_needs(memory),
             format_bytes(static_cast<int64_t>(sent)));
}

void print_facts(const Inspected& of, const MemoryPlan& memory) {
  const Recipe& recipe = of.recipe;
  const BatchPlan plan = plan_batch(recipe, of.num_ranks);
  ModelConfig model = recipe.model;
  const int64_t parameters = model.num_parameters();
  const int64_t of_row = model.row_length() * recipe.data.task.sequences();
  const int64_t tokens = recipe.train.global_batch * of_row;
  const auto steps = static_cast<double>(recipe.train.steps);
  const double flops = model.flops_per_token(model.context);
  const std::string hosts = of.ranks_per_host == 0              ? "a host for each"
                            : of.ranks_per_host >= of.num_ranks ? "on one host"
                                                                : fmt::format("{} on a host", of.ranks_per_host);
  fmt::print("\n{} ranks, {}, backend {}\n", of.num_ranks, hosts, recipe.comm.backend);
  if (const std::string mesh = split_text(recipe, plan.dp); !mesh.empty()) print("axes", mesh);
  if (const std::string order = order_text(recipe, plan.dp); !order.empty()) print("order", order);
  print("sequences", plan.to_string() + (memory.is_chosen ? " (micro_batch chosen by memory)" : ""));
  print("tokens per step", fmt::format("{} = {} x {} {}", tokens, recipe.train.global_batch,
                                       model.has_encoder()                  ? "source and target"
                                       : recipe.data.task.has_preferences() ? "both answers"
                                                                            : "context",
                                       of_row));
  print("tokens of the run", fmt::format("{:.0f}", static_cast<double>(tokens) * steps));
  print("vocabulary", fmt::format("{}{}", of.vocabulary.size, of.vocabulary.note));
  print("parameters", fmt::format("{}  ({})", parameters, format_count(static_cast<double>(parameters))));
  fmt::print("FLOPs, forward and backward, matrix products only\n");
  print("per token", fmt::format("{:.0f}", flops));
  print("per step and rank", format_count(flops * static_cast<double>(tokens) / of.num_ranks));
  print("the run, all ranks", format_count(flops * static_cast<double>(tokens) * steps));
}

void print_memory(const MemoryPlan& memory) {
  fmt::print("\nmemory of rank {} at its peak, in {}\n", memory.fullest.rank, memory.fullest.event);
  for (size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
    const int64_t bytes = memory.fullest.peak.of[kind];
    if (bytes > 0) print(std::string(kMemoryKindNames[kind]), bytes_line(bytes));
  }
  print("in all", bytes_line(memory.peak_bytes()));
  if (memory.limit_bytes > 0) print("available", bytes_line(memory.limit_bytes));
}

/// What is offloaded, and what a step moves, at the bandwidths of this host.
void print_offload(const Inspected& of, const MemoryPlan& memory, const Rehearsal& rank) {
  const std::string text = offload_text(of.recipe, memory.fullest);
  if (text.empty()) return;
  fmt::print("\noffload\n  {}\n", text);
  for (const std::string& line : chunk_lines(memory.fullest.chunks)) fmt::print("  {}\n", line);
  if (rank.host.total() > 0) print("host memory", bytes_line(rank.host.total()));
  if (rank.disk_bytes > 0) print("disk", bytes_line(rank.disk_bytes));
  const TierBandwidths speeds = read_tier_bandwidths();
  const double link = (rank.moved.to_host + rank.moved.from_host) / speeds.copy_bytes_per_second;
  print("link", fmt::format("{:.3f} s a step at {:.1f} GB/s", link, speeds.copy_bytes_per_second / 1e9));
  if (rank.disk_bytes == 0) return;
  const double ranks = std::max(1, std::min(of.num_ranks, of.ranks_per_host));
  const std::vector<std::string>& folders = of.recipe.offload.texts("disk_dirs");
  double read = 0, write = 0;  // of all folders together: data is striped
  bool is_measured = true;
  for (const std::string& folder : folders) {
    const TierBandwidths::Disk disk = speeds.disk(folder);
    read += disk.read_bytes_per_second;
    write += disk.write_bytes_per_second;
    is_measured = is_measured && disk.is_measured;
  }
  const double seconds = ranks * (rank.moved.to_disk / write + rank.moved.from_disk / read);
  print("disk time",
        fmt::format("{:.3f} s a step for {:.0f} ranks, at {:.1f} GB/s to read and {:.1f} to write{}", seconds, ranks,
                    read / 1e9, write / 1e9, is_measured ? "" : " (assumed: caravan doctor --disk measures)"));
  const double a_day = 86400 / std::max(seconds, 1e-9) * ranks * rank.moved.to_disk;
  print("disk wear", fmt::format("at most {} written a day", format_bytes(static_cast<int64_t>(a_day))));
}

/// "backward 92 %, optimizer 8 %": where in the step calls begin, by bytes or else by count.
std::string places_of(const std::vector<SentCalls>& calls, double num_bytes, double num_calls) {
  std::vector<std::pair<double, std::string>> places;
  for (const SentCalls& one : calls) {
    places.emplace_back(num_bytes > 0 ? one.bytes / num_bytes : one.calls / num_calls, one.place);
  }
  std::ranges::sort(places, std::greater<>());
  std::string text;
  for (const auto& [share, place] : places) {
    if (share > 0.005) text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", place, 100 * share);
  }
  return text;
}

/// Whether all ranks to which these send over the axis are on their hosts.
bool is_on_one_host(const Inspected& of, std::span<const Rehearsal> rehearsals, const std::string& axis) {
  if (of.ranks_per_host == 0) return false;
  const auto host = [&](int rank) { return rank / of.ranks_per_host; };
  return std::ranges::all_of(rehearsals, [&](const Rehearsal& one) {
    const auto found = one.ranks_of_axis.find(axis);
    if (found == one.ranks_of_axis.end()) return of.num_ranks <= of.ranks_per_host;
    return std::ranges::all_of(found->second, [&](int rank) { return host(rank) == host(one.rank); });
  });
}

/// How long the busiest rank sends over each axis that crosses hosts, assuming that all of its bytes do.
std::map<std::string, double> link_seconds(const Inspected& of, std::span<const Rehearsal> all,
                                           const Rehearsal& busiest) {
  std::map<std::string, double> seconds;
  for (const SentCalls& calls : busiest.sent) {
    const bool is_shared = is_on_one_host(of, all, calls.axis);
    seconds[calls.axis] += is_shared ? 0 : calls.bytes * 8e-9 / of.link_gbit_s;
  }
  return seconds;
}

double sum_of(const std::map<std::string, double>& seconds) {
  double sum = 0;
  for (const auto& [axis, one] : seconds) sum += one;
  return sum;
}

void print_traffic(const Inspected& of, std::span<const Rehearsal> all, const Rehearsal& busiest) {
  if (busiest.sent.empty()) return;
  fmt::print("\nsent by rank {} in a step\n  {:<12}{:<16}{:>8}{:>16}{:>11}{:>10}  begins in\n", busiest.rank, "axis",
             "verb", "calls", "bytes", "", "exposed");
  std::map<std::pair<std::string, Verb>, std::vector<SentCalls>> of_verb;
  for (const SentCalls& calls : busiest.sent) of_verb[{calls.axis, calls.verb}].push_back(calls);
  for (const auto& [key, parts] : of_verb) {
    double calls = 0, bytes = 0, exposed = 0;
    for (const SentCalls& part : parts) calls += part.calls, bytes += part.bytes, exposed += part.exposed_bytes;
    fmt::print("  {:<12}{:<16}{:>8.4g}{:>16.0f}{:>11}{:>9.0f}%  {}\n", key.first, name(key.second), calls, bytes,
               format_bytes(static_cast<int64_t>(bytes)), bytes == 0 ? 0 : 100 * exposed / bytes,
               places_of(parts, bytes, calls));
  }
  print("bytes sent", bytes_line(std::llround(busiest.bytes_sent())));
  fmt::print("  exposed: of calls that are waited for before another pass of a module begins\n");
  if (of.link_gbit_s == 0) return;
  print("hosts", of.ranks_per_host > 0
                     ? fmt::format("{} rank{} each", of.ranks_per_host, of.ranks_per_host > 1 ? "s" : "")
                     : "one for each rank");
  const std::map<std::string, double> seconds = link_seconds(of, all, busiest);
  for (const auto& [axis, own] : seconds) {
    print("time of " + axis,
          is_on_one_host(of, all, axis) ? fmt::format("{:>16}", "in one host") : fmt::format("{:>14.3f} s", own));
  }
  print(fmt::format("at {:g} Gbit/s", of.link_gbit_s), fmt::format("{:>14.3f} s, at most", sum_of(seconds)));
  fmt::print("  one call after the other: caravan plan predicts a step, in which they overlap\n");
}

struct Price {
  int64_t memory = 0;
  double sent = 0;
  double seconds = 0;  ///< on the link
};

const Rehearsal& busiest_of(std::span<const Rehearsal> all) {
  return *std::ranges::max_element(all, {}, [](const Rehearsal& one) { return one.bytes_sent(); });
}

/// The price of the rank that needs the most and of the one that sends the most.
Price price_of(const Inspected& of, std::span<const Rehearsal> all) {
  Price price;
  if (all.empty()) return price;
  for (const Rehearsal& one : all) price.memory = std::max(price.memory, one.peak.total());
  const Rehearsal& busiest = busiest_of(all);
  price.sent = busiest.bytes_sent();
  if (of.link_gbit_s > 0) price.seconds = sum_of(link_seconds(of, all, busiest));
  return price;
}

void print_neighbours(const Inspected& of, const Price& own, bool is_auto) {
  const auto line = [&](const std::string& choice, const Price& price) {
    fmt::print("  {:<60}{:>12}{:>12}{}\n", choice, format_bytes(price.memory),
               format_bytes(static_cast<int64_t>(price.sent)),
               of.link_gbit_s > 0 ? fmt::format("{:>10.3f} s", price.seconds) : "");
  };
  const std::string at = of.recipe.pipeline.is_used()
                             ? ""
                             : fmt::format(", at train.micro_batch {} where that divides", of.recipe.train.micro_batch);
  fmt::print("\ncost of changing one choice{}: memory of the fullest rank, bytes of the busiest in a step{}\n", at,
             of.link_gbit_s > 0 ? ", and the time they take" : "");
  line("this recipe", own);
  const std::clock_t end = std::clock() + kForNeighbours;
  const std::vector<Neighbour> all = neighbours(of.recipe, of.num_ranks, is_auto);
  size_t shown = 0;
  for (; shown < all.size() && std::clock() < end; ++shown) {
    try {
      line(all[shown].choice, price_of(of, rehearsals_of(of, all[shown].recipe)));
    } catch (const std::exception& error) {
      const std::string_view why = error.what();
      fmt::print("  {:<60}  {}\n", all[shown].choice, why.substr(0, why.find('\n')));
    }
  }
  if (shown == all.size()) return;
  fmt::print("  and, not rehearsed for lack of time:");
  for (size_t i = shown; i < all.size(); ++i) fmt::print("{} {}", i == shown ? "" : ",", all[i].choice);
  fmt::print("\n");
}

void print_notes(const Inspected& of, const MemoryPlan& memory) {
  std::vector<std::string> notes = recipe_notes(of.recipe);
  if (!memory.fits()) notes.push_back("memory: " + memory.advice);
  const MoeConfig& moe = of.recipe.model.moe;
  if (moe.is_used()) {
    const ExpertLoadScope load(moe.capacity > 0 ? moe.capacity : std::numeric_limits<double>::infinity());
    const RankPeak worst = fullest_of([&] { return rehearsals_of(of, of.recipe); });
    notes.push_back(
        fmt::format("experts are rehearsed with equal loads, {:g} of {} on each rank; if tokens choose "
                    "those of one rank as often as they can, it needs {} bytes ({})",
                    static_cast<double>(moe.experts) / static_cast<double>(of.recipe.expert_parallel.degree),
                    moe.experts, worst.peak.total(), format_bytes(worst.peak.total())));
  }
  if (!rehearses_own_steps(of.recipe)) {
    notes.push_back(
        "servers without a barrier are rehearsed with one: a worker's push is counted as a reduction, its pull as a "
        "gather; memory is that of all messages that may be in flight at once");
  }
  if (of.recipe.pipeline.is_used() && of.recipe.pipeline.measures()) {
    notes.push_back("stages are rehearsed as cut by FLOPs; the run measures what layers cost");
  }
  for (const std::string& note : notes) fmt::print("note      {}\n", note);
}

}  // namespace

int inspect_recipe(const InspectArguments& arguments) {
  auto [recipe, ranks] = check_run(arguments.recipe, arguments.overrides, arguments.ranks);
  const int on_host = std::min(planned_ranks_per_host(ranks.num_ranks, arguments.per_host), ranks.num_ranks);
  const Runtime runtime({.intra_op_threads = threads_per_rank(recipe, on_host)});
  Inspected of{.recipe = std::move(recipe),
               .vocabulary = {},
               .num_ranks = ranks.num_ranks,
               .ranks_per_host = 0,
               .link_gbit_s = arguments.link_gbit_s,
               .memory_bytes = std::llround(arguments.memory_gib * (1 << 30))};
  of.vocabulary = vocabulary_of(of.recipe);
  of.recipe.model.vocabulary = of.vocabulary.size;
  of.ranks_per_host = ranks_sharing_memory(of.recipe, planned_ranks_per_host(of.num_ranks, arguments.per_host));
  of.recipe = with_offload(of);
  std::map<int64_t, std::vector<Rehearsal>> rehearsed;
  MemoryPlan memory = memory_of(of, rehearsed);
  const Setting chunks = of.recipe.chunks;
  std::optional<int64_t> room;  // the least of all ranks
  for (const Rehearsal& rehearsal : rehearsed[memory.micro_batch]) {
    const auto own = chunk_room(of.recipe, rehearsal.peak.total(), rehearsal.chunks, memory.limit_bytes);
    if (own) room = std::min(room.value_or(*own), *own);
  }
  if (room) {
    of.recipe.chunks.set("device", std::to_string(*room));
    rehearsed.clear();
    memory = memory_of(of, rehearsed);
  }
  of.recipe = with_micro_batch(of.recipe, memory.micro_batch);
  const std::vector<Rehearsal>& all = rehearsed.at(memory.micro_batch);
  const Rehearsal busiest = all.empty() ? Rehearsal{} : busiest_of(all);
  print_verdict(memory, busiest.bytes_sent());
  print_facts(of, memory);
  print_memory(memory);
  print_offload(of, memory, busiest);
  print_traffic(of, all, busiest);
  of.recipe.chunks = chunks;  // others need other rooms
  print_neighbours(of, price_of(of, all), memory.is_chosen);
  print_notes(of, memory);
  return 0;
}

}  // namespace caravan::app
