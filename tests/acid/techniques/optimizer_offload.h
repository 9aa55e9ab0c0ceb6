#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "caravan/base/system/fd.h"
#include "caravan/base/system/file.h"
#include "caravan/optim/optimizer.h"

namespace caravan::testing {

/// Test-only technique: AdamW whose moments are stored in a file of this rank and pass through a small buffer piece by
/// piece. (Rajbhandari et al., "ZeRO-Infinity", SC 2021.)
class OffloadedAdamW final : public Optimizer {
 public:
  OffloadedAdamW(FlatState& state, const AdamWOptions& options, std::filesystem::path file, int64_t buffer_elems)
      : Optimizer(state), options_(options), path_(std::move(file)) {
    buffer_ = at::empty({2, buffer_elems}, state.gradients.options());
    file_ = Fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file_ || ::ftruncate(file_.get(), 2 * bytes(state.layout.trained_count())) != 0) refuse("cannot be made");
  }

  /// The mapped file: writes to these tensors, from a checkpoint, go to the file.
  std::vector<std::pair<std::string, at::Tensor>> state() const override {
    const int64_t count = state_.layout.trained_count();
    const at::Tensor both = at::from_file(path_.string(), /*shared=*/true, 2 * count, state_.gradients.options());
    return {{"exp_avg", both.narrow(0, 0, count)}, {"exp_avg_sq", both.narrow(0, count, count)}};
  }

 private:
  bool update(const Part& part, double lr, double gradient_scale) override {
    for (const FlatLayout::Range& range : state_.layout.ranges()) {
      if (!part.covers(range)) continue;
      for (int64_t done = 0; done < range.count; done += buffer_.size(1)) {
        const int64_t first = range.offset + done;
        const int64_t count = std::min(buffer_.size(1), range.count - done);
        const at::Tensor moments = buffer_.narrow(1, 0, count);
        move(::pread, moments, first, "cannot be read");
        adamw_step(options_, part.number, lr, gradient_scale, range.decays,
                   {state_.values.narrow(first, count), state_.gradients.narrow(first, count), moments[0], moments[1]});
        move(::pwrite, moments, first, "cannot be written");
      }
    }
    return false;
  }

  /// Elements `first`, .. of both moments.
  template <class Call>
  void move(const Call& call, const at::Tensor& moments, int64_t first, const char* fact) const {
    for (const int64_t which : {0, 1}) {
      auto* data = static_cast<std::byte*>(moments[which].mutable_data_ptr());
      const int64_t begin = bytes(which * state_.layout.trained_count() + first);
      for (int64_t done = 0, all = bytes(moments.size(1)); done < all;) {
        const ssize_t moved = call(file_.get(), data + done, static_cast<size_t>(all - done), begin + done);
        if (moved <= 0) refuse(fact);
        done += moved;
      }
    }
  }
  int64_t bytes(int64_t elems) const {
    return elems * static_cast<int64_t>(c10::elementSize(state_.gradients.scalar_type()));
  }
  [[noreturn]] void refuse(const char* fact) const { throw_file_error("optimizer", path_, fact, errno); }

  AdamWOptions options_;
  std::filesystem::path path_;
  at::Tensor buffer_;
  Fd file_;
};

}  // namespace caravan::testing
