#include "caravan/plan/plan_text.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {
namespace {

/// "products 71 %, other kernels 20 %, waits for dp 9 %": what takes the time of the slowest rank.
std::string cost_text(const Prediction& one) {
  std::vector<std::pair<double, std::string>> parts{
      {one.of_products, "products"}, {one.computes - one.of_products, "other kernels"}, {one.idles, "idle at the end"}};
  for (const auto& [axis, seconds] : one.waits) {
    parts.emplace_back(seconds, "waits for " + wait_name(axis));
  }
  std::ranges::sort(parts, std::greater<>());
  std::vector<std::string> texts;
  for (const auto& [seconds, name] : parts) {
    if (seconds > 0.02 * one.seconds) texts.push_back(fmt::format("{} {:.0f} %", name, 100 * seconds / one.seconds));
  }
  if (one.bubble > 0) texts.push_back(fmt::format("bubble of all ranks {:.1f} %", 100 * one.bubble / one.seconds));
  return join(texts);
}

}  // namespace

std::string step_seconds_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.3f} s", seconds);
}

std::string short_seconds(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} s", seconds);
}

std::string fit_text(const Prediction& one) {
  const std::string memory = format_bytes(one.memory.total());
  if (one.room_bytes <= 0) return memory;
  const bool is_host = one.host_room_bytes > 0 && one.host_bytes > one.host_room_bytes;
  const std::string host = fmt::format(": the host needs {}", format_bytes(one.host_bytes));
  const std::string used = one.host_bytes > 0 ? fmt::format(", {} of the host", format_bytes(one.host_bytes)) : "";
  return fmt::format("{} of {}{}", memory, format_bytes(one.room_bytes),
                     one.fits() ? used
                     : is_host  ? host
                                : ": does not fit");
}

std::string hardware_text(const Hardware& hardware, int num_ranks) {
  std::vector<std::string> hosts;
  for (const HostKind& host : hardware.hosts) {
    hosts.push_back(
        fmt::format("{} host{} of {} {}", host.count, host.count == 1 ? "" : "s", host.devices, host.device));
  }
  std::string text = fmt::format("{:<10}{}; {} ranks\n", "hardware", join(hosts), num_ranks);
  for (const LinkLevel& level : hardware.levels) {
    if (level.bytes_per_second <= 0) continue;
    const bool leaves_hosts = level.devices > hardware.hosts.front().devices;  // networks are sold in bits
    const std::string bits = leaves_hosts ? fmt::format(" ({:.4g} Gb/s)", level.bytes_per_second * 8e-9) : "";
    text += fmt::format("{:<10}{}: {:.4g} GB/s{} a device, {:.3g} us, among {} devices\n", "", level.name,
                        level.bytes_per_second / 1e9, bits, 1e6 * level.latency_seconds, level.devices);
  }
  return text;
}

std::string rows_text(const std::vector<PlanRow>& rows) {
  const bool has_tokens = rows.empty() || rows.front().prediction.tokens_per_second > 0;
  size_t width = 0;
  for (const PlanRow& row : rows) width = std::max(width, fit_text(row.prediction).size());
  std::string text = fmt::format("{:>3}  {:>10}{:>12}{:>7}  {:<{}}  layout\n", "", "step",
                                 has_tokens ? "tokens/s" : "rows/s", "MFU", "memory", width);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Prediction& one = rows[i].prediction;
    text += fmt::format("{:>3}  {:>10}{:>12.0f}{:>6.1f}%  {:<{}}  {}\n{:>{}}{}\n", i + 1,
                        step_seconds_text(one.seconds), has_tokens ? one.tokens_per_second : one.rows_per_second,
                        100 * one.utilisation, fit_text(one), width, rows[i].text, "", width + 39, cost_text(one));
  }
  return text;
}

}  // namespace caravan
