#include "caravan/techniques/context/ring_attention.h"

#include <array>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/module/plan/layout_table.h"
#include "caravan/nn/attention/attention.h"
#include "caravan/nn/attention/fused_attention.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/context/ring_turn.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Keys and values, or their gradients.
using Pair = std::array<at::Tensor, 2>;
constexpr std::array<const char*, 2> kOfPair{"keys", "values"};
using Transfers = std::vector<Work>;

void wait(Transfers& transfers) {
  for (Work& transfer : transfers) transfer.wait();
  transfers.clear();
}

/// Executes the schedule of a rank. A rank without tokens to compute with sends the same messages.
class RingPass {
 public:
  RingPass(const RingCall& call, at::Tensor q, const Pair& keys, at::Tensor bias)
      : call_(call), q_(std::move(q)), bias_(std::move(bias)), block_(keys) {}

  AttentionBlock forward() {
    for (const RingStep& step : steps(false)) run(step, [&] { attend(step.turn); });
    return std::move(all_);
  }

  struct Gradients {
    at::Tensor q;
    Pair keys;
    at::Tensor bias;
  };
  /// `all` is the result of forward, `gradient` that of its `out`.
  Gradients backward(const AttentionBlock& all, const at::Tensor& gradient) {
    all_ = all;
    gradient_ = gradient;
    for (const RingStep& step : steps(true)) run(step, [&] { differentiate(step.turn); });
    return {std::move(of_q_), std::move(sum_), std::move(of_bias_)};
  }

 private:
  int size() const { return call_.ring.axis.size(); }
  bool overlaps() const { return call_.ring.axis.deferred().overlaps(); }
  std::vector<RingStep> steps(bool is_backward) const { return call_.ring.schedule(size(), is_backward, overlaps()); }
  bool computes() const { return q_.numel() > 0; }

  template <class Compute>
  void run(const RingStep& step, const Compute& compute) {
    switch (step.kind) {
      case RingStep::Kind::send_keys: return send(block_, keys_, "", step.turn);
      case RingStep::Kind::recv_keys: return recv_keys(step.turn);
      case RingStep::Kind::wait_keys: return wait_keys();
      case RingStep::Kind::compute: return compute();
      case RingStep::Kind::add: return add(step.turn);
      case RingStep::Kind::send_sums: return send(sum_, sums_, "gradient of ", step.turn);
      case RingStep::Kind::recv_sums: return recv_sums(step.turn);
      case RingStep::Kind::wait_sums: return wait_sums(step.turn);
    }
  }

  /// "gradient of keys, turn 2, blocks.0.attention.core", the same for the sender and the receiver of a message.
  std::string label(const char* kind, size_t i, int turn) const {
    return fmt::format("{}{}, turn {}, {}", kind, kOfPair[i], turn, call_.what);
  }
  void send(const Pair& pair, Transfers& transfers, const char* kind, int turn) const {
    const int next = (call_.ring.axis.coord() + 1) % size();
    for (size_t i = 0; i < pair.size(); ++i)
      transfers.push_back(send_async(call_.ring.axis.comm(), pair[i], next, label(kind, i, turn)));
  }
  void recv(const Pair& pair, Transfers& transfers, const char* kind, int turn) const {
    const int before = (call_.ring.axis.coord() + size() - 1) % size();
    for (size_t i = 0; i < pair.size(); ++i)
      transfers.push_back(recv_async(call_.ring.axis.comm(), pair[i], before, label(kind, i, turn)));
  }

  void recv_keys(int turn) {
    // Nothing reads the keys of the previous turn any more, unless they are the rank's own.
    if (!spare_[0].defined()) spare_ = {at::empty_like(block_[0]), at::empty_like(block_[1])};
    recv(spare_, keys_, "", turn);
  }

  void wait_keys() {
    wait(keys_);
    std::swap(block_, spare_);
    if (is_own_) spare_ = {};
    is_own_ = false;
  }

  void attend(int turn) {
    if (!computes()) return;
    const RingTurn now(call_, turn, q_.size(1));
    if (now.sees_nothing()) return;
    const AttentionBlock block =
        attend_to_block(now.queries(q_), now.keys(block_[0]), now.keys(block_[1]), now.seen(), now.scores(bias_));
    if (turn == 0) {  // every query sees its own key
      all_ = block;
    } else {
      now.queries(all_).merge(block);
    }
  }

