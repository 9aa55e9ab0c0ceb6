#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"
#include "caravan/session/kept.h"

namespace caravan {

/// Whether this rank has some of a parameter.
bool is_here(const Parameter& parameter);

/// Throws UsageError for a name that is not of letters, digits, - and _. `of`: what it is part of; "": of nothing.
void check_attached_name(const std::string& name, const std::string& of);

/// Calls a function for each tensor of visit.state(), and does nothing else.
class StateChecker final : public StateVisitor {
 public:
  using Check = std::function<void(const std::string& name, const Parameter& parameter)>;
  StateChecker(const std::vector<Parameter*>& parameters, std::string of, Check check)
      : parameters_(parameters), of_(std::move(of)), check_(std::move(check)) {}

  void moment(const std::string& /*name*/, const at::Tensor& /*parameter*/, at::Tensor& /*tensor*/) override {}
  void state(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) override;
  void number(const std::string& /*name*/, int64_t& /*value*/) override {}
  void number(const std::string& /*name*/, double& /*value*/) override {}

 private:
  const std::vector<Parameter*>& parameters_;
  std::string of_;
  Check check_;
};

/// Reads what an optimizer of one's own has.
class StateCollector final : public StateVisitor {
 public:
  /// `parameters` are those of the model, and outlive this. `of`: the name of the optimizer.
  StateCollector(const std::vector<Parameter*>& parameters, std::string of, size_t entry)
      : entry(entry), parameters_(parameters), of_(std::move(of)) {}

  const size_t entry;                                             ///< of Attachments
  std::map<std::string, std::map<size_t, at::Tensor>> moments{};  ///< by name and parameter
  std::map<std::string, std::map<size_t, at::Tensor>> states{};   ///< the same, of parameters that this rank has
  std::map<std::string, at::Tensor> numbers{};

  /// Throws UsageError for a tensor that is not a parameter at rest, for a moment of another shape or dtype, and for a
  /// name that is visited twice.
  void moment(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) override;
  void state(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) override;
  void number(const std::string& name, int64_t& value) override;
  void number(const std::string& name, double& value) override;

 private:
  void add(const std::string& name, at::Tensor value);

  const std::vector<Parameter*>& parameters_;
  std::string of_;
};

/// Gives an optimizer what was read.
class StateLoader final : public StateVisitor {
 public:
  /// The tensor "moment.NAME.PARAMETER", or "state.NAME.PARAMETER" and "number.NAME" without a parameter.
  using Find = std::function<const at::Tensor&(const std::string& name, const Parameter* parameter)>;
  StateLoader(const std::vector<Parameter*>& parameters, std::string of, Find find)
      : parameters_(parameters), of_(std::move(of)), find_(std::move(find)) {}

  void moment(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) override;
  void state(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) override;
  void number(const std::string& name, int64_t& value) override;
  void number(const std::string& name, double& value) override;

 private:
  const std::vector<Parameter*>& parameters_;
  std::string of_;
  Find find_;
};

}  // namespace caravan
