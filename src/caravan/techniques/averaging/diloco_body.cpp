#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/trace.h"
#include "caravan/comm/tensor.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {
namespace {

constexpr const char* kMomentum = "stepper.outer_momentum.";

/// Leaves the gradient of a replica unchanged. Outside of rounds of local steps it is all-reduced, as in ddp.
class ReplicaGradients final : public CommHook {
 public:
  std::string name() const override { return "diloco"; }
  void reduce(const GradientRange& range, TransferStages& stages) override {
    if (is_apart) return;
    stages.add([range, this] {
      return all_reduce_async(range.axis.comm(), range.values, range.values, ReduceOp::sum, name());
    });
  }
  bool is_apart = false;
};

struct Outer {
  double lr = 1;
  double momentum = 0;
};

/// Rounds of local steps. Every replica begins a round with the same parameters, the anchor, and takes each step with
/// the gradient of its own rows, its norm, and its own optimizer moments. Then the mean movement of the replicas is the
/// gradient of an outer step of SGD with Nesterov momentum, from the anchor:
///
///   d = mean(anchor - w); v = momentum v + d; w = anchor - lr (d + momentum v)
///
/// Sends 2(n-1)/n x (bytes of the fp32 parameters) a round, and nothing between replicas in it. Memory: 8 bytes a
/// parameter in addition to ddp's, 4 without momentum. A stop request is answered at the end of the round.
class DilocoStepper final : public Stepper, private StateOwner {
 public:
  DilocoStepper(const StepperInputs& inputs, const Outer& outer)
      : Stepper(inputs),
        outer_(outer),
        train_step_(inputs.engine, inputs.optimizer, apart(inputs)),
        gradients_(dynamic_cast<ReplicaGradients&>(*inputs.engine.strategy().hook)) {}

  StateOwner* state() override { return this; }
  bool fails_together() const override { return false; }
  int64_t enough_steps() const override { return 2; }
  StepReport advance(int64_t end, const BatchOf& batch_of, const StopRequested& stop_requested) override;

 private:
  static TrainStep::Options apart(const StepperInputs& inputs) {
    TrainStep::Options options = inputs.options;
    options.apart = inputs.engine.strategy().apart_axis;
    return options;
  }

  void walk(const Visit& visit) override;
  void walk_saved(const Saved& saved, const Visit& visit) override;
  template <class F>
  void for_each_part(const F& f);
  int64_t trained_count() const { return in_.engine.state().layout.trained_count(); }
  void make_momentum() {
    const MemoryKindScope kind(MemoryKind::optimizer);
    momentum_ = at::zeros({trained_count()}, in_.engine.state().values.options());
  }
  void agree();

