// See Note [stubs of CUDA's headers].
#pragma once
typedef struct cusparseContext* cusparseHandle_t;
typedef int cusparseStatus_t;
