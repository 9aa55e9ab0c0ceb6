#pragma once

#include <chrono>
#include <string>

#include "caravan/train/train.h"

namespace caravan::app {

/// What rank 0 shows of a run: a line per logged step, and on a terminal a bar with the time left below them.
class Progress final : public TrainObserver {
 public:
  Progress();
  ~Progress() override;

  void started(const TrainStart& start) override;
  void stepped(const StepMetrics& metrics, bool is_logged) override;
  void evaluating(int64_t step) override;
  void saved(const std::filesystem::path& checkpoint) override;
  void sampled(std::string_view text) override;

 private:
  void line(const std::string& text);
  void draw_bar(const std::string& note = "");
  void clear_bar();

  bool is_terminal_;
  bool bar_is_drawn_ = false;
  bool is_sampling_ = false;
  int64_t first_step_ = 0;
  int64_t last_step_ = 0;
  int64_t step_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace caravan::app
