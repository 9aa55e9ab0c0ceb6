#include "caravan/comm/choice/selection.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::algorithms {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;

/// Whether `later` is never reached because of `earlier`.
bool hides(const Rule& earlier, const Rule& later) {
  return earlier.verb == later.verb && (earlier.backend.empty() || earlier.backend == later.backend) &&
         earlier.max_ranks >= later.max_ranks && earlier.max_bytes >= later.max_bytes;
}

void append_reachable(std::vector<Rule>& rules, const std::vector<Rule>& more) {
  for (const Rule& rule : more) {
    if (std::ranges::none_of(rules, [&](const Rule& earlier) { return hides(earlier, rule); })) rules.push_back(rule);
  }
}

std::string text(const Rule& rule) {
  return fmt::format("{} of {}, max_ranks {}, max_bytes {}", name(rule.choice.algorithm), name(rule.verb),
                     rule.max_ranks == Rule::kAnyRanks ? "any" : fmt::to_string(rule.max_ranks),
                     rule.max_bytes == Rule::kAnyBytes ? "any" : fmt::to_string(rule.max_bytes));
}

// docs/design/collectives.md explains the choices.
std::vector<Rule> built_in() {
  using enum Algorithm;
  constexpr int kFew = 8;
  constexpr int64_t kAny = Rule::kAnyBytes;
  constexpr int kAll = Rule::kAnyRanks;
  const Choice small_chain{chain, 64 * kKiB};
  return {
      {"", Verb::all_reduce, kFew, kAny, {direct}},
      {"", Verb::all_reduce, kAll, 32 * kKiB, {recursive_doubling}},
      {"", Verb::all_reduce, kAll, 4 * kMiB, {rabenseifner}},
      {"", Verb::all_reduce, kAll, kAny, {ring}},
      {"", Verb::all_gather, kFew, kAny, {direct}},
      {"", Verb::all_gather, kAll, 512 * kKiB, {recursive_doubling}},
      {"", Verb::all_gather, kAll, kAny, {ring}},
      {"", Verb::reduce_scatter, 64, kAny, {direct}},
      {"", Verb::reduce_scatter, kAll, kAny, {ring}},
      {"", Verb::all_to_all, kAll, kAny, {direct}},
      {"", Verb::broadcast, 2, kAny, {direct}},
      {"", Verb::broadcast, kAll, 128 * kKiB, {binomial}},
      {"", Verb::broadcast, 64, 4 * kMiB, small_chain},
      {"", Verb::broadcast, kAll, kAny, {chain, kMiB}},
      {"", Verb::reduce, kFew, kAny, {direct}},
      {"", Verb::reduce, kAll, 64 * kKiB, {binomial}},
      {"", Verb::reduce, kAll, kAny, {direct}},
  };
}

}  // namespace

std::string to_string(const Choice& choice) {
  if (choice.algorithm != Algorithm::chain) return std::string(name(choice.algorithm));
  return fmt::format("chain of {}", format_bytes(choice.segment_bytes));
}

SelectionTable::SelectionTable() : rules_(built_in()) {}

SelectionTable::SelectionTable(std::vector<Rule> rules) : rules_(std::move(rules)) { check(); }

void SelectionTable::check() const {
  const auto refuse = [](std::string fact, std::string action) {
    throw UsageError({.op = "selection table", .fact = std::move(fact), .action = std::move(action)});
  };
  for (size_t i = 0; i < rules_.size(); ++i) {
    const Rule& rule = rules_[i];
    check_serves(rule.choice.algorithm, rule.verb);
    if (rule.max_ranks < 1 || rule.max_bytes < 0) {
      refuse(fmt::format("rule {} ({}) can never match", i, text(rule)), "use bounds of at least 1 rank and 0 bytes");
    }
    const bool is_chain = rule.choice.algorithm == Algorithm::chain;
    if (is_chain != (rule.choice.segment_bytes > 0)) {
      refuse(fmt::format("rule {} ({}) has segments of {} bytes", i, text(rule), rule.choice.segment_bytes),
             is_chain ? "give chain its segment_bytes, 1 or more" : "only chain has segment_bytes");
    }
    for (size_t earlier = 0; earlier < i; ++earlier) {
      if (!hides(rules_[earlier], rule)) continue;
      refuse(fmt::format("rule {} ({}) is never reached after rule {} ({})", i, text(rule), earlier,
                         text(rules_[earlier])),
             "order the rules from small bounds to large ones");
    }
  }
  for (const Verb verb : kVerbs) {
    const Rule everything{"", verb, Rule::kAnyRanks, Rule::kAnyBytes, {}};
    if (std::ranges::any_of(rules_, [&](const Rule& rule) { return hides(rule, everything); })) continue;
    refuse(fmt::format("{} has no rule for every back-end, number of ranks and size", name(verb)),
           "end with a rule without bounds for each verb");
  }
}

Choice SelectionTable::choose(std::string_view backend, Verb verb, int ranks, int64_t bytes) const {
  for (const Rule& rule : rules_) {
    if (rule.verb != verb || ranks > rule.max_ranks || bytes > rule.max_bytes) continue;
    if (rule.backend.empty() || rule.backend == backend) return rule.choice;
  }
  check_serves(Algorithm::direct, verb);
  throw InternalError({.op = "selection table", .fact = fmt::format("no rule for {}", name(verb))});
}

SelectionTable SelectionTable::with(std::vector<Rule> rules) const {
  std::vector<Rule> kept = rules_;
  std::erase_if(kept, [&](const Rule& rule) {
    return !rule.backend.empty() && std::ranges::find(rules, rule.backend, &Rule::backend) != rules.end();
  });
  append_reachable(rules, kept);
  return SelectionTable(std::move(rules));
}

std::vector<Rule> SelectionTable::with_built_in(std::vector<Rule> rules) {
  append_reachable(rules, built_in());
  return rules;
}

std::string SelectionTable::to_string() const {
  const auto bound = [](bool is_any, const std::string& text) { return is_any ? "any" : "<= " + text; };
  std::string table = fmt::format("{:<10}{:<16}{:<9}{:<14}{}\n", "back-end", "verb", "ranks", "bytes", "algorithm");
  for (const Rule& rule : rules_) {
    table += fmt::format("{:<10}{:<16}{:<9}{:<14}{}\n", rule.backend.empty() ? "any" : rule.backend, name(rule.verb),
                         bound(rule.max_ranks == Rule::kAnyRanks, fmt::to_string(rule.max_ranks)),
                         bound(rule.max_bytes == Rule::kAnyBytes, format_bytes(rule.max_bytes)),
                         algorithms::to_string(rule.choice));
  }
  return table;
}

}  // namespace caravan::algorithms
