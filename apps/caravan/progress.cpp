#include "apps/caravan/progress.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan::app {
namespace {

/// "1:05", "2:03:00".
std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress() : is_terminal_(::isatty(STDOUT_FILENO) == 1), begin_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  clear_bar();
  if (is_sampling_) std::fputs("\n", stdout);
  std::fflush(stdout);
}

void Progress::line(const std::string& text) {
  clear_bar();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

void Progress::clear_bar() {
  if (bar_is_drawn_) std::fputs("\r\x1b[K", stdout);
  bar_is_drawn_ = false;
}

void Progress::draw_bar(const std::string& note) {
  if (!is_terminal_) return;
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
  clear_bar();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  bar_is_drawn_ = true;
}

void Progress::started(const TrainStart& start) {
  first_step_ = step_ = start.first_step;
  last_step_ = start.last_step;
  line(fmt::format("run       {}{}", start.run.string(),
                   start.first_step > 0 ? fmt::format(", resumed after step {}", start.first_step) : ""));
  line(fmt::format("model     {} parameters, vocabulary {}", format_count(static_cast<double>(start.num_parameters)),
                   start.vocabulary));
  line(fmt::format("data      {} training tokens", format_count(static_cast<double>(start.train_tokens))));
  line(fmt::format("batch     {} over {}", start.plan.to_string(), start.backend));
  begin_ = std::chrono::steady_clock::now();
  draw_bar();
}

void Progress::stepped(const StepMetrics& metrics, bool is_logged) {
  step_ = metrics.step;
  if (is_logged) {
    std::string text = fmt::format("step {}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} ms  {} tokens/s",
                                   metrics.step, last_step_, metrics.loss, metrics.grad_norm, metrics.lr,
                                   metrics.step_ms, format_count(metrics.tokens_per_second));
    if (metrics.val_loss) {
      text +=
          fmt::format("  |  validation {:.4f}, {:.4f} bits per byte", *metrics.val_loss, *metrics.val_bits_per_byte);
    }
    line(text);
  }
  draw_bar();
}

void Progress::evaluating(int64_t) { draw_bar("  (evaluating)"); }

void Progress::saved(const std::filesystem::path& checkpoint) {
  line("saved     " + checkpoint.string());
  if (step_ < last_step_) draw_bar();
}

void Progress::sampled(std::string_view text) {
  if (!is_sampling_) line("\n--- sample ---");
  is_sampling_ = true;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace caravan::app
