#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "caravan/data/tasks/task_rows.h"
#include "caravan/data/windows/token_file.h"
#include "caravan/data/windows/train_windows.h"

namespace caravan {

/// Makes a row of a window of text, with random choices: a function of (window, seed, sample). Immutable.
class WindowTask {
 public:
  WindowTask() = default;
  WindowTask(const WindowTask&) = delete;
  WindowTask& operator=(const WindowTask&) = delete;
  virtual ~WindowTask() = default;

  virtual RowShape shape() const = 0;
  /// The tokens of a window.
  virtual int64_t window() const = 0;
  virtual void fill(std::span<const int64_t> window, uint64_t seed, int64_t sample, const RowBuffers& row) const = 0;
  /// The number of targets of every row, if it does not depend on the window.
  virtual std::optional<int64_t> num_targets() const { return std::nullopt; }
  virtual int64_t num_targets(std::span<const int64_t> window, uint64_t seed, int64_t sample) const = 0;
};

/// Rows of a task of windows. Windows are visited as TrainWindows visits them, with other random choices each time.
class WindowTaskRows final : public TaskRows {
 public:
  /// `windows`: without documents, of task->window() tokens.
  WindowTaskRows(TrainWindows windows, std::shared_ptr<const WindowTask> task, uint64_t seed);

  RowShape shape() const override { return task_->shape(); }
  void fill(int64_t first, const RowBuffers& rows) const override;
  int64_t num_targets(int64_t first, int64_t rows) const override;
  Draw draw(int64_t sample) const override { return windows_.draw(sample); }
  std::vector<int64_t> drawn(int64_t sample) const override { return windows_.drawn(sample); }
  std::optional<double> epochs(size_t source, int64_t samples) const override {
    return windows_.epochs(source, samples);
  }
  std::vector<SeenShard> prepare(int64_t first, int64_t end, DataObserver& observer) const override {
    return windows_.prepare(first, end, observer);
  }
  bool is_ready(int64_t end) const override { return windows_.is_ready(end); }

 private:
  TrainWindows windows_;
  std::shared_ptr<const WindowTask> task_;
  uint64_t seed_;
};

/// Their evaluation: windows that follow each other; the last ends where the text ends, and may begin before the end of
/// the one before it.
class WindowTaskValidation final : public ValidationRows {
 public:
  /// The tokens outlive this. Throws DataError for a text shorter than a window.
  WindowTaskValidation(const TokenFile& tokens, std::shared_ptr<const WindowTask> task);

  RowShape shape() const override { return task_->shape(); }
  int64_t size() const override { return (tokens_->size() + task_->window() - 1) / task_->window(); }
  void fill(int64_t first, const RowBuffers& rows) const override;
  int64_t num_targets() const override;

 private:
  std::vector<int64_t> read(int64_t row) const;

  const TokenFile* tokens_;
  std::shared_ptr<const WindowTask> task_;
};

}  // namespace caravan
