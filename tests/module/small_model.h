#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "caravan/module/module.h"
#include "caravan/module/plan/layout_table.h"

namespace caravan::testing {

/// A small model of typed layers, for tests of plans: residual blocks with an MLP, whose random factors depend on
/// global index and position.

inline constexpr int64_t kBatch = 2;
inline constexpr int64_t kSequence = 4;
inline constexpr int64_t kWidth = 8;
inline constexpr int64_t kHidden = 12;
inline constexpr int64_t kVocabulary = 6;

inline void record(const ForwardContext& context, const OpType& op, const at::Tensor& result,
                   std::initializer_list<LayoutTable::Operand> operands, const std::string& what) {
  if (context.layouts != nullptr) context.layouts->infer(op, result, operands, what);
}

class Lookup final : public Layer {
 public:
  Lookup() : weight_(register_parameter("weight", {.shape = {kVocabulary, kWidth}, .init = {Init::Kind::normal, 1}})) {}

 protected:
  at::Tensor forward(const at::Tensor& ids, const ForwardContext& context) override {
    const at::Tensor& weight = weight_.compute();
    at::Tensor rows =
        ids.is_meta() ? at::empty({ids.size(0), ids.size(1), kWidth}, weight.options()) : at::embedding(weight, ids);
    record(context, {"bs,vf->bsf", "v", {{1}}}, rows, {ids, weight_}, name());
    return rows;
  }

 private:
  Parameter& weight_;
};

class TypedLinear final : public Layer {
 public:
  TypedLinear(int64_t in, int64_t out)
      : weight_(register_parameter("weight", {.shape = {out, in}, .init = {Init::Kind::normal, 0.4}})),
        bias_(register_parameter("bias", {.shape = {out}, .init = {Init::Kind::normal, 0.4}})) {}

 protected:
  at::Tensor forward(const at::Tensor& x, const ForwardContext& context) override {
    const at::Tensor product = at::matmul(x, weight_.compute().t());
    record(context, {"bsk,nk->bsn", "", {{0, 1}}}, product, {x, weight_}, name());
    at::Tensor sum = product + bias_.compute();
    record(context, {"bsn,n->bsn", "", {{0}, {1}}}, sum, {product, bias_}, name());
    return sum;
  }

 private:
  Parameter& weight_;
  Parameter& bias_;
};

/// x * w, as in a norm.
class Scale final : public Layer {
 public:
  Scale() : weight_(register_parameter("weight", {.shape = {kWidth}, .init = {Init::Kind::normal, 1}})) {}

 protected:
  at::Tensor forward(const at::Tensor& x, const ForwardContext& context) override {
    at::Tensor y = x * weight_.compute();
    record(context, {"bsf,f->bsf", "", {{0, 1}}}, y, {x, weight_}, name());
    return y;
  }

 private:
  Parameter& weight_;
};

/// x times a factor that depends on the global index and the position of each element, like dropout and RoPE.
class Noise final : public Layer {
 protected:
  at::Tensor forward(const at::Tensor& x, const ForwardContext& context) override {
    const at::Tensor batch = indices(context[Dim::batch], x.size(0)).view({-1, 1, 1});
    const at::Tensor sequence = indices(context[Dim::sequence], x.size(1)).view({1, -1, 1});
    const at::Tensor feature = indices(context[Dim::feature], x.size(2)).view({1, 1, -1});
    const at::Tensor positions = context.positions.defined() ? context.positions : at::arange(x.size(1));
    const at::Tensor factor = (batch * 7 + sequence * 3 + feature).cos() + 2;
    at::Tensor y = x.is_meta() ? at::empty_like(x) : x * factor * (positions.unsqueeze(-1) + 1);
    record(context, {"bsf->bsf", "", {{0}}}, y, {x}, name());
    return y;
  }

 private:
  static at::Tensor indices(const DimIndex& index, int64_t local) {
    std::vector<at::Tensor> runs;
    for (const auto& [first, count] : index.runs(local)) runs.push_back(at::arange(first, first + count, at::kDouble));
    return at::cat(runs);
  }
};

class SmallMlp final : public Layer {
 public:
  SmallMlp()
      : up_(register_module<TypedLinear>("up", kWidth, kHidden)),
        noise_(register_module<Noise>("noise")),
        down_(register_module<TypedLinear>("down", kHidden, kWidth)) {}

 protected:
  at::Tensor forward(const at::Tensor& x, const ForwardContext& context) override {
    const at::Tensor hidden = noise_(up_(x, context), context);
    const at::Tensor active = at::clamp_min(hidden, 0);
    record(context, {"bsf->bsf"}, active, {hidden}, name());
    return down_(active, context);
  }

 private:
  TypedLinear& up_;
  Noise& noise_;
  TypedLinear& down_;
};

class SmallBlock final : public Layer {
 public:
  SmallBlock()
      : norm_(register_module<Scale>("norm")),
        mlp_(register_module<SmallMlp>("mlp")),
        noise_(register_module<Noise>("noise")) {}

 protected:
  at::Tensor forward(const at::Tensor& x, const ForwardContext& context) override {
    const at::Tensor branch = noise_(mlp_(norm_(x, context), context), context);
    at::Tensor sum = x + 0.1 * branch;
    record(context, {"bsf,bsf->bsf", "", {{0}, {1}}}, sum, {x, branch}, name());
    return sum;
  }

 private:
  Scale& norm_;
  SmallMlp& mlp_;
  Noise& noise_;
};

/// {stream, labels} -> {loss}
class SquaredError final : public Module {
 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    at::Tensor loss = (inputs[0] - inputs[1].unsqueeze(-1)).square().sum() * context.loss_scale;
    record(context, {"bsf,bs->"}, loss, {inputs[0], inputs[1]}, name());
    return {loss};
  }
};

/// {ids, labels} -> {loss}
class SmallModel final : public Module {
 public:
  SmallModel()
      : embedding_(register_module<Lookup>("embedding")),
        first_(register_module<SmallBlock>("first")),
        second_(register_module<SmallBlock>("second")),
        head_(register_module<SquaredError>("head")) {}

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    const at::Tensor stream = second_(first_(embedding_(inputs.at(0), context), context), context);
    return head_.run({stream, inputs.at(1)}, context);
  }

 private:
  Lookup& embedding_;
  SmallBlock& first_;
  SmallBlock& second_;
  SquaredError& head_;
};

}  // namespace caravan::testing
