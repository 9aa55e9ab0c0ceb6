#include "caravan/train/evaluation/best_checkpoint.h"

#include <cstdlib>

#include <fmt/format.h>

#include "caravan/comm/calls/agree.h"
#include "caravan/formats/checkpoint/publish.h"
#include "caravan/report/run_log.h"

namespace caravan {
namespace {

/// The validation loss of the best checkpoint, as text; "" if there is none.
std::string best_loss(const std::filesystem::path& run) {
  const int64_t best = best_checkpoint_step(run);
  if (best < 0) return "";
  const RunLog log = RunLog::read(run);
  for (const MetricsLine& line : log.lines()) {
    const auto loss = line.numbers.find("val_loss");
    if (line.step == best && loss != line.numbers.end()) return fmt::format("{:a}", loss->second);
  }
  return "";
}

}  // namespace

BestCheckpoint::BestCheckpoint(std::filesystem::path run, Communicator& world) : run_(std::move(run)) {
  const auto find_best = [&] { return best_loss(run_); };
  const std::string loss = text_of_rank_0(world, find_best, "best checkpoint");
  if (!loss.empty()) loss_ = std::strtod(loss.c_str(), nullptr);
}

bool BestCheckpoint::improves(const StepMetrics& metrics) {
  if (!metrics.val_loss || !(*metrics.val_loss < loss_)) return false;
  loss_ = *metrics.val_loss;
  return true;
}

void BestCheckpoint::mark(int64_t step) const { mark_best_checkpoint(run_, step); }

}  // namespace caravan
