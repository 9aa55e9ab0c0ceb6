#include "caravan/cost/quantity.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {
namespace {

/// A unit is times * 10^ten * 2^two.
struct QuantityUnit {
  std::string_view text;
  int ten = 0;
  int two = 0;
  bool is_written = true;
  int times = 1;
};

constexpr QuantityUnit kBytesUnits[] = {{"TiB", 0, 40}, {"GiB", 0, 30}, {"MiB", 0, 20}, {"KiB", 0, 10}, {"TB", 12},
                                        {"GB", 9},      {"MB", 6},      {"kB", 3},      {"B"}};
constexpr QuantityUnit kRateUnits[] = {{"TB/s", 12},
                                       {"GB/s", 9},
                                       {"MB/s", 6},
                                       {"kB/s", 3},
                                       {"B/s"},
                                       {"TiB/s", 0, 40, false},
                                       {"GiB/s", 0, 30, false},
                                       {"MiB/s", 0, 20, false},
                                       {"KiB/s", 0, 10, false},
                                       {"Tb/s", 12, -3, false},
                                       {"Gb/s", 9, -3, false},
                                       {"Mb/s", 6, -3, false}};
constexpr QuantityUnit kTimeUnits[] = {{"s"},
                                       {"ms", -3},
                                       {"us", -6},
                                       {"ns", -9},
                                       {"min", 0, 0, false, 60},
                                       {"h", 2, 0, true, 36},
                                       {"d", 2, 0, false, 864}};
constexpr QuantityUnit kFlopUnits[] = {{"PFLOP/s", 15}, {"TFLOP/s", 12}, {"GFLOP/s", 9}, {"MFLOP/s", 6}, {"FLOP/s"}};

std::span<const QuantityUnit> units_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::bytes: return kBytesUnits;
    case Quantity::bytes_per_second: return kRateUnits;
    case Quantity::seconds: return kTimeUnits;
    case Quantity::flops_per_second: return kFlopUnits;
  }
  return {};
}

/// The number at the beginning of a text, and the unit after it.
struct QuantityParts {
  std::string_view number;
  std::string_view unit;
};

QuantityParts split_quantity(std::string_view text) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const size_t unit = std::min(text.find_first_not_of(' ', end), text.size());
  return {text.substr(0, end), text.substr(unit)};
}

/// "Gbit/s" and "Gbps" are "Gb/s", "GBps" is "GB/s": what networks are sold in.
std::string usual_unit(std::string_view unit) {
  std::string text(unit);
  for (const auto& [other, usual] : {std::pair("bits/s", "b/s"), {"bit/s", "b/s"}, {"bps", "b/s"}, {"Bps", "B/s"}}) {
    const std::string_view end = other;
    if (text.ends_with(end)) text.replace(text.size() - end.size(), end.size(), usual);
  }
  return text;
}

std::optional<double> read_number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, value);
  return fault == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<double> parse_quantity(std::string_view text, Quantity quantity) {
  const auto [number, given] = split_quantity(text);
  const std::string unit = quantity == Quantity::bytes_per_second ? usual_unit(given) : std::string(given);
  for (const QuantityUnit& known : units_of(quantity)) {
    if (unit != known.text) continue;
    const auto value = read_number(fmt::format("{}e{}", number, known.ten));
    return value ? std::optional(std::ldexp(*value * known.times, known.two)) : std::nullopt;
  }
  return std::nullopt;
}

std::string format_quantity(double value, Quantity quantity) {
  std::string best;
  for (const QuantityUnit& unit : units_of(quantity)) {
    const double scale = std::pow(10, std::abs(unit.ten)) * unit.times;  // exact, unlike a negative power
    const double count = std::ldexp(unit.ten < 0 ? value * scale : value / scale, -unit.two);
    if (!unit.is_written || (count < 1 && (unit.ten != 0 || unit.two != 0 || unit.times != 1)))
      continue;  // 300GB/s, not 0.3TB/s
    const std::string number = fmt::format("{}", count);
    const std::string text = fmt::format("{}{}", number, unit.text);
    const bool is_read = number.find('e') == std::string::npos && parse_quantity(text, quantity) == value;
    if (is_read && (best.empty() || text.size() < best.size())) best = text;
  }
  return best;
}

std::string explain_quantity(std::string_view text, Quantity quantity) {
  const auto [number, unit] = split_quantity(text);
  std::vector<std::string> units;
  for (const QuantityUnit& known : units_of(quantity)) units.emplace_back(known.text);
  if (!read_number(std::string(number))) return fmt::format("'{}' is not a number with a unit", text);
  if (unit.empty()) return fmt::format("'{}' has no unit; write one of {}", text, join(units));
  // Who writes bits gets bits: "gbit" is "Gb/s", not "GB/s".
  const bool is_in_bits = quantity == Quantity::bytes_per_second && unit.find('b') != std::string_view::npos;
  if (!is_in_bits || unit.find('B') != std::string_view::npos) return fmt::format("unit {}", not_one_of(unit, units));
  std::string meant = usual_unit(unit.ends_with('s') ? std::string(unit) : std::string(unit) + "/s");
  meant.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(meant.front())));
  std::vector<std::string> of_bits;
  std::ranges::copy_if(units, std::back_inserter(of_bits),
                       [](const std::string& known) { return known.ends_with("b/s"); });
  return fmt::format("unit '{}' is not one of {}; the nearest is '{}'", unit, join(units), nearest(meant, of_bits));
}

}  // namespace caravan
