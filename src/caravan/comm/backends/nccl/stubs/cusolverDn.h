// See Note [stubs of CUDA's headers].
#pragma once
typedef struct cusolverDnContext* cusolverDnHandle_t;
