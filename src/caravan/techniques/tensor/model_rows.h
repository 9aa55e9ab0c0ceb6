#pragma once

#include <memory>
#include <string>

#include "caravan/module/plan/plan.h"
#include "caravan/nn/config.h"
#include "caravan/techniques/grid/grid.h"
#include "caravan/techniques/tensor/split_linear.h"

namespace caravan {

// Common rows of several plans, for the modules of Model.

/// dim `dim`, of `rows`, split over `axis` in parts that differ by at most one.
Layout shard_of(const MeshAxis& axis, int dim, int64_t rows);

/// How embedding and loss are prepared if the vocabulary is split over `axis`, in parts that differ by at most one.
/// `names`: the axis in layouts, if it is made of several.
struct WordParts {
  Plan::Prepare embedding;  ///< for "embedding.token"
  Plan::Prepare loss;       ///< for "head.loss"
};
WordParts word_parts(const ModelConfig& config, const MeshAxis& axis, const std::vector<std::string>& names = {});

/// The row of the experts' tables; `layout` splits them between experts over `axis`, never inside one.
Plan::Row expert_row(const ModelConfig& config, const MeshAxis& axis, const Layout& layout);
/// The rows of their adapters, split likewise.
std::vector<Plan::Row> expert_adapter_rows(const ModelConfig& config, const Layout& layout);

/// The patterns of the attentions of blocks: "*.attention", and with an encoder "*.cross_attention".
std::vector<std::string> attentions(const ModelConfig& config);

/// The patterns of the norms of the stream: of blocks, embedding and head, not of queries and keys.
std::vector<std::string> stream_norms(const ModelConfig& config);

/// A norm of features that are split over `axis`, written as `names` in layouts.
Plan::Row split_norm_row(const ModelConfig& config, const MeshAxis& axis, const std::vector<std::string>& names,
                         const std::string& pattern);

/// Rows for ids and labels, given whole and cut to `batch`.
std::vector<Plan::Row> batch_rows(const Layout& batch);

/// Over a grid of ranks: the four linear layers of each block with weights laid out as `weight` and biases as `bias`,
/// sharded and unsharded: `columns`, into the heads and the MLP, or `rows`, back to the stream.
struct GridLinear {
  Layout weight;
  Layout bias;
  Layout bias_leaf;
  std::shared_ptr<const SplitProduct> product;
  /// Where the output is laid out over other axes than the input: how the result of the first factor of an adapter
  /// becomes an input again, in two steps. Empty: it is one.
  Layout given_back{};
  Layout again{};
};
void add_linears(Plan& plan, const ModelConfig& config, const GridLinear& columns, const GridLinear& rows);

/// For a grid: norms of a stream whose features are split over `feature`; their parameters are laid out on it, and are
/// unsharded R on `others`. Positions too.
void add_norms(Plan& plan, const ModelConfig& config, const MeshAxis& feature, const std::vector<std::string>& others);

/// For a grid: embedding, head and loss. The vocabulary is split over `vocabulary`.
struct GridWords {
  Layout table;          ///< of both sharded tables
  Layout token_compute;  ///< of the embedding's table; with tied embeddings that of the head is used
  Layout head_compute;
  Layout ids;
  Layout stream;  ///< of the looked up rows, the input of the blocks
  Layout hidden;  ///< into the head
  Layout labels;
  Layout logits;  ///< of the returned logits: whole
};
void add_words(Plan& plan, const ModelConfig& config, const MeshAxis& vocabulary, const GridWords& words);

/// Throws UsageError naming `plan` if ranks or model do not fit such a grid (techniques/grid/grid.h).
void check_grid(const std::string& plan, const Grid& grid, const ModelConfig& config,
                const std::vector<MeshAxis>& axes);

}  // namespace caravan
