#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/registry/setting.h"
#include "caravan/session/techniques.h"

namespace caravan {

/// What a plan of a user's module chooses.
struct StepLayout {
  int dp = 1, pp = 1, tp = 1;
  int64_t micro_batches = 1;
  Setting data_parallel{"data_parallel"};
  Setting schedule{"pipeline"};  ///< of stages
  Setting recompute{"recompute"};
  Setting offload{"offload"};
};

/// What limits the choice.
struct LayoutLimits {
  int ranks = 1;
  int64_t rows = 1;                                           ///< of the whole batch
  int64_t num_units = 1;                                      ///< that stages are made of
  bool offloads_state = false, offloads_activations = false;  ///< to the host
  std::vector<Technique> fixed{};  ///< in each layout; of these families nothing else is chosen
  /// How the net is split over so many ranks of the axis tp. A choice that is fixed is for all of them.
  std::map<int, TensorChoice> tensors{};
};

/// The layouts among which a plan chooses: all of the registry that computes the gradient of one process and can be
/// rehearsed, on ranks that have equal rows. Whether the engine takes one, only a rehearsal tells.
class LayoutSpace {
 public:
  explicit LayoutSpace(LayoutLimits limits);

  /// The numbers of stages with which the rows can be dealt evenly to the ranks, in ascending order, if `tp` ranks
  /// share each layer.
  std::vector<int> stages(int tp = 1) const;
  /// The sizes of the axis tp for which there are some, in ascending order.
  const std::vector<int>& tensor_sizes() const noexcept { return tensor_sizes_; }
  /// Where a search starts with so many ranks of stages: few and many micro-batches, with and without recomputation.
  std::vector<StepLayout> seeds(int pp, int tp = 1) const;
  /// Those that differ in one choice. Recomputation also together with larger micro-batches, for which it makes room.
  std::vector<StepLayout> neighbours(const StepLayout& layout) const;

  /// As parallelize() gets them.
  std::vector<Technique> techniques(const StepLayout& layout) const;
  /// "pp 2 (1f1b) x dp 4, zero1, recompute full, 8 x 2 rows". Of layouts with the same text one is enough.
  std::string text(const StepLayout& layout) const;
  /// On all ranks.
  int64_t num_stages(const StepLayout& layout) const;
  /// "pipeline stages", "zero1": what it has; see feature_names().
  std::set<std::string> features(const StepLayout& layout) const;
  std::vector<std::string> feature_names() const;
  const LayoutLimits& limits() const noexcept { return limits_; }

 private:
  bool is_fixed(std::string_view family) const;
  void add_data(std::vector<StepLayout>& all, const StepLayout& from) const;
  void add_stages(std::vector<StepLayout>& all, const StepLayout& from) const;
  void add_offload(std::vector<StepLayout>& all, const StepLayout& from) const;
  void add_recompute(std::vector<StepLayout>& all, const StepLayout& from) const;
  void add_micro_batches(std::vector<StepLayout>& all, const StepLayout& from) const;
  void add_tensor(std::vector<StepLayout>& all, const StepLayout& from) const;
  /// With so many stages; the micro-batches as near as the rows allow.
  StepLayout with_stages(StepLayout layout, int pp, int tp) const;

  LayoutLimits limits_;
  std::vector<Technique> extra_;  ///< of fixed, those of families that no layout chooses
  StepLayout first_;
  std::vector<int> tensor_sizes_;
};

}  // namespace caravan
