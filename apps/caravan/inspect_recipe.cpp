#include <algorithm>
#include <cstdio>
#include <ctime>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/check_run.h"
#include "apps/caravan/commands.h"
#include "apps/caravan/neighbours.h"
#include "apps/caravan/ranks.h"
#include "apps/caravan/vocabulary.h"
#include "caravan/base/cores.h"
#include "caravan/base/error.h"
#include "caravan/base/memory_limit.h"
#include "caravan/base/runtime.h"
#include "caravan/base/text.h"
#include "caravan/nn/expert_rows.h"
#include "caravan/train/micro_batch.h"
#include "caravan/train/rehearse.h"

namespace caravan::app {
namespace {

constexpr std::clock_t kForNeighbours = 5 * CLOCKS_PER_SEC / 2;  ///< of processor time

struct Inspected {
  Recipe recipe;  ///< with its micro-batch
  Vocabulary vocabulary;
  int num_ranks;
  int ranks_per_host;
};

void print(const std::string& name, const std::string& value) { fmt::print("  {:<24}{}\n", name, value); }

std::string bytes_line(int64_t bytes) { return fmt::format("{:>16} bytes  ({})", bytes, format_bytes(bytes)); }

std::vector<Rehearsal> rehearsals_of(const Inspected& of, const Recipe& recipe) {
  return rehearse_telling_ranks(recipe, of.vocabulary.size, of.num_ranks, of.ranks_per_host);
}

/// Ranks that can be started here share this host's memory; that of other hosts is unknown. Ranks that share cores are
/// planned for other hosts if they do not fit this one. `rehearsed` gets what was rehearsed, by micro-batch.
MemoryPlan memory_of(const Inspected& of, std::map<int64_t, std::vector<Rehearsal>>& rehearsed) {
  const auto peak_of = [&](int64_t micro_batch) {
    const Recipe recipe = with_micro_batch(of.recipe, micro_batch);
    return fullest_of([&] { return rehearsed[micro_batch] = rehearsals_of(of, recipe); });
  };
  const auto plan = [&](int64_t limit) { return plan_memory(of.recipe, of.num_ranks, limit, 0, peak_of); };
  const bool is_local = of.num_ranks <= most_local_ranks();
  try {
    return plan(is_local ? memory_share(usable_memory_bytes(), of.num_ranks) : 0);
  } catch (const ResourceError&) {
    if (of.num_ranks <= num_usable_cores() || of.recipe.comm.backend == "thread") throw;
    fmt::print("{} ranks do not fit this host's memory: planned for other hosts\n", of.num_ranks);
    return plan(0);
  }
}

/// How many neighbouring ranks share memory.
int ranks_per_host(const Recipe& recipe, int num_ranks, int per_host) {
  const std::string& backend = recipe.comm.backend;
  if (backend != "auto" && backend != "thread" && !backend.starts_with("shm")) return 0;
  if (per_host > 0) return per_host;
  return num_ranks <= most_local_ranks() ? num_ranks : 0;
}

void print_verdict(const MemoryPlan& memory, double sent) {
  const bool fits = memory.peak_bytes() <= memory.limit_bytes;
  fmt::print("{}: {}; sends {} a step\n",
             memory.limit_bytes == 0 ? "needs"
             : fits                  ? "fits"
                                     : "does not fit",
             memory_text(memory), format_bytes(static_cast<int64_t>(sent)));
}

void print_facts(const Inspected& of, const MemoryPlan& memory) {
  const Recipe& recipe = of.recipe;
  const BatchPlan plan = plan_batch(recipe, of.num_ranks);
  ModelConfig model = recipe.model;
  const int64_t parameters = model.num_parameters();
  const int64_t tokens = recipe.train.global_batch * model.context;
  const auto steps = static_cast<double>(recipe.train.steps);
  const double flops = model.flops_per_token(model.context);
  fmt::print("\n{} ranks, backend {}\n", of.num_ranks, recipe.comm.backend);
  if (const std::string mesh = split_text(recipe, plan.dp); !mesh.empty()) print("axes", mesh);
  if (const std::string order = order_text(recipe, plan.dp); !order.empty()) print("order", order);
  print("sequences", plan.to_string() + (memory.is_chosen ? " (micro_batch chosen by memory)" : ""));
  print("tokens per step", fmt::format("{} = {} x context {}", tokens, recipe.train.global_batch, model.context));
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

/// "backward 92 %, optimizer 8 %": where in the step calls of one kind begin, by bytes or else by count.
std::string places_of(const Rehearsal& rehearsal, const SentCalls& calls) {
  std::map<std::string, double> of_place;
  double all = 0;
  for (const RehearsedEvent& event : rehearsal.events) {
    for (const SentCalls& sent : event.sent) {
      if (sent.axis != calls.axis || sent.verb != calls.verb) continue;
      const auto weight = static_cast<double>(calls.bytes > 0 ? sent.bytes : sent.calls);
      of_place[event.what.substr(0, event.what.find(' '))] += weight;
      all += weight;
    }
  }
  std::vector<std::pair<std::string, double>> places(of_place.begin(), of_place.end());
  std::ranges::sort(places, std::greater<>(), &std::pair<std::string, double>::second);
  std::string text;
  for (const auto& [place, weight] : places) {
    if (weight > 0.005 * all) text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", place, 100 * weight / all);
  }
  return text;
}

/// Whether all ranks that this one sends to over the axis are on its host.
bool is_on_one_host(const Inspected& of, const Rehearsal& rehearsal, const std::string& axis) {
  if (of.ranks_per_host == 0) return false;
  const auto found = rehearsal.ranks_of_axis.find(axis);
  if (found == rehearsal.ranks_of_axis.end()) return of.num_ranks <= of.ranks_per_host;
  const auto host = [&](int rank) { return rank / of.ranks_per_host; };
  return std::ranges::all_of(found->second, [&](int rank) { return host(rank) == host(found->second.front()); });
}

void print_traffic(const Inspected& of, const Rehearsal& rehearsal, double link_gbit_s) {
  if (rehearsal.sent.empty()) return;
  fmt::print("\nsent by rank {} in a step\n  {:<12}{:<16}{:>8}{:>16}{:>11}{:>10}  begins in\n", rehearsal.rank, "axis",
             "verb", "calls", "bytes", "", "exposed");
  std::map<std::string, double> of_axis;
  for (const SentCalls& calls : rehearsal.sent) {
    const auto bytes = static_cast<double>(calls.bytes);
    of_axis[calls.axis] += bytes;
    fmt::print("  {:<12}{:<16}{:>8}{:>16}{:>11}{:>9.0f}%  {}\n", calls.axis, name(calls.verb), calls.calls, calls.bytes,
               format_bytes(calls.bytes), calls.bytes == 0 ? 0 : 100 * static_cast<double>(calls.exposed_bytes) / bytes,
               places_of(rehearsal, calls));
  }
  print("bytes sent", bytes_line(static_cast<int64_t>(rehearsal.bytes_sent())));
  if (link_gbit_s == 0) return;
  double seconds = 0;
  for (const auto& [axis, bytes] : of_axis) {
    const bool is_shared = is_on_one_host(of, rehearsal, axis);
    const double own = is_shared ? 0 : bytes * 8e-9 / link_gbit_s;
    seconds += own;
    print("time of " + axis, is_shared ? fmt::format("{:>16}", "in one host") : fmt::format("{:>14.3f} s", own));
  }
  print(fmt::format("at {:g} Gbit/s", link_gbit_s), fmt::format("{:>14.3f} s", seconds));
}

struct Price {
  int64_t memory = 0;
  double sent = 0;
};

/// Of the rank that needs the most and of the one that sends the most.
Price price_of(const Inspected& of, const Recipe& recipe) {
  Price price;
  for (const Rehearsal& one : rehearsals_of(of, recipe)) {
    price.memory = std::max(price.memory, one.peak.total());
    price.sent = std::max(price.sent, one.bytes_sent());
  }
  return price;
}

void print_neighbours(const InspectArguments& arguments, const Inspected& of, const Price& own) {
  const auto line = [&](const std::string& choice, const Price& price) {
    fmt::print("  {:<44}{:>12}{:>14}\n", choice, format_bytes(price.memory),
               format_bytes(static_cast<int64_t>(price.sent)));
  };
  fmt::print("\nwhat one other choice would cost: memory of the fullest rank, bytes of the busiest in a step\n");
  line("this recipe", own);
  const std::clock_t end = std::clock() + kForNeighbours;
  const std::vector<Neighbour> all = neighbours(arguments, of.recipe, of.num_ranks);
  size_t shown = 0;
  for (; shown < all.size() && std::clock() < end; ++shown) {
    try {
      line(all[shown].choice, price_of(of, all[shown].recipe));
    } catch (const std::exception& error) {
      const std::string_view why = error.what();
      fmt::print("  {:<44}  {}\n", all[shown].choice, why.substr(0, why.find('\n')));
    }
  }
  if (shown == all.size()) return;
  fmt::print("  and, not rehearsed in the time that there is:");
  for (size_t i = shown; i < all.size(); ++i) fmt::print("{} {}", i == shown ? "" : ",", all[i].choice);
  fmt::print("\n");
}

void print_notes(const Inspected& of, const MemoryPlan& memory) {
  std::vector<std::string> notes = recipe_notes(of.recipe);
  if (!memory_note(memory).empty()) notes.push_back("memory: " + memory_text(memory));
  const MoeConfig& moe = of.recipe.model.moe;
  if (moe.is_used()) {
    const ExpertLoadScope load(moe.capacity > 0 ? moe.capacity : std::numeric_limits<double>::infinity());
    const RankPeak worst = fullest_of([&] { return rehearsals_of(of, of.recipe); });
    notes.push_back(fmt::format(
        "experts are rehearsed as if all were chosen alike, {:g} of {} on each rank; if tokens choose those of one rank "
        "as often as they can, it needs {} bytes ({})",
        static_cast<double>(moe.experts) / static_cast<double>(of.recipe.expert_parallel.degree), moe.experts,
        worst.peak.total(), format_bytes(worst.peak.total())));
  }
  if (!of.recipe.data_parallel.has(Trait::rehearses)) {
    notes.push_back(
        "servers without a barrier are rehearsed with one: a worker's push is counted as a reduction, its pull as a "
        "gather");
  }
  if (of.recipe.pipeline.is_used() && of.recipe.pipeline.measures()) {
    notes.push_back("stages are rehearsed as cut by FLOPs; the run measures what layers cost");
  }
  for (const std::string& note : notes) fmt::print("note      {}\n", note);
}

}  // namespace

int inspect_recipe(const InspectArguments& arguments) {
  auto [recipe, ranks] = check_run(arguments.recipe, arguments.overrides, arguments.ranks);
  const Runtime runtime;
  Inspected of{.recipe = std::move(recipe), .vocabulary = {}, .num_ranks = ranks.num_ranks, .ranks_per_host = 0};
  of.vocabulary = vocabulary_of(of.recipe);
  of.recipe.model.vocabulary = of.vocabulary.size;
  of.ranks_per_host = ranks_per_host(of.recipe, of.num_ranks, arguments.per_host);
  std::map<int64_t, std::vector<Rehearsal>> rehearsed;
  const MemoryPlan memory = memory_of(of, rehearsed);
  of.recipe = with_micro_batch(of.recipe, memory.micro_batch);
  const std::vector<Rehearsal>& all = rehearsed.at(memory.micro_batch);
  const auto sent = [](const Rehearsal& rehearsal) { return rehearsal.bytes_sent(); };
  const Rehearsal busiest = all.empty() ? Rehearsal{} : *std::ranges::max_element(all, {}, sent);
  print_verdict(memory, busiest.bytes_sent());
  print_facts(of, memory);
  print_memory(memory);
  print_traffic(of, busiest, arguments.link_gbit_s);
  print_neighbours(arguments, of, {memory.peak_bytes(), busiest.bytes_sent()});
  print_notes(of, memory);
  return 0;
}

}  // namespace caravan::app
