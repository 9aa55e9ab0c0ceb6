#include "caravan/nn/embedding.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/parallel_for.h"
#include "caravan/base/text.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/path.h"
#include "caravan/nn/accumulate_grad.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/init_std.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// The tokens with ids in [first, first + rows), sorted by id, in order within an id; and where each id begins.
struct TokensById {
  TokensById(const at::Tensor& ids, int64_t first, int64_t rows) {
    const int64_t* id = ids.const_data_ptr<int64_t>();
    for (int64_t t = 0; t < ids.numel(); ++t) {
      if (id[t] >= first && id[t] < first + rows) tokens.push_back(t);
    }
    std::stable_sort(tokens.begin(), tokens.end(), [=](int64_t a, int64_t b) { return id[a] < id[b]; });
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i == 0 || id[tokens[i]] != id[tokens[i - 1]]) begins.push_back(static_cast<int64_t>(i));
    }
    begins.push_back(static_cast<int64_t>(tokens.size()));
  }
  std::vector<int64_t> tokens;
  std::vector<int64_t> begins;
};

/// sum[id - first] += the sum of the rows of dy with this id; independent of the number of threads. Ids outside of the
/// sum are left out.
void add_rows(at::Tensor& sum, const at::Tensor& ids, const at::Tensor& dy, int64_t first = 0) {
  const at::ScalarType type = dy.scalar_type();
  if (!sum.is_contiguous() || sum.scalar_type() != compute_type(type)) {
    throw InternalError({"embedding", "", "the sum of the gradients is not contiguous, or not fp32", "", ""});
  }
  const int64_t width = dy.size(-1);
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const TokensById by_id(ids, first, sum.size(0));
  with_dtype("embedding", type, [&](auto tag) {
    using T = decltype(tag);
    using C = kernels::Compute<T>;
    const int64_t num_ids = static_cast<int64_t>(by_id.begins.size()) - 1;
    parallel_for(0, num_ids, 1 + (int64_t{1} << 14) / std::max<int64_t>(width, 1), [&](int64_t begin, int64_t end) {
      std::vector<C> row(static_cast<size_t>(width));
      for (int64_t i = begin; i < end; ++i) {
        std::fill(row.begin(), row.end(), C{});
        for (int64_t t = by_id.begins[i]; t < by_id.begins[i + 1]; ++t) {
          kernels::accumulate(data_of<T>(dy) + by_id.tokens[t] * width, row.data(), width);
        }
        kernels::accumulate(row.data(), data_of<C>(sum) + (id[by_id.tokens[by_id.begins[i]]] - first) * width, width);
      }
    });
  });
}

/// The tokens whose rows are among `rows`, from `first_row` of the table on; undefined: all tokens.
at::Tensor tokens_here(const at::Tensor& flat_ids, int64_t first_row, int64_t rows, int64_t rows_of_table) {
  if (rows == rows_of_table) return {};
  if (flat_ids.is_meta()) return at::empty_like(flat_ids);  // at most all of them
  return flat_ids.ge(first_row).logical_and_(flat_ids.lt(first_row + rows)).nonzero().squeeze(1);
}

/// Not ATen's embedding, which sums bf16 gradients in bf16.
struct RowsOf : Function<RowsOf> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& ids, Parameter& weight,
                            int64_t first_row) {
    will_accumulate(ctx, {&weight});
    std::vector<int64_t> shape = ids.sizes().vec();
    shape.push_back(rows.size(1));
    const at::Tensor flat = ids.flatten();
    const at::Tensor tokens = tokens_here(flat, first_row, rows.size(0), weight.global_shape()[0]);
    if (!tokens.defined()) {
      ctx->save_for_backward({flat, tokens});
      return at::index_select(rows, 0, flat).view(shape);
    }
    const at::Tensor local = flat.index_select(0, tokens) - first_row;
    ctx->save_for_backward({local, tokens});
    const at::Tensor y = at::zeros({flat.numel(), rows.size(1)}, rows.options().requires_grad(false));
    return y.index_copy_(0, tokens, at::index_select(rows, 0, local)).view(shape);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined() || !ctx->needs_input_grad(0)) return variable_list(4);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor ids = saved[0].contiguous();
    at::Tensor dy = grads[0].contiguous();
    if (saved[1].defined()) dy = dy.flatten(0, -2).index_select(0, saved[1]);
    accumulations_of(ctx)[0]->accumulate_grad([&](at::Tensor& sum, bool is_empty) {
      if (is_empty) sum.zero_();
      count_kernel("embedding backward", dy, dy, dy);
      if (!dy.is_meta()) add_rows(sum, ids, dy);
    });
    return variable_list(4);
  }
};

