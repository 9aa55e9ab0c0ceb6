#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

/// A model whose layers are split over several ranks that work on one micro-batch together.
struct TensorShape {
  ModelConfig model;             ///< with its vocabulary
  std::string kind = "1d";       ///< "1d", "2d", "2.5d", "3d"; "ring", "ulysses": the sequence is split, no weight is
  int64_t ranks = 1;             ///< 1D t, 2D q^2, 2.5D d q^2, 3D q^3
  int64_t depth = 1;             ///< of 2.5D: d
  bool sequence = false;         ///< 1D: the stream is split over the sequence
  bool recompute = false;        ///< layers are recomputed in backward
  int64_t sequences = 1;         ///< of a micro-batch, over all these ranks; each of model.context tokens
  int64_t element_bytes = 2;     ///< of the arithmetic: fp32 4, bf16 2
  int64_t statistics_bytes = 4;  ///< of statistics of rows: 4, of fp64 8

  double share = 1;  ///< of the tokens: other axes split them, or what is sent of each

  double tokens() const noexcept { return share * static_cast<double>(sequences) * static_cast<double>(model.context); }
  /// The side q of the grid; the number of ranks for the other kinds.
  int64_t side() const;
};

/// What one rank sends, as the techniques of techniques/ do it; mean over the ranks, which all send the same.
struct TensorTraffic {
  double forward = 0;   ///< a micro-batch
  double backward = 0;  ///< a micro-batch
  double total() const noexcept { return forward + backward; }
};

// The terms. b sequences of s tokens, h width, f MLP width, v width of keys and values, V vocabulary; q, d, t as above.

/// Elements that the products and the attention of one layer send. With X = bs (3h + f) their inputs (one for query,
/// key and value, one for gate and up), W = 2h^2 + 2hv + 2hf their weights (3hf with a gate), Y = bs (3h + 2v + f)
/// their outputs (2f with a gate); for GPT-2 X = 7bsh, W = 12h^2, Y = 9bsh:
///   1d       4 (t-1)/t bsh forward and backward: 2 all-reduces each (arXiv 1909.08053), with `sequence` the same as
///            all-gathers and reduce-scatters (arXiv 2205.05198)
///   2d       (q-1)/q^2 (X + W) forward, twice that backward: each panel is broadcast again, and its gradient reduced
///            (Optimus, arXiv 2104.05343)
///   2.5d     (q-1)/q^2 (X/d + W), twice that backward (Tesseract, arXiv 2105.14500)
///   3d       (q-1)/q^3 (X + W + Y) forward, (q-1)/q^3 (2X + 2W + Y) backward: a gradient of an output serves both
///            products (arXiv 2105.14450)
///   ring     2 (c-1)/c bsv forward; backward the same, and 2 bsv of gradients, which return (arXiv 2310.01889)
///   ulysses  (c-1)/c^2 bs (2h + 2v) forward and backward: 4 all-to-alls each (arXiv 2309.14509); keys and values whose
///            heads do not divide are gathered, c times their 2v
/// With recompute backward sends what forward does once more.
TensorTraffic layer_elements(const TensorShape& shape);

/// Bytes of a whole layer: layer_elements, of which a ring sends gradients as statistics, and the statistics of two
/// norms over a split feature dim (2d, 2.5d, 3d): 2 sums a token, in fp64 forward, all-reduced by q ranks.
TensorTraffic layer_bytes(const TensorShape& shape);

/// Bytes of the sums of looked up rows: 1d one all-reduce of bsh (with `sequence` a reduce-scatter, and a gather back),
/// 2d a reduce-scatter (q-1)/q^2 bsh and a gather back, 3d (q-1)/q^3 bsh, with tied embeddings twice that.
TensorTraffic embedding_bytes(const TensorShape& shape);

/// Bytes of the final norm and the loss: its input, gathered (1d: its gradient is all-reduced), and 3 statistics a
/// token.
TensorTraffic head_bytes(const TensorShape& shape);

/// Elements that are sent once a step, for any number of micro-batches: embedding and head are gathered over the axes
/// that split their columns, and their gradients scattered. 2d, 2.5d (q-1)/q^2 Vh each; 3d (q-1)/q^3 Vh for a separate
/// embedding, (q^2-1)/q^3 Vh for the head. Gradients that are summed over data axes (depth, a sequence) are not
/// counted.
double words_elements_per_step(const TensorShape& shape);

/// Elements sent once a step to sum the gradients of one layer over `depth`, or the axis of the sequence:
/// 2(n-1)/n of those that a rank has. In 1d those of a router and of the gate of a shared expert, 2(t-1)/t of them.
double data_elements_per_step(const TensorShape& shape);

/// Elements of the weights of one layer that a rank holds: 1/t, 1/q^2, 1/q^2, 1/q^3 of its matrices; and its vectors
/// (norms and biases), 1/q or whole. Of a mixture of experts 1d holds 1/t of the experts and of the shared expert, and
/// the whole router.
double layer_weight_elements(const TensorShape& shape);

/// Elements of embedding and head (once if they are tied) in the shards of a rank: 1/t, 1/q^2, 1/q^2, 1/q^3; and of the
/// gathered ones: none in 1d, else 1/q, for a separate embedding in 3d 1/q^2.
double words_weight_elements(const TensorShape& shape);
double gathered_words_elements(const TensorShape& shape);
/// Elements in the shards of a rank of everything but the layers: these words, positions (GPT-2) and the final norm,
/// which are whole, on grids 1/q.
double outer_weight_elements(const TensorShape& shape);

/// Elements that autograd keeps of one layer: bs (6h + 2v + 2f) (3f with a gate) without dropout. 2d 1/q^2, 2.5d
/// 1/(d q^2), 3d 1/q^3 of it; 1d 1/t inside of attention and MLP, their inputs whole; the sequence 1/c. With a mixture
/// of experts, feed_activation_elements (experts.h) in place of what an MLP keeps.
double layer_activation_elements(const TensorShape& shape);

/// Why tensor parallelism cannot split this model: "144 ranks are not a cube: use 125 or 216"; "" if it can.
std::string misfit_of(const TensorShape& shape);

/// A kind of tensor parallelism for a number of ranks.
struct TensorCost {
  TensorShape shape;
  double bytes = 0;         ///< of a layer in a step of one micro-batch; 2.5d: with the sum of gradients over depth
  std::string misfit = {};  ///< as misfit_of(); then bytes of a grid is 0
};

/// 1d, 2d, 2.5d and 3d for the model, sequences, element_bytes and recompute of `like` over like.ranks; of 2.5d the
/// depth up to q that sends least. The one with the fewest bytes first, those that do not fit last.
std::vector<TensorCost> compare_tensor_kinds(const TensorShape& like);

}  // namespace caravan
