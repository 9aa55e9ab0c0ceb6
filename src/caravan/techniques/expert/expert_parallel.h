#pragma once

#include <string>

#include "caravan/mesh/mesh.h"
#include "caravan/module/plan/plan.h"
#include "caravan/nn/config.h"

namespace caravan {

/// Expert parallelism as a plan for models with a mixture of experts: each rank of `axis` has a part of every
/// micro-batch and, of each layer, a part of the experts; copies of tokens go to the ranks of their experts and come
/// back. (Lepikhin et al., "GShard", ICLR 2021; dropless: Gale et al., "MegaBlocks", MLSys 2023.)
///
///   parameters  experts S(0): whole experts. All others sharded I -> unsharded R: the axis is a data axis
///   ids, labels  given whole, cut by the plan: I -> S(0)
///   experts     S(tokens) -> S(tokens; sorted by expert, as many as there are) and back: a permutation of rows, whose
///               backward is its inverse. Token order is restored
///   sends       n = axis.size(), x = bytes of the copies of a rank's tokens: about 2 (n-1)/n x in forward and the same
///               in backward, as the router decides; 8 bytes an expert in forward
///   memory      experts 1/n; activations 1/n, if experts are chosen evenly
///
/// Beside a tensor plan: join(expert_parallel(..), tensor plan): experts are split over this axis first, and each of
/// the tensor ranks has a part of those, through which it puts all tokens.
///
/// Throws UsageError for a model without experts; ShapeError, naming the nearest valid choices, if the experts do not
/// divide among the ranks.
Plan expert_parallel(const ModelConfig& config, const Mesh& mesh, const std::string& axis);

/// A hook around Experts (nn/experts/experts.h) that sends each copy of a token to the rank of its expert, for experts
/// split over `axis`. The module has taken its part.
Around exchange_tokens(const MeshAxis& axis);

}  // namespace caravan
