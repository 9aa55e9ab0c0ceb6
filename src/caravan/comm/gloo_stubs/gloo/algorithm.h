#pragma once
// Note [stubs of gloo's headers]: torch ships c10d's header of ProcessGroupGloo but none of gloo's own, which that
// header includes. It uses gloo's types through pointers alone, and their code is inside libtorch: these declarations
// are enough to compile it. Nothing here may be called or derived from.
