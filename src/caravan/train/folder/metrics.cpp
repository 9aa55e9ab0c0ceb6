#include "caravan/train/folder/metrics.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "caravan/base/system/file.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

using nlohmann::ordered_json;

/// Calls `use` with each line of the file that describes a step, as text and as JSON. A last line cut by a crash is
/// left out.
void for_each_step_line(const fs::path& path,
                        const std::function<void(std::string_view text, const ordered_json& line, int64_t step)>& use) {
  std::error_code error;
  if (!fs::exists(path, error) || fs::is_empty(path, error)) return;
  const MappedFile file(path, "train.log");
  const std::string_view text = file.text();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return;
    const std::string_view one = text.substr(begin, end - begin);
    const auto line = ordered_json::parse(one, nullptr, false);
    if (line.is_object() && line.contains("step") && line["step"].is_number_integer()) use(one, line, line["step"]);
    begin = end + 1;
  }
}

/// The lines of an earlier part of the run for steps up to `last_step`.
std::string kept_lines(const fs::path& path, int64_t last_step) {
  std::string kept;
  for_each_step_line(path, [&](std::string_view text, const ordered_json&, int64_t step) {
    if (step <= last_step) kept += std::string(text) + '\n';
  });
  return kept;
}

/// The keys that follow those of an evaluation in StepMetrics::to_json.
bool follows_evaluation(std::string_view key) { return key == "clocks" || key == "time" || key == "host"; }

void add_evaluation_to(ordered_json& line, const StepMetrics& metrics) {
  if (metrics.val_loss) line["val_loss"] = *metrics.val_loss;
  if (metrics.val_bits_per_byte) line["val_bits_per_byte"] = *metrics.val_bits_per_byte;
  if (metrics.val_accuracy) line["val_accuracy"] = *metrics.val_accuracy;
  if (metrics.val_macro_f1) line["val_macro_f1"] = *metrics.val_macro_f1;
  if (metrics.val_loss_average) line["val_loss_average"] = *metrics.val_loss_average;
}

ordered_json with_evaluation(const ordered_json& line, const StepMetrics& metrics) {
  ordered_json whole;
  const auto add = [&] { add_evaluation_to(whole, metrics); };
  for (const auto& [key, value] : line.items()) {
    if (follows_evaluation(key) && !whole.contains("val_loss")) add();
    whole[key] = value;
  }
  if (!whole.contains("val_loss")) add();
  return whole;
}

}  // namespace

std::pair<double, double> ExpertLoad::extremes(size_t layer) const {
  const std::vector<int64_t>& counts = copies.at(layer);
  double sum = 0;
  for (const int64_t count : counts) sum += static_cast<double>(count);
  if (sum == 0) return {1, 1};
  const auto [least, most] = std::ranges::minmax(counts);
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
  ordered_json line{{"step", step},
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
                    {"predicted_memory_bytes", predicted_memory_bytes},
                    {"predicted_resident_bytes", predicted_resident_bytes},
                    {"model_flops_per_second", model_flops_per_second}};
  if (save_ms > 0) line["save_ms"] = save_ms;
  if (beyond) {
    line["tiers"] = {{"peak_host_bytes", beyond->host_bytes},
                     {"predicted_host_bytes", beyond->predicted_host_bytes},
                     {"peak_disk_bytes", beyond->disk_bytes},
                     {"predicted_disk_bytes", beyond->predicted_disk_bytes}};
  }
  if (predicted) {
    for (size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
      line["predicted"][std::string(kMemoryKindNames[kind])] = predicted->of[kind];
    }
  }
  if (loss_scale) line["loss_scale"] = *loss_scale;
  if (skipped_steps) line["skipped_steps"] = *skipped_steps;
  if (skipped_spikes) line["skipped_spikes"] = *skipped_spikes;
  if (!spike.empty()) line["spike"] = spike;
  if (!slowdown.empty()) line["slowdown"] = slowdown;
  if (!bubble.empty()) line["bubble"] = bubble;
  for (const LayerNorms& of : layers) {
    line["layers"][of.layer] = {{"norm", of.norm}, {"grad_norm", of.grad_norm}};
    if (of.norm > 0) line["layers"][of.layer]["update_ratio"] = of.update / of.norm;
  }
  if (experts) {
    line["experts"] = {{"balance", experts->balance}, {"dropped", experts->dropped}, {"copies", experts->copies}};
  }
  if (rewards) {
    line["reward_margin"] = rewards->margin();
    line["reward_accuracy"] = rewards->accuracy;
    line["reward_chosen"] = rewards->chosen;
    line["reward_rejected"] = rewards->rejected;
  }
  add_evaluation_to(line, *this);
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
  replace(kept_lines(path_, last_step));
}

void StepLines::replace(const std::string& text) {
  write_file_durably(path_, text, "train.log");
  file_.close();
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
  ordered_json line{{"step", step}, {"resumed", true}, {"changed", ordered_json::object()}};
  for (const ChangedKey& key : changed) line["changed"][key.name] = {{"before", key.before}, {"now", key.now}};
  log_.write(line.dump());
}

void MetricsLog::write_sample(int64_t step, const std::string& text) {
  if (!samples_) samples_.emplace(run_ / "samples.jsonl", last_step_);
  samples_->write(ordered_json{{"step", step}, {"text", text}}.dump());
}

std::optional<double> MetricsLog::last_validation() const {
  std::optional<double> loss;
  for_each_step_line(run_ / "train.log", [&](std::string_view, const ordered_json& line, int64_t step) {
    const auto found = line.find("val_loss");
    if (step == last_step_ && found != line.end() && found->is_number()) loss = found->get<double>();
  });
  return loss;
}

bool MetricsLog::has_last_sample() const {
  bool has_sample = false;
  for_each_step_line(run_ / "samples.jsonl",
                     [&](std::string_view, const ordered_json&, int64_t step) { has_sample |= step == last_step_; });
  return has_sample;
}

void MetricsLog::add_evaluation(const StepMetrics& metrics) {
  std::string text;
  bool is_added = false;
  for_each_step_line(run_ / "train.log", [&](std::string_view own, const ordered_json& line, int64_t step) {
    const bool is_meant = step == last_step_ && line.contains("loss") && !is_added;
    is_added |= is_meant;
    text += (is_meant ? with_evaluation(line, metrics).dump() : std::string(own)) + '\n';
  });
  if (!is_added) text += with_evaluation({{"step", last_step_}}, metrics).dump() + '\n';
  log_.replace(text);
}

}  // namespace caravan
