#include "caravan/redistribute/whole.h"

#include <ATen/core/grad_mode.h>

#include "caravan/redistribute/redistribute.h"

namespace caravan {

at::Tensor whole_tensor(const at::Tensor& piece, const Layout& layout, const Mesh& mesh, const std::string& what) {
  const at::NoGradGuard no_grad;
  at::Tensor whole = piece;
  Layout now = layout;
  for (size_t i = layout.entries().size(); i > 0; --i) {
    const Layout next = now.moved(layout.entries()[i - 1].first, Invariant{});
    whole = redistribute(whole, now, next, mesh, what);
    now = next;
  }
  return whole;
}

}  // namespace caravan