  void differentiate(int turn) {
    own_ = {};
    if (turn == 0) {
      of_q_ = at::zeros(q_.sizes(), gradient_type());
      if (bias_.defined() && bias_.requires_grad()) of_bias_ = at::zeros(bias_.sizes(), gradient_type());
    }
    if (!computes()) return;
    const RingTurn now(call_, turn, q_.size(1));
    if (now.sees_nothing()) return;
    const BlockGradients block = block_gradients(now.queries(gradient_), now.queries(q_), now.keys(block_[0]),
                                                 now.keys(block_[1]), now.queries(all_), now.seen(), now.scores(bias_));
    now.queries(of_q_).add_(block.q);
    if (block.bias.defined()) of_bias_.add_(block.bias);
    own_ = {block.k, block.v};
  }

  at::TensorOptions gradient_type() const {
    return q_.options().dtype(q_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }
  Pair empty_gradients() const {
    return {at::empty(block_[0].sizes(), gradient_type()), at::empty(block_[1].sizes(), gradient_type())};
  }

  /// In turn 0 the keys are the rank's own, and their gradients start the sum.
  void add(int turn) {
    if (turn == 0) {
      sum_ = own_[0].defined() ? own_ : empty_gradients();
      if (!own_[0].defined())
        for (const at::Tensor& x : sum_) x.zero_();
      return;
    }
    for (size_t i = 0; i < own_.size(); ++i) {
      if (own_[i].defined()) sum_[i].narrow(1, 0, own_[i].size(1)).add_(own_[i]);
    }
  }

  void recv_sums(int turn) {
    coming_ = spare_sum_[0].defined() ? std::exchange(spare_sum_, {}) : empty_gradients();
    recv(coming_, sums_, "gradient of ", turn);
  }

  void wait_sums(int turn) {
    // Weight gradients that nothing waits for are computed while the last sum is in flight.
    if (turn == size() && overlaps()) call_.ring.axis.deferred().run_all();
    wait(sums_);
    spare_sum_ = std::exchange(sum_, std::exchange(coming_, {}));
  }

  const RingCall& call_;
  at::Tensor q_;
  at::Tensor bias_;     ///< of the scores, or undefined
  Pair block_;          ///< keys and values of this turn
  Pair spare_{};        ///< receives those of the next turn
  bool is_own_ = true;  ///< block_ is the caller's
  AttentionBlock all_{};
  at::Tensor gradient_;  ///< of the result
  at::Tensor of_q_, of_bias_;
  Pair own_{};        ///< gradients of the keys and values of this turn by this rank; undefined: none
  Pair sum_{};        ///< with those by the ranks before
  Pair coming_{};     ///< the sum being received
  Pair spare_sum_{};  ///< memory of an earlier sum
  Transfers keys_, sums_;
};

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& bias, const c10::intrusive_ptr<RingCall>& call) {
    const Pair keys{k.contiguous(), v.contiguous()};
    const at::Tensor of_scores = bias.value_or(at::Tensor());
    const AttentionBlock all = RingPass(*call, q, keys, of_scores).forward();
    const at::Tensor out = all.out.defined() ? all.out.to(q.scalar_type()) : at::zeros(q.sizes(), q.options());
    ctx->save_for_backward({q, keys[0], keys[1], out, all.log_sum_exp, of_scores});
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto holder = ctx->saved_data["call"].toCapsule();
    const at::Tensor& q = saved[0];
    RingPass pass(static_cast<const RingCall&>(*holder), q, {saved[1], saved[2]}, saved[5]);
    const auto [of_q, of_keys, of_bias] = pass.backward({saved[3], saved[4]}, grads[0].contiguous());
    const auto rounded = [&](const at::Tensor& x) { return x.to(q.scalar_type()); };
    return {rounded(of_q), rounded(of_keys[0]), rounded(of_keys[1]), of_bias, {}};
  }
};

/// Lays out q, k and v alike, with the sequence split over this axis alone; the result as q.
Tensors lay_out(const Tensors& inputs, const MeshAxis& axis, const ForwardContext& context, const std::string& what) {
  static const OpType kType{"bsnw,bsnw,bsnw->bsnw", "w", {{2}}};
  const std::vector<std::string> sharding = context.layouts->of(inputs[0], what).sharding(1);
  if (sharding != std::vector<std::string>{axis.name()}) {
    throw LayoutError({"ring attention", what,
                       fmt::format("the sequence is laid out as {}", context.layouts->of(inputs[0], what).to_string()),
                       context.layouts->origin(inputs[0]),
                       "split it over " + axis.name() + " alone: S(1) there, and on no other axis"});
  }
  at::Tensor out = at::empty_like(inputs[0]);
  context.layouts->infer(kType, out, {inputs[0], inputs[1], inputs[2]}, what);
  return {out};
}

