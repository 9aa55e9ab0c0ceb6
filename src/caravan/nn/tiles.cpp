#include "caravan/nn/tiles.h"

#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/module/path.h"
#include "caravan/nn/accumulate_grad.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/product.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor make_link(const at::Tensor& like) { return at::empty({0}, like.options().dtype(at::kFloat)); }

void keep_task(AutogradContext* ctx, const TileTaskPtr& task) {
  ctx->set_materialize_grads(false);
  ctx->saved_data["task"] = c10::IValue::make_capsule(task);
}

TileTask& task_of(AutogradContext* ctx) { return static_cast<TileTask&>(*ctx->saved_data["task"].toCapsule()); }

/// Last in backward, where the gradient of the input is complete.
struct BeginTiles : Function<BeginTiles> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const std::optional<at::Tensor>& /*anchor*/,
                            const TileTaskPtr& task) {
    keep_task(ctx, task);
    return make_link(input);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& links) {
    variable_list gradients(3);
    if (!links[0].defined()) return gradients;
    const at::Tensor gradient = task_of(ctx).end_backward();
    if (ctx->needs_input_grad(0)) gradients[0] = gradient;
    return gradients;
  }
};

struct RunTile : Function<RunTile> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& link, const at::Tensor& values,
                            const TileRows& tile, const TileTaskPtr& task) {
    will_accumulate(ctx, {&tile.weight});
    keep_task(ctx, task);
    ctx->saved_data["first"] = tile.first;
    ctx->saved_data["count"] = tile.count;
    const at::Tensor detached = values.detach();
    ctx->save_for_backward({detached});
    task->forward(tile, detached);
    return make_link(link);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& links) {
    variable_list gradients(4);
    if (!links[0].defined()) return gradients;
    const TileRows tile{*accumulations_of(ctx)[0], ctx->saved_data["first"].toInt(), ctx->saved_data["count"].toInt()};
    TileTask& task = task_of(ctx);
    task.backward(tile, ctx->get_saved_variables()[0], ctx->needs_input_grad(1));
    if (ctx->needs_input_grad(0)) {
      gradients[0] = make_link(links[0]);
    } else if (tile.first == 0) {
      task.end_backward();  // nothing before this tile has a backward
    }
    return gradients;
  }
};

/// First in backward.
struct EndTiles : Function<EndTiles> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*link*/, const at::Tensor& input,
                            const std::optional<at::Tensor>& /*b*/, const TileTaskPtr& task, Parameter* bias,
                            bool wants_input) {
    will_accumulate(ctx, {bias});
    keep_task(ctx, task);
    ctx->save_for_backward({input});
    ctx->saved_data["wants_input"] = wants_input;
    return task->result();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list gradients(6);
    if (!grads[0].defined()) return gradients;
    task_of(ctx).begin_backward(ctx->get_saved_variables()[0], grads[0], ctx->saved_data["wants_input"].toBool());
    if (ctx->needs_input_grad(0)) gradients[0] = make_link(grads[0]);
    Parameter* bias = accumulations_of(ctx)[0];
    if (bias == nullptr || !ctx->needs_input_grad(2)) return gradients;
    const at::Tensor dy = grads[0].detach().flatten(0, -2);
    bias->accumulate_grad_later([bias, dy] {
      bias->accumulate_grad([&](at::Tensor& sum, bool is_empty) {
        const at::Tensor own = dy.sum(at::IntArrayRef{0}, /*keepdim=*/false, sum.scalar_type());
        is_empty ? sum.copy_(own) : sum.add_(own);
      });
    });
    return gradients;
  }
};

/// y = x W^T + b by columns of y.
class LinearTask final : public TileTask {
 public:
  LinearTask(const at::Tensor& x, int64_t out, const std::optional<at::Tensor>& bias)
      : shape_(x.sizes().vec()), x_(matrix(x)), y_(at::empty({x_.size(0), out}, x_.options())) {
    if (bias) bias_ = bias->detach();
  }

