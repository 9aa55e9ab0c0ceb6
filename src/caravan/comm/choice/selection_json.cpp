#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/comm/choice/selection.h"

namespace caravan::algorithms {
namespace {

constexpr std::string_view kOp = "selection table";
constexpr std::string_view kFormat = "caravan selection table 1";

nlohmann::json parse(std::string_view text, std::string_view file) {
  nlohmann::json value;
  JsonFault fault;
  if (parse_json(text, value, fault)) return value;
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(fault.byte, text.size()));
  const std::string line = fault.is_syntax ? fmt::format(":{}", 1 + std::count(text.begin(), end, '\n')) : "";
  throw DataError({.op = std::string(kOp),
                   .subject = std::string(file) + line,
                   .fact = fault.fact,
                   .action = "correct it, or write the file again with `caravan bench comm --tune`"});
}

std::vector<std::string> names_of_verbs() {
  std::vector<std::string> names;
  for (const Verb verb : kVerbs) names.emplace_back(name(verb));
  return names;
}

std::vector<std::string> names_of_algorithms(Verb verb) {
  std::vector<std::string> names;
  for (const Algorithm algorithm : algorithms_for(verb)) names.emplace_back(name(algorithm));
  return names;
}

/// The index of the string `value` in `names`.
size_t one_of(const JsonReader& value, const std::vector<std::string>& names) {
  const auto found = std::ranges::find(names, value.string());
  if (found == names.end()) {
    value.refuse(fmt::format("is \"{}\"", value.string()),
                 fmt::format("choose from {}; did you mean {}?", join(names), nearest(value.string(), names)));
  }
  return static_cast<size_t>(found - names.begin());
}

Rule read_rule(const JsonReader& json) {
  Rule rule;
  const JsonReader backend = json["backend"];  // also refuses a value that is not an object
  json.allow_only({"backend", "verb", "max_ranks", "max_bytes", "algorithm", "segment_bytes"});
  if (!backend.is_null()) rule.backend = backend.string();
  rule.verb = kVerbs[one_of(json["verb"], names_of_verbs())];
  const auto algorithms = algorithms_for(rule.verb);
  rule.choice.algorithm = algorithms[one_of(json["algorithm"], names_of_algorithms(rule.verb))];
  if (const JsonReader ranks = json["max_ranks"]; !ranks.is_null()) {
    rule.max_ranks = static_cast<int>(ranks.integer(1, Rule::kAnyRanks - 1));
  }
  if (const JsonReader bytes = json["max_bytes"]; !bytes.is_null()) {
    rule.max_bytes = bytes.integer(0, Rule::kAnyBytes - 1);
  }
  const JsonReader segment = json["segment_bytes"];
  if (rule.choice.algorithm == Algorithm::chain) rule.choice.segment_bytes = segment.integer(1, Rule::kAnyBytes - 1);
  if (rule.choice.algorithm != Algorithm::chain && !segment.is_null()) {
    segment.refuse(fmt::format("is set for {}", name(rule.choice.algorithm)), "remove it: only chain has segments");
  }
  return rule;
}

}  // namespace

SelectionTable SelectionTable::from_json(std::string_view text, std::string_view file) {
  const nlohmann::json document = parse(text, file);
  const JsonReader json(document, "", file, kOp);
  const JsonReader format = json["format"];
  if (format.is_null() || format.string() != kFormat) {
    json.refuse(fmt::format("does not say \"format\": \"{}\"", kFormat),
                "pass a file that `caravan bench comm --tune` wrote");
  }
  json.allow_only({"format", "rules"});
  const JsonReader list = json["rules"];
  if (!list.value().is_array()) list.refuse("is not a list", "write a list of rules");
  std::vector<Rule> rules;
  for (size_t i = 0; i < list.size(); ++i) rules.push_back(read_rule(list.element(i)));
  try {
    return SelectionTable(with_built_in(std::move(rules)));
  } catch (const UsageError& error) {
    throw DataError({.op = std::string(kOp),
                     .subject = std::string(file),
                     .fact = error.text().fact,
                     .action = error.text().action});
  }
}

SelectionTable SelectionTable::load(const std::filesystem::path& path) {
  const MappedFile file(path, kOp);
  return from_json(file.text(), path.string());
}

std::string SelectionTable::to_json() const {
  using Json = nlohmann::ordered_json;
  std::string lines;
  for (const Rule& rule : rules_) {
    Json line;
    if (!rule.backend.empty()) line["backend"] = rule.backend;
    line["verb"] = name(rule.verb);
    if (rule.max_ranks != Rule::kAnyRanks) line["max_ranks"] = rule.max_ranks;
    if (rule.max_bytes != Rule::kAnyBytes) line["max_bytes"] = rule.max_bytes;
    line["algorithm"] = name(rule.choice.algorithm);
    if (rule.choice.segment_bytes > 0) line["segment_bytes"] = rule.choice.segment_bytes;
    lines += fmt::format("{}    {}", lines.empty() ? "" : ",\n", line.dump());
  }
  return fmt::format("{{\n  \"format\": \"{}\",\n  \"rules\": [\n{}\n  ]\n}}\n", kFormat, lines);
}

void SelectionTable::save(const std::filesystem::path& path) const { write_file_durably(path, to_json(), kOp); }

}  // namespace caravan::algorithms
