#pragma once

namespace caravan {

/// Calls a vector function of MKL, once in the process. The first call (of any of them: exp, log, tanh ..) looks up the
/// processor without a lock, and another thread that calls meanwhile gets a function of another accuracy, wrong by up
/// to 1e-4, or of instructions that the processor lacks. Seen with the MKL in torch 2.13. A Runtime and the first
/// Module call this; a program whose threads use torch without either calls it before they start.
void settle_vector_math();

}  // namespace caravan
