#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

namespace caravan::testing {

/// Records the ops that this thread runs while it lives: the FLOPs of products, and what memory their results take. Of
/// global tensors it sees the pieces.
class Recorder {
 public:
  /// `known`: tensors whose memory does not count, such as parameters and data.
  explicit Recorder(const std::vector<at::Tensor>& known);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Of mm, addmm, bmm and attention, two for each multiplication and addition; of its mask nothing is left out.
  double flops() const noexcept { return flops_; }

  struct Held {
    int64_t split = 0;                     ///< bytes of tensors of which each rank has a part
    std::map<std::string, int64_t> whole;  ///< bytes of the others, by the outermost op that has made them
    int64_t whole_bytes() const;
  };
  /// What results have not been freed so far.
  Held held() const;

 private:
  struct Call;
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::string op;
    int64_t since = 0;  ///< the count of calls when it was first seen
    bool is_split = false;
    bool is_known = false;
  };
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);
  Memory* see(const at::Tensor& tensor);

  std::map<const void*, Memory> memory_;
  double flops_ = 0;
  int64_t num_calls_ = 0;
  at::CallbackHandle handle_ = 0;
};

}  // namespace caravan::testing
