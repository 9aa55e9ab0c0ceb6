#pragma once

namespace caravan {

/// Makes torch's operators usable on meta tensors where its libraries for C++ have no kernel for them: result shapes,
/// and memory that is allocated and freed as the CPU kernel does it (what the libraries below it take is not counted).
/// An operator that this torch has a kernel for keeps it. Others, and control flow that depends on data, throw an error
/// of torch that names the operator. Called before main() by whatever links a Module; further calls do nothing.
bool register_meta_kernels();

}  // namespace caravan
