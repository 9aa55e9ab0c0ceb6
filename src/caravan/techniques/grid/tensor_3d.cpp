#include "caravan/techniques/grid/tensor_3d.h"

#include <algorithm>
#include <utility>

#include "caravan/base/error.h"
#include "caravan/nn/product/product.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/tensor/model_rows.h"

namespace caravan {
namespace {

/// x a=S(0) in=S(0) out=S(2), W in=S(0) out=S(1) a=S(1), y a=S(0) out=S(0) in=S(2), where `in` is the axis over which
/// the rows of x are gathered and `out` that over which those of y are scattered. Nothing gathered is kept.
class CubeProduct final : public SplitProduct {
 public:
  CubeProduct(MeshAxis a, MeshAxis in, MeshAxis out) : a_(std::move(a)), in_(std::move(in)), out_(std::move(out)) {}

  Layout result(const Layout& x, const std::string& what) const override {
    const std::vector<std::string> rows = x.sharding(0);
    const bool fits = x[out_.name()].is_shard(2) && std::ranges::find(rows, a_.name()) != rows.end() && !rows.empty() &&
                      rows.back() == in_.name() && x[in_.name()].blocks() == 1 && x[out_.name()].blocks() == 1;
    if (fits) return x.moved(in_.name(), Replicate{}).moved(out_.name(), Shard{0}).moved(in_.name(), Shard{2});
    const std::string wanted = a_.name() + "=S(0) " + in_.name() + "=S(0) " + out_.name() + "=S(2)";
    throw LayoutError(
        {"plan", what, "takes " + wanted + ", got " + x.to_string(), "", "let the previous module pass on " + wanted});
  }

  Tensors forward(const at::Tensor& x, const Tensors& weights) const override {
    const at::Tensor rows = gather_rows(x, in_, "x");
    Tensors ys;
    for (const at::Tensor& weight : weights) {
      at::Tensor y = caravan::product(matrix_of(rows), gathered(weight));
      std::vector<int64_t> shape = rows.sizes().vec();
      shape.back() = y.size(1);
      ys.push_back(scatter_rows(y.view(shape), out_, "y"));
    }
    return ys;
  }

  Gradients backward(const at::Tensor& x, const Tensors& weights, const Tensors& dys, bool needs_x,
                     const std::vector<bool>& needs_weights) const override {
    Gradients gradients;
    gradients.weights.resize(weights.size());
    const bool needs_weight = std::ranges::find(needs_weights, true) != needs_weights.end();
    const at::Tensor rows = needs_weight ? matrix_of(gather_rows(x, in_, "x")) : at::Tensor();
    at::Tensor dx;
    for (size_t i = 0; i < dys.size(); ++i) {
      const at::Tensor dy = matrix_of(gather_rows(dys[i], out_, "gradient of y"));
      if (needs_x) {
        const bool is_first = !dx.defined();
        if (is_first) dx = empty_sum(dy.size(0), x.size(2), x);
        add_product(dx, is_first, dy, gathered(weights[i]).t(), ProductKind::dx);
      }
      if (!needs_weights[i]) continue;
      at::Tensor dw = empty_sum(dy.size(1), x.size(2), x);
      add_product(dw, /*is_empty=*/true, dy.t(), rows.t(), ProductKind::dw);
      gradients.weights[i] =
          redistribute(dw.to(x.scalar_type()), {{a_.name(), Partial{}}}, a_, Shard{1}, "gradient of a weight");
    }
    if (needs_x) {
      const std::vector<int64_t> shape{x.size(0) * in_.size(), x.size(1), x.size(2)};
      gradients.x = scatter_rows(dx.to(x.scalar_type()).view(shape), in_, "gradient of x");
    }
    return gradients;
  }

 private:
  static at::Tensor gather_rows(const at::Tensor& x, const MeshAxis& axis, const char* what) {
    return redistribute(x, {{axis.name(), Shard{0}}}, axis, Replicate{}, what);
  }
  static at::Tensor scatter_rows(const at::Tensor& x, const MeshAxis& axis, const char* what) {
    return redistribute(x, {{axis.name(), Partial{}}}, axis, Shard{0}, what);
  }
  at::Tensor gathered(const at::Tensor& weight) const {
    return redistribute(weight, {{a_.name(), Shard{1}}}, a_, Replicate{}, "weight");
  }

  MeshAxis a_;
  MeshAxis in_;
  MeshAxis out_;
};

GridLinear linear_of(const MeshAxis& a, const MeshAxis& in, const MeshAxis& out) {
  const Layout bias{{in.name(), Shard{0}}};
  return {.weight = {{in.name(), Shard{0}}, {out.name(), Shard{1}}, {a.name(), Shard{1}}},
          .bias = bias,
          .bias_leaf = {bias.entries().front(), {a.name(), Replicate{}}, {out.name(), Replicate{}}},
          .product = std::make_shared<CubeProduct>(a, in, out),
          .given_back = {{in.name(), Replicate{}}},
          .again = {{out.name(), Shard{2}}, {in.name(), Shard{0}}}};
}

}  // namespace

Plan tensor_3d(const ModelConfig& config, const MeshAxis& a, const MeshAxis& b, const MeshAxis& c) {
  check_grid("tensor_3d", {.dims = 3}, config, {a, b, c});
  const std::string &i = a.name(), &j = b.name(), &k = c.name();
  Plan plan{.name = "tensor_3d", .axes = {i, j, k}};
  add_linears(plan, config, linear_of(a, b, c), linear_of(a, c, b));
  add_norms(plan, config, c, {i, j});
  const Layout on_rows{{i, Shard{0}}, {k, Shard{0}}};
  add_words(plan, config, b,
            {.table = {shard_of(b, 0, config.vocabulary).entries().front(), {k, Shard{1}}, {i, Shard{1}}},
             .token_compute = {{i, Replicate{}}},
             .head_compute = {{i, Replicate{}}, {k, Replicate{}}},
             .ids = config.ties_head() ? on_rows : Layout{{i, Shard{0}}},
             .stream = {{k, Shard{2}}, {j, Shard{0}}},
             .hidden = {{j, Replicate{}}, {k, Shard{0}}},
             .labels = on_rows,
             .logits = {{i, Invariant{}}, {j, Invariant{}}, {k, Invariant{}}}});
  return plan;
}

}  // namespace caravan
