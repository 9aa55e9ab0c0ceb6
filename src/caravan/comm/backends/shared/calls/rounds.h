#pragma once

#include "caravan/comm/backends/shared/shared_task.h"

namespace caravan::shared {

/// The protocol of every collective. In round r each rank
///   1. writes its line and its staging buffer number r mod 2,
///   2. publishes `round = r` in that line,
///   3. waits until all ranks have published r, and reads what they have written.
/// A rank that publishes r has finished reading r - 1, and waits for all ranks' r before it writes r + 1. So no rank is
/// more than one round ahead of another, and what is written in round r stays valid until all ranks have read it.
/// Results depend on the arguments only: they are the same on every rank and in every run.
///
/// The lines of the first round contain enough of the calls to tell whether they match. If they do not, all ranks
/// notice, and publish their full calls in one more round, so that the error can name both sides.
class Rounds : public SharedTask {
 public:
  using SharedTask::SharedTask;

  bool advance() final;
  std::vector<int> missing() const final;

 protected:
  enum class Next {
    same,   ///< this round is not finished
    round,  ///< another round follows
    end,    ///< this was the last round
  };

  /// Writes this rank's data for step `step` (0, 1, ..) of the operation, in round `round` of the communicator: `own_`
  /// in step 0, and whatever else peers read.
  virtual void write(uint64_t round, int64_t step) = 0;
  /// Whether the calls in the lines of `round`, the first of the operation, match.
  virtual bool calls_match(uint64_t round) const;
  /// Reads all ranks' data, a bounded piece at a time.
  virtual Next read(uint64_t round, int64_t step) = 0;

  /// What `rank` has published in `round`, the first of the operation.
  const LineData& data_of(int rank, uint64_t round) const noexcept {
    return rank == state_.rank ? own_ : state_.region.line(rank, round).data;
  }

  /// What this rank publishes in the first round. Kept here because reading it from its line would miss the cache: the
  /// peers that poll the line have taken it into theirs.
  LineData own_{};

 private:
  bool has_published(int rank) const noexcept {
    return state_.region.line(rank, round_).round.load(std::memory_order_acquire) >= round_;
  }
  void write_full_call() const;
  void publish();
  bool all_have_published();

  enum class Calls : uint8_t { unchecked, match, differ };

  Calls calls_ = Calls::unchecked;
  bool published_ = false;  // this step's data
  int next_ = 0;            // all ranks before this one have published
  uint64_t round_ = 0;
  int64_t step_ = 0;
};

}  // namespace caravan::shared
