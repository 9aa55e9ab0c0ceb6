#pragma once

#include <memory>

#include "caravan/mesh/mesh.h"
#include "caravan/techniques/tensor/split_linear.h"

namespace caravan {

/// x row=S(0) col=S(2), W col=S(0) row=S(1), y as x: products in panels (panels.h). Panel t of x is the piece of
/// coordinate t of `col`, panel t of W that of coordinate t of `row`; both are broadcast along their axis.
///   sends   forward (q-1)/q^2 of the global x and of each W; backward twice that
///   memory  two panels, and in backward the gradients of two
/// Sums over panels are in fp32 (fp64 for fp64); what is sent has the dtype of x.
std::shared_ptr<const SplitProduct> summa_product(const MeshAxis& row, const MeshAxis& col);

}  // namespace caravan
