#include "tests/cost/formulas/tensor.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/techniques/grid/grid.h"
#include "tests/cost/formulas/experts.h"

namespace caravan {
namespace {

constexpr double kWideStatistic = 8;  ///< sums of a norm in forward are fp64

bool is_grid(const TensorShape& shape) { return shape.kind == "2d" || shape.kind == "2.5d" || shape.kind == "3d"; }
Grid grid_of(const TensorShape& shape) {
  return {.dims = shape.kind == "3d" ? 3 : 2,
          .depth = shape.kind == "2.5d" ? std::optional(shape.depth) : std::nullopt};
}
bool splits_sequence(const TensorShape& shape) { return shape.kind == "ring" || shape.kind == "ulysses"; }

void check_kind(const TensorShape& shape) {
  if (shape.kind == "1d" || is_grid(shape) || splits_sequence(shape)) return;
  throw UsageError(
      {"plan", shape.kind, "there is no such kind of parallelism", "", "use 1d, 2d, 2.5d, 3d, ring or ulysses"});
}

/// The sizes as reals: products of legal ones exceed 63 bits.
struct TensorSizes {
  explicit TensorSizes(const TensorShape& shape)
      : tokens(shape.tokens()),
        n(static_cast<double>(shape.ranks)),
        q(static_cast<double>(shape.side())),
        d(shape.kind == "2.5d" ? static_cast<double>(shape.depth) : 1),
        h(static_cast<double>(shape.model.width)),
        v(static_cast<double>(shape.model.num_kv_heads() * shape.model.head_width())),
        f(static_cast<double>(shape.model.hidden_width())),
        vocabulary(static_cast<double>(shape.model.vocabulary)),
        ups(!shape.model.arch.is_gated ? 1 : 2),
        feed(feed_elements(shape.model)),
        inputs(tokens * (3 * h + f)),
        weights(2 * h * h + 2 * h * v + feed.split_matrices),
        outputs(tokens * (3 * h + 2 * v + ups * f)) {}

