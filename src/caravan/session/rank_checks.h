#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "caravan/comm/communicator.h"

namespace caravan {

/// A number that tells tensors apart: the sum of their elements, each times its position.
double checksum(const at::Tensor& tensor);

/// Throws UsageError on every rank, naming both values, unless all ranks of `comm` have the same number.
void check_same_number(Communicator& comm, double number, const std::string& subject, const std::string& action);

}  // namespace caravan