  void forward(const TileRows& tile, const at::Tensor& values) override {
    const auto bias = bias_ ? std::optional(bias_->narrow(0, tile.first, tile.count)) : std::nullopt;
    y_.narrow(1, tile.first, tile.count).copy_(product(x_, values, ProductKind::forward, bias));
  }
  at::Tensor result() override {
    x_ = at::Tensor();
    bias_.reset();
    std::vector<int64_t> shape = shape_;
    shape.back() = y_.size(1);
    at::Tensor y = std::exchange(y_, at::Tensor()).view(shape);
    take_path("linear in tiles", y);
    return y;
  }
  void begin_backward(const at::Tensor& input, const at::Tensor& gradient, bool wants_input) override {
    x_ = matrix(input.detach());
    dy_ = gradient.detach().reshape({x_.size(0), gradient.size(-1)});
    if (wants_input) dx_ = at::empty(x_.sizes(), x_.options().dtype(compute_type(x_.scalar_type())));
    is_empty_ = true;
  }
  void backward(const TileRows& tile, const at::Tensor& values, bool is_trained) override {
    if (!dx_.defined() && !is_trained) return;
    const at::Tensor dy = dy_.narrow(1, tile.first, tile.count).contiguous();
    if (dx_.defined()) add_product(dx_, std::exchange(is_empty_, false), dy, values.t(), ProductKind::dx);
    if (!is_trained) return;
    Parameter& weight = tile.weight;
    weight.accumulate_grad_later([&weight, dy, x = x_] {
      weight.accumulate_grad([&](at::Tensor& sum, bool is_empty) {
        add_product(sum, is_empty, dy.t(), x.t(), ProductKind::dw, x.size(0));
      });
    });
  }
  at::Tensor end_backward() override {
    x_ = dy_ = at::Tensor();
    at::Tensor dx = std::exchange(dx_, at::Tensor());
    if (!dx.defined()) return dx;
    take_path("linear in tiles, gradient", dx);
    return dx.to(type_).view(shape_);
  }

 private:
  at::Tensor matrix(const at::Tensor& x) {
    type_ = x.scalar_type();
    return x.detach().reshape({-1, x.size(-1)});
  }

  std::vector<int64_t> shape_;
  at::ScalarType type_ = at::kFloat;
  at::Tensor x_;
  at::Tensor y_;
  std::optional<at::Tensor> bias_;
  at::Tensor dy_;
  at::Tensor dx_;  ///< a sum: fp32 or fp64
  bool is_empty_ = true;
};

}  // namespace

Parameter& TileSlot::slot_of(const std::string& name, const TileCut& cut) {
  if (cut.shared != nullptr) return share_parameter(*cut.shared);
  Parameter& parameter = register_parameter(name, cut.spec);
  parameter.set_tile_of(cut.whole);
  return parameter;
}

Tensors Tile::forward(Tensors inputs, const ForwardContext& /*context*/) {
  const TileTaskPtr task = std::move(task_);
  return {RunTile::apply(inputs.front(), rows_.weight.compute(), rows_, task)};
}

void Tiles::set(std::unique_ptr<Parameter> whole, bool follows_trained) {
  whole_ = std::move(whole);
  follows_trained_ = follows_trained;
}

at::Tensor Tiles::run(const at::Tensor& input, const TileTaskPtr& task, const ForwardContext& context,
                      Parameter* bias) const {
  if (context.layouts != nullptr) {
    throw UsageError(
        {"tiling", tiles_.front()->name(), "a plan is applied to a model in tiles", "", "apply it before add_tiling"});
  }
  // Schedules expect a backward of every unit after the first that is trained.
  std::optional<at::Tensor> anchor;
  if (follows_trained_ && at::GradMode::is_enabled()) anchor = at::empty({0}, at::kFloat).requires_grad_();
  at::Tensor link = BeginTiles::apply(input, anchor, task);
  for (Tile* tile : tiles_) {
    tile->task_ = task;
    link = tile->run({link}, context).front();
  }
  const auto b = bias != nullptr ? std::optional(bias->compute()) : std::nullopt;
  return EndTiles::apply(link, input.detach(), b, task, bias, input.requires_grad());
}

at::Tensor linear(const at::Tensor& x, const Tiles& tiles, Parameter* bias, const std::string& weight,
                  const ForwardContext& context) {
  const at::Tensor& w = tiles.example().compute();
  if (x.dim() < 1 || x.size(-1) != w.size(1) || x.scalar_type() != w.scalar_type()) {
    throw ShapeError({"linear", weight,
                      fmt::format("x [{}] {} and tiles [.., {}] {}", join(x.sizes()), c10::toString(x.scalar_type()),
                                  w.size(1), c10::toString(w.scalar_type())),
                      "", "use the same width and dtype for both"});
  }
  const auto b = bias != nullptr ? std::optional(bias->compute()) : std::nullopt;
  return tiles.run(x, c10::make_intrusive<LinearTask>(x, tiles.num_rows(), b), context, bias);
}

}  // namespace caravan