void check_ids(const at::Tensor& ids, int64_t rows, std::string_view what) {
  if (ids.is_meta()) return;
  const at::Tensor flat = ids.contiguous();
  const int64_t* begin = flat.const_data_ptr<int64_t>();
  const int64_t* end = begin + flat.numel();
  const int64_t* bad = std::find_if(begin, end, [&](int64_t id) { return id < 0 || id >= rows; });
  if (bad == end) return;
  throw DataError({"embedding", std::string(what),
                   fmt::format("id {} at index {} is out of range: the table has {} rows", *bad, bad - begin, rows), "",
                   "use the tokenizer that the model was made for"});
}

/// Rows of a table in tiles: y = 0, then the rows of each tile.
class EmbeddingTask final : public TileTask {
 public:
  /// `first_row`: of the table, the first that this rank has.
  EmbeddingTask(const at::Tensor& ids, const Parameter& example, int64_t first_row)
      : ids_(ids.contiguous()), first_row_(first_row) {
    std::vector<int64_t> shape = ids.sizes().vec();
    shape.push_back(example.compute_shape()[1]);
    y_ = at::zeros(shape, example.compute().options().requires_grad(false));
  }

  void forward(const TileRows& tile, const at::Tensor& values) override {
    if (tile.first == 0) count_kernel("embedding", y_, y_);  // all tiles together write it once
    if (y_.is_meta()) return;
    const int64_t first = first_row_ + tile.first;
    const int64_t* id = ids_.const_data_ptr<int64_t>();
    const int64_t row_bytes = values.size(1) * static_cast<int64_t>(values.element_size());
    const auto* from = static_cast<const std::byte*>(values.const_data_ptr());
    auto* to = static_cast<std::byte*>(y_.data_ptr());
    parallel_for(0, ids_.numel(), 1 + (int64_t{1} << 16) / (row_bytes + 1), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t row = id[t] - first;
        if (row >= 0 && row < tile.count) std::memcpy(to + t * row_bytes, from + row * row_bytes, size_t(row_bytes));
      }
    });
  }
  at::Tensor result() override {
    ids_ = at::Tensor();
    take_path("embedding in tiles", y_);
    return std::exchange(y_, at::Tensor());
  }
  void begin_backward(const at::Tensor& input, const at::Tensor& gradient, bool /*wants_input*/) override {
    ids_ = input.contiguous();
    dy_ = gradient.detach().contiguous();
  }
  void backward(const TileRows& tile, const at::Tensor& /*values*/, bool is_trained) override {
    if (!is_trained) return;
    tile.weight.accumulate_grad([&](at::Tensor& sum, bool is_empty) {
      if (is_empty) sum.zero_();
      if (tile.first == 0) count_kernel("embedding backward", dy_, dy_, dy_);
      if (!dy_.is_meta()) add_rows(sum, ids_, dy_, first_row_ + tile.first);
    });
  }
  at::Tensor end_backward() override {
    ids_ = dy_ = at::Tensor();
    return {};
  }

 private:
  at::Tensor ids_;
  int64_t first_row_;
  at::Tensor y_;
  at::Tensor dy_;
};

void check_ids_of(const at::Tensor& ids, const at::Tensor& rows, int64_t vocabulary, std::string_view what) {
  if (ids.scalar_type() != at::kLong) {
    throw UsageError({"embedding", std::string(what), fmt::format("ids are {}", c10::toString(ids.scalar_type())), "",
                      "pass int64"});
  }
  check_device("embedding", rows);
  check_ids(ids, vocabulary, what);
}

}  // namespace

at::Tensor embedding(const at::Tensor& ids, Parameter& weight, std::string_view what, int64_t first_row) {
  const at::Tensor& rows = weight.compute();
  check_ids_of(ids, rows, weight.global_shape()[0], what);
  return RowsOf::apply(rows, ids, weight, first_row);
}

Embedding::Embedding(int64_t rows, int64_t width, double init_std)
    : weight_(register_parameter(
          "weight", {.shape = {rows, width}, .init = {Init::Kind::normal, init_std}, .decays = true, .matrices = 0})) {}

at::Tensor Embedding::forward(const at::Tensor& input, const ForwardContext& context) {
  static const OpType kType{"bs,vf->bsf", "", {{1}}};
  if (!tiles_.empty()) {
    check_ids_of(input, tiles_.example().compute(), weight_.global_shape()[0], name());
    return tiles_.run(input, c10::make_intrusive<EmbeddingTask>(input, tiles_.example(), first_row_), context);
  }
  at::Tensor x = embedding(input, weight_, name(), first_row_);
  record_layout(context, kType, x, {input, weight_}, name());
  return x;
}

