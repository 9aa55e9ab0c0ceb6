#include "caravan/nn/embedding.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/nn/kv_cache.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Not ATen's embedding, which has no meta kernel here and sums bf16 gradients in bf16.
struct RowsOf : Function<RowsOf> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const at::Tensor& ids) {
    ctx->save_for_backward({ids});
    ctx->saved_data["rows"] = weight.size(0);
    std::vector<int64_t> shape = ids.sizes().vec();
    shape.push_back(weight.size(1));
    if (ids.is_meta()) return at::empty(shape, weight.options());
    return at::index_select(weight, 0, ids.flatten()).view(shape);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor dy = grads[0].contiguous();
    const at::Tensor ids = ctx->get_saved_variables()[0].contiguous();
    const int64_t rows = ctx->saved_data["rows"].toInt();
    const int64_t width = dy.size(-1);
    const at::Tensor sum = at::zeros({rows, width}, dy.options().dtype(compute_type(dy.scalar_type())));
    if (!ids.is_meta()) {
      const int64_t* id = ids.const_data_ptr<int64_t>();
      with_dtype("embedding", dy.scalar_type(), [&](auto type) {
        using T = decltype(type);
        // Each thread owns a range of rows and scans all ids in order: no race, and the same sum for any thread count.
        at::parallel_for(0, rows, 1 + (int64_t{1} << 16) / width, [&](int64_t begin, int64_t end) {
          for (int64_t t = 0; t < ids.numel(); ++t) {
            if (id[t] < begin || id[t] >= end) continue;
            kernels::accumulate(data_of<T>(dy) + t * width, data_of<kernels::Compute<T>>(sum) + id[t] * width, width);
          }
        });
      });
    }
    return {sum.to(dy.scalar_type()), {}};
  }
};

void check_ids(const at::Tensor& ids, int64_t rows, const std::string& name) {
  if (ids.is_meta()) return;
  const at::Tensor flat = ids.contiguous();
  const int64_t* begin = flat.const_data_ptr<int64_t>();
  const int64_t* end = begin + flat.numel();
  const int64_t* bad = std::find_if(begin, end, [&](int64_t id) { return id < 0 || id >= rows; });
  if (bad == end) return;
  throw DataError({"embedding", name,
                   fmt::format("id {} at index {} is out of range: the table has {} rows", *bad, bad - begin, rows), "",
                   "use the tokenizer that the model was made for"});
}

}  // namespace

Embedding::Embedding(int64_t rows, int64_t width)
    : weight_(register_parameter("weight",
                                 {.shape = {rows, width}, .init = {Init::Kind::normal, kInitStd}, .decays = true})) {}

at::Tensor Embedding::forward(const at::Tensor& input, const ForwardContext& /*context*/) {
  const at::Tensor& weight = weight_.compute();
  if (input.scalar_type() != at::kLong) {
    throw UsageError(
        {"embedding", name(), fmt::format("ids are {}", c10::toString(input.scalar_type())), "", "pass int64"});
  }
  check_device("embedding", weight);
  check_ids(input, weight.size(0), name());
  return RowsOf::apply(weight, input);
}

PositionEmbedding::PositionEmbedding(int64_t context, int64_t width)
    : weight_(register_parameter(
          "weight", {.shape = {context, width}, .init = {Init::Kind::normal, kInitStd}, .decays = true})) {}

at::Tensor PositionEmbedding::forward(const at::Tensor& input, const ForwardContext& context) {
  const int64_t sequence = input.size(1);
  int64_t first = piece_of(context, Dim::sequence, sequence).offset;
  if (context.cache != nullptr) first += context.cache->advance(name(), sequence);
  return input + weight_.compute().narrow(0, first, sequence);
}

InputEmbedding::InputEmbedding(const ModelConfig& config)
    : context_(config.context),
      token_(register_module<Embedding>("token", config.vocabulary, config.width)),
      position_(config.kind == ModelKind::gpt2
                    ? &register_module<PositionEmbedding>("position", config.context, config.width)
                    : nullptr),
      dropout_(register_module<Dropout>("dropout", config.kind == ModelKind::gpt2 ? config.dropout : 0)) {}

Tensors InputEmbedding::forward(Tensors inputs, const ForwardContext& context) {
  const at::Tensor& ids = inputs.front();
  if (ids.dim() != 2) {
    throw ShapeError(
        {"embedding", name(), fmt::format("ids are [{}]", join(ids.sizes())), "", "pass [batch, sequence]"});
  }
  const int64_t cached = context.cache == nullptr ? 0 : context.cache->length();
  const int64_t length = context.global(Dim::sequence, ids.size(1)) + cached;
  if (length > context_) {
    throw UsageError({"embedding", name(), fmt::format("{} positions, but the model's context is {}", length, context_),
                      "", "use shorter sequences, or a model with a longer context"});
  }
  at::Tensor x = token_(ids, context);
  if (position_ != nullptr) x = (*position_)(x, context);
  inputs.front() = dropout_(x, context);
  return inputs;
}

}  // namespace caravan
