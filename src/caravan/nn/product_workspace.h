#pragma once

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace caravan {

/// What oneDNN takes from torch's allocator for a product a b^T, as a tensor on the meta device: dry runs count it. A
/// transposed `a` is copied in fp32; beside that oneDNN packs blocks, differently on each processor. This is the least
/// round bound of what was measured with torch 2.13 on one thread, AVX-512 (rows, in, out of a linear layer; bytes):
///
///                          fp32: forward      dx        dw without the copy    bf16: forward      dx          dw
///   2,048    768    3,072       132,096      896                        896         132,096    197,632   1,131,648
///   2,000    770    1,000       132,096      896                        896         130,560    130,560   1,170,688
///   1,024    512      512       132,096  132,096                    132,096         132,096    132,096     869,504
///     512    256    1,024        66,560      896                        896          99,328    132,096     410,752
///     512  1,024      256       132,096   66,560                    132,096         132,096     99,328     410,752
///     400     96       50        25,600      896                        896          53,312     60,416     108,800
///      64    128    5,000        33,792      896                        896          33,792    148,480     105,344
///     512  4,096    4,096       263,168  263,168                    132,096         197,632    197,632     410,752
///   4,096  1,024    1,024       132,096  132,096                    263,168         132,096    132,096   1,393,792
///   2,048    768   50,257       132,096      896                        896         132,096    197,632     203,968
///
/// MKL takes nothing from torch. The other operators that a step runs have no such memory.
inline at::Tensor onednn_workspace(const at::Tensor& a, bool is_half) {
  const int64_t copied = is_half || a.is_contiguous() ? 0 : a.numel() * int64_t{sizeof(float)};
  const int64_t packed = is_half ? std::min<int64_t>(1024 * a.size(1), int64_t{3} << 19) : 0;
  const int64_t of_thread = (int64_t{260} << 10) + packed;
  return at::empty({copied + of_thread * at::get_num_threads()}, a.options().dtype(at::kByte));
}

}  // namespace caravan
