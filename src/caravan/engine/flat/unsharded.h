#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/flat/flat.h"
#include "caravan/engine/flat/pool.h"
#include "caravan/engine/gradients/transfer.h"
#include "caravan/engine/stages/exchange.h"

namespace caravan {

/// Gives the unsharded parameters of a bucket memory in `buffer`, at Slot::unsharded_offset.
void point_leaves(const FlatState& state, const Bucket& bucket, const at::Tensor& buffer);

/// The unsharded parameters of a model: one tensor for each parameter. Its memory is that of the sharded parameter, a
/// copy in another dtype, or is allocated when its group is gathered and released when it is freed. The tensor object
/// stays the same, so graphs and a user's module that hold it stay valid; reading a freed one throws an error that
/// names parameter and unit.
class UnshardedParameters {
 public:
  /// Sets the sharded and unsharded tensors of every parameter. An unsharded tensor that a parameter already has is
  /// kept. All arguments outlive this.
  UnshardedParameters(FlatState& state, const Strategy& strategy, BufferPool& pool, TransferQueue& transfers);

  ~UnshardedParameters();
  UnshardedParameters(const UnshardedParameters&) = delete;
  UnshardedParameters& operator=(const UnshardedParameters&) = delete;

  /// Kept buffers are filled by `exchange` instead of gathers; null: by gathers.
  void set_exchange(StepExchange* exchange) noexcept { exchange_ = exchange; }

  /// Throws UsageError if an unsharded parameter has other memory than this assigned.
  void check_memory() const;
  /// Updates ungathered parameters and copies from the sharded values, if these may have changed. `may_lag`: without
  /// the last update, if that is delayed.
  void refresh(bool may_lag = false);
  /// For a group whose parameters rest outside of the device: starts to load what a gather needs, of a chunk into a
  /// slot. No-op if it has begun.
  void fetch(int group);
  /// Takes the slot of a chunk, whose contents rest elsewhere.
  void drop(int group);
  /// Starts to fill the unsharded parameters of a group; no-op if they are there. Call wait() before using them. Frozen
  /// ones that keep their memory are filled once (Bucket::stays_gathered), until the values change otherwise than by an
  /// optimizer.
  void gather(int group);
  void wait(int group);
  /// `keeps_slot`: a chunk keeps its slot until drop().
  void free(int group, bool keeps_slot = false);
  at::ScalarType dtype() const noexcept { return dtype_; }
  /// Whether a group has memory, or will have it.
  bool is_held(int group) const noexcept {
    const Group& own = groups_[static_cast<size_t>(group)];
    return own.is_there || own.is_fetched;
  }
  bool has_slot(int group) const noexcept { return !groups_[static_cast<size_t>(group)].slots.empty(); }
  bool is_there(int group) const noexcept { return groups_[static_cast<size_t>(group)].is_there; }
  bool is_gathered(int group) const noexcept { return groups_[static_cast<size_t>(group)].is_gathered; }

 private:
  struct Group {
    bool is_gathered = false;
    bool is_there = true;
    bool is_fetched = false;
    std::vector<at::Tensor> buffers;  ///< by its gathered buckets, while they exist
    std::vector<at::Tensor> slots;    ///< the same, of a chunk
    std::vector<Event> loads;         ///< into buffers or slots
    std::vector<TransferQueue::Ticket> transfers;
  };
  void make_leaf(const Slot& slot, const Bucket& bucket);
  TransferQueue::Ticket fill(const Bucket& bucket, const at::Tensor& buffer);
  void copy(const Bucket& bucket);
  void take_memory(const Bucket& bucket);
  void tell_change(const Bucket& bucket);
  at::Tensor take_buffer(const Bucket& bucket);
  void load(Group& group, const Bucket& bucket, const at::Tensor& to);
  at::Tensor from_slot(Group& group, const Bucket& bucket, const at::Tensor& slot);
  static void finish_loads(Group& group);
  at::Tensor sharded_of(const Slot& slot) const;
  at::Tensor source(const Bucket& bucket) const;

  FlatState& state_;
  const Strategy& strategy_;
  BufferPool& pool_;
  TransferQueue& transfers_;
  StepExchange* exchange_ = nullptr;
  at::ScalarType dtype_;
  int64_t version_ = -1;
  std::vector<bool> is_filled_;                    ///< by bucket that stays gathered
  std::vector<const c10::StorageImpl*> storages_;  ///< of the unsharded parameters, by slot
  std::vector<Group> groups_;
};

}  // namespace caravan
