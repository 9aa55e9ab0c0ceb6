#include "caravan/generate/text_model.h"

#include <array>
#include <bit>
#include <cmath>

#include "caravan/base/error.h"
#include "caravan/engine/stages/stage_runner.h"

namespace caravan {
namespace {

Model& model_of(Engine& engine) {
  auto* model = dynamic_cast<Model*>(&engine.model());
  if (model == nullptr) {
    throw UsageError({"generate", "", "the engine runs a model that is not a language model of this library", "", ""});
  }
  return *model;
}

/// The head computes only the last position.
Tensors at_last_position(Module& /*head*/, Tensors inputs, const ForwardContext& context, const Next& next) {
  inputs.front() = inputs.front().narrow(1, inputs.front().size(1) - 1, 1);
  return next(std::move(inputs), context);
}

}  // namespace

TextModel::TextModel(Model& of)
    : model(of),
      logits([&of](const at::Tensor& ids, const ForwardContext& context) { return of.run({ids}, context).front(); }),
      agree([](const Choice& own) { return own; }),
      last_position_(std::make_shared<Hook>(of.blocks().back()->add_hook(at_last_position))) {}

TextModel::TextModel(Engine& engine) : TextModel(model_of(engine)) {
  evaluation_ = std::make_shared<EvaluationScope>(engine);
  const auto runner = std::make_shared<StageRunner>(engine);
  const auto& plan = engine.strategy().plan;
  logits = [runner, rows = plan == nullptr ? 1 : plan->num_row_parts()](const at::Tensor& ids,
                                                                        const ForwardContext& context) {
    const at::Tensor all = runner->evaluate({.ids = ids.expand({rows, -1}), .labels = {}, .context = context});
    return all.defined() ? all.narrow(0, 0, 1) : all;
  };
  agree = [&engine](const Choice& own) {
    // The bits of a negative double, as a negative integer: the larger number is the larger logarithm.
    std::array<int64_t, 3> numbers{own.token, own.stops ? 1 : 0,
                                   -std::bit_cast<int64_t>(std::abs(own.log_probability))};
    const Buffer buffer{numbers.data(), static_cast<int64_t>(numbers.size()), Dtype::int64};
    engine.mesh().world().all_reduce(buffer, buffer, ReduceOp::max, "sampled token");
    return Choice{numbers[0], numbers[1] != 0, -std::bit_cast<double>(-numbers[2])};
  };
}

}  // namespace caravan