  Outer outer_;
  TrainStep train_step_;
  ReplicaGradients& gradients_;
  at::Tensor anchor_;    ///< undefined until the first round
  at::Tensor momentum_;  ///< undefined until the first outer step with momentum
};

StepReport DilocoStepper::advance(int64_t end, const BatchOf& batch_of, const StopRequested& stop_requested) {
  const int64_t first = step(), last = next_boundary(end);
  if (!anchor_.defined()) {
    const MemoryKindScope kind(MemoryKind::optimizer);
    anchor_ = at::empty({trained_count()}, in_.engine.state().values.options());
  }
  for_each_part([](const at::Tensor& values, const at::Tensor& anchor, const at::Tensor&) { anchor.copy_(values); });
  double loss = 0, norm = 0;
  bool wants_stop = false;
  gradients_.is_apart = true;
  for (; step_ < last; ++step_) {
    const StepResult result = train_step_.run(on_its_own(batch_of(step_)), step_, in_.learning_rate.at(step_), false);
    loss += result.loss;
    norm += result.grad_norm;
    wants_stop = wants_stop || (stop_requested && stop_requested());
  }
  gradients_.is_apart = false;
  agree();
  const Mesh& mesh = in_.engine.mesh();
  const at::Tensor sums = at::tensor({loss, norm, wants_stop ? 1.0 : 0.0}, at::kDouble);
  all_reduce_async(mesh.world(), sums, sums, ReduceOp::sum, "loss").wait();
  const auto* all = sums.const_data_ptr<double>();
  const auto steps = static_cast<double>((last - first) * mesh.size());
  return {.loss = all[0] / steps,
          .grad_norm = all[1] / steps,
          .rows = (last - first) * in_.global_rows,
          .total_rows = last * in_.global_rows,
          .own_steps = last - first,
          .stop = all[2] > 0};
}

/// Calls f(values, anchor, momentum) for contiguous parts of the trained parameters, each at most a bucket.
template <class F>
void DilocoStepper::for_each_part(const F& f) {
  const at::NoGradGuard no_grad;
  const FlatState& state = in_.engine.state();
  const int64_t most = std::max<int64_t>(in_.engine.strategy().bucket_bytes / 4, 1);
  for (const FlatMemory::Piece& piece : state.values.pieces()) {
    const int64_t count = std::min(piece.memory.numel(), trained_count() - piece.offset);
    for (int64_t begin = 0; begin < count; begin += most) {
      const int64_t part = std::min(most, count - begin);
      const auto of = [&](const at::Tensor& flat) { return flat.narrow(0, piece.offset + begin, part); };
      f(piece.memory.narrow(0, begin, part), of(anchor_), momentum_.defined() ? of(momentum_) : at::Tensor());
    }
  }
}

void DilocoStepper::agree() {
  const TraceSpan span(TraceLog::kCompute, "outer step");
  const MeshAxis& axis = in_.engine.mesh()[in_.engine.strategy().apart_axis];
  if (outer_.momentum > 0 && !momentum_.defined()) make_momentum();
  TransferQueue queue;
  for_each_part([&](const at::Tensor& values, const at::Tensor& anchor, const at::Tensor& momentum) {
    TransferStages stages;
    stages.add([&axis, values, anchor] {
      values.neg_().add_(anchor);
      return all_reduce_async(axis.comm(), values, values, ReduceOp::sum, "parameters of replicas");
    });
    stages.add_local([this, &axis, values, anchor, momentum] {
      values.div_(axis.size());
      if (momentum.defined()) {
        momentum.mul_(outer_.momentum).add_(values);
        values.add_(momentum, outer_.momentum);
      }
      values.mul_(-outer_.lr).add_(anchor);
    });
    queue.add(std::move(stages));
  });
  queue.wait_all();
  in_.engine.state().bump_version();
}

void DilocoStepper::walk(const Visit& visit) {
  if (!momentum_.defined()) return;
  const FlatLayout& layout = in_.engine.state().layout;
  for (const Slot& slot : layout.slots()) {
    if (!slot.parameter->requires_grad()) continue;
    visit({.kind = StatePiece::Kind::moment,
           .name = kMomentum + slot.parameter->whole_name(),
           .tensor = layout.view(momentum_, *slot.parameter),
           .parameter = slot.parameter});
  }
}

void DilocoStepper::walk_saved(const Saved& saved, const Visit& visit) {
  const auto is_momentum = [](const auto& tensor) { return tensor.first.starts_with(kMomentum); };
  if (outer_.momentum == 0 || momentum_.defined() || std::ranges::none_of(saved, is_momentum)) return;
  make_momentum();
  walk(visit);
}

}  // namespace

TechniqueBody diloco_body() {
  return {.apply =
              [](const Arranging& to, const Setting&) {
                add_ddp(to.strategy, to.mesh,
                        with_dtypes(DdpOptions{.hook = std::make_shared<ReplicaGradients>()}, to.dtypes));
                to.strategy.name = "diloco";
                to.strategy.apart_axis = to.strategy.hook_axis;
              },
          .make_stepper = [](StepperInputs inputs, const Setting& setting,
                             std::chrono::milliseconds) -> std::unique_ptr<Stepper> {
            inputs.steps_at_once = setting.whole("local_steps");
            return std::make_unique<DilocoStepper>(
                inputs, Outer{.lr = setting.real("outer_lr"), .momentum = setting.real("outer_momentum")});
          }};
}

}  // namespace caravan
