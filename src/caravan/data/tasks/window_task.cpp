#include "caravan/data/tasks/window_task.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

WindowTaskRows::WindowTaskRows(TrainWindows windows, std::shared_ptr<const WindowTask> task, uint64_t seed)
    : windows_(std::move(windows)), task_(std::move(task)), seed_(seed) {
  if (windows_.context() == task_->window() && !windows_.has_documents()) return;
  throw InternalError({"data", "a task of windows",
                       fmt::format("takes {} tokens, but its windows have {}", task_->window(), windows_.context()), "",
                       ""});
}

void WindowTaskRows::fill(int64_t first, const RowBuffers& rows) const {
  std::vector<int64_t> window(static_cast<size_t>(task_->window()));
  for_each_row(rows, shape(), [&](int64_t row, const RowBuffers& one) {
    windows_.read(first + row, window);
    task_->fill(window, seed_, first + row, one);
  });
}

int64_t WindowTaskRows::num_targets(int64_t first, int64_t rows) const {
  if (const std::optional<int64_t> of_row = task_->num_targets()) return rows * *of_row;
  std::vector<int64_t> window(static_cast<size_t>(task_->window()));
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    windows_.read(first + row, window);
    count += task_->num_targets(window, seed_, first + row);
  }
  return count;
}

WindowTaskValidation::WindowTaskValidation(const TokenFile& tokens, std::shared_ptr<const WindowTask> task)
    : tokens_(&tokens), task_(std::move(task)) {
  if (tokens.size() >= task_->window()) return;
  throw DataError({.op = "data",
                   .subject = "the validation text",
                   .fact = fmt::format("has {} tokens, but a row of the task takes {}", tokens.size(), task_->window()),
                   .action = "give more text, raise data.validation_fraction, or lower model.context"});
}

std::vector<int64_t> WindowTaskValidation::read(int64_t row) const {
  std::vector<int64_t> window(static_cast<size_t>(task_->window()));
  tokens_->read(std::min(row * task_->window(), tokens_->size() - task_->window()), window);
  return window;
}

void WindowTaskValidation::fill(int64_t first, const RowBuffers& rows) const {
  for_each_row(rows, shape(), [&](int64_t row, const RowBuffers& one) {
    if (first + row >= size()) return fill_padding(one);
    task_->fill(read(first + row), kValidationSeed, first + row, one);
  });
}

int64_t WindowTaskValidation::num_targets() const {
  if (const std::optional<int64_t> of_row = task_->num_targets()) return size() * *of_row;
  int64_t count = 0;
  for (int64_t row = 0; row < size(); ++row) count += task_->num_targets(read(row), kValidationSeed, row);
  return count;
}

}  // namespace caravan
