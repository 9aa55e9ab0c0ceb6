#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/train/train.h"
#include "tests/data/support.h"

namespace caravan::testing {

/// A text and recipes of small models to train on it.
class TinyRuns {
 public:
  TinyRuns();

  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }
  DataFolders folders() const { return {.home = folder_.path(), .cache = folder_ / "cache"}; }

  /// Dropout 0.1, a global batch of 36 rows, so up to 4 ranks with 3 micro-batches each. `set` is like --set.
  Recipe recipe(Architecture kind, const std::string& dir, const std::vector<std::string>& set = {}) const;

 private:
  TemporaryFolder folder_;
};

/// The size of a micro-batch if each of `ranks` ranks accumulates `accumulation` of them.
inline std::string micro_batch(int ranks, int accumulation) {
  return "train.micro_batch=" + std::to_string(36 / ranks / accumulation);
}

/// One list of settings made of several.
std::vector<std::string> together(const std::vector<std::vector<std::string>>& parts);

/// Runs train() on thread ranks. Calls time out after 20 s.
inline void train_on(int ranks, const TrainOptions& options) {
  run_thread_ranks(ranks, [&](const auto& world) { train(options, world); }, {.timeout = std::chrono::seconds(20)});
}

/// The lines of train.log without times and other values that depend on the machine.
std::vector<std::string> log_lines(const std::filesystem::path& run);
/// The same without bytes sent and memory, which depend on how a run is arranged.
std::vector<std::string> number_lines(const std::filesystem::path& run);
std::vector<double> losses(const std::filesystem::path& run);

/// Every tensor of the newest checkpoint by name.
std::map<std::string, at::Tensor> checkpoint_tensors(const std::filesystem::path& run);

/// The largest of |a - b| / (|b| + 1e-6 max|b of all| sqrt(n)) over the tensors of `b`, and the name of that tensor.
std::pair<double, std::string> distance(const std::map<std::string, at::Tensor>& a,
                                        const std::map<std::string, at::Tensor>& b);
/// The first tensor whose bits differ; "" if there is none.
std::string first_difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b);

/// All tensors of a safetensors file.
std::map<std::string, at::Tensor> tensors_of(const std::filesystem::path& file);

}  // namespace caravan::testing
