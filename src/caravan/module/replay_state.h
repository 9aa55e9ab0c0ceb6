#pragma once

#include <vector>

#include "caravan/module/module.h"

namespace caravan {

/// Copies of the state that a module's forward may read and change besides its inputs: the buffers of the module and
/// its submodules, and torch's default CPU generator.
class ReplayState {
 public:
  /// Copies the present state. `draws`: the forward may draw from the generator.
  ReplayState(Module& module, bool draws);
  /// Drops what has not changed since.
  void keep_changed();
  /// The present values of what this object keeps.
  ReplayState now() const;
  void restore() const;

 private:
  struct Buffer {
    at::Tensor of;
    at::Tensor values;
  };
  std::vector<Buffer> buffers_;
  at::Tensor generator_;  ///< its state; undefined: not kept
};

/// Restores a state during its lifetime, then the previous state.
class Rewound {
 public:
  explicit Rewound(const ReplayState& state) : before_(state.now()) { state.restore(); }
  ~Rewound() { before_.restore(); }
  Rewound(const Rewound&) = delete;
  Rewound& operator=(const Rewound&) = delete;

 private:
  ReplayState before_;
};

}  // namespace caravan
