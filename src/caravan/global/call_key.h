#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include "caravan/global/op_info.h"
#include "caravan/global/state.h"

namespace caravan {

/// What the choice of layouts for a call of an op depends on: calls with equal keys share a Solution.
using CallKey = c10::SmallVector<int64_t, 64>;

/// Adds argument `i`, which is no tensor, of these. Of a number only whether it is 0, 1 or another, and whether it
/// equals the argument before it, if that is one too.
void add_to_key(CallKey& key, const std::vector<OpInfo::Kind>& kinds, const c10::IValue* arguments, size_t i);
/// Adds a tensor, with its layout; `meta` is null for a plain one.
void add_to_key(CallKey& key, const at::Tensor& tensor, const PieceMeta* meta, int argument, int element);

}  // namespace caravan
