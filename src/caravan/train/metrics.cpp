#include "caravan/train/metrics.h"

#include <algorithm>
#include <cerrno>
#include <numeric>

#include <nlohmann/json.hpp>

#include "caravan/base/file.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// The lines of an earlier part of the run that are of steps up to `last_step`; a last line cut by a crash is dropped
/// too.
std::string kept_lines(const fs::path& path, int64_t last_step) {
  std::error_code error;
  if (!fs::exists(path, error) || fs::is_empty(path, error)) return "";
  const MappedFile file(path, "train.log");
  std::string kept;
  const std::string_view text = file.text();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    const auto line = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
    if (line.is_object() && line.contains("step") && line["step"].is_number_integer() && line["step"] <= last_step) {
      kept += text.substr(begin, end + 1 - begin);
    }
    begin = end + 1;
  }
  return kept;
}

}  // namespace

std::pair<double, double> ExpertLoad::extremes(size_t layer) const {
  const std::vector<int64_t>& counts = copies.at(layer);
  const auto [least, most] = std::ranges::minmax(counts);
  const auto sum = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  if (sum == 0) return {1, 1};
  const double even = sum / static_cast<double>(counts.size());
  return {static_cast<double>(least) / even, static_cast<double>(most) / even};
}

std::pair<double, double> ExpertLoad::extremes() const {
  std::pair<double, double> all{1, 1};
  for (size_t layer = 0; layer < copies.size(); ++layer) {
    const auto [least, most] = extremes(layer);
    all = {std::min(all.first, least), std::max(all.second, most)};
  }
  return all;
}

std::string StepMetrics::to_json() const {
  nlohmann::ordered_json line{{"step", step},
                              {"loss", loss},
                              {"grad_norm", grad_norm},
                              {"lr", lr},
                              {"tokens", tokens},
                              {"step_ms", step_ms},
                              {"tokens_per_second", tokens_per_second},
                              {"comm_ms", comm_ms},
                              {"bytes_sent", bytes_sent},
                              {"peak_memory_bytes", peak_memory_bytes},
                              {"state_bytes", state_bytes},
                              {"planned_state_bytes", planned_state_bytes},
                              {"model_flops_per_second", model_flops_per_second}};
  if (save_ms > 0) line["save_ms"] = save_ms;
  if (loss_scale) line["loss_scale"] = *loss_scale;
  if (skipped_steps) line["skipped_steps"] = *skipped_steps;
  if (!bubble.empty()) line["bubble"] = bubble;
  if (experts) {
    line["experts"] = {{"balance", experts->balance}, {"dropped", experts->dropped}, {"copies", experts->copies}};
  }
  if (val_loss) line["val_loss"] = *val_loss;
  if (val_bits_per_byte) line["val_bits_per_byte"] = *val_bits_per_byte;
  if (drain) {
    line["clocks"] = drain->clocks;
    line["largest_lead"] = drain->largest_lead;
    line["staleness"] = drain->staleness.used();
  }
  if (!time.empty()) line["time"] = time;
  if (!host.empty()) line["host"] = host;
  return line.dump();
}

StepLines::StepLines(fs::path path, int64_t last_step) : path_(std::move(path)) {
  const std::string kept = kept_lines(path_, last_step);
  write_file_durably(path_, kept, "train.log");
  file_.open(path_, std::ios::binary | std::ios::app);
  if (!file_) throw_file_error("train.log", path_, "cannot be opened", errno);
}

void StepLines::write(const std::string& line) {
  errno = 0;
  file_ << line << '\n' << std::flush;
  if (!file_) throw_file_error("train.log", path_, "cannot be written", errno != 0 ? errno : ENOSPC);
}

MetricsLog::MetricsLog(const fs::path& run, int64_t last_step)
    : run_(run), last_step_(last_step), log_(run / "train.log", last_step) {}

void MetricsLog::write_changes(int64_t step, const std::vector<ChangedKey>& changed) {
  if (changed.empty()) return;
  nlohmann::ordered_json line{{"step", step}, {"resumed", true}, {"changed", nlohmann::ordered_json::object()}};
  for (const ChangedKey& key : changed) line["changed"][key.name] = {{"before", key.before}, {"now", key.now}};
  log_.write(line.dump());
}

void MetricsLog::write_sample(int64_t step, const std::string& text) {
  if (!samples_) samples_.emplace(run_ / "samples.jsonl", last_step_);
  samples_->write(nlohmann::ordered_json{{"step", step}, {"text", text}}.dump());
}

}  // namespace caravan
