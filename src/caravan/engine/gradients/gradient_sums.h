#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/flat/flat.h"
#include "caravan/engine/flat/pool.h"
#include "caravan/engine/gradients/gradient_loan.h"
#include "caravan/engine/gradients/transfer.h"
#include "caravan/engine/stages/exchange.h"
#include "caravan/module/gradients.h"

namespace caravan {

/// The gradients of a step: accumulates the gradients of layers, and reduces those of a group to its sharded gradients
/// once they are complete.
class GradientSums {
 public:
  /// All arguments outlive this.
  GradientSums(FlatState& state, const Strategy& strategy, BufferPool& pool, TransferQueue& transfers);

  /// Called with each gradient that rests outside of the device, once it is complete, while it is on the device.
  using Watch = std::function<void(const Slot& slot, const at::Tensor& gradient)>;
  void set_watch(Watch watch) { watch_ = std::move(watch); }
  /// Complete gradients of groups that step early stay on the device until release(); `keeps`: they also go where
  /// gradients rest.
  void keep_stepped(bool keeps) noexcept { keeps_stepped_ = keeps; }
  /// The complete gradient of a bucket on the device, for a group that steps early. Waits for its reduction.
  at::Tensor result(const Bucket& bucket);
  void release(const Bucket& bucket);

  /// Starts to store the sums of a group away, or to load them, between micro-batches.
  void evict(int group);
  void fetch(int group);

  /// Sums that are not reduced in place go to `exchange` instead of being reduced; null: are reduced.
  void set_exchange(StepExchange* exchange) noexcept { exchange_ = exchange; }

  /// From here on the gradients of the last step are gone.
  void begin_step();
  /// A forward runs. Under offload the next sums wait for the reductions that started before it: otherwise the speed of
  /// links decides whether the device holds the sums of one micro-batch or of two.
  void pass_forward() noexcept { has_older_ = strategy_.is_offloaded(); }
  GradientSink::Sum sum_of(Parameter& parameter);
  void accumulated(Parameter& parameter);
  void added_early(const Parameter& parameter);
  void confirmed(const Parameter& parameter);
  void withdrawn(const Parameter& parameter);

  /// The gradients of this group are complete for this step or, with Accumulate::sharded, this micro-batch: takes them
  /// through derivations to the unsharded parameters, and starts their reduction. `is_last`: no other reduction of the
  /// group follows in this step. A parameter without gradient counts as zero.
  void reduce(int group, bool is_last = true);
  /// Waits for every reduction: then state.gradients are the sharded gradients of the whole step. Throws UsageError for
  /// a parameter without gradient.
  void finish();

  at::ScalarType reduce_dtype() const noexcept { return wire_dtype_; }

  /// By slot: 1 for a parameter that got a gradient in this step. finish() takes the same of all ranks.
  std::vector<int64_t> used() const;
  void set_used(const std::vector<int64_t>& used);

  /// This rank's summand of the unsharded gradient of a parameter, before it is reduced; undefined if it got none.
  at::Tensor local(const Parameter& parameter);

 private:
  [[noreturn]] void refuse_late(const Parameter& parameter) const;

  struct OfSlot {
    bool is_written = false;  ///< since the last reduction of its bucket
    bool is_used = false;     ///< in this step
    bool is_spoilt = false;   ///< has a summand that was withdrawn
    int num_early = 0;        ///< summands not yet confirmed by their backward
    int num_summands = 0;     ///< summands since the last reduction
    at::Tensor in_place;      ///< cached view of the in-place sum
    at::Tensor derived;       ///< sum in the shape of compute(), if that differs from the unsharded parameter
    bool is_derived_away = false;
  };
  struct OfBucket {
    at::Tensor sums;           ///< flat, in the unsharded layout; undefined until a gradient is accumulated
    at::Tensor kept;           ///< of a bucket whose gradients are away: what would stay in the kept gradients
    at::Tensor result;         ///< of such a bucket: its complete gradient, until it is stored
    std::vector<Event> loads;  ///< into these
    bool is_evicted = false;   ///< its sums, if it has some, are away
    bool has_stored = false;
    bool is_folded = false;  ///< the kept sum includes rounded summands of this step
    bool is_reduced = false;
    TransferQueue::Ticket last{};  ///< last reduction of the step
  };

