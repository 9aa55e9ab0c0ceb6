#include <algorithm>
#include <cctype>
#include <utility>

#include <fmt/format.h>

#include "caravan/cost/hardware.h"
#include "caravan/cost/hardware_table.h"

namespace caravan {
namespace {

std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string as_key(const std::string& text) {
  const bool is_bare = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  return is_bare ? text : in_quotes(text);
}

std::string as_value(double value, Quantity quantity) {
  const std::string text = format_quantity(value, quantity);
  return text.empty() ? fmt::format("{}", value) : '"' + text + '"';
}

/// Lines `key = value` for what differs from what the file need not say.
class HardwareLines {
 public:
  void head(const std::string& head) { text_ += fmt::format("\n{}\n", head); }
  void add(std::string_view key, const std::string& value) { text_ += fmt::format("{} = {}\n", key, value); }
  void add(std::string_view key, double value, Quantity quantity, std::optional<double> otherwise = std::nullopt) {
    if (value != otherwise) add(key, as_value(value, quantity));
  }
  template <class Number>
  void add_number(std::string_view key, Number value, Number otherwise) {
    if (value != otherwise) add(key, fmt::format("{}", value));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string product_line(const ProductRate& rate) {
  std::string text = "{";
  if (rate.peak_flops > 0) text += fmt::format("peak = {}, ", as_value(rate.peak_flops, Quantity::flops_per_second));
  text += fmt::format("reached = {}", as_value(rate.flops, Quantity::flops_per_second));
  const ProductRate usual;
  if (std::pair(rate.tile_m, rate.tile_n) != std::pair(usual.tile_m, usual.tile_n)) {
    text += fmt::format(", tile = [{}, {}]", rate.tile_m, rate.tile_n);
  }
  if (rate.ramp_k != usual.ramp_k) text += fmt::format(", ramp_k = {}", rate.ramp_k);
  if (rate.sustained != usual.sustained) text += fmt::format(", sustained = {}", rate.sustained);
  if (rate.unaligned != usual.unaligned) text += fmt::format(", unaligned = {}", rate.unaligned);
  const auto add = [&](const char* key, double value, Quantity quantity) {
    if (value > 0) text += fmt::format(", {} = {}", key, as_value(value, quantity));
  };
  add("kernel_rate", rate.kernel_bytes_per_second, Quantity::bytes_per_second);
  add("kernel", rate.kernel_seconds, Quantity::seconds);
  add("operand_rate", rate.operand_bytes_per_second, Quantity::bytes_per_second);
  add("attention", rate.attention.flops, Quantity::flops_per_second);
  add("attention_row", rate.attention.row_seconds, Quantity::seconds);
  add("attention_backward", rate.attention_backward.flops, Quantity::flops_per_second);
  add("attention_backward_row", rate.attention_backward.row_seconds, Quantity::seconds);
  return text + "}";
}

void write_device(HardwareLines& lines, const HardwareDevice& device) {
  lines.head(fmt::format("[device.{}]", as_key(device.alias.empty() ? device.name : device.alias)));
  if (!device.alias.empty()) lines.add("name", in_quotes(device.name));
  lines.add_number<int64_t>("units", device.units, 1);
  for (const ProductRate& rate : device.products) lines.add("products." + rate.dtype, product_line(rate));
  lines.add_number("attention", device.attention_fraction, HardwareDevice().attention_fraction);
  lines.add("memory", static_cast<double>(device.memory_bytes), Quantity::bytes);
  lines.add("reserved", static_cast<double>(device.reserved_bytes), Quantity::bytes, kReservedBytes);
  lines.add("memory_rate", device.memory_bytes_per_second, Quantity::bytes_per_second);
  lines.add("launch", device.launch_seconds, Quantity::seconds, kLaunchSeconds);
  lines.add("host_rate", device.host_bytes_per_second, Quantity::bytes_per_second, kHostRate);
  lines.add_number("price_per_hour", device.price_per_hour, 0.0);
  lines.add("mtbf", device.mtbf_seconds, Quantity::seconds, 0);
  lines.add_number("time_error", device.time_error, kTimeError);
  lines.add_number("is_processor", device.is_processor, false);
}

void write_host(HardwareLines& lines, const HostKind& host) {
  lines.head("[[host]]");
  lines.add_number<int64_t>("count", host.count, 1);
  lines.add("device", in_quotes(host.device));
  lines.add("devices", fmt::format("{}", host.devices));
  lines.add("memory", static_cast<double>(host.memory_bytes), Quantity::bytes, 0);
  lines.add("copy_rate", host.copy_bytes_per_second, Quantity::bytes_per_second, 0);
  lines.add("disk_read", host.disk_read_bytes_per_second, Quantity::bytes_per_second, 0);
  lines.add("disk_write", host.disk_write_bytes_per_second, Quantity::bytes_per_second, 0);
  lines.add("storage_rate", host.storage_bytes_per_second, Quantity::bytes_per_second, 0);
}

void write_level(HardwareLines& lines, const LinkLevel& level) {
  lines.head("[[level]]");
  lines.add("name", in_quotes(level.name));
  lines.add("devices", fmt::format("{}", level.devices));
  lines.add("rate", level.bytes_per_second, Quantity::bytes_per_second);
  lines.add("latency", level.latency_seconds, Quantity::seconds);
  lines.add_number("fraction", level.fraction, 1.0);
  lines.add_number("reduce_speedup", level.reduce_speedup, 1.0);
  lines.add_number("oversubscription", level.oversubscription, 1.0);
  lines.add("call", level.call_seconds, Quantity::seconds, 0);
  lines.add("ramp", level.ramp_bytes, Quantity::bytes, 0);
  lines.add_number("congestion", level.congestion, 0.0);
  lines.add_number("includes_inner", level.includes_inner, false);
}

}  // namespace

std::string to_toml(const Hardware& hardware) {
  HardwareLines lines;
  lines.add("name", in_quotes(hardware.name));
  lines.add("source", in_quotes(hardware.source));
  lines.add("restart", hardware.restart_seconds, Quantity::seconds, 0);
  for (const HardwareDevice& device : hardware.devices) write_device(lines, device);
  for (const HostKind& host : hardware.hosts) write_host(lines, host);
  for (const LinkLevel& level : hardware.levels) write_level(lines, level);
  return lines.take();
}

}  // namespace caravan
