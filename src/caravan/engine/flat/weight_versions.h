#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "caravan/engine/flat/flat.h"

namespace caravan {

/// Weight stashing (Narayanan et al., "PipeDream", SOSP 2019): the leaves of a stage that updates its weights while
/// micro-batches are in flight. The backward of a micro-batch reads the values that its forward has read.
///
/// Every version is a copy, in the dtype of the leaves, of what rested when it was made. The newest one stays; older
/// ones are kept while a micro-batch is in flight that has read them.
class WeightVersions {
 public:
  /// The leaves have no memory of their own (without_memory). `batch`: Strategy::batch_of_versions. `state` outlives
  /// this.
  WeightVersions(FlatState& state, at::ScalarType dtype, int batch);
  ~WeightVersions();
  WeightVersions(const WeightVersions&) = delete;
  WeightVersions& operator=(const WeightVersions&) = delete;

  /// Makes a new version of what rests, if that has changed since the last.
  void renew();
  /// A step begins: its batches count the updates from here on.
  void begin_step();
  /// The leaves get the version for the forward of this micro-batch.
  void begin(int micro_batch);
  /// They get the version of the forward of this micro-batch again.
  void use(int micro_batch);
  /// Its backward is over.
  void release(int micro_batch);

  /// Of the leaves as they are now: how many updates came before, and a hash of the values.
  int64_t number() const noexcept { return current_; }
  uint64_t hash() const;
  int64_t num_kept() const noexcept { return static_cast<int64_t>(versions_.size()); }
  int64_t bytes() const noexcept;

 private:
  struct Version {
    std::vector<at::Tensor> buffers{};  ///< by bucket
    int num_users = 0;
  };
  void point_to(int64_t number);
  void use_newest() { point_to(newest()); }
  int64_t newest() const { return versions_.rbegin()->first; }
  void drop_unused();

  FlatState& state_;
  at::ScalarType dtype_;
  int batch_;
  int64_t first_ = 0;                    ///< the newest when the step began
  std::map<int64_t, Version> versions_;  ///< by number
  std::map<int, int64_t> of_micro_batch_;
  std::vector<at::Tensor> spare_;  ///< the buffers of a version that was dropped
  int64_t current_ = -1;
  int64_t state_version_ = -1;
};

}  // namespace caravan
