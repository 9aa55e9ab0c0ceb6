#include "caravan/session/optimizer_state.h"

#include <algorithm>
#include <memory>

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"

namespace caravan {

namespace optim = torch::optim;

namespace {

/// The state of one parameter: where its count and its tensors are. `count` is null for a kind that does not count.
struct View {
  int64_t* count = nullptr;
  std::vector<at::Tensor*> tensors;  ///< in the order of OptimizerKind::fields
};

}  // namespace

/// What is to know about one kind of optimizer.
struct OptimizerKind {
  const char* name;
  std::vector<std::string> fields;
  bool (*is)(optim::Optimizer& optimizer);
  int64_t (*mask)(optim::OptimizerOptions& options);  ///< of the fields that are used with them
  View (*view)(optim::OptimizerParamState& state);
  std::unique_ptr<optim::OptimizerParamState> (*make)();
};

namespace {

template <class Optimizer>
bool is(optim::Optimizer& optimizer) {
  return dynamic_cast<Optimizer*>(&optimizer) != nullptr;
}

template <class State>
std::unique_ptr<optim::OptimizerParamState> make() {
  return std::make_unique<State>();
}

template <class Options>
int64_t adam_mask(optim::OptimizerOptions& options) {
  return static_cast<Options&>(options).amsgrad() ? 7 : 3;
}

template <class State>
View adam_view(optim::OptimizerParamState& state) {
  auto& adam = static_cast<State&>(state);
  return {&adam.step(), {&adam.exp_avg(), &adam.exp_avg_sq(), &adam.max_exp_avg_sq()}};
}

const std::vector<std::string> kAdamFields{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};

const std::vector<OptimizerKind>& kinds() {
  static const std::vector<OptimizerKind> all{
      {"sgd",
       {"momentum_buffer"},
       is<optim::SGD>,
       [](optim::OptimizerOptions& options) -> int64_t {
         return static_cast<optim::SGDOptions&>(options).momentum() != 0 ? 1 : 0;
       },
       [](optim::OptimizerParamState& state) -> View {
         return {nullptr, {&static_cast<optim::SGDParamState&>(state).momentum_buffer()}};
       },
       make<optim::SGDParamState>},
      {"adam", kAdamFields, is<optim::Adam>, adam_mask<optim::AdamOptions>, adam_view<optim::AdamParamState>,
       make<optim::AdamParamState>},
      {"adamw", kAdamFields, is<optim::AdamW>, adam_mask<optim::AdamWOptions>, adam_view<optim::AdamWParamState>,
       make<optim::AdamWParamState>},
      {"adagrad",
       {"sum"},
       is<optim::Adagrad>,
       [](optim::OptimizerOptions&) -> int64_t { return 1; },
       [](optim::OptimizerParamState& state) -> View {
         auto& adagrad = static_cast<optim::AdagradParamState&>(state);
         return {&adagrad.step(), {&adagrad.sum()}};
       },
       make<optim::AdagradParamState>},
      {"rmsprop",
       {"square_avg", "momentum_buffer", "grad_avg"},
       is<optim::RMSprop>,
       [](optim::OptimizerOptions& options) -> int64_t {
         const auto& rmsprop = static_cast<optim::RMSpropOptions&>(options);
         return 1 + (rmsprop.momentum() > 0 ? 2 : 0) + (rmsprop.centered() ? 4 : 0);
       },
       [](optim::OptimizerParamState& state) -> View {
         auto& rmsprop = static_cast<optim::RMSpropParamState&>(state);
         return {&rmsprop.step(), {&rmsprop.square_avg(), &rmsprop.momentum_buffer(), &rmsprop.grad_avg()}};
       },
       make<optim::RMSpropParamState>}};
  return all;
}

const OptimizerKind& kind_of(optim::Optimizer& optimizer) {
  const auto found = std::ranges::find_if(kinds(), [&](const OptimizerKind& kind) { return kind.is(optimizer); });
  if (found != kinds().end()) return *found;
  throw UsageError({"checkpoint", "optimizer", "is of a kind whose state is not known", "",
                    "use SGD, Adam, AdamW, Adagrad or RMSprop of torch::optim"});
}

View view_of(const OptimizerKind& kind, optim::Optimizer& optimizer, const at::Tensor& optimized) {
  const auto found =
      optimized.defined() ? optimizer.state().find(optimized.unsafeGetTensorImpl()) : optimizer.state().end();
  return found == optimizer.state().end() ? View{} : kind.view(*found->second);
}

}  // namespace

OptimizerState::OptimizerState(optim::Optimizer& optimizer, std::vector<Parameter*> parameters)
    : optimizer_(optimizer),
      kind_(&kind_of(optimizer)),
      parameters_(std::move(parameters)),
      optimized_(parameters_.size()),
      masks_(parameters_.size(), 0) {
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    optim::OptimizerParamGroup& own = optimizer.param_groups()[group];
    const int64_t mask = kind_->mask(own.options());
    for (size_t i = 0; i < own.params().size(); ++i) {
      const at::Tensor& tensor = own.params()[i];
      const auto found = std::ranges::find_if(
          parameters_, [&](const Parameter* parameter) { return parameter->rest().is_same(tensor); });
      if (found == parameters_.end()) {
        throw UsageError({"checkpoint", fmt::format("optimizer, tensor {} of group {}", i, group),
                          "is no parameter of the model as it rests", "",
                          "make the optimizer from the engine's parameters(), after the engine"});
      }
      const auto at = static_cast<size_t>(found - parameters_.begin());
      optimized_[at] = tensor;
      masks_[at] = mask;
    }
  }
}

std::string OptimizerState::kind() const { return kind_->name; }

const std::vector<std::string>& OptimizerState::fields() const { return kind_->fields; }

std::vector<int64_t> OptimizerState::counts() const {
  std::vector<int64_t> counts;
  for (const at::Tensor& optimized : optimized_) {
    const View view = view_of(*kind_, optimizer_, optimized);
    counts.push_back(view.tensors.empty() ? kNone : view.count == nullptr ? 0 : *view.count);
  }
  return counts;
}

at::Tensor OptimizerState::tensor(size_t parameter, size_t field) const {
  const View view = view_of(*kind_, optimizer_, optimized_[parameter]);
  if (!view.tensors.empty() && view.tensors[field]->defined()) return view.tensors[field]->detach().contiguous();
  return at::zeros_like(parameters_[parameter]->rest().detach(), {}, at::MemoryFormat::Contiguous);
}

void OptimizerState::set(size_t parameter, int64_t count, std::vector<at::Tensor> tensors) {
  if (!optimized_[parameter].defined()) return;
  void* const key = optimized_[parameter].unsafeGetTensorImpl();
  if (count == kNone) {
    optimizer_.state().erase(key);
    return;
  }
  auto state = kind_->make();
  const View view = kind_->view(*state);
  if (view.count != nullptr) *view.count = count;
  for (size_t field = 0; field < tensors.size(); ++field) *view.tensors[field] = std::move(tensors[field]);
  optimizer_.state()[key] = std::move(state);
}

}  // namespace caravan
