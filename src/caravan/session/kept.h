#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize
namespace torch::optim {
class LBFGS;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace caravan {

/// What the visit_state() of an optimizer of one's own names: all that it keeps from step to step, in every call, also
/// before the first step. A save reads it, a load writes it.
class StateVisitor {
 public:
  StateVisitor() = default;
  virtual ~StateVisitor() = default;
  StateVisitor(const StateVisitor&) = delete;
  StateVisitor& operator=(const StateVisitor&) = delete;

  /// A tensor of the shape of `parameter`, which is one of ParallelModel::parameters() or, if that was called, of
  /// whole_parameters(), with an element for each of its. An undefined one is saved as zeros, and a load makes it.
  virtual void moment(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) = 0;
  /// A tensor of any shape and any dtype of checkpoints, such as a preconditioner [m, m] of a matrix [m, n]. It needs
  /// its `parameter` whole, as whole_parameters() and ddp() have it. One that is undefined or has no elements comes
  /// back undefined, another as it was; if the program has one at the load, that has the same shape and dtype.
  virtual void state(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) = 0;
  /// A number that is the same on all ranks, such as the steps that were counted.
  virtual void number(const std::string& name, int64_t& value) = 0;
  virtual void number(const std::string& name, double& value) = 0;
};

template <class T>
concept VisitsState = requires(T& object, StateVisitor& visitor) {
  object.visit_state(visitor);
};
template <class T>
concept SavesText = requires(T& object, const std::string& text) {
  { std::as_const(object).save() } -> std::convertible_to<std::string>;
  object.load(text);
};
/// As torch's modules and samplers.
template <class T>
concept SavesArchive = requires(T& object, torch::serialize::OutputArchive& out, torch::serialize::InputArchive& in) {
  std::as_const(object).save(out);
  object.load(in);
};
/// As torch's optimizers, whose archives name parameters by their addresses.
template <class T>
concept HasGroups = requires(T& object) {
  object.param_groups();
};

/// Something of a program that its checkpoints keep: converts from all that can be kept, which outlives the model.
///
///   int64_t best;                      model.attach("best", best);        // numbers, std::string
///   at::Tensor average;                model.attach("average", average);  // of the same shape when it is loaded
///   at::Generator noise;               model.attach("noise", noise);
///   ShardedSampler sampler(..);        model.attach("sampler", sampler);  // any type with save and load
///   MyOptimizer optimizer(..);         model.attach("optimizer", optimizer);
///
/// - A type with `std::string save() const` and `void load(const std::string&)`, or with those of torch's samplers and
///   modules, which take an archive. Kept(save, load) takes two functions.
/// - An optimizer of one's own, with `void visit_state(StateVisitor&)`. What it keeps has no layout, as other moments.
///   It is visited when it is attached, too.
///   If it is derived from torch::optim::Optimizer, the learning rates of its groups are kept too. It says whether an
///   element is updated by itself alone: `static constexpr bool is_elementwise = true`; with false it needs
///   ParallelModel::whole_parameters() where parameters are sharded.
/// - torch::optim::LBFGS, which needs whole parameters. Its options stay those of the program. All other optimizers of
///   torch::optim are attached without a name.
/// - torch::optim::ReduceLROnPlateauScheduler: its best metric, its count of bad epochs and its cooldown. Its options
///   must be those of the checkpoint; the rates that it has come to are those of the optimizer. From an empty text it
///   starts anew.
///
/// All of these are the same on every rank, or a save is an error with two values; only a generator may differ. If it
/// does, rank r gets back that of rank r, and on more ranks than before the others keep theirs.
class Kept {
 public:
  template <class T>
  requires(std::is_arithmetic_v<T> && !std::is_const_v<T>) Kept(T& number) : kind_(Kind::number) {  // NOLINT: converts
    using Saved = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    save_ = [&number] { return tensor_of(static_cast<Saved>(number)); };
    load_ = [&number](const at::Tensor& saved) { number = static_cast<T>(saved.item<Saved>()); };
  }
  Kept(std::string& text);               // NOLINT: converts
  Kept(at::Tensor& tensor);              // NOLINT: converts
  Kept(const at::Generator& generator);  // NOLINT: converts
  Kept(std::function<std::string()> save, std::function<void(const std::string& text)> load);
  template <SavesText T>
  Kept(T& object)  // NOLINT: converts
      : Kept([&object] { return std::string(std::as_const(object).save()); },
             [&object](const std::string& text) { object.load(text); }) {}
  template <class T>
  requires(SavesArchive<T> && !SavesText<T> && !HasGroups<T>) Kept(T& object)  // NOLINT: converts
      : Kept([&object] { return text_of_archive([&](auto& archive) { std::as_const(object).save(archive); }); },
             [&object](const std::string& text) { read_archive(text, [&](auto& archive) { object.load(archive); }); }) {
  }
  Kept(torch::optim::LBFGS& optimizer);                       // NOLINT: converts
  Kept(torch::optim::ReduceLROnPlateauScheduler& scheduler);  // NOLINT: converts
  template <VisitsState T>
  Kept(T& object) : kind_(Kind::optimizer) {  // NOLINT: converts
    visit_ = [&object](StateVisitor& visitor) { object.visit_state(visitor); };
    if constexpr (requires { T::is_elementwise; }) is_elementwise_ = T::is_elementwise;
    if constexpr (HasGroups<T>) {
      rates_ = [&object] {
        std::vector<double> rates;
        for (auto& group : object.param_groups()) rates.push_back(group.options().get_lr());
        return rates;
      };
      set_rates_ = [&object](const std::vector<double>& rates) {
        for (size_t i = 0; i < rates.size(); ++i) object.param_groups()[i].options().set_lr(rates[i]);
      };
    }
  }

 private:
  friend class Attachments;
  enum class Kind : uint8_t { number, text, tensor, generator, optimizer };
  explicit Kept(Kind kind) : kind_(kind) {}

  static at::Tensor tensor_of(int64_t number);
  static at::Tensor tensor_of(double number);
  static std::string text_of_archive(const std::function<void(torch::serialize::OutputArchive&)>& write);
  static void read_archive(const std::string& text, const std::function<void(torch::serialize::InputArchive&)>& read);

  Kind kind_;
  std::function<at::Tensor()> save_{};
  std::function<void(const at::Tensor& saved)> load_{};
  std::function<std::vector<std::string>()> shown_{};  ///< what an error shows of it, by parts; none: a hash
  // Of an optimizer.
  std::function<void(StateVisitor&)> visit_{};
  std::function<std::vector<double>()> rates_{};  ///< none: it has no groups
  std::function<void(const std::vector<double>&)> set_rates_{};
  std::optional<bool> is_elementwise_{};  ///< nothing: not said, or no optimizer
};

}  // namespace caravan
