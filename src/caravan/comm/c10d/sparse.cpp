#include "caravan/comm/c10d/sparse.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/c10d/arguments.h"

namespace caravan {

using c10d_steps::Step;
using c10d_steps::Tensors;

C10dSparseSum::C10dSparseSum(const c10d_steps::Group& group, const at::Tensor& tensor)
    : group_(group), tensor_(tensor) {
  if (!tensor.is_sparse() || !tensor.is_cpu() || tensor.dim() > kMaxDims) {
    c10d_arguments::refuse(group.name,
                           fmt::format("a sparse sum takes host tensors in COO format of at most {} dims", kMaxDims),
                           "call to_dense()");
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  entries_ = tensor.coalesce();
  std::vector<int64_t> shape(3 + kMaxDims, -1);
  shape[0] = entries_._nnz();
  shape[1] = static_cast<int64_t>(tensor.scalar_type());
  shape[2] = tensor.sparse_dim();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) shape[static_cast<size_t>(3 + dim)] = tensor.size(dim);
  own_shape_ = at::empty({3 + kMaxDims}, at::kLong);
  std::copy(shape.begin(), shape.end(), own_shape_.mutable_data_ptr<int64_t>());
  shapes_ = at::empty({group.size, 3 + kMaxDims}, at::kLong);
}

Step C10dSparseSum::gather_shapes() { return c10d_steps::all_gather_flat(group_, shapes_, own_shape_); }

int64_t C10dSparseSum::num_entries(int rank) const { return shapes_.const_data_ptr<int64_t>()[rank * (3 + kMaxDims)]; }

void C10dSparseSum::check_shapes() const {
  const int64_t* first = shapes_.const_data_ptr<int64_t>();
  for (int rank = 1; rank < group_.size; ++rank) {
    const int64_t* other = first + rank * (3 + kMaxDims);
    if (std::equal(first + 1, first + 3 + kMaxDims, other + 1)) continue;
    const auto text = [](const int64_t* shape) {
      const std::vector<int64_t> sizes(shape + 3, std::find(shape + 3, shape + 3 + kMaxDims, -1));
      return fmt::format("{} [{}] with {} sparse dims", c10::toString(static_cast<at::ScalarType>(shape[1])),
                         join(sizes), shape[2]);
    };
    throw CommError(
        {.op = group_.name,
         .fact = fmt::format("the calls of the ranks differ: rank 0: {}; rank {}: {}", text(first), rank, text(other)),
         .where = fmt::format("rank {} of {}", group_.rank, group_.size),
         .action = "give sparse tensors of one shape and dtype"});
  }
}

std::vector<Step> C10dSparseSum::gather_entries() {
  check_shapes();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor own_indices = entries_.indices().t().contiguous();  // [entries, sparse dims]
  const at::Tensor own_values = entries_.values().contiguous();
  int64_t total = 0;
  for (int rank = 0; rank < group_.size; ++rank) total += num_entries(rank);
  const at::Tensor indices = at::empty({total, own_indices.size(1)}, own_indices.options());
  std::vector<int64_t> value_sizes = own_values.sizes().vec();
  value_sizes[0] = total;
  const at::Tensor values = at::empty(value_sizes, own_values.options());
  const auto parts_of = [&](const at::Tensor& whole) {
    Tensors parts;
    int64_t begin = 0;
    for (int rank = 0; rank < group_.size; ++rank) {
      parts.push_back(whole.narrow(0, begin, num_entries(rank)));
      begin += num_entries(rank);
    }
    return parts;
  };
  std::vector<Step> steps{c10d_steps::all_gather(group_, parts_of(indices), own_indices),
                          c10d_steps::all_gather(group_, parts_of(values), own_values)};
  steps.back().finish = [=, sum = *this] { sum.add_up(indices, values); };
  return steps;
}

void C10dSparseSum::add_up(const at::Tensor& indices, const at::Tensor& values) const {
  at::Tensor sum;
  int64_t begin = 0;
  for (int rank = 0; rank < group_.size; ++rank) {
    const int64_t count = num_entries(rank);
    const at::Tensor part = at::sparse_coo_tensor(indices.narrow(0, begin, count).t(), values.narrow(0, begin, count),
                                                  tensor_.sizes(), entries_.options());
    sum = sum.defined() ? sum.add(part) : part;
    begin += count;
  }
  tensor_.copy_(sum.coalesce());
}

}  // namespace caravan
