#pragma once

namespace caravan {

/// While it lives, tensors that this thread makes have shapes but no memory: modules of torch::nn that are made
/// meanwhile may be larger than this machine. They can be planned and rehearsed, and not trained.
class ShapesOnlyScope {
 public:
  ShapesOnlyScope();
  ~ShapesOnlyScope();
  ShapesOnlyScope(const ShapesOnlyScope&) = delete;
  ShapesOnlyScope& operator=(const ShapesOnlyScope&) = delete;

 private:
  bool before_;
};

/// What `make` makes in such a scope: `Net net = shapes_only([] { return Net(70'000'000'000); });`
template <class Make>
auto shapes_only(Make make) {
  const ShapesOnlyScope scope;
  return make();
}

}  // namespace caravan
