#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace caravan {

/// What a number with a unit measures.
enum class Quantity : uint8_t { bytes, bytes_per_second, seconds, flops_per_second };

/// "80GiB", "300GB/s", "200Gb/s" (bits; also "200Gbit/s", "200Gbps"), "5us", "10min", "312TFLOP/s", with or without a
/// space before the unit, in bytes and seconds. As exact as the same number written with an exponent. Nothing if it is
/// no such text.
std::optional<double> parse_quantity(std::string_view text, Quantity quantity);

/// The shortest text that parse_quantity reads as `value`; "" if none does.
std::string format_quantity(double value, Quantity quantity);

/// For error messages: what is wrong with a text that parse_quantity does not read.
std::string explain_quantity(std::string_view text, Quantity quantity);

}  // namespace caravan