  at::Tensor& sums_of(const Bucket& bucket);
  /// The gradients of a bucket, which are about to be used.
  at::Tensor sharded(const Bucket& bucket);
  void finish_older();
  at::Tensor leaf_sum(const Slot& slot);
  void check_early() const;
  void complete(const Bucket& bucket);
  void complete(const Slot& slot);
  /// Whether sums are in the kept gradients themselves: in their dtype.
  bool sums_in_place(const Bucket& bucket) const noexcept { return bucket.stays() && !rounds_; }
  at::Tensor kept(const Bucket& bucket);
  void finish_loads(OfBucket& own) const;
  /// The sums of a bucket are about to be used: loads them if they are away, and waits until they are back.
  void need_here(const Bucket& bucket);
  /// The same as start_reduction for a bucket whose gradients are away.
  TransferQueue::Ticket start_away(const Bucket& bucket, bool is_last);
  /// Adds the reduced gradients of a micro-batch to those that are away.
  void add_away(const Bucket& bucket, const at::Tensor& target, bool adds);
  void finish_away(const Bucket& bucket);
  void clear_away(const Bucket& bucket);
  void clear_gaps(const Bucket& bucket, const at::Tensor& sums) const;
  const FlatMemory::Piece* piece_of(const Bucket& bucket) const;
  /// A delayed update may still read gradients on the device, whose memory the sums of the next step use in place.
  void wait_for_update(const Bucket& bucket) const;
  /// Rounds the sums of a micro-batch into the kept gradients of the step.
  void fold(const Bucket& bucket);
  /// `is_last`: the last of the step.
  TransferQueue::Ticket start_reduction(const Bucket& bucket, bool is_last);
  /// The cells of Bucket::reduce after the last one that scatters.
  static std::vector<FlatCell>::const_iterator after_scatters(const Bucket& bucket);
  /// Appends the reduce-scatters of `sums`; the last one fills `target`.
  void add_scatters(TransferStages& stages, const Bucket& bucket, const at::Tensor& sums,
                    const at::Tensor& target) const;
  /// Appends an all-reduce of the sharded gradients of a bucket.
  void reduce_sharded(TransferStages& stages, const FlatCell& cell, const Bucket& bucket, const at::Tensor& sharded);
  /// Appends an all-reduce of `part`, at `offset` of the flat gradients, by the hook if it is for this axis.
  void add_all_reduce(TransferStages& stages, const FlatCell& cell, const at::Tensor& part, int64_t offset,
                      const std::string& what) const;
  /// This rank's buffer of `values` in the reduction dtype: `values` itself if it has that dtype.
  at::Tensor on_wire(const at::Tensor& values) const;
  /// Combines in-place reductions of neighbouring buckets into one.
  void add_to_run(const Bucket& bucket);
  void start_run();

  FlatState& state_;
  const Strategy& strategy_;
  BufferPool& pool_;
  TransferQueue& transfers_;
  at::ScalarType sum_dtype_;   ///< of sums within a micro-batch: that of the sharded parameters
  at::ScalarType wire_dtype_;  ///< dtype of reductions
  bool rounds_;                ///< gradients are kept in another dtype
  StepExchange* exchange_ = nullptr;
  GradientLoan loan_;
  std::vector<OfSlot> slots_;
  std::vector<OfBucket> buckets_;
  std::deque<TransferQueue::Ticket> in_flight_;  ///< reductions of transient sums
  bool has_older_ = false;                       ///< some may have started before the last forward
  const Bucket* run_ = nullptr;                  ///< first bucket of the run that has not been sent
  int run_last_ = 0;                             ///< its last bucket
  int64_t run_count_ = 0;                        ///< its elements
  bool is_first_run_ = true;                     ///< first run of the step
  Watch watch_;
  bool keeps_stepped_ = false;
  std::map<int, TierBlock> sums_away_;        ///< by bucket: sums between micro-batches
  std::map<size_t, TierBlock> derived_away_;  ///< by slot
};

}  // namespace caravan
