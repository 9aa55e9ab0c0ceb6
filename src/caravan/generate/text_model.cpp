#include "caravan/generate/text_model.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/nn/product/few_rows_product.h"

namespace caravan {
namespace {

Model& model_of(Engine& engine) {
  auto* model = dynamic_cast<Model*>(&engine.model());
  if (model == nullptr) {
    throw UsageError({"generate", "", "the engine runs a model that is not a language model of this library", "", ""});
  }
  return *model;
}

using Part = TextModel::Part;

/// The wanted positions of states [texts, positions, width].
at::Tensor last_of(const at::Tensor& states, const TextModel::Wanted& wanted) {
  if (wanted.ends.empty()) return states.narrow(1, states.size(1) - wanted.last, wanted.last);
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < states.size(0); ++row) {
    const int64_t end = wanted.ends[static_cast<size_t>(row) % wanted.ends.size()];
    rows.push_back(states.select(0, row).narrow(0, end - wanted.last, wanted.last));
  }
  return at::stack(rows);
}

/// Around the head: it computes what is asked for.
Around at_head(const std::shared_ptr<TextModel::Wanted>& wanted) {
  return [wanted](Module& head, Tensors inputs, const ForwardContext& context, const Next& next) -> Tensors {
    if (wanted->part == Part::states) return {dynamic_cast<Head&>(head).states(inputs.front(), context)};
    if (wanted->part != Part::last) return next(std::move(inputs), context);
    inputs.front() = last_of(inputs.front(), *wanted);
    const EachRowAlone alone;
    return next(std::move(inputs), context);
  };
}

/// From the first rank that has it.
at::Tensor shared(const at::Tensor& own, Communicator& world) {
  std::array<int64_t, 3> about{std::numeric_limits<int64_t>::min(), 0, 0};  // rank and sizes
  if (own.defined()) about = {-world.rank(), own.size(0), own.size(1)};
  take_maxima(world, about, "output of the model");
  const auto root = static_cast<int>(-about[0]);
  at::Tensor all = world.rank() == root ? own.contiguous() : at::empty({about[1], about[2]}, at::kFloat);
  world.broadcast({all.mutable_data_ptr(), all.numel(), Dtype::fp32}, root, "output of the model");
  return all;
}

}  // namespace

TextModel::TextModel(Model& of, ShouldStop should_stop)
    : model(of),
      agree([](std::vector<Choice> own) { return own; }),
      run_([&of](const at::Tensor& ids, const ForwardContext& context) { return of.run({ids}, context).front(); }),
      should_stop_(std::move(should_stop)),
      share_([](const at::Tensor& own) { return own; }),
      wanted_(std::make_shared<Wanted>()),
      at_head_(std::make_shared<Hook>(of.blocks().back()->add_hook(at_head(wanted_)))) {}

TextModel::TextModel(Engine& engine, ShouldStop should_stop) : TextModel(model_of(engine)) {
  if (should_stop) {
    should_stop_ = [&engine, own = std::move(should_stop)] {
      int64_t stops = own() ? 1 : 0;
      take_maxima(engine.mesh().world(), {&stops, 1}, "stop");
      return stops != 0;
    };
  }
  evaluation_ = std::make_shared<EvaluationScope>(engine);
  const auto runner = std::make_shared<StageRunner>(engine);
  const auto& plan = engine.strategy().plan;
  // Ranks that would divide the rows have all of them.
  run_ = [runner, parts = plan == nullptr ? 1 : plan->num_row_parts()](const at::Tensor& ids, ForwardContext context) {
    if (context.positions.dim() == 2) context.positions = context.positions.repeat({parts, 1});
    const at::Tensor all = runner->evaluate({.ids = ids.repeat({parts, 1}), .labels = {}, .context = context});
    return all.defined() ? all.narrow(0, 0, ids.size(0)) : all;
  };
  share_ = [&engine](const at::Tensor& own) { return shared(own, engine.mesh().world()); };
  agree = [&engine](std::vector<Choice> own) {
    // The bits of a negative double, as a negative integer: the larger number is the larger logarithm.
    std::vector<int64_t> numbers;
    for (const Choice& one : own) {
      numbers.insert(numbers.end(),
                     {one.token, one.stops ? 1 : 0, -std::bit_cast<int64_t>(std::abs(one.log_probability))});
    }
    const Buffer buffer{numbers.data(), static_cast<int64_t>(numbers.size()), Dtype::int64};
    engine.mesh().world().all_reduce(buffer, buffer, ReduceOp::max, "sampled token");
    for (size_t i = 0; i < own.size(); ++i) {
      own[i] = {numbers[3 * i], numbers[3 * i + 1] != 0, -std::bit_cast<double>(-numbers[3 * i + 2])};
    }
    return own;
  };
}

at::Tensor TextModel::run(const at::Tensor& ids, const ForwardContext& context) const {
  if (should_stop_ && should_stop_()) throw Interrupted({"generate", "", "stopped on request", "", ""});
  return run_(ids, context);
}

at::Tensor TextModel::output(const at::Tensor& ids, const ForwardContext& context, Part part) const {
  *wanted_ = {part, 0};
  at::Tensor own = run(ids, context);
  if (own.defined()) own = own.select(0, 0).to(at::kFloat).to(at::kCPU);
  return share_(own);
}

at::Tensor TextModel::logits(const at::Tensor& ids, const ForwardContext& context, int64_t last,
                             std::vector<int64_t> ends) const {
  *wanted_ = {Part::last, last, std::move(ends)};
  return run(ids, context);
}

}  // namespace caravan
