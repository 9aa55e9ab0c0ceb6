#pragma once

namespace caravan {

/// Registers meta kernels for operators of torch that its C++ libraries have none for: they give result shapes, and
/// allocate and free memory as the CPU kernel does (except for memory taken by libraries below it). Existing kernels
/// are kept. Other operators, and control flow that depends on data, throw torch's error that names the operator.
/// Called before main() in every program that links Module; further calls are no-ops.
bool register_meta_kernels();

}  // namespace caravan
