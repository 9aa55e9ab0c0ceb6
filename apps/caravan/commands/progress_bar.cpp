#include "apps/caravan/commands/progress_bar.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan::app {
namespace {

constexpr std::chrono::seconds kFirstLine{2};  ///< shorter preparation prints no line
constexpr std::chrono::seconds kBetweenLines{10};
constexpr std::chrono::milliseconds kBetweenDraws{200};

/// "1:05", "2:03:00".
std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

/// `threads` is 0 if it differs between ranks.
std::string threads_text(int64_t threads) {
  if (threads == 0) return "different numbers of threads";
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

std::string drain_text(const SyncReport& drain) {
  return fmt::format("  |  workers at steps {} to {}, staleness {:.1f}", drain.slowest(),
                     *std::max_element(drain.clocks.begin(), drain.clocks.end()), drain.staleness.mean());
}

std::string validation_text(const StepMetrics& metrics) {
  std::string text = fmt::format("validation {:.4f}", *metrics.val_loss);
  if (metrics.val_bits_per_byte) text += fmt::format(", {:.4f} bits per byte", *metrics.val_bits_per_byte);
  if (metrics.val_accuracy) text += fmt::format(", accuracy {:.4f}", *metrics.val_accuracy);
  if (metrics.val_macro_f1) text += fmt::format(", macro F1 {:.4f}", *metrics.val_macro_f1);
  if (metrics.val_loss_average) text += fmt::format(", of the average {:.4f}", *metrics.val_loss_average);
  return text;
}

}  // namespace

ProgressBar::ProgressBar()
    : is_terminal_(::isatty(STDOUT_FILENO) == 1),
      begin_(std::chrono::steady_clock::now()),
      next_line_(begin_ + kFirstLine),
      next_draw_(begin_) {}

ProgressBar::~ProgressBar() {
  clear_bar();
  end_sample();
}

void ProgressBar::write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  std::fprintf(stderr, "caravan: standard output is lost (%s); the run continues, and train.log has its metrics\n",
               std::strerror(errno));
  // From here on, output is discarded without an error.
  if (std::freopen("/dev/null", "w", stdout) == nullptr) std::clearerr(stdout);
}

void ProgressBar::end_sample() {
  if (is_sampling_) write("\n");
  is_sampling_ = false;
}

void ProgressBar::line(const std::string& text) {
  clear_bar();
  end_sample();
  write(text + "\n");
}

void ProgressBar::clear_bar() {
  if (bar_is_drawn_) write("\r\x1b[K");
  bar_is_drawn_ = false;
}

void ProgressBar::draw_bar(const std::string& note) {
  if (!is_terminal_) return;
  end_sample();
  constexpr int kWidth = 30;
  const double done = last_step_ > 0 ? static_cast<double>(step_) / static_cast<double>(last_step_) : 1;
  const int filled = std::clamp(static_cast<int>(done * kWidth), 0, kWidth);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const auto made = static_cast<double>(step_ - first_step_);
  const std::string left = made > 0 ? clock_text(seconds / made * static_cast<double>(last_step_ - step_)) : "?";
  const std::string text =
      fmt::format("[{}{}] {:3.0f} %  {}/{}  {} elapsed, {} left{}", std::string(static_cast<size_t>(filled), '='),
                  std::string(static_cast<size_t>(kWidth - filled), ' '), done * 100, step_, last_step_,
                  clock_text(seconds), left, note);
  draw(text);
}

void ProgressBar::draw(const std::string& text) {
  clear_bar();
  write(text);
  bar_is_drawn_ = true;
}

void ProgressBar::preparing(const DataProgress& progress) {
  const auto now = std::chrono::steady_clock::now();
  if (progress.stage.empty() || (!is_terminal_ && now < next_line_)) return;
  const double percent =
      progress.total > 0 ? 100 * static_cast<double>(progress.done) / static_cast<double>(progress.total) : 0;
  const std::string done =
      progress.total > 0 ? fmt::format(", {:.0f} % of {}", std::min(percent, 100.0), format_bytes(progress.total)) : "";
  const std::string text = fmt::format("data      {}{}", progress.stage, done);
  if (is_terminal_) return draw(text);
  line(text);
  next_line_ = now + kBetweenLines;
}