std::vector<Module*> Embedding::cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) {
  for (const auto& cut : cuts) tiles_.add(register_module<Tile>(tile_name(tiles_.size()), cut.front()));
  tiles_.set(release_parameter(weight_), follows_trained);
  return tiles_.modules();
}

PositionEmbedding::PositionEmbedding(int64_t context, int64_t width)
    : weight_(register_parameter(
          "weight",
          {.shape = {context, width}, .init = {Init::Kind::normal, kInitStd}, .decays = true, .matrices = 0})) {}

at::Tensor PositionEmbedding::forward(const at::Tensor& input, const ForwardContext& context) {
  static const OpType kType{"bsf,pf->bsf", "p", {{0}, {1}}};
  at::Tensor positions = token_positions(input, context, name());
  if (!positions.defined()) positions = counted_up(0, input.size(1), input.device());
  at::Tensor x = input + embedding(positions, weight_, name());
  record_layout(context, kType, x, {input, weight_}, name());
  return x;
}

TypeEmbedding::TypeEmbedding(int64_t types, int64_t width)
    : weight_(register_parameter(
          "weight", {.shape = {types, width}, .init = {Init::Kind::normal, kInitStd}, .decays = true, .matrices = 0})) {
}

at::Tensor TypeEmbedding::forward(const at::Tensor& input, const ForwardContext& context) {
  static const OpType kType{"bsf,tf->bsf", "t", {{0}, {1}}};
  const at::IntArrayRef tokens = input.sizes().slice(0, 2);
  const at::Tensor types = context.token_types.defined()
                               ? context.token_types
                               : at::zeros({input.size(1)}, input.options().dtype(at::kLong).requires_grad(false));
  if (context.token_types.defined() && types.sizes() != tokens) {
    throw ShapeError({"embedding", name(), fmt::format("types [{}] of tokens [{}]", join(types.sizes()), join(tokens)),
                      "", "give int64 [batch, sequence]"});
  }
  at::Tensor x = input + embedding(types, weight_, name());
  record_layout(context, kType, x, {input, weight_}, name());
  return x;
}

InputEmbedding::InputEmbedding(const ModelConfig& config)
    : context_(config.context),
      source_context_(config.source_context),
      scale_(config.arch.scales_embedding ? std::sqrt(static_cast<double>(config.width)) : 1),
      token_(register_module<Embedding>("token", config.vocabulary, config.width, embedding_init_std(config))),
      type_(config.token_types > 0 ? &register_module<TypeEmbedding>("type", config.token_types, config.width)
                                   : nullptr),
      position_(config.arch.positions == Positions::learned
                    ? &register_module<PositionEmbedding>("position", config.context, config.width)
                    : nullptr),
      norm_(config.arch.embedding_norm ? &register_module<Norm>("norm", config, config.width) : nullptr),
      dropout_(register_module<Dropout>("dropout", branch_dropout(config))) {}

Tensors InputEmbedding::forward(Tensors inputs, const ForwardContext& context) {
  const at::Tensor& ids = inputs.front();
  if (ids.dim() != 2) {
    throw ShapeError(
        {"embedding", name(), fmt::format("ids are [{}]", join(ids.sizes())), "", "pass [batch, sequence]"});
  }
  check_positions(ids, context);
  at::Tensor x = token_(ids, context);
  if (scale_ != 1) x = scaled(x, scale_, context, name());
  if (type_ != nullptr) x = (*type_)(x, context);
  if (position_ != nullptr) x = (*position_)(x, context);
  if (norm_ != nullptr) x = (*norm_)(x, context);
  inputs.front() = dropout_(x, context);
  if (source_context_ > 0) {
    auto [target, source] = split_source(inputs.front(), sources_of(context), context, name());
    inputs.front() = std::move(target);
    inputs.insert(inputs.begin() + 1, std::move(source));
  }
  return inputs;
}

int64_t InputEmbedding::sources_of(const ForwardContext& context) const {
  return context.sources >= 0 ? context.sources : source_context_;
}

void InputEmbedding::check_positions(const at::Tensor& ids, const ForwardContext& context) const {
  const at::Tensor& given = context.positions;
  if (given.defined() && (given.is_meta() || given.numel() == 0)) return;
  const int64_t sources = source_context_ > 0 ? sources_of(context) : 0;
  if (sources > source_context_) {
    throw UsageError({"embedding", name(),
                      fmt::format("a source of {} tokens, but the model's is {}", sources, source_context_), "",
                      "use a shorter source, or a model with a longer source context"});
  }
  const int64_t length = given.defined() ? given.max().item<int64_t>() + 1 : ids.size(1) - sources;
  if (length > context_) {
    throw UsageError({"embedding", name(), fmt::format("{} positions, but the model's context is {}", length, context_),
                      "", "use shorter sequences, or a model with a longer context"});
  }
}

}  // namespace caravan
