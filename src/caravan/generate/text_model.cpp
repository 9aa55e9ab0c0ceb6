#include "caravan/generate/text_model.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ops/empty.h>

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

using Part = TextModel::Part;

/// Around the head: it computes what is asked for.
Around at_head(const std::shared_ptr<Part>& part) {
  return [part](Module& head, Tensors inputs, const ForwardContext& context, const Next& next) -> Tensors {
    if (*part == Part::states) return {dynamic_cast<Head&>(head).states(inputs.front(), context)};
    if (*part == Part::last) inputs.front() = inputs.front().narrow(1, inputs.front().size(1) - 1, 1);
    return next(std::move(inputs), context);
  };
}

/// From the first rank that has it.
at::Tensor shared(const at::Tensor& own, Communicator& world) {
  std::array<int64_t, 4> about{own.defined() ? -world.rank() : std::numeric_limits<int64_t>::min(), 0, 0, 0};
  Buffer buffer{about.data(), 1, Dtype::int64};
  world.all_reduce(buffer, buffer, ReduceOp::max, "output of the model");
  const auto root = static_cast<int>(-about[0]);
  if (own.defined()) about = {about[0], own.size(0), own.size(1), 0};
  buffer = {about.data(), static_cast<int64_t>(about.size()), Dtype::int64};
  world.broadcast(buffer, root, "output of the model");
  at::Tensor all = world.rank() == root ? own.contiguous() : at::empty({about[1], about[2]}, at::kFloat);
  world.broadcast({all.mutable_data_ptr(), all.numel(), Dtype::fp32}, root, "output of the model");
  return all;
}

}  // namespace

TextModel::TextModel(Model& of)
    : model(of),
      logits([&of](const at::Tensor& ids, const ForwardContext& context) { return of.run({ids}, context).front(); }),
      agree([](const Choice& own) { return own; }),
      share_([](const at::Tensor& own) { return own; }),
      part_(std::make_shared<Part>(Part::last)),
      at_head_(std::make_shared<Hook>(of.blocks().back()->add_hook(at_head(part_)))) {}

TextModel::TextModel(Engine& engine) : TextModel(model_of(engine)) {
  evaluation_ = std::make_shared<EvaluationScope>(engine);
  const auto runner = std::make_shared<StageRunner>(engine);
  const auto& plan = engine.strategy().plan;
  logits = [runner, rows = plan == nullptr ? 1 : plan->num_row_parts()](const at::Tensor& ids,
                                                                        const ForwardContext& context) {
    const at::Tensor all = runner->evaluate({.ids = ids.expand({rows, -1}), .labels = {}, .context = context});
    return all.defined() ? all.narrow(0, 0, 1) : all;
  };
  share_ = [&engine](const at::Tensor& own) { return shared(own, engine.mesh().world()); };
  agree = [&engine](const Choice& own) {
    // The bits of a negative double, as a negative integer: the larger number is the larger logarithm.
    std::array<int64_t, 3> numbers{own.token, own.stops ? 1 : 0,
                                   -std::bit_cast<int64_t>(std::abs(own.log_probability))};
    const Buffer buffer{numbers.data(), static_cast<int64_t>(numbers.size()), Dtype::int64};
    engine.mesh().world().all_reduce(buffer, buffer, ReduceOp::max, "sampled token");
    return Choice{numbers[0], numbers[1] != 0, -std::bit_cast<double>(-numbers[2])};
  };
}

at::Tensor TextModel::output(const at::Tensor& ids, const ForwardContext& context, Part part) const {
  struct Scope {
    explicit Scope(Part& part_, Part now) : part(part_) { part = now; }
    ~Scope() { part = Part::last; }
    Part& part;
  };
  const Scope scope(*part_, part);
  at::Tensor own = logits(ids, context);
  if (own.defined()) own = own.select(0, 0).to(at::kFloat).to(at::kCPU);
  return share_(own);
}

}  // namespace caravan