  double tokens, n, q, d, h, v, f, vocabulary;
  double ups;  ///< matrices from the width to the MLP's: 2 with a gate
  FeedElements feed;
  double inputs, weights, outputs;
};

/// Tokens for which a rank has part of the statistics.
double statistics_tokens(const TensorShape& shape, const TensorSizes& s) {
  return s.tokens / (shape.kind == "3d" ? s.q * s.q : s.q * s.d);
}

/// An all-reduce of x over n ranks sends this times x.
double all_reduced(double n) { return 2 * (n - 1) / n; }

TensorTraffic norm_bytes(const TensorShape& shape, const TensorSizes& s) {
  if (!is_grid(shape)) return {};
  const double sums = 2 * all_reduced(s.q) * statistics_tokens(shape, s);
  return {kWideStatistic * sums, static_cast<double>(shape.statistics_bytes) * sums};
}

TensorTraffic plus(const TensorTraffic& a, const TensorTraffic& b) {
  return {a.forward + b.forward, a.backward + b.backward};
}
TensorTraffic times(double factor, const TensorTraffic& a) { return {factor * a.forward, factor * a.backward}; }

/// Gradients of keys and values, which are summed as they pass around the ring.
double ring_gradients(const TensorShape& shape, const TensorSizes& s) {
  return shape.kind == "ring" && s.n > 1 ? 2 * s.tokens * s.v : 0;
}

/// Without recompute.
TensorTraffic layer_elements_once(const TensorShape& shape, const TensorSizes& s) {
  if (shape.kind == "1d") {
    const double half = 2 * all_reduced(s.n) * s.tokens * s.h;
    return {half, half};
  }
  if (shape.kind == "ring") {
    const double forward = 2 * (s.n - 1) / s.n * s.tokens * s.v;
    return {forward, forward + ring_gradients(shape, s)};
  }
  if (shape.kind == "ulysses") {
    const bool divide = shape.model.num_kv_heads() % shape.ranks == 0;
    const double half = (s.n - 1) / (s.n * s.n) * s.tokens * (2 * s.h + 2 * s.v * (divide ? 1 : s.n));
    return {half, half};
  }
  if (shape.kind == "3d") {
    const double part = (s.q - 1) / (s.q * s.q * s.q);
    return {part * (s.inputs + s.weights + s.outputs), part * (2 * s.inputs + 2 * s.weights + s.outputs)};
  }
  const double forward = (s.q - 1) / (s.q * s.q) * (s.inputs / s.d + s.weights);
  return {forward, 2 * forward};
}

TensorTraffic run_again(const TensorShape& shape, const TensorTraffic& sent) {
  return {sent.forward, sent.backward + (shape.recompute ? sent.forward : 0)};
}

/// Groups of ranks may have the same heads of keys and values.
double parts_of_keys(const TensorShape& shape, double parts) {
  const bool is_grouped = shape.model.num_kv_heads() < shape.model.heads;
  if (shape.kind != "1d" || !is_grouped) return parts;
  return static_cast<double>(std::gcd(shape.model.num_kv_heads(), shape.ranks));
}

double vector_elements(const TensorShape& shape, const TensorSizes& s) {
  const bool is_gpt2 = !shape.model.arch.is_gated;
  const double norms = (is_gpt2 ? 4 : 2) * s.h;
  const double parts = is_grid(shape) ? s.q : shape.kind == "1d" ? s.n : 1;
  const double of_queries = shape.model.arch.qkv_bias ? s.h / parts : 0;
  const double of_keys = shape.model.arch.qkv_bias ? 2 * s.v / parts_of_keys(shape, parts) : 0;
  const double whole = norms + (is_gpt2 ? s.h : 0) + s.feed.whole_biases;
  return of_queries + of_keys + s.feed.split_biases / parts + whole / (is_grid(shape) ? s.q : 1);
}

/// Bytes that a layer sends in a step of one micro-batch.
double bytes_of_step(const TensorShape& shape) {
  return layer_bytes(shape).total() + static_cast<double>(shape.element_bytes) * data_elements_per_step(shape);
}

/// 2.5D with the depth that sends least; of depth 1 if none fits.
TensorShape with_best_depth(TensorShape shape) {
  TensorShape best = shape;
  best.depth = 1;
  double least = 0;
  for (int64_t side = 2; 2 * side * side <= shape.ranks; ++side) {
    shape.depth = shape.ranks / (side * side);
    if (shape.depth > side || !misfit_of(shape).empty()) continue;
    const double bytes = bytes_of_step(shape);
    if (best.depth == 1 || bytes < least) {
      best = shape;
      least = bytes;
    }
  }
  return best;
}

}  // namespace

int64_t TensorShape::side() const {
  return is_grid(*this) ? std::max<int64_t>(grid_side(grid_of(*this), ranks), 1) : ranks;
}

TensorTraffic layer_elements(const TensorShape& shape) {
  check_kind(shape);
  return run_again(shape, layer_elements_once(shape, TensorSizes(shape)));
}

TensorTraffic layer_bytes(const TensorShape& shape) {
  check_kind(shape);
  const TensorSizes s(shape);
  TensorTraffic products = times(static_cast<double>(shape.element_bytes), layer_elements_once(shape, s));
  products.backward += static_cast<double>(shape.statistics_bytes - shape.element_bytes) * ring_gradients(shape, s);
  return run_again(shape, plus(products, times(2, norm_bytes(shape, s))));
}

TensorTraffic embedding_bytes(const TensorShape& shape) {
  check_kind(shape);
  const TensorSizes s(shape);
  const double stream = static_cast<double>(shape.element_bytes) * s.tokens * s.h;
  if (splits_sequence(shape)) return {};
  if (shape.kind == "1d") {
    const double half = all_reduced(s.n) / 2 * stream;
    return shape.sequence ? TensorTraffic{half, half} : TensorTraffic{2 * half, 0};
  }
  const bool is_3d = shape.kind == "3d";
  const double times = is_3d && shape.model.tie_embeddings ? 2 : 1;
  const double sent = times * (s.q - 1) / (is_3d ? s.q * s.q * s.q : s.q * s.q * s.d) * stream;
  return {sent, sent};
}

TensorTraffic head_bytes(const TensorShape& shape) {
  check_kind(shape);
  const TensorSizes s(shape);
  const double stream = static_cast<double>(shape.element_bytes) * s.tokens * s.h;
  if (splits_sequence(shape)) return {};
  const auto statistic = static_cast<double>(shape.statistics_bytes);
  if (shape.kind == "1d") {
    const double half = all_reduced(s.n) / 2 * stream;
    const double statistics = 3 * statistic * all_reduced(s.n) * s.tokens;
    return shape.sequence ? TensorTraffic{half + statistics, half} : TensorTraffic{statistics, 2 * half};
  }
  const double statistics = 3 * statistic * all_reduced(s.q) * statistics_tokens(shape, s);
  const double moved =
      shape.kind == "3d" ? 2 * (s.q - 1) / (s.q * s.q * s.q) * stream : (s.q - 1) / (s.q * s.q * s.d) * stream;
  return plus({moved + statistics, moved}, norm_bytes(shape, s));
}

double words_elements_per_step(const TensorShape& shape) {
  check_kind(shape);
  const TensorSizes s(shape);
  if (!is_grid(shape)) return 0;
  const double table = s.vocabulary * s.h;
  const double num_tables = shape.model.tie_embeddings ? 1 : 2;
  if (shape.kind != "3d") return 2 * num_tables * (s.q - 1) / (s.q * s.q) * table;
  const double cube = s.q * s.q * s.q;
  return 2 * ((s.q * s.q - 1) / cube + (num_tables - 1) * (s.q - 1) / cube) * table;
}

double data_elements_per_step(const TensorShape& shape) {
  check_kind(shape);
  const TensorSizes s(shape);
  const double copies = splits_sequence(shape) ? static_cast<double>(shape.ranks)
                        : shape.kind == "2.5d" ? static_cast<double>(shape.depth)
                                               : 1;
  const double routers = shape.kind == "1d" ? all_reduced(s.n) * s.feed.whole_matrices : 0;
  return all_reduced(copies) * layer_weight_elements(shape) + routers;
}

double layer_weight_elements(const TensorShape& shape) {
  check_kind(shape);
  const TensorSizes s(shape);
  const double parts = splits_sequence(shape) ? 1 : s.n / s.d;
  const double of_keys = 2 * s.h * s.v;
  return (s.weights - of_keys) / parts + of_keys / parts_of_keys(shape, parts) + s.feed.whole_matrices +
         vector_elements(shape, s);
}

double words_weight_elements(const TensorShape& shape) {
  check_kind(shape);
  const TensorSizes s(shape);
  const double num_tables = shape.model.tie_embeddings ? 1 : 2;
  return num_tables * s.vocabulary * s.h / (splits_sequence(shape) ? 1 : s.n / s.d);
}

double gathered_words_elements(const TensorShape& shape) {
  check_kind(shape);
  const TensorSizes s(shape);
  if (!is_grid(shape)) return 0;
  const double embedding = shape.model.tie_embeddings ? 0 : 1 / (shape.kind == "3d" ? s.q * s.q : s.q);
  return (1 / s.q + embedding) * s.vocabulary * s.h;
}

double outer_weight_elements(const TensorShape& shape) {
  const TensorSizes s(shape);
  const bool is_gpt2 = !shape.model.arch.is_gated;
  const double rest = (is_gpt2 ? static_cast<double>(shape.model.context) + 2 : 1) * s.h;
  return words_weight_elements(shape) + rest / (is_grid(shape) ? s.q : 1);
}

double layer_activation_elements(const TensorShape& shape) {
  check_kind(shape);
  const TensorSizes s(shape);
  if (shape.kind != "1d") return s.tokens * (6 * s.h + 2 * s.v + feed_activation_elements(shape.model, 1)) / s.n;
  const double stream = shape.sequence ? 2 * s.h / s.n + 2 * s.h : 4 * s.h;
  const double attention = 2 * s.h / s.n + 2 * s.v / parts_of_keys(shape, s.n);
  return s.tokens * (stream + attention + feed_activation_elements(shape.model, s.n));
}

std::string misfit_of(const TensorShape& shape) {
  check_kind(shape);
  const ModelConfig& model = shape.model;
  if (is_grid(shape)) {
    if (model.moe.is_used()) return fmt::format("{} has no table for experts", shape.kind);
    std::optional<Misfit> misfit = misfit_of_ranks(grid_of(shape), shape.ranks);
    if (!misfit) misfit = misfit_of_grid(grid_of(shape), model, shape.side());
    const int64_t parts = row_parts(grid_of(shape), shape.side());
    if (!misfit && (shape.sequences < 1 || shape.sequences % parts != 0)) {
      return fmt::format("{} sequences of a micro-batch are split in {} parts: use {}", shape.sequences, parts,
                         multiples_near(shape.sequences, parts));
    }
    return misfit ? misfit->fact + ": " + misfit->action : "";
  }
  if (model.heads % shape.ranks != 0) return fmt::format("{} ranks do not divide {} heads", shape.ranks, model.heads);
  if (splits_sequence(shape) || model.moe.experts % shape.ranks == 0) return "";
  return fmt::format("{} ranks do not divide {} experts", shape.ranks, model.moe.experts);
}

std::vector<TensorCost> compare_tensor_kinds(const TensorShape& like) {
  std::vector<TensorCost> costs;
  for (const char* kind : {"1d", "2d", "2.5d", "3d"}) {
    TensorShape shape = like;
    shape.kind = kind;
    shape.depth = 1;
    if (shape.kind == "2.5d") shape = with_best_depth(shape);
    TensorCost cost{.shape = shape, .misfit = misfit_of(shape)};
    if (shape.kind == "2.5d" && shape.depth == 1 && !shape.model.moe.is_used()) {
      cost.misfit =
          fmt::format("{} ranks are not a square times a depth from 2 to its side that fits the model", shape.ranks);
    }
    if (cost.misfit.empty() || !is_grid(shape)) cost.bytes = bytes_of_step(shape);
    costs.push_back(std::move(cost));
  }
  std::ranges::stable_sort(costs, [](const TensorCost& a, const TensorCost& b) {
    return a.misfit.empty() != b.misfit.empty() ? a.misfit.empty() : a.bytes < b.bytes;
  });
  return costs;
}

}  // namespace caravan
