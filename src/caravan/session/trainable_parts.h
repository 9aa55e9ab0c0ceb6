#pragma once

#include "caravan/session/trainable.h"

namespace caravan {

/// What a Trainable is made of, for those that run it without training it.
class TrainableParts {
 public:
  /// Throws UsageError for a Module of this library.
  static torch::nn::Module& module_of(const Trainable& net, const char* op, const char* action);
  /// Throws UsageError if an engine has the gradients of the module.
  static void check_free(const Trainable& net, const Mesh& mesh);
  /// The units that stages and recomputation are made of.
  static size_t num_units(const Trainable& net, const Mesh& mesh);
  /// The output of one process.
  static at::Tensor run(const Trainable& net, const at::Tensor& x, const Mesh& mesh);
};

}  // namespace caravan
