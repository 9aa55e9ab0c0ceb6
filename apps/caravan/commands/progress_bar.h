#pragma once

#include <chrono>
#include <string>

#include "caravan/train/train.h"

namespace caravan::app {

/// What rank 0 prints during a run: a line per logged step and, on a terminal, a progress bar below them. When standard
/// output is closed (`caravan train | head`), that is reported once on stderr and the run continues.
class ProgressBar final : public TrainObserver {
 public:
  ProgressBar();
  ~ProgressBar() override;

  void preparing(const DataProgress& progress) override;
  void planned(const TrainPlan& plan) override;
  void started(const TrainStart& start) override;
  void stepped(const StepMetrics& metrics, bool is_logged) override;
  void made_up(const StepMetrics& metrics) override;
  void evaluating(int64_t step) override;
  void evaluation_progress(int64_t done, int64_t total) override;
  void saved(const std::filesystem::path& checkpoint) override;
  void traced(const std::filesystem::path& file) override;
  void compared(const PlanComparison& comparison) override;
  void warned(std::string_view text) override;
  void sampled(std::string_view text) override;

  /// Prints a line above the bar.
  void line(const std::string& text);

 private:
  void write(std::string_view text);
  void draw_bar(const std::string& note = "");
  void draw(const std::string& text);
  void clear_bar();
  void end_sample();

  bool is_terminal_;
  int64_t predicted_bytes_ = 0;  ///< the peak of this rank
  bool bar_is_drawn_ = false;
  bool is_sampling_ = false;
  int64_t first_step_ = 0;
  int64_t last_step_ = 0;
  int64_t step_ = 0;
  StalenessCounts staleness_;  ///< since the start
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point next_line_;  ///< during preparation, if there is no terminal
  std::chrono::steady_clock::time_point next_draw_;
};

}  // namespace caravan::app
