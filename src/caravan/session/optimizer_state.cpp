#include "caravan/session/optimizer_state.h"

#include <algorithm>
#include <map>
#include <memory>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"

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
  std::vector<std::string> option_names;
  std::vector<double> (*options)(optim::OptimizerOptions& options);  ///< in the order of their names
  int64_t (*mask)(optim::OptimizerOptions& options);                 ///< of the fields that are used with them
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
const std::vector<std::string> kAdamOptions{"lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad"};

template <class Options>
std::vector<double> adam_options(optim::OptimizerOptions& options) {
  auto& adam = static_cast<Options&>(options);
  const auto [beta1, beta2] = adam.betas();
  return {adam.lr(), beta1, beta2, adam.eps(), adam.weight_decay(), adam.amsgrad() ? 1.0 : 0.0};
}

std::vector<double> sgd_options(optim::OptimizerOptions& options) {
  auto& sgd = static_cast<optim::SGDOptions&>(options);
  return {sgd.lr(), sgd.momentum(), sgd.dampening(), sgd.weight_decay(), sgd.nesterov() ? 1.0 : 0.0};
}

std::vector<double> adagrad_options(optim::OptimizerOptions& options) {
  auto& adagrad = static_cast<optim::AdagradOptions&>(options);
  return {adagrad.lr(), adagrad.lr_decay(), adagrad.weight_decay(), adagrad.initial_accumulator_value(), adagrad.eps()};
}

std::vector<double> rmsprop_options(optim::OptimizerOptions& options) {
  auto& rmsprop = static_cast<optim::RMSpropOptions&>(options);
  return {rmsprop.lr(),           rmsprop.alpha(),    rmsprop.eps(),
          rmsprop.weight_decay(), rmsprop.momentum(), rmsprop.centered() ? 1.0 : 0.0};
}

