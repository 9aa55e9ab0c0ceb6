#include "caravan/comm/c10d/arguments.h"

#include <numeric>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::c10d_arguments {

void refuse(const char* op, std::string fact, std::string action) {
  throw UsageError({.op = op, .fact = std::move(fact), .action = std::move(action)});
}

void refuse_count(const char* op, size_t count) {
  refuse(op, fmt::format("{} tensors (or lists) were given", count), "give one; a rank has one device");
}

const std::vector<at::Tensor>& one_each(const std::vector<at::Tensor>& list, int size, const char* op) {
  if (list.size() == static_cast<size_t>(size)) return list;
  refuse(op, fmt::format("a list of {} tensors for {} ranks", list.size(), size), "give one tensor for each rank");
}

void check_same_lengths(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const char* op) {
  if (outputs.size() == inputs.size() && !outputs.empty()) return;
  refuse(op, fmt::format("{} outputs and {} inputs", outputs.size(), inputs.size()),
         "give as many of one as of the other");
}

size_t check_root(int64_t root, int size, const char* op) {
  if (root >= 0 && root < size) return static_cast<size_t>(root);
  refuse(op, fmt::format("there is no rank {} in a group of {}", root, size), "give a rank of the group");
}

void check_message(int peer, int rank, int size, int tag, const char* op) {
  check_root(peer, size, op);
  if (peer == rank) refuse(op, fmt::format("rank {} is this rank itself", rank), "give another rank of the group");
  if (tag < 0) refuse(op, fmt::format("the tag is {}", tag), "give a tag of at least 0");
}

void check_lists(const std::vector<std::vector<at::Tensor>>& lists, size_t length, int size, const char* op) {
  if (length == 0) refuse(op, "no input was given", "give at least one");
  if (lists.size() != static_cast<size_t>(size)) {
    refuse(op, fmt::format("{} output lists for {} ranks", lists.size(), size), "give one for each rank");
  }
  for (const auto& list : lists) {
    if (list.size() == length) continue;
    refuse(op, fmt::format("an output list of {} tensors for {} inputs", list.size(), length),
           "give as many outputs of each rank as inputs");
  }
}

std::vector<int64_t> split_counts(const std::vector<int64_t>& rows, const at::Tensor& tensor, int size,
                                  const char* op) {
  const int64_t num_rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (rows.empty()) {
    if (num_rows % size == 0) return std::vector<int64_t>(static_cast<size_t>(size), tensor.numel() / size);
    refuse(op, fmt::format("dim 0 of [{}] is not divisible by {} ranks", join(tensor.sizes()), size),
           "give split sizes");
  }
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  if (rows.size() != static_cast<size_t>(size) || total != num_rows) {
    refuse(op,
           fmt::format("{} split sizes with the sum {} for {} ranks and {} rows", rows.size(), total, size, num_rows),
           "give one size for each rank; their sum is the size of dim 0");
  }
  std::vector<int64_t> counts;
  for (const int64_t each : rows) counts.push_back(num_rows == 0 ? 0 : each * (tensor.numel() / num_rows));
  return counts;
}

}  // namespace caravan::c10d_arguments
