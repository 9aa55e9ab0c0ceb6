#pragma once
// Note [stubs of gloo's headers]: torch ships c10d's ProcessGroupGloo.hpp, but not gloo's headers, which it includes.
// It uses gloo's types only through pointers, and their code is in libtorch, so these declarations are enough to
// compile it. Do not call them or derive from them.