const std::vector<OptimizerKind>& kinds() {
  static const std::vector<OptimizerKind> all{
      {"sgd",
       {"momentum_buffer"},
       is<optim::SGD>,
       {"lr", "momentum", "dampening", "weight_decay", "nesterov"},
       sgd_options,
       [](optim::OptimizerOptions& options) -> int64_t {
         return static_cast<optim::SGDOptions&>(options).momentum() != 0 ? 1 : 0;
       },
       [](optim::OptimizerParamState& state) -> View {
         return {nullptr, {&static_cast<optim::SGDParamState&>(state).momentum_buffer()}};
       },
       make<optim::SGDParamState>},
      {"adam", kAdamFields, is<optim::Adam>, kAdamOptions, adam_options<optim::AdamOptions>,
       adam_mask<optim::AdamOptions>, adam_view<optim::AdamParamState>, make<optim::AdamParamState>},
      {"adamw", kAdamFields, is<optim::AdamW>, kAdamOptions, adam_options<optim::AdamWOptions>,
       adam_mask<optim::AdamWOptions>, adam_view<optim::AdamWParamState>, make<optim::AdamWParamState>},
      {"adagrad",
       {"sum"},
       is<optim::Adagrad>,
       {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"},
       adagrad_options,
       [](optim::OptimizerOptions&) -> int64_t { return 1; },
       [](optim::OptimizerParamState& state) -> View {
         auto& adagrad = static_cast<optim::AdagradParamState&>(state);
         return {&adagrad.step(), {&adagrad.sum()}};
       },
       make<optim::AdagradParamState>},
      {"rmsprop",
       {"square_avg", "momentum_buffer", "grad_avg"},
       is<optim::RMSprop>,
       {"lr", "alpha", "eps", "weight_decay", "momentum", "centered"},
       rmsprop_options,
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
  if (dynamic_cast<optim::LBFGS*>(&optimizer) != nullptr) {
    throw UsageError({"checkpoint", "optimizer", "is LBFGS, whose state is one of all parameters together", "",
                      "attach it by a name: attach(\"lbfgs\", optimizer)"});
  }
  throw UsageError({"checkpoint", "optimizer", "is of a kind whose state is not known", "",
                    "use SGD, Adam, AdamW, Adagrad or RMSprop of torch::optim, or attach it by a name: "
                    "attach(\"optimizer\", optimizer), with a visit_state()"});
}

View view_of(const OptimizerKind& kind, optim::Optimizer& optimizer, const at::Tensor& optimized) {
  const auto found =
      optimized.defined() ? optimizer.state().find(optimized.unsafeGetTensorImpl()) : optimizer.state().end();
  return found == optimizer.state().end() ? View{} : kind.view(*found->second);
}

}  // namespace

bool is_kind_of_torch(const std::string& name) {
  return std::ranges::any_of(kinds(), [&](const OptimizerKind& kind) { return kind.name == name; });
}

OptimizerState::OptimizerState(optim::Optimizer& optimizer, std::vector<Parameter*> parameters)
    : optimizer_(optimizer),
      kind_(&kind_of(optimizer)),
      option_names_(kind_->option_names),
      parameters_(std::move(parameters)),
      optimized_(parameters_.size()),
      masks_(parameters_.size(), 0) {
  option_names_.emplace_back(kGroup);
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    optim::OptimizerParamGroup& own = optimizer.param_groups()[group];
    const int64_t mask = kind_->mask(own.options());
    std::vector<size_t>& members = groups_.emplace_back();
    for (size_t i = 0; i < own.params().size(); ++i) {
      const at::Tensor& tensor = own.params()[i];
      const auto found = std::ranges::find_if(
          parameters_, [&](const Parameter* parameter) { return parameter->sharded().is_same(tensor); });
      if (found == parameters_.end()) {
        throw UsageError(
            {"checkpoint", fmt::format("optimizer, tensor {} of group {}", i, group),
             "is not a parameter of the model as it rests", "",
             "make the optimizer from the model's parameters(), or from whole_parameters() if that was called"});
      }
      const auto at = static_cast<size_t>(found - parameters_.begin());
      optimized_[at] = tensor;
      masks_[at] = mask;
      members.push_back(at);
    }
  }
}

std::string OptimizerState::kind() const { return kind_->name; }

std::vector<std::vector<double>> OptimizerState::options() const {
  std::vector<std::vector<double>> all(parameters_.size());
  for (size_t group = 0; group < groups_.size(); ++group) {
    std::vector<double> values = kind_->options(optimizer_.param_groups()[group].options());
    values.push_back(static_cast<double>(group));
    for (const size_t parameter : groups_[group]) all[parameter] = values;
  }
  return all;
}

void OptimizerState::set_lr(size_t group, double lr) { optimizer_.param_groups()[group].options().set_lr(lr); }

void OptimizerState::agree(Communicator& world) {
  const std::vector<int64_t> own = counts();
  std::vector<int64_t> all = masks_;
  all.insert(all.end(), own.begin(), own.end());
  take_maxima(world, all, "optimizer state");
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(parameters_.size());
  agreed_masks_.assign(all.begin(), middle);
  agreed_counts_.assign(middle, all.end());
}

void OptimizerState::walk(const Visit& visit) {
  std::map<std::string, std::vector<size_t>> tiles;  // of a whole tensor; most are one
  for (size_t i = 0; i < agreed_masks_.size(); ++i) {
    if (agreed_masks_[i] != 0) tiles[parameters_[i]->whole_name()].push_back(i);
  }
  for (size_t i = 0; i < agreed_masks_.size(); ++i) {
    const auto found = tiles.find(parameters_[i]->whole_name());
    if (found != tiles.end() && found->second.front() == i) walk_whole(found->first, found->second, visit);
  }
}

void OptimizerState::walk_whole(const std::string& of, const std::vector<size_t>& tiles, const Visit& visit) {
  std::vector<std::vector<at::Tensor>> tensors;  // by tile and field
  int64_t steps = kNone;
  for (const size_t i : tiles) {
    std::vector<at::Tensor>& fields = tensors.emplace_back(kind_->fields.size());
    for (size_t field = 0; field < fields.size(); ++field) {
      if ((agreed_masks_[i] >> field & 1) == 0) continue;
      fields[field] = tensor(i, field);
      visit({.kind = StatePiece::Kind::moment,
             .name = fmt::format("{}{}.{}.{}", kOptimizerTensors, kind(), kind_->fields[field], of),
             .tensor = fields[field],
             .parameter = parameters_[i]});
    }
    steps = std::max(steps, agreed_counts_[i]);
  }
  const at::Tensor count = at::tensor({steps});
  visit({.kind = StatePiece::Kind::count,
         .name = fmt::format("{}{}.step.{}", kOptimizerTensors, kind(), of),
         .tensor = count,
         .spread = StatePiece::Spread::everywhere,
         .loaded = [this, tiles, count, tensors] {
           for (size_t k = 0; k < tiles.size(); ++k) set(tiles[k], count.item<int64_t>(), tensors[k]);
         }});
}

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
  return at::zeros_like(parameters_[parameter]->sharded().detach(), {}, at::MemoryFormat::Contiguous);
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
