#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "caravan/engine/flat/flat.h"

namespace caravan {

/// Weight stashing (Narayanan et al., "PipeDream", SOSP 2019): the unsharded parameters of a stage that updates its
/// weights while micro-batches are in flight. The backward of a micro-batch reads the values that its forward read.
///
/// Every version is a copy of the sharded parameters in the unsharded dtype. The newest one stays; older ones are kept
/// while a micro-batch that read them is in flight.
class WeightVersions {
 public:
  /// The unsharded parameters have no memory (without_memory). `batch`: Strategy::batch_of_versions. `state` outlives
  /// this.
  WeightVersions(FlatState& state, at::ScalarType dtype, int batch);
  ~WeightVersions();
  WeightVersions(const WeightVersions&) = delete;
  WeightVersions& operator=(const WeightVersions&) = delete;

  /// Makes a new version of the sharded parameters, if they have changed since the last one.
  void renew();
  /// Begins a step: its batches count the updates from here on.
  void begin_step();
  /// Sets the unsharded parameters to the version for the forward of this micro-batch.
  void begin(int micro_batch);
  /// Sets them again to the version that this micro-batch's forward read.
  void use(int micro_batch);
  /// Call it when the backward of this micro-batch has ended.
  void release(int micro_batch);

  /// The current version: number of updates before it, and a hash of its values.
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
  int64_t first_ = 0;                    ///< the newest version when the step began
  std::map<int64_t, Version> versions_;  ///< by number
  std::map<int, int64_t> of_micro_batch_;
  std::vector<at::Tensor> spare_;  ///< the buffers of a dropped version
  int64_t current_ = -1;
  int64_t state_version_ = -1;
};

}  // namespace caravan
