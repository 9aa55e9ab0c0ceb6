#pragma once

#include "caravan/comm/shared/task.h"

namespace caravan::shared {

/// The protocol of every collective. It goes in rounds; in round r each rank
///   1. writes what it has to show into its line and its staging buffer number r mod 2,
///   2. publishes `round = r` in that line,
///   3. waits until all ranks have published r, and reads what they show.
/// Whoever publishes r has read all of r - 1, and waits for everybody's r before it writes r + 1. So nobody is more
/// than one round ahead of another, and what was written in round r stays until everybody has read it. Bytes and order
/// depend on nothing but the arguments, so every rank gets the same result at every run.
///
/// In the first round the lines show enough of the calls to see whether they fit. If not, every rank sees so, and in
/// one more round all show their calls whole, to name both sides in the error.
class Rounds : public Task {
 public:
  using Task::Task;

  bool advance() final;
  std::vector<int> missing() const final;

 protected:
  enum class Next {
    same,   ///< there is more to do in this round
    round,  ///< another round follows
    end,    ///< that was the last one
  };

  /// Writes this rank's part of step `step` (0, 1, ..) of the operation, which is round `round` of the communicator.
  virtual void write(uint64_t round, int64_t step) = 0;
  /// Whether the calls that all ranks show in their lines of `round`, the first, fit each other.
  virtual bool calls_fit(uint64_t round) const;
  /// Reads everybody's part, a bounded piece at a time.
  virtual Next read(uint64_t round, int64_t step) = 0;

  Line& own_line(uint64_t round) const noexcept { return seat_.region.line(seat_.rank, round); }

 private:
  bool has_published(int rank) const noexcept {
    // The counterpart of publish's seq_cst: see Note [no lost wake-up].
    return seat_.region.line(rank, round_).round.load(std::memory_order_seq_cst) >= round_;
  }
  void show_whole_call() const;
  void publish();
  bool everybody_has_published();

  enum class Calls : uint8_t { unseen, fit, differ };

  Calls calls_ = Calls::unseen;
  bool published_ = false;  // this step's part
  int next_ = 0;            // the ranks before it have published
  uint64_t round_ = 0;
  int64_t step_ = 0;
};

}  // namespace caravan::shared
