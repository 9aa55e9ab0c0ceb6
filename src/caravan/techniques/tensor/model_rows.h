#pragma once

#include <memory>
#include <string>

#include "caravan/module/plan/plan.h"
#include "caravan/nn/config.h"
#include "caravan/techniques/grid/grid.h"
#include "caravan/techniques/tensor/split_linear.h"

namespace caravan {

// Rows that several plans have, for the modules of GPT-2 and Llama.

/// dim `dim`, of `rows`, split over `axis` in parts that differ by one at most.
Layout shard_of(const MeshAxis& axis, int dim, int64_t rows);

/// What embedding and loss are told where the vocabulary is split over `axis`, in parts that differ by one at most.
/// `names`: of the axis in layouts, where it is made of several.
struct WordParts {
  Plan::Prepare embedding;  ///< of "embedding.token"
  Plan::Prepare loss;       ///< of "head.loss"
};
WordParts word_parts(const ModelConfig& config, const MeshAxis& axis, const std::vector<std::string>& names = {});

/// The row of the experts' tables; `layout` splits them between experts over `axis`, never inside one.
Plan::Row expert_row(const ModelConfig& config, const MeshAxis& axis, const Layout& layout);

/// Ids and labels, given whole and cut to `batch`.
std::vector<Plan::Row> batch_rows(const Layout& batch);

/// Over a grid of ranks: the four linear layers of each block whose weights are laid out as `weight`, with a bias laid
/// out as `bias` at rest and as a leaf: `columns`, into the heads and the MLP, or `rows`, back to the stream.
struct GridLinear {
  Layout weight;
  Layout bias;
  Layout bias_leaf;
  std::shared_ptr<const SplitProduct> product;
};
void add_linears(Plan& plan, const ModelConfig& config, const GridLinear& columns, const GridLinear& rows);

/// Of a grid: norms of a stream whose features are split over `feature`; their parameters are laid out on it, and are
/// leaves R on `others`. Positions too.
void add_norms(Plan& plan, const ModelConfig& config, const MeshAxis& feature, const std::vector<std::string>& others);

/// Of a grid: embedding, head and loss. The vocabulary is split over `vocabulary`.
struct GridWords {
  Layout table;          ///< of both at rest
  Layout token_compute;  ///< of the embedding's; with tied embeddings that of the head is used
  Layout head_compute;
  Layout ids;
  Layout stream;  ///< of the looked up rows, as they go on
  Layout hidden;  ///< into the head
  Layout labels;
  Layout logits;  ///< as they are returned: whole
};
void add_words(Plan& plan, const ModelConfig& config, const MeshAxis& vocabulary, const GridWords& words);

/// Throws UsageError naming `plan` where ranks or model are no such grid (techniques/grid/grid.h).
void check_grid(const std::string& plan, const Grid& grid, const ModelConfig& config,
                const std::vector<MeshAxis>& axes);

}  // namespace caravan
