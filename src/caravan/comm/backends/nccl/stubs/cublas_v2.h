// Note [stubs of CUDA's headers]: ATen's CUDA headers mention handles of cuBLAS, cuSPARSE and cuSOLVER, whose packages
// have hundreds of megabytes. nccl.cpp uses none of them, so these files declare the names, and it can be compiled with
// the small packages alone. A build with CUDA (CARAVAN_NCCL) does not use them.
#pragma once
typedef struct cublasContext* cublasHandle_t;
typedef int cublasStatus_t;
