#include "caravan/module/meta/product_workspace.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/hash.h>

#include "caravan/base/memory/held_blocks.h"
#include "caravan/base/runtime.h"
#include "caravan/base/trace/kernel_log.h"

namespace caravan {
namespace {

/// Memory that oneDNN holds permanently for each product: its code and primitive.
constexpr int64_t kOfProduct = int64_t{320} << 10;

/// Above this, oneDNN is not asked: operands without values take address space, too.
constexpr double kMostAsked = 1 << 28;
/// A rounded upper bound of the measured memory of large products per thread, with AVX-512.
constexpr int64_t kOfLargeProduct = int64_t{2} << 20;

/// Takes two operands, a bias, a result and then the scratchpad.
int64_t asked(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
              const ProductCall& call) {
  const auto without_values = [](const at::Tensor& x) {
    return at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kCPU));
  };
  return bytes_of_allocation(bias.has_value() ? 5 : 4, [&] {
    const at::Tensor left = without_values(a), right = without_values(b);
    call(left, right, bias.has_value() ? std::optional(without_values(*bias)) : std::nullopt);
  });
}

/// Whether products of this type have a scratchpad: without one they would be computed, which takes long for large
/// ones.
bool has_scratchpad(const at::Tensor& a, const ProductCall& call) {
  std::vector<int64_t> sizes(static_cast<size_t>(a.dim()), 64);  // torch leaves it to oneDNN
  sizes.front() = a.dim() > 2 ? 1 : sizes.front();
  const auto square = [&] { return at::empty(sizes, a.options().device(at::kCPU)); };
  return bytes_of_allocation(4, [&] {
           const at::Tensor left = square(), right = square();
           call(left, right, std::nullopt);
         }) > 0;
}

}  // namespace

at::Tensor product_workspace(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                             const ProductCall& call) {
  if (HeldBlocksScope::is_ignored()) return at::empty({0}, a.options());
  const KernelLogScope uncounted(nullptr);
  using Key = std::vector<int64_t>;
  static auto* mutex = new std::mutex;  // never destroyed: threads may multiply until the process ends
  static auto* known = new std::map<Key, int64_t>;
  const Key of_type{static_cast<int64_t>(a.scalar_type()), a.dim(), at::get_num_threads()};
  Key key = of_type;
  key.push_back(bias.has_value());
  for (const at::Tensor& x : {a, b}) {
    key.insert(key.end(), x.sizes().begin(), x.sizes().end());
    key.insert(key.end(), x.strides().begin(), x.strides().end());
  }
  const std::lock_guard lock(*mutex);
  const auto has = known->find(of_type) != known->end() ? known->find(of_type)
                                                        : known->emplace(of_type, has_scratchpad(a, call)).first;
  const int64_t of_row = std::max<int64_t>(a.size(-1), 1);
  const auto result = static_cast<double>(a.numel() / of_row) * static_cast<double>(b.numel() / of_row);
  const bool is_large = std::max({static_cast<double>(a.numel()), static_cast<double>(b.numel()), result}) > kMostAsked;
  const bool is_asked = has->second > 0 && !is_large;
  // A library that has been asked holds this memory from then on in this process.
  if (!is_asked) HeldBlocksScope::hold_once(c10::get_hash(key), kOfProduct);
  auto found = known->find(key);
  if (found == known->end()) {
    const int64_t bytes = has->second == 0 ? 0
                          : is_large       ? kOfLargeProduct * at::get_num_threads()
                                           : asked(a, b, bias, call);
    found = known->emplace(key, bytes).first;
  }
  return at::empty({found->second}, a.options().dtype(at::kByte));
}

}  // namespace caravan
