#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/recipe/recipe.h"
#include "caravan/schedule/row_deal.h"
#include "caravan/train/balance/balancer.h"
#include "caravan/train/balance/deal_record.h"
#include "caravan/train/folder/metrics.h"
#include "caravan/train/model/micro_batch.h"

namespace caravan {

/// train.balance: the rows of each data-parallel rank in each step of a run. Equal ones; or by the measured speed of
/// the ranks, with a record in the run folder; or those of a record.
class RunBalance {
 public:
  /// Steps that a measurement is the median of.
  static constexpr int64_t kWindow = 5;

  /// Reads the record that train.balance names. Every rank calls it, before the model has memory. Throws DataError for
  /// a file that is no record and UsageError for one of another batch, on every rank.
  RunBalance(const Recipe& recipe, const BatchPlan& plan, const Mesh& mesh);

  /// Whether ranks may have unlike numbers of rows.
  bool is_used() const noexcept { return is_measured_ || !recorded_.empty(); }

  /// Lets micro-batches of a measured deal grow up to twice their size where that fits the memory of every rank, and
  /// replaces the peaks of `memory` by those of the largest micro-batch. Every rank calls it.
  void fit_memory(MemoryPlan& memory, const Recipe& recipe, int64_t vocabulary, Communicator& world);

  /// Continues with the last deal of the run in `folder`, of which `step` steps are done. Every rank calls it.
  void resume(const std::filesystem::path& folder, int64_t step);

  /// Opens the record in the run folder, on one rank. Throws ResourceError.
  void open(const std::filesystem::path& folder, int64_t step);

  /// The deal of a step, counted from 0.
  RowDeal deal(int64_t step) const;

  /// After a step in which this rank computed for `busy_ms`, without waiting: every rank calls it after every step.
  /// Sends an all-reduce of a number for each data-parallel rank, once in kWindow steps. `step`: steps done. Returns
  /// whether the next step has another deal than this one had.
  bool stepped(int64_t step, double busy_ms);

  /// Adds the deal of the steps after `step` to the record, on the rank that opened it.
  void write(int64_t step);

  /// For the user, a line each.
  std::vector<std::string> notes() const;

 private:
  RecordedDeal present(int64_t step) const;

  Mesh mesh_;
  RowsToDeal what_;
  bool is_measured_ = false;
  std::string source_{};                  ///< the record that is repeated
  std::vector<RecordedDeal> recorded_{};  ///< what it says
  std::optional<Balancer> balancer_{};
  std::vector<double> window_{};   ///< ms of the steps since the last measurement
  int64_t num_left_out_ = 1;       ///< of the next steps: the first one of a deal also allocates
  std::vector<double> busy_ms_{};  ///< the last measurement, of each coordinate
  std::optional<StepLines> lines_{};
};

}  // namespace caravan
