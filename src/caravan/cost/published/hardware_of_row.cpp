#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "caravan/cost/published/run.h"

namespace caravan::published {
namespace {

/// What tables call a device, and its preset; the first that is in the text counts.
struct DeviceWord {
  std::string_view word;
  std::string_view preset;
};
constexpr DeviceWord kDeviceWords[] = {{"gb200", "gb200"},
                                       {"gb300", "gb300"},
                                       {"gh200", "gh200-96"},
                                       {"b200", "b200"},
                                       {"b300", "b300"},
                                       {"h200", "h200"},
                                       {"h800", "h800-80"},
                                       {"h20", "h20"},
                                       {"a800", "a800-80"},
                                       {"mi300", "mi300x"},
                                       {"mi325", "mi325x"},
                                       {"p100", "p100"},
                                       {"t4", "t4"},
                                       {"l40s", "l40s"},
                                       {"a6000", "a6000"},
                                       {"h100", "h100-80"},
                                       {"a100", "a100-80"},
                                       {"dgx-2", "v100-32-dgx2"},
                                       {"dgx2", "v100-32-dgx2"},
                                       {"v100", "v100-32"},
                                       {"mi250x", "mi250x"},
                                       {"mi250", "mi250"},
                                       {"3090", "rtx-3090"},
                                       {"4090", "rtx-4090"},
                                       {"5090", "rtx-5090"},
                                       {"v5e", "tpu-v5e"},
                                       {"v5", "tpu-v5p"},
                                       {"tpu-v4", "tpu-v4"},
                                       {"tpuv4", "tpu-v4"},
                                       {"tpu-v2", "tpu-v2"},
                                       {"tpuv2", "tpu-v2"},
                                       {"tpu", "tpu-v3"},
                                       {"a64fx", "a64fx"},
                                       {"fugaku", "a64fx"},
                                       // Without a preset: the nearest.
                                       {"a10", "rtx-3090"},
                                       {"2080", "t4"},
                                       {"quadro", "t4"},
                                       {"p40", "p100"},
                                       {"1080", "p100"}};

bool has_number(std::string_view text, std::string_view number) {
  for (size_t at = text.find(number); at != std::string_view::npos; at = text.find(number, at + 1)) {
    const auto is_digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
    if (!(at > 0 && is_digit(at - 1)) && !is_digit(at + number.size())) return true;
  }
  return false;
}

std::string preset_of(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == ' ' || c == '_' || c == '?' || c == '\t'; }, '-');
  const auto* found =
      std::ranges::find_if(kDeviceWords, [&](const DeviceWord& one) { return has_word(text, one.word); });
  if (found == std::end(kDeviceWords)) return "a100-80";
  std::string preset(found->preset);
  const bool is_pcie = has_word(text, "pcie");
  if (preset == "a100-80" && has_number(text, "40")) preset = "a100-40";
  if (preset == "h100-80" && has_number(text, "96")) preset = "h100-96";
  if (preset == "v100-32" && has_number(text, "16")) preset = "v100-16";
  if (preset == "gh200-96" && has_number(text, "141")) preset = "gh200-141";
  if (is_pcie && preset_device(preset + "-pcie")) preset += "-pcie";
  return preset;
}

/// Devices of a usual host.
int64_t usual_per_host(const std::string& preset) {
  if (preset == "gb200" || preset == "gb300" || preset.starts_with("gh200")) return 4;
  if (preset == "p100" || preset == "t4" || preset.starts_with("tpu")) return 4;
  if (preset == "a64fx") return 1;
  return preset == "v100-32-dgx2" ? 16 : 8;
}

/// Of the hosts of devices without a usual network: Ethernet of workstations, else InfiniBand of 100 Gb/s.
const char* usual_link(const std::string& preset) {
  if (preset.starts_with("rtx")) return "10Gb";
  return preset == "t4" || preset == "a6000" ? "25Gb" : "100Gb";
}

}  // namespace

void describe_hardware(const Row& row, Run& run) {
  std::string preset = preset_of(row.lower("hw"));
  run.per_host = row.whole("gpus_per_node", 65536).value_or(usual_per_host(preset));
  if (preset.starts_with("v100") && !preset.ends_with("-pcie") && run.per_host > 8) preset = "v100-32-dgx2";
  run.is_power_limited =
      preset.starts_with("h") || preset.starts_with("gh") || preset.starts_with("b") || preset.starts_with("gb");
  HardwareChoice choice{.device = preset, .per_host = run.per_host, .hosts = 1};
  choice.per_host = std::min(choice.per_host, most_in_host(preset));
  choice.hosts = (run.ranks + choice.per_host - 1) / choice.per_host;
  if (const auto rate = row.number("inter_gbps_per_gpu"); rate && *rate > 0) {
    choice.link = fmt::format("{:.6f}GB", std::clamp(*rate, 1e-3, 1e6));
  } else if (!has_usual_network(preset)) {
    choice.link = usual_link(preset);
  }
  run.hardware = preset_hardware(choice);
}

}  // namespace caravan::published