/// The order of all tokens, of which this rank has `local`. Checks that they are its own.
DimIndex checked_order(const RingOrder& of, const ForwardContext& context, const MeshAxis& axis, int64_t local,
                       const std::string& what) {
  const int64_t length = local * axis.size();
  DimIndex order = of.tokens(length, axis.size());
  if (context[Dim::sequence] == order.slice(axis.coord() * local, local, length)) return order;
  throw UsageError({"ring attention", what, "the tokens here are not this rank's part of the order", axis.where(),
                    "permute ids, labels, positions and documents as " + of.name + " says, before they are cut"});
}

/// The whole of `x`, cut on dim 1, on every rank, in the order of the text.
at::Tensor gathered(const at::Tensor& x, const MeshAxis& axis, const Placement& to, const at::Tensor& home,
                    const std::string& what) {
  return redistribute(x, Layout{{axis.name(), Shard{1}}}, axis, to, what).index_select(1, home);
}

/// Runs the core with all keys and values, since the ring draws no random numbers.
Tensors attend_with_dropout(const Tensors& inputs, const MeshAxis& axis, const ForwardContext& context,
                            const DimIndex& order, const Next& next, const std::string& what) {
  const int64_t local = inputs[0].size(1);
  const at::Tensor slots = order.indices(local * axis.size()).to(inputs[0].device());
  const at::Tensor home = slots.argsort();
  ForwardContext here = context;
  if (context.documents.defined()) here.documents = gathered(context.documents, axis, Invariant{}, home, what);
  return next(
      {inputs[0], gathered(inputs[1], axis, Replicate{}, home, what + ", keys"),
       gathered(inputs[2], axis, Replicate{}, home, what + ", values"), slots.narrow(0, axis.coord() * local, local)},
      here);
}

Tensors attend(const Ring& ring, const ScoresOfCore& scores_of, Module& module, Tensors inputs,
               const ForwardContext& context, const Next& next) {
  const MeshAxis& axis = ring.axis;
  const std::string& what = module.name();
  if (context.phase == Phase::generate) return next(std::move(inputs), context);
  if (context.layouts != nullptr) return lay_out(inputs, axis, context, what);
  if (axis.size() == 1) return next(std::move(inputs), context);
  const int64_t local = inputs.at(0).size(1);
  const DimIndex order = checked_order(ring.order, context, axis, local, what);
  const auto* core = dynamic_cast<const AttentionCore*>(&module);
  if (core != nullptr && core->drops(context)) return attend_with_dropout(inputs, axis, context, order, next, what);
  const auto call = c10::make_intrusive<RingCall>(ring, what);
  const CoreScores of_core = scores_of(module, inputs, local * axis.size(), context);
  call->window = of_core.window;
  call->scores.scale = of_core.scores.scale;
  call->scores.soft_cap = of_core.scores.soft_cap;
  call->scores.zero = of_core.scores.zero;
  const auto bias = of_core.scores.bias.defined() ? std::optional(of_core.scores.bias) : std::nullopt;
  if (bias.has_value() || call->window > 0) call->positions = order.indices(local * axis.size());
  if (context.documents.defined()) {
    call->documents =
        redistribute(context.documents, Layout{{axis.name(), Shard{1}}}, axis, Invariant{}, what + ", documents");
  }
  return {RingAttention::apply(inputs[0], inputs[1], inputs[2], bias, call)};
}

}  // namespace

CoreScores scores_of_core(const Module& core, const Tensors& inputs, int64_t keys, const ForwardContext& context) {
  const auto* attention = dynamic_cast<const AttentionCore*>(&core);
  if (attention == nullptr) return {};
  const at::Tensor& q = inputs.front();
  return {attention->scores(q.size(2), keys, context, q.options()), attention->options().window};
}

Around ring_attention(const MeshAxis& axis, RingSchedule schedule, const RingOrder& order, ScoresOfCore scores) {
  return [ring = Ring{axis, std::move(schedule), order}, scores = std::move(scores)](
             Module& module, Tensors inputs, const ForwardContext& context, const Next& next) {
    return attend(ring, scores, module, std::move(inputs), context, next);
  };
}

}  // namespace caravan
