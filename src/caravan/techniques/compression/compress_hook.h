#pragma once

#include <functional>
#include <string>

#include "caravan/engine/gradients/comm_hook.h"

namespace caravan {

/// Gradients are all-reduced in another form, which two functions make and read: a communication hook of one's own in
/// two lines. For a smaller dtype, DdpOptions::reduce_dtype is enough.
///
/// Sends 2(n-1)/n x (bytes of the message) for each bucket.
class CompressHook final : public CommHook {
 public:
  /// Makes the message that is all-reduced from this rank's summand (flat), or the sum from the reduced message. Sums
  /// of messages must mean sums of summands.
  using Function = std::function<at::Tensor(const at::Tensor& flat)>;
  CompressHook(std::string name, Function compress, Function decompress)
      : name_(std::move(name)), compress_(std::move(compress)), decompress_(std::move(decompress)) {}

  std::string name() const override { return name_; }
  /// Throws UsageError, naming a parameter, if decompress returns another shape than compress was given.
  void reduce(const GradientRange& range, TransferStages& stages) override;

 private:
  std::string name_;
  Function compress_;
  Function decompress_;
};

}  // namespace caravan
