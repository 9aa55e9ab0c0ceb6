#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/global/context.h"
#include "caravan/mesh/layout.h"
#include "caravan/redistribute/op_type.h"

namespace caravan {

/// A **global tensor** is an at::Tensor whose sizes are those of the whole, of which each rank holds the piece that its
/// layout says. Every op on it computes what the op would on the whole tensor: operands are redistributed as the op
/// needs (global/solve.h), the op runs on pieces, and its results are global tensors again. So a torch::nn::Module
/// whose parameters are global tensors runs as it is, under tensor, data or sharded parallelism as the layouts say;
/// backward() and torch::optim too. Every rank runs the same ops in the same order. Below, a layout names some axes of
/// the mesh; on the others a tensor is replicated. I counts as R, since a global tensor has one value; P is a sum that
/// is pending. Rows that do not divide are cut into parts that differ by one row at most.
///
/// Plain tensors in the same op count as replicated: they must be equal on all ranks.

/// A global tensor of the value that every rank has: takes this rank's rows. Collective: hashes of the first eight
/// values are compared (GlobalOptions::checks_plain: of all), later ones send nothing. A leaf that requires a gradient
/// becomes a new leaf that requires one. Throws LayoutError, ShapeError for a layout that does not fit, and UsageError
/// for a tensor that is global already, has a gradient function, or is different on some ranks.
at::Tensor distribute(const at::Tensor& whole, const Layout& layout, const GlobalContext& context);

/// A global tensor of pieces that the ranks have: the inverse of local(). Collective, where an axis shards: ranks tell
/// each other the rows of their pieces, 16 bytes each, since they may differ. Differentiable: the piece gets the
/// gradient that its layout is dual to; so on an axis with R, name it I instead if each rank's gradient is to be the
/// whole one.
at::Tensor global(const at::Tensor& piece, const Layout& layout, const GlobalContext& context);

bool is_global(const at::Tensor& tensor) noexcept;
/// Throws UsageError for a plain tensor; so do the functions below.
const Layout& layout(const at::Tensor& tensor);

/// This rank's piece, which shares memory with the global tensor until that is moved or reduced: read it anew after an
/// op in place or a backward pass. Sends nothing, unless the tensor is a norm that is not summed yet. Differentiable:
/// its gradient is taken to have the layout dual to the tensor's, with R as I on the axes that `invariant` lists: there
/// every rank computes the same with its copy, else each its own part.
at::Tensor local(const at::Tensor& tensor, const std::vector<std::string>& invariant = {});

/// The whole tensor on every rank, plain. Collective. Differentiable if every rank computes the same with it.
at::Tensor full(const at::Tensor& tensor);

/// The same global tensor under another layout, in memory of its own if that is another one. Collective. Its gradient
/// comes back in the layout dual to the old one.
at::Tensor redistribute(const at::Tensor& tensor, const Layout& layout);

/// redistribute() whose gradient is brought to the dual of the new layout at this point too: what stands before and
/// after it in the program computes under this layout, in both passes. Sequence parallelism is one of it around each
/// block.
at::Tensor constrain(const at::Tensor& tensor, const Layout& layout);

/// A function of pieces as one of global tensors: redistributes the inputs to `in`, calls `function` on pieces, and
/// takes its results as pieces of `out`. Gradients follow from the layouts, by the law.
std::vector<at::Tensor> local_map(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, const std::vector<Layout>& in, const std::vector<Layout>& out,
    const GlobalContext& context);

/// The type of an op that the library does not know, such as one of a library of your own: with it the op runs on
/// pieces, in the forward and, given a rule for the op of its gradient, in the backward pass. `op` is "lib::name", for
/// all overloads, or "lib::name.overload"; its tensors are the operands, in the order of its schema, and its labels
/// have as many dims as they. Called before the op meets a global tensor, on every rank. A label that is cut must be
/// one along which the op acts independently, or, if the outputs do not have it, sums; name others in OpType::whole.
/// Throws UsageError for an op that is not registered with torch, and for labels that cannot be read.
void register_rule(const std::string& op, const OpType& type);

}  // namespace caravan
