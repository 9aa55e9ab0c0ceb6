#include "caravan/report/metric_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/system/file.h"
#include "caravan/base/time.h"

namespace caravan {
namespace {

constexpr std::array<std::string_view, 28> kColumns{"step",
                                                    "loss",
                                                    "val_loss",
                                                    "val_bits_per_byte",
                                                    "grad_norm",
                                                    "lr",
                                                    "tokens",
                                                    "step_ms",
                                                    "tokens_per_second",
                                                    "comm_ms",
                                                    "save_ms",
                                                    "bytes_sent",
                                                    "state_bytes",
                                                    "peak_memory_bytes",
                                                    "loss_scale",
                                                    "skipped_steps",
                                                    "skipped_spikes",
                                                    "largest_lead",
                                                    "predicted_memory_bytes",
                                                    "predicted_resident_bytes",
                                                    "model_flops_per_second",
                                                    "val_accuracy",
                                                    "val_macro_f1",
                                                    "val_loss_average",
                                                    "reward_margin",
                                                    "reward_accuracy",
                                                    "reward_chosen",
                                                    "reward_rejected"};

/// The groups in which TensorBoard shows the numbers.
std::string tag_of(std::string_view name) {
  if (name.starts_with("val_")) return "validation/" + std::string(name.substr(4));
  if (name.starts_with("reward_")) return "rewards/" + std::string(name.substr(7));
  if (name.starts_with("bubble.")) return "pipeline/" + std::string(name);
  if (name.starts_with("experts.")) return "experts/" + std::string(name.substr(8));
  if (name.starts_with("layers.")) {  // layers.blocks.0.norm: the curves of all layers beside each other
    const size_t quantity = name.rfind('.');
    return fmt::format("layer {}/{}", name.substr(quantity + 1), name.substr(7, quantity - 7));
  }
  if (name.ends_with("_bytes")) return "memory/" + std::string(name);
  const bool is_speed = name.ends_with("_ms") || name.ends_with("_per_second") || name == "bytes_sent";
  return (is_speed ? "speed/" : "train/") + std::string(name);
}

/// A number for each expert of each layer is a table, not a curve.
bool is_curve(std::string_view name) {
  return name != "step" && !name.starts_with("experts.copies") && !name.starts_with("staleness.") &&
         !name.starts_with("clocks.") && !name.starts_with("predicted.");
}

}  // namespace

MetricFiles::MetricFiles(const std::filesystem::path& run, const Options& options) : csv_path_(run / "metrics.csv") {
  const RunLog log = RunLog::read(run);
  if (options.csv) {
    csv_.open(csv_path_, std::ios::binary | std::ios::trunc);
    if (!csv_) throw_file_error("metrics.csv", csv_path_, "cannot be created", errno);
    csv_ << fmt::format("time,host,{}\n", fmt::join(kColumns, ","));
  }
  if (options.tensorboard) {
    const bool has_time = !log.lines().empty() && log.lines().front().seconds >= 0;
    events_ = std::make_unique<EventFile>(run / "tensorboard", has_time ? log.lines().front().seconds : now_seconds(),
                                          "caravan");
  }
  for (const MetricsLine& line : log.lines()) write(line);
}

void MetricFiles::write(const MetricsLine& line) {
  if (csv_.is_open()) write_csv(line);
  if (events_ == nullptr) return;
  EventFile::Scalars scalars;
  for (const auto& [name, value] : line.numbers) {
    if (is_curve(name)) scalars.emplace_back(tag_of(name), value);
  }
  events_->write(line.step, std::max(line.seconds, 0.0), scalars);
}

void MetricFiles::write_csv(const MetricsLine& line) {
  errno = 0;
  csv_ << (line.seconds < 0 ? "" : utc_text(line.seconds)) << ',' << line.host;
  for (const std::string_view column : kColumns) {
    const auto found = line.numbers.find(std::string(column));
    csv_ << ',';
    if (found == line.numbers.end()) continue;
    const bool is_whole = found->second == std::floor(found->second) && std::abs(found->second) < 9e15;
    csv_ << (is_whole ? fmt::format("{:.0f}", found->second) : fmt::format("{}", found->second));
  }
  csv_ << '\n' << std::flush;
  if (!csv_) throw_file_error("metrics.csv", csv_path_, "cannot be written", errno != 0 ? errno : ENOSPC);
}

}  // namespace caravan
