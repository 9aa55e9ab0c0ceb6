#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "caravan/session/trainable.h"

namespace caravan {

/// What a Trainable is made of, for those that run it without training it.
class TrainableParts {
 public:
  /// Throws UsageError for a Module of this library.
  static torch::nn::Module& module_of(const Trainable& net, const char* op, const char* action);
  /// Throws UsageError if an engine has the gradients of the module.
  static void check_free(const Trainable& net, const Mesh& mesh);
  /// One of those that stages and recomputation are made of.
  struct UnitFacts {
    std::string name;
    std::vector<std::vector<int64_t>> shapes{};  ///< of its parameters
    std::vector<std::string> parameters{};       ///< their names
  };
  static std::vector<UnitFacts> units(const Trainable& net, const Mesh& mesh);
  /// Without `count` units from `begin` on: of a net in units, whose others run as they did.
  static Trainable without_units(const Trainable& net, size_t begin, size_t count);
  /// The layouts of the same parameters in without_units() of `net`, where they may have other names.
  static std::vector<NamedLayout> layouts_in(const Trainable& part, const Trainable& net,
                                             const std::vector<NamedLayout>& layouts);
  /// The output of one process.
  static at::Tensor run(const Trainable& net, const at::Tensor& x, const Mesh& mesh);
};

}  // namespace caravan
