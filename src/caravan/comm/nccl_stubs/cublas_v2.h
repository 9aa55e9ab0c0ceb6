// Note [stubs of CUDA's headers]: ATen's CUDA headers name handles of cuBLAS, cuSPARSE and cuSOLVER, whose packages
// have hundreds of megabytes; nccl.cpp calls none of them. So that it can be compiled against the small packages, these
// files declare the names that are only mentioned. They are never used where CUDA itself is there (CARAVAN_NCCL).
#pragma once
typedef struct cublasContext* cublasHandle_t;
typedef int cublasStatus_t;
