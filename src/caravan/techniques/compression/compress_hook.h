#pragma once

#include <functional>
#include <string>

#include "caravan/engine/gradients/comm_hook.h"

namespace caravan {

/// All-reduces gradients in a compressed form given by two functions: a custom communication hook in two lines. For a
/// smaller dtype, DdpOptions::reduce_dtype is enough.
///
/// Sends 2(n-1)/n x (bytes of the message) for each bucket.
class CompressHook final : public CommHook {
 public:
  /// Compresses this rank's summand (flat) to the message that is all-reduced, or decompresses the reduced message to
  /// the sum. The sum of the messages must decompress to the sum of the summands.
  using Function = std::function<at::Tensor(const at::Tensor& flat)>;
  CompressHook(std::string name, Function compress, Function decompress)
      : name_(std::move(name)), compress_(std::move(compress)), decompress_(std::move(decompress)) {}

  std::string name() const override { return name_; }
  /// Throws UsageError naming a parameter if decompress returns another shape than compress was given.
  void reduce(const GradientRange& range, TransferStages& stages) override;

 private:
  std::string name_;
  Function compress_;
  Function decompress_;
};

}  // namespace caravan
