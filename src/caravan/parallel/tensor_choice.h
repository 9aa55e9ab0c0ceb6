#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "caravan/base/misfit.h"
#include "caravan/nn/config.h"

namespace caravan {

/// The choices of tensor_parallel.kind in a recipe, the default first. Known without libtorch.
const std::vector<std::string>& tensor_kinds();
/// The choices of context_parallel.kind.
const std::vector<std::string>& context_kinds();

/// The section tensor_parallel of a recipe, and the degree that its mesh gives it.
struct TensorParallelChoice {
  std::string kind = tensor_kinds().front();
  int64_t degree = 1;     ///< mesh.tp
  int64_t depth = 2;      ///< 2.5d: grids, each with a part of the batch
  bool sequence = false;  ///< 1d: the stream is split over the sequence
  bool is_used() const { return degree > 1; }
  bool is_1d() const { return kind == "1d"; }
  bool has_depth() const { return kind == "2.5d"; }
  /// The side q of the grid of ranks; of 1d the degree.
  int64_t side() const;
  /// In how many parts the heads are split.
  int64_t head_parts() const { return is_used() ? side() : 1; }
  /// The sequences of a micro-batch are a multiple of this.
  int64_t row_parts() const;
  /// Why it cannot split that model.
  std::optional<Misfit> misfit(const ModelConfig& model) const;
};

/// The section context_parallel of a recipe, and the degree that its mesh gives it.
struct ContextParallelChoice {
  std::string kind = context_kinds().front();
  int64_t degree = 1;    ///< mesh.cp
  int64_t exchange = 0;  ///< "both": the ranks of it that exchange sequence for heads; the others form rings
  bool is_used() const { return degree > 1; }
  bool has_both() const { return kind == "both"; }
  /// Ranks that exchange sequence for heads, and that pass keys and values on.
  int64_t num_ulysses() const { return has_both() ? exchange : kind == "ulysses" ? degree : 1; }
  int64_t num_ring() const { return degree / num_ulysses(); }
  /// A sequence is a multiple of this: a ring deals out two chunks to each rank.
  int64_t pieces() const { return degree * (num_ring() > 1 ? 2 : 1); }
  /// Why it cannot split sequences of that model, whose heads `tensor` ranks split.
  std::optional<Misfit> misfit(const ModelConfig& model, int64_t tensor) const;
};

/// The experts of a mixture, over the degree that the mesh of a recipe gives them.
struct ExpertParallelChoice {
  int64_t degree = 1;  ///< mesh.ep
  bool is_used() const { return degree > 1; }
  /// The sequences of a micro-batch are a multiple of this: each rank routes a part of them.
  int64_t row_parts() const { return degree; }
  /// Why it cannot split the experts of that model, whose layers `tensor` splits too.
  std::optional<Misfit> misfit(const ModelConfig& model, const TensorParallelChoice& tensor) const;
};

/// `rows` split among n ranks, in parts that differ by one at most; the first ones are the larger ones.
std::vector<int64_t> parts_of(int64_t rows, int64_t n);

/// Why the layers of a model cannot be split in `degree` parts.
std::optional<Misfit> misfit_of_degree(const ModelConfig& config, int64_t degree);

}  // namespace caravan
