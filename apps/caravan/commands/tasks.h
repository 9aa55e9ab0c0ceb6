#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "caravan/train/evaluation/multiple_choice.h"

namespace caravan::app {

struct TaskFile {
  std::vector<EncodedQuestion> questions;
  int64_t skipped = 0;  ///< bad lines
};

/// Reads multiple-choice questions, one JSON object a line: "context" (or "query"), "choices", "gold" (or "answer", or
/// "label"); other fields are ignored. `encode` may throw DataError. A line that is not such a question is skipped and
/// counted if `skip_bad`, else it is a DataError naming file, line and field. Throws DataError if no question is left.
TaskFile read_tasks(const std::filesystem::path& path, bool skip_bad,
                    const std::function<EncodedQuestion(const Question&)>& encode);

}  // namespace caravan::app
