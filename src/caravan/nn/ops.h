#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include "caravan/module/context.h"
#include "caravan/module/plan/layout_table.h"
#include "caravan/nn/architecture.h"

namespace caravan {

/// Operations between layers. Every function takes the context, which tells whether this is a dry run, and `what`, the
/// name of the calling module, for messages. Activations are [batch, sequence, feature].

/// In a dry run: records that `op` computes `result` from the operands.
inline void record_layout(const ForwardContext& context, const OpType& op, const at::Tensor& result,
                          std::initializer_list<LayoutTable::Operand> operands, std::string_view what) {
  if (context.layouts != nullptr) context.layouts->infer(op, result, operands, what);
}

at::Tensor add(const at::Tensor& a, const at::Tensor& b, const ForwardContext& context, std::string_view what);

/// The activation, elementwise. gelu_tanh, GELU in its tanh form, is contiguous.
at::Tensor activated(Activation activation, const at::Tensor& x, const ForwardContext& context, std::string_view what);

/// activation(gate) * up, elementwise on two tensors of the same shape. That of silu, SwiGLU, saves only its inputs for
/// backward.
at::Tensor gated(Activation activation, const at::Tensor& gate, const at::Tensor& up, const ForwardContext& context,
                 std::string_view what);

/// x * factor.
at::Tensor scaled(const at::Tensor& x, double factor, const ForwardContext& context, std::string_view what);

/// cap tanh(x / cap): x itself for a cap of 0. (Gemma 2, arXiv 2408.00118.)
at::Tensor soft_capped(const at::Tensor& x, double cap);

/// {the rest, the first `sources`} of the tokens of x [batch, sequence, feature], of which each rank has all. Copies.
std::pair<at::Tensor, at::Tensor> split_source(const at::Tensor& x, int64_t sources, const ForwardContext& context,
                                               std::string_view what);

/// [batch, sequence, feature] -> [batch, sequence, local heads, head_width]: a shard of the features is a shard of the
/// heads. Throws ShapeError naming `what` for a shard that is not whole heads.
at::Tensor split_heads(const at::Tensor& x, int64_t head_width, const ForwardContext& context, std::string_view what);
/// The inverse.
at::Tensor merge_heads(const at::Tensor& x, const ForwardContext& context, std::string_view what);

/// The context's positions of the tokens of x [batch, sequence, ..], int64 [sequence] or [batch, sequence]; undefined
/// means 0, 1, .. Throws ShapeError naming `what` if they do not match the tokens, or are missing for a piece of a
/// sequence.
at::Tensor token_positions(const at::Tensor& x, const ForwardContext& context, std::string_view what);

/// context[dim] of a tensor that has `local` elements along `dim`. Throws ShapeError naming `what` if the numbers
/// differ.
const DimIndex& checked_index(const ForwardContext& context, Dim dim, int64_t local, std::string_view what);

}  // namespace caravan