void ProgressBar::planned(const TrainPlan& plan) {
  line(fmt::format("run       {}{}", plan.run.string(),
                   plan.first_step > 0 ? fmt::format(", resumed after step {}", plan.first_step) : ""));
  line(fmt::format("model     {} parameters, vocabulary {}", format_count(static_cast<double>(plan.num_parameters)),
                   plan.vocabulary));
  line(plan.train_tokens > 0
           ? fmt::format("data      {} training tokens", format_count(static_cast<double>(plan.train_tokens)))
           : "data      streamed: tokenized during training");
  line(fmt::format("batch     {} over {}", plan.batch.to_string(), plan.backend));
  if (!plan.mesh.empty()) line("mesh      " + plan.mesh);
  if (!plan.order.empty()) line("ranks     " + plan.order);
  line("memory    " + memory_text(plan.memory));
  predicted_bytes_ = plan.memory.own.peak.total();
  line(fmt::format("numerics  {} per rank, matrix products by {}", threads_text(plan.numerics.threads_per_rank),
                   plan.numerics.products));
}

void ProgressBar::started(const TrainStart& start) {
  first_step_ = step_ = start.first_step;
  last_step_ = start.last_step;
  const auto bytes = [&](MemoryKind kind) { return format_bytes(start.state[kind]); };
  line("dtypes    " + start.dtypes);
  if (!start.stages.empty()) line("stages    " + start.stages);
  line(fmt::format("state     parameters {}, gradients {}, optimizer {}", bytes(MemoryKind::parameters),
                   bytes(MemoryKind::gradients), bytes(MemoryKind::optimizer)));
  for (const std::string& note : start.notes) line("note      " + note);
  begin_ = std::chrono::steady_clock::now();
  draw_bar();
}

void ProgressBar::stepped(const StepMetrics& metrics, bool is_logged) {
  step_ = metrics.step;
  if (is_logged) {
    std::string text = fmt::format("step {}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} ms  {} tokens/s",
                                   metrics.step, last_step_, metrics.loss, metrics.grad_norm, metrics.lr,
                                   metrics.step_ms, format_count(metrics.tokens_per_second));
    if (metrics.loss_scale)
      text += fmt::format("  scale {:g}, skipped {}", *metrics.loss_scale, *metrics.skipped_steps);
    if (metrics.skipped_spikes.value_or(0) > 0) text += fmt::format("  spikes skipped {}", *metrics.skipped_spikes);
    if (metrics.rewards) {
      text += fmt::format("  margin {:.4f}, {:.1f} % of pairs right", metrics.rewards->margin(),
                          100 * metrics.rewards->accuracy);
    }
    if (metrics.experts) {
      const auto [least, most] = metrics.experts->extremes();
      text += fmt::format("  experts {:.2f} to {:.2f}", least, most);
      if (metrics.experts->dropped > 0) text += fmt::format(", {:.1f} % dropped", 100 * metrics.experts->dropped);
    }
    if (metrics.val_loss) text += "  |  " + validation_text(metrics);
    if (metrics.drain) text += drain_text(*metrics.drain);
    line(text);
  }
  if (step_ == last_step_) {
    line(fmt::format("memory    peak of rank 0: predicted {}, measured {}", format_bytes(predicted_bytes_),
                     format_bytes(metrics.peak_memory_bytes)));
    if (const auto& beyond = metrics.beyond) {
      line(fmt::format("          beyond the device: host predicted {}, measured {}; disk predicted {}, measured {}",
                       format_bytes(beyond->predicted_host_bytes), format_bytes(beyond->host_bytes),
                       format_bytes(beyond->predicted_disk_bytes), format_bytes(beyond->disk_bytes)));
    }
  }
  if (metrics.drain) {
    staleness_ += metrics.drain->staleness;
    if (step_ == last_step_) line("staleness in updates: gradients  " + staleness_.to_string());
  }
  draw_bar();
}

void ProgressBar::made_up(const StepMetrics& metrics) {
  line(fmt::format("step {}/{}  {}, evaluated on resume", metrics.step, last_step_, validation_text(metrics)));
  draw_bar();
}

void ProgressBar::evaluating(int64_t) { draw_bar("  (evaluating)"); }

void ProgressBar::evaluation_progress(int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kBetweenDraws;
  draw_bar(fmt::format("  (evaluating, {} %)", 100 * done / std::max<int64_t>(total, 1)));
}

void ProgressBar::saved(const std::filesystem::path& checkpoint) {
  line("saved     " + checkpoint.string());
  if (step_ < last_step_) draw_bar();
}

void ProgressBar::traced(const std::filesystem::path& file) {
  line(fmt::format("traced    {} (open it in https://ui.perfetto.dev or chrome://tracing)", file.string()));
}

void ProgressBar::compared(const PlanComparison& comparison) { line("plan      " + comparison.to_string()); }

void ProgressBar::warned(std::string_view text) {
  line("warning   " + std::string(text));
  if (step_ < last_step_) draw_bar();
}

void ProgressBar::sampled(std::string_view text) {
  if (!is_sampling_) line("\n--- sample ---");
  is_sampling_ = true;
  write(text);
}

}  // namespace caravan::app
