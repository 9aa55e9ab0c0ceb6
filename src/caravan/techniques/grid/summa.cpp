#include "caravan/techniques/grid/summa.h"

#include <deque>
#include <optional>
#include <utility>

#include <ATen/ops/empty_like.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/nn/product/product.h"
#include "caravan/techniques/grid/panels.h"

namespace caravan {
namespace {

/// A piece that coordinate `panel` of an axis broadcasts to the others.
class Arriving {
 public:
  Arriving(const at::Tensor& own, const MeshAxis& axis, int panel, const char* what)
      : tensor_(axis.coord() == panel ? own : at::empty_like(own)),
        work_(broadcast_async(axis.comm(), tensor_, panel, what)) {}
  const at::Tensor& wait() {
    work_.wait();
    return tensor_;
  }

 private:
  at::Tensor tensor_;
  Work work_;
};

/// The sum over an axis, at coordinate `panel`.
class Leaving {
 public:
  Leaving(at::Tensor part, const MeshAxis& axis, int panel, at::Tensor& result, const char* what) {
    if (axis.coord() == panel) result = at::empty_like(part);
    work_ = reduce_async(axis.comm(), part, axis.coord() == panel ? result : at::Tensor(), ReduceOp::sum, panel, what);
  }
  void wait() { work_.wait(); }

 private:
  Work work_;
};

struct Panel {
  int index;
  std::optional<Arriving> x{};
  std::vector<Arriving> weights{};
};

/// One product, or its backward, as a table of actions.
class SummaRun {
 public:
  SummaRun(const MeshAxis& row, const MeshAxis& col, const at::Tensor& x, const Tensors& weights)
      : row_(row), col_(col), x_(matrix_of(x).contiguous()) {
    for (const at::Tensor& weight : weights) weights_.push_back(weight.contiguous());
  }

  Tensors forward() {
    Tensors ys;
    for (const at::Tensor& weight : weights_) ys.push_back(empty_sum(x_.size(0), weight.size(0), x_));
    run(checked_panel_schedule(col_.size(), /*reduces=*/false, col_.deferred().overlaps()), [&](Panel& panel) {
      const at::Tensor& x = panel.x->wait();
      for (size_t i = 0; i < ys.size(); ++i) {
        add_product(ys[i], panel.index == 0, x, panel.weights[i].wait(), ProductKind::forward);
      }
    });
    for (at::Tensor& y : ys) y = y.to(x_.scalar_type());
    return ys;
  }

  SplitProduct::Gradients backward(const Tensors& dys, bool needs_x, const std::vector<bool>& needs_weights) {
    gathers_weights_ = needs_x;
    gathers_x_ = std::find(needs_weights.begin(), needs_weights.end(), true) != needs_weights.end();
    SplitProduct::Gradients gradients;
    gradients.weights.resize(weights_.size());
    run(checked_panel_schedule(col_.size(), /*reduces=*/true, col_.deferred().overlaps()), [&](Panel& panel) {
      if (needs_x) made_.push_back({gradient_of_x(panel, dys), &gradients.x, &col_});
      for (size_t i = 0; i < dys.size(); ++i) {
        if (!needs_weights[i]) continue;
        at::Tensor sum = empty_sum(dys[i].size(1), x_.size(1), x_);
        add_product(sum, /*is_empty=*/true, dys[i].t(), panel.x->wait().t(), ProductKind::dw);
        made_.push_back({sum.to(x_.scalar_type()), &gradients.weights[i], &row_});
      }
    });
    return gradients;
  }

 private:
  struct Made {
    at::Tensor part;
    at::Tensor* result;
    const MeshAxis* axis;
  };

  at::Tensor gradient_of_x(Panel& panel, const Tensors& dys) const {
    at::Tensor sum = empty_sum(x_.size(0), x_.size(1), x_);
    for (size_t i = 0; i < dys.size(); ++i) {
      add_product(sum, i == 0, dys[i], panel.weights[i].wait().t(), ProductKind::dx);
    }
    return sum.to(x_.scalar_type());
  }

  Panel gathered(int index) const {
    Panel panel{.index = index};
    if (gathers_x_) panel.x.emplace(x_, col_, index, "panel of x");
    for (const at::Tensor& weight : weights_) {
      if (gathers_weights_) panel.weights.emplace_back(weight, row_, index, "panel of a weight");
    }
    return panel;
  }

  template <class Multiply>
  void run(const std::vector<PanelAction>& schedule, const Multiply& multiply) {
    std::deque<Panel> resident;
    std::vector<Leaving> leaving;
    for (const auto& [kind, index] : schedule) {
      switch (kind) {
        case PanelAction::Kind::gather: resident.push_back(gathered(index)); break;
        case PanelAction::Kind::multiply: multiply(resident.front()); break;
        case PanelAction::Kind::free: resident.pop_front(); break;
        case PanelAction::Kind::reduce:
          for (const Made& made : made_) {
            leaving.emplace_back(made.part, *made.axis, index, *made.result, "gradient of a panel");
          }
          made_.clear();
          break;
        case PanelAction::Kind::finish:
          for (Leaving& each : leaving) each.wait();
          leaving.clear();
          break;
      }
    }
  }

  const MeshAxis& row_;
  const MeshAxis& col_;
  at::Tensor x_;
  Tensors weights_;
  bool gathers_x_ = true;
  bool gathers_weights_ = true;
  std::vector<Made> made_;  ///< gradients of the panel that was multiplied
};

class SummaProduct final : public SplitProduct {
 public:
  SummaProduct(MeshAxis row, MeshAxis col) : row_(std::move(row)), col_(std::move(col)) {}

  Layout result(const Layout& x, const std::string& what) const override {
    const Placement& columns = x[col_.name()];
    if (x[row_.name()].is_shard(0) && columns.is_shard(2) && columns.blocks() == 1) return x;
    throw LayoutError({"plan", what,
                       "takes a batch split over " + row_.name() + " and features split over " + col_.name() +
                           ", got " + x.to_string(),
                       "", "let the previous module pass on " + row_.name() + "=S(0) " + col_.name() + "=S(2)"});
  }

  Tensors forward(const at::Tensor& x, const Tensors& weights) const override {
    Tensors ys = SummaRun(row_, col_, x, weights).forward();
    std::vector<int64_t> shape = x.sizes().vec();
    for (at::Tensor& y : ys) {
      shape.back() = y.size(1);
      y = y.view(shape);
    }
    return ys;
  }

  Gradients backward(const at::Tensor& x, const Tensors& weights, const Tensors& dys, bool needs_x,
                     const std::vector<bool>& needs_weights) const override {
    Tensors matrices;
    for (const at::Tensor& dy : dys) matrices.push_back(matrix_of(dy));
    Gradients gradients = SummaRun(row_, col_, x, weights).backward(matrices, needs_x, needs_weights);
    if (needs_x) gradients.x = gradients.x.view(x.sizes());
    return gradients;
  }

 private:
  MeshAxis row_;
  MeshAxis col_;
};

}  // namespace

std::shared_ptr<const SplitProduct> summa_product(const MeshAxis& row, const MeshAxis& col) {
  return std::make_shared<SummaProduct>(row, col);
}

}  // namespace caravan
