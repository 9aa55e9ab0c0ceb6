// See Note [stubs of CUDA's headers].
#pragma once
typedef struct cublasLtContext* cublasLtHandle_t;
