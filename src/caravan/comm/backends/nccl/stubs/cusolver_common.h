// See Note [stubs of CUDA's headers].
#pragma once
typedef int cusolverStatus_t;
