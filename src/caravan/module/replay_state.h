#pragma once

#include <vector>

#include "caravan/module/module.h"

namespace caravan {

/// Copies of what a module's forward may read and change besides its inputs: the buffers of the module and those in it,
/// and torch's default generator of the CPU.
class ReplayState {
 public:
  /// As they are. `draws`: the forward may draw from the generator.
  ReplayState(Module& module, bool draws);
  /// Forgets what has not changed since.
  void keep_changed();
  /// What is remembered here, as it is now.
  ReplayState now() const;
  void restore() const;

 private:
  struct Buffer {
    at::Tensor of;
    at::Tensor values;
  };
  std::vector<Buffer> buffers_;
  at::Tensor generator_;  ///< its state; undefined: not remembered
};

/// Brings back a state, and then the state there was before.
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
