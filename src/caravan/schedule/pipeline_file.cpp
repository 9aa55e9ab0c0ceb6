#include "caravan/schedule/pipeline_file.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

constexpr std::string_view kLetters = "FCBW";
constexpr int kMostIndex = 1 << 16;

struct Line {
  const std::string& source;
  int number = 0;
  [[noreturn]] void refuse(const std::string& fact, const std::string& action) const {
    throw UsageError({.op = "pipeline",
                      .subject = "table",
                      .fact = fact,
                      .where = fmt::format("{}:{}", source, number),
                      .action = action});
  }
};

/// Takes a number, such as "12", from the front of `text`; nothing if there is none.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kMostIndex) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

Pass parse_pass(std::string_view word, const Line& line) {
  const size_t kind = word.empty() ? std::string_view::npos : kLetters.find(word.front());
  std::string_view rest = word.substr(std::min<size_t>(1, word.size()));
  const std::optional<int> stage = take_number(rest);
  const bool has_dot = stage && rest.starts_with('.');
  if (has_dot) rest.remove_prefix(1);
  const std::optional<int> micro_batch = has_dot ? take_number(rest) : std::nullopt;
  if (kind == std::string_view::npos || !micro_batch || !rest.empty()) {
    line.refuse(fmt::format("'{}' is not a pass", word),
                "write F, C, B or W, the stage, a dot and the micro-batch: F0.2");
  }
  constexpr Pass::Kind kKinds[] = {Pass::Kind::forward, Pass::Kind::recompute, Pass::Kind::backward,
                                   Pass::Kind::weight};
  return {kKinds[kind], *micro_batch, *stage};
}

/// The order of one rank; nothing for an empty line.
std::optional<PassOrder> parse_line(std::string text, size_t rank, const Line& line) {
  text.resize(std::min(text.size(), text.find('#')));
  std::istringstream words(text);
  std::string word;
  if (!(words >> word)) return std::nullopt;
  std::string number;
  if (word != "rank" || !(words >> number) || number != fmt::format("{}:", rank)) {
    line.refuse("is not the line of the next rank", fmt::format("begin it with 'rank {}:'", rank));
  }
  PassOrder order;
  while (words >> word) order.push_back(parse_pass(word, line));
  if (order.empty()) line.refuse(fmt::format("rank {} has no pass", rank), "give each rank the passes of a stage");
  return order;
}

}  // namespace

PipelineOrder parse_pipeline_table(const std::string& text, const std::string& source) {
  PipelineOrder order;
  std::map<int, int> ranks;  // by stage
  std::istringstream lines(text);
  Line line{source};
  for (std::string content; std::getline(lines, content);) {
    ++line.number;
    const auto rank = static_cast<int>(order.ranks.size());
    std::optional<PassOrder> passes = parse_line(content, order.ranks.size(), line);
    if (!passes) continue;
    for (const Pass& pass : *passes) {
      const auto [found, is_new] = ranks.emplace(pass.stage, rank);
      if (is_new || found->second == rank) continue;
      line.refuse(fmt::format("stage {} has passes on the ranks {} and {}", pass.stage, found->second, rank),
                  "give all passes of a stage to one rank");
    }
    order.ranks.push_back(*std::move(passes));
  }
  for (const auto& [stage, rank] : ranks) {
    if (stage != order.num_stages()) {
      line.refuse(fmt::format("there is a stage {}, but no stage {}", stage, order.num_stages()),
                  "number the stages 0, 1, .. in forward order");
    }
    order.rank_of_stage.push_back(rank);
  }
  if (order.ranks.empty()) line.refuse("there is no rank", "begin with 'rank 0: F0.0 ..'");
  try {
    check(order);
  } catch (const UsageError& error) {  // its message does not know where the table is from
    ErrorText text = error.text();
    text.where = source;
    text.action =
        "change the order of the passes; <1.0@0 is the input of stage 1 in micro-batch 0, received from stage "
        "0, <g1.0@1 its gradient from stage 1, > what is sent";
    throw UsageError(text);
  }
  return order;
}

std::string to_text(const PipelineOrder& order) {
  std::string text;
  for (size_t rank = 0; rank < order.ranks.size(); ++rank) {
    text += fmt::format("rank {}:", rank);
    for (const Pass& pass : order.ranks[rank]) {
      constexpr std::string_view kOfKind = "FCBWU";
      text += fmt::format(" {}{}.{}", kOfKind[static_cast<size_t>(pass.kind)], pass.stage, pass.micro_batch);
    }
    text += '\n';
  }
  return text;
}

void check(const PipelineOrder& order) {
  Units units;
  for (int stage = 0; stage < order.num_stages(); ++stage) {
    units.units.push_back({.name = fmt::format("stage {}", stage), .stage = stage, .groups = {stage}});
    units.groups.push_back({.name = fmt::format("weights of stage {}", stage)});
  }
  std::vector<Schedule> tables = expand(order.ranks, units, order.rank_of_stage);
  for (Schedule& table : tables) table = with_update(with_reductions(table, units));
  check(tables, units, order.rank_of_stage, /*capacity=*/1);
}

}  // namespace caravan
