#include "caravan/train/balance/deal_record.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"

namespace caravan {
namespace {

/// The deal of a line. Throws an exception of the JSON library if it is none.
RecordedDeal parse_deal(const nlohmann::json& line) {
  RecordedDeal deal{.step = line.at("step").get<int64_t>(),
                    .micro_batches = line.at("micro_batches").get<int64_t>(),
                    .rows = line.at("rows").get<std::vector<int64_t>>()};
  if (line.contains("busy_ms")) deal.busy_ms = line.at("busy_ms").get<std::vector<double>>();
  return deal;
}

}  // namespace

std::string RecordedDeal::to_json() const {
  nlohmann::ordered_json line{{"step", step}, {"micro_batches", micro_batches}, {"rows", rows}};
  if (!busy_ms.empty()) line["busy_ms"] = busy_ms;
  return line.dump();
}

std::vector<RecordedDeal> parse_deals(std::string_view text, const std::string& source) {
  std::vector<RecordedDeal> deals;
  int64_t number = 0;
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    ++number;
    const auto refuse = [&](const std::string& fact) {
      throw DataError({"train", source, fact, fmt::format("line {}", number),
                       fmt::format("use the {} of a run, unchanged", kDealsFile)});
    };
    try {
      const auto line = nlohmann::json::parse(text.substr(begin, end - begin));
      const auto is_whole = [](const nlohmann::json& number) { return number.is_number_integer(); };
      if (!std::ranges::all_of(line.at("rows"), is_whole)) refuse("has rows that are no whole numbers");
      deals.push_back(parse_deal(line));
    } catch (const nlohmann::json::exception&) {
      refuse("is not a deal: step, micro_batches and rows");
    }
    if (deals.back().step < 0 || deals.back().micro_batches < 1) refuse("has a step or micro_batches that are none");
    if (deals.size() > 1 && deals.back().step < deals[deals.size() - 2].step) refuse("its step is before the last one");
  }
  return deals;
}

const RecordedDeal* deal_after(const std::vector<RecordedDeal>& deals, int64_t step) {
  const RecordedDeal* found = nullptr;
  for (const RecordedDeal& deal : deals) {
    if (deal.step <= step) found = &deal;  // the last line of a step counts
  }
  return found;
}

}  // namespace caravan
