#include "caravan/techniques/data/axis_reduction.h"

#include <utility>

#include "caravan/comm/tensor.h"

namespace caravan {
namespace {

class AxisReduction final : public RowReduction {
 public:
  AxisReduction(MeshAxis axis, Placement to, std::vector<std::string> names)
      : axis_(std::move(axis)), to_(std::move(to)), names_(std::move(names)) {
    if (names_.empty()) names_ = {axis_.name()};
  }

  void max(at::Tensor& rows) override { reduce(rows, ReduceOp::max, "maximum of rows"); }
  void sum(at::Tensor& rows) override { reduce(rows, ReduceOp::sum, "sums of rows"); }

  Layout reduced(const Layout& summands) const override {
    Layout layout = summands;
    for (const std::string& name : names_) {
      if (layout[name].is_partial()) layout = layout.moved(name, to_);
    }
    return layout;
  }

 private:
  void reduce(at::Tensor& rows, ReduceOp op, const char* what) const {
    const bool is_dry = rows.is_meta() && axis_.comm().backend() != "record";
    if (axis_.size() == 1 || is_dry) return;
    rows = rows.contiguous();
    all_reduce_async(axis_.comm(), rows, rows, op, what).wait();
  }

  MeshAxis axis_;
  Placement to_;
  std::vector<std::string> names_;
};

}  // namespace

std::shared_ptr<RowReduction> axis_reduction(const MeshAxis& axis, const Placement& to,
                                             std::vector<std::string> names) {
  return std::make_shared<AxisReduction>(axis, to, std::move(names));
}

}  // namespace caravan
