"""Calls of ATen ops for op_samples.py: by hand, with dims that are multiples of 6 wherever the op allows it, and by the
types of the schema for families of many equal ops."""
import torch

aten = torch.ops.aten
f64 = torch.float64


def r(*sizes):
    return torch.randn(sizes, dtype=f64)


def u(*sizes):
    """Between 0.1 and 0.9."""
    return torch.rand(sizes, dtype=f64) * 0.8 + 0.1


def z(*sizes):
    return torch.zeros(sizes, dtype=f64)


def idx(high, *sizes):
    return torch.randint(0, high, sizes)


def spd(*sizes):
    """Symmetric, positive definite."""
    x = r(*sizes)
    return x @ x.mT + sizes[-1] * torch.eye(sizes[-1], dtype=f64)


def products():
    return {
        "mm": [lambda: (r(6, 12), r(12, 18)), lambda: (r(12, 6), r(18, 6).t())],
        "addmm": [lambda: (r(18), r(6, 12), r(12, 18)),
                  lambda: (r(6, 18), r(6, 12), r(12, 18), {"beta": 2, "alpha": 3}),
                  lambda: (r(6, 1), r(6, 12), r(12, 18)), lambda: (r(1, 18), r(6, 12), r(12, 18))],
        "addmm_": [lambda: (r(6, 18), r(6, 12), r(12, 18)), lambda: (r(6, 18), r(6, 12), r(12, 18), {"beta": 2})],
        "bmm": [lambda: (r(6, 6, 12), r(6, 12, 6)), lambda: (r(6, 12, 6).mT, r(6, 12, 6))],
        "baddbmm": [lambda: (r(6, 6, 6), r(6, 6, 12), r(6, 12, 6), {"beta": 2, "alpha": 3}),
                    lambda: (r(6, 1, 6), r(6, 6, 12), r(6, 12, 6)), lambda: (r(6), r(6, 6, 12), r(6, 12, 6))],
        "baddbmm_": [lambda: (r(6, 6, 6), r(6, 6, 12), r(6, 12, 6), {"alpha": 3})],
        "dot": [lambda: (r(12), r(12))],
        "mv": [lambda: (r(6, 12), r(12))],
        "addmv": [lambda: (r(6), r(6, 12), r(12))],
        "_foreach_mm": [lambda: ([r(6, 12), r(12, 6)], [r(12, 6), r(6, 18)])],
        "_scaled_mm.out": [lambda: (r(12, 48).to(torch.float8_e4m3fn), r(48, 48).to(torch.float8_e4m3fn).t(),
                                    torch.tensor(0.5), torch.tensor(2.0),
                                    {"out_dtype": torch.bfloat16, "out": z(12, 48).bfloat16()})],
        "clip": [lambda: (r(6, 12), -0.5, 0.5), lambda: (r(6, 12), None, 0.5)],
        "clip_": [lambda: (r(6, 12), -0.5, 0.5)],
        "_grouped_mm": [lambda: (r(6, 12, 24).bfloat16(), r(6, 24, 16).bfloat16()),
                        lambda: (r(12, 24).bfloat16(), r(6, 24, 16).bfloat16(),
                                 torch.tensor([2, 4, 6, 8, 10, 12], dtype=torch.int32))],
        "_scaled_mm": [lambda: (r(12, 48).to(torch.float8_e4m3fn), r(48, 48).to(torch.float8_e4m3fn).t(),
                                torch.tensor(0.5), torch.tensor(2.0), {"out_dtype": torch.bfloat16})],
    }


def layer_norm_backward(shape, sizes, affine, mask):
    x = r(*shape)
    weight, bias = (r(*sizes), r(*sizes)) if affine else (None, None)
    out, mean, rstd = aten.native_layer_norm(x, sizes, weight, bias, 1e-5)
    return r(*shape), x, sizes, mean, rstd, weight, bias, mask


def group_norm_backward(mask):
    x, weight = r(6, 12, 6), r(12)
    out, mean, rstd = aten.native_group_norm(x, weight, r(12), 6, 12, 6, 6, 1e-5)
    return r(6, 12, 6), x, mean, rstd, weight, 6, 12, 6, 6, mask


def batch_norm_backward(train, mask):
    x, weight, mean, var = r(6, 12, 6), r(12), r(12), u(12)
    out, save_mean, save_invstd = aten.native_batch_norm(x, weight, r(12), mean, var, train, 0.1, 1e-5)
    return r(6, 12, 6), x, weight, mean, var, save_mean, save_invstd, train, 1e-5, mask


def rms_norm_backward(mask):
    x, weight = r(6, 6, 12), r(12)
    out, rstd = aten._fused_rms_norm(x, [12], weight, 1e-5)
    return r(6, 6, 12), x, [12], rstd, weight, mask


def norms():
    every = [True, True, True]
    return {
        "native_layer_norm": [lambda: (r(6, 6, 12), [12], r(12), r(12), 1e-5),
                              lambda: (r(6, 12), [12], None, None, 1e-5),
                              lambda: (r(6, 6, 12), [6, 12], r(6, 12), r(6, 12), 1e-5)],
        "native_layer_norm_backward": [lambda: layer_norm_backward((6, 6, 12), [12], True, every),
                                       lambda: layer_norm_backward((6, 12), [12], False, [True, False, False]),
                                       lambda: layer_norm_backward((6, 12), [12], True, [False, True, True]),
                                       lambda: layer_norm_backward((6, 6, 12), [6, 12], True, every)],
        "_fused_rms_norm": [lambda: (r(6, 6, 12), [12], r(12), 1e-5), lambda: (r(6, 12), [12], None, None)],
        "_fused_rms_norm_backward": [lambda: rms_norm_backward([True, True]), lambda: rms_norm_backward([True, False])],
        "native_group_norm": [lambda: (r(6, 12, 6), r(12), r(12), 6, 12, 6, 6, 1e-5),
                              lambda: (r(6, 6, 2, 3), None, None, 6, 6, 6, 2, 1e-5)],
        "native_group_norm_backward": [lambda: group_norm_backward(every)],
        "native_batch_norm": [lambda: (r(6, 12, 6), r(12), r(12), r(12), u(12), True, 0.1, 1e-5),
                              lambda: (r(6, 12), r(12), r(12), r(12), u(12), False, 0.1, 1e-5),
                              lambda: (r(6, 12), None, None, None, None, True, 0.1, 1e-5)],
        "_native_batch_norm_legit": [lambda: (r(6, 12, 6), r(12), r(12), r(12), u(12), True, 0.1, 1e-5),
                                     lambda: (r(6, 12), r(12), r(12), r(12), u(12), False, 0.1, 1e-5)],
        "_native_batch_norm_legit.no_stats": [lambda: (r(6, 12, 6), r(12), r(12), True, 0.1, 1e-5)],
        "_native_batch_norm_legit_functional": [lambda: (r(6, 12, 6), r(12), r(12), r(12), u(12), True, 0.1, 1e-5)],
        "_native_batch_norm_legit_no_training": [lambda: (r(6, 12, 6), r(12), r(12), r(12), u(12), 0.1, 1e-5),
                                                 lambda: (r(6, 12), None, None, r(12), u(12), 0.1, 1e-5)],
        "_batch_norm_with_update": [lambda: (r(6, 12, 6), r(12), r(12), r(12), u(12), 0.1, 1e-5)],
        "_batch_norm_with_update_functional": [lambda: (r(6, 12, 6), r(12), r(12), r(12), u(12), 0.1, 1e-5)],
        "native_batch_norm_backward": [lambda: batch_norm_backward(True, every),
                                       lambda: batch_norm_backward(False, every),
                                       lambda: batch_norm_backward(True, [True, False, False])],
    }


def convolution_arguments(x, weight, bias, stride, transposed, groups):
    num = x.dim() - 2
    return x, weight, bias, [stride] * num, [1] * num, [1] * num, transposed, [0] * num, groups


def convolution_backward(mask, *arguments):
    arguments = convolution_arguments(*arguments)
    out = aten.convolution(*arguments)
    sizes = None if arguments[2] is None else list(arguments[2].shape)
    return (r(*out.shape), *arguments[:2], sizes, *arguments[3:], mask)


def convolutions():
    cases = [lambda: (r(6, 6, 12), r(12, 6, 3), r(12), 1, False, 1),
             lambda: (r(6, 6, 2, 6), r(6, 6, 3, 3), None, 2, False, 1),
             lambda: (r(6, 12, 6), r(12, 2, 3), r(12), 1, False, 6),
             lambda: (r(6, 6, 6), r(6, 12, 3), r(12), 1, True, 1)]
    every = [True, True, True]
    return {"convolution": [lambda case=case: convolution_arguments(*case()) for case in cases],
            "convolution_backward": [lambda case=case: convolution_backward(every, *case()) for case in cases] +
            [lambda: convolution_backward([False, True, False], *cases[0]()),
             lambda: convolution_backward([True, False, False], *cases[0]())]}


def nll(two_d, backward, reduction, weighted, ignore):
    x = r(6, 12, 2, 3).log_softmax(1) if two_d else r(12, 6).log_softmax(1)
    target = idx(12, 6, 2, 3) if two_d else idx(6, 12)
    weight = u(x.size(1)) if weighted else None
    ignore = int(target.flatten()[0]) if ignore else -100
    if not backward:
        return x, target, weight, reduction, ignore
    op = aten.nll_loss2d_forward if two_d else aten.nll_loss_forward
    out, total = op(x, target, weight, reduction, ignore)
    return r(*out.shape), x, target, weight, reduction, ignore, total


def losses():
    found = {}
    for name in ("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"):
        found[name] = [lambda name=name, choice=choice: nll("2d" in name, "backward" in name, *choice)
                       for choice in [(0, False, False), (1, True, True), (2, True, False), (1, False, False)]]
    for name, forward in (("_softmax", "softmax"), ("_log_softmax", "log_softmax")):
        found[name] = [lambda: (r(6, 12), 1, False), lambda: (r(6, 6, 6), 0, False), lambda: (r(6, 6, 6), -1, False),
                       lambda: (r(6, 6, 6), 1, False)]
        found[name + "_backward_data"] = [
            lambda op=getattr(torch, forward), dim=dim: (r(6, 6, 6), op(r(6, 6, 6), dim), dim, f64) for dim in (0, 1, -1)]
    found["_safe_softmax"] = [lambda: (r(6, 12), 1), lambda: (r(6, 6, 6), 0)]
    return found


def indexing():
    def perm(n):
        return torch.randperm(n)

    x = (6, 6, 6)
    half = torch.arange(6)
    put = [lambda: (r(*x), [perm(6)], r(6, 6, 6)), lambda: (r(*x), [None, perm(6)], r(6, 6, 6), True),
           lambda: (r(*x), [perm(6), None, perm(6)], r(6, 6)), lambda: (r(*x), [idx(6, 12)], r(12, 6, 6), True)]
    found = {
        "embedding": [lambda: (r(12, 6), idx(12, 6, 12)), lambda: (r(12, 6), idx(12, 6), 3),
                      lambda: (r(18, 12), idx(18, 12))],
        "embedding_dense_backward": [lambda: (r(6, 6, 6), idx(12, 6, 6), 12, -1, False),
                                     lambda: (r(6, 6), idx(12, 6), 12, 3, False)],
        "index.Tensor": [lambda: (r(*x), [idx(6, 12)]), lambda: (r(*x), [None, idx(6, 6)]),
                         lambda: (r(*x), [idx(6, 12), idx(6, 12)]), lambda: (r(*x), [idx(6, 6), None, idx(6, 6)]),
                         lambda: (r(*x), [None, idx(6, 6, 2)]), lambda: (r(*x), [idx(6, 6, 1), idx(6, 6)])],
        "index_put": put, "index_put_": put,
        "_index_put_impl_": [lambda: (r(*x), [perm(6)], r(6, 6, 6), False, False)],
        "index_select": [lambda: (r(*x), 0, idx(6, 12)), lambda: (r(*x), 1, idx(6, 6)), lambda: (r(*x), -1, idx(6, 6))],
        "gather": [lambda: (r(6, 12), 1, idx(12, 6, 6)), lambda: (r(6, 12), 0, idx(6, 6, 12)),
                   lambda: (r(*x), 1, idx(6, 6, 6, 6))],
        "index_add": [lambda: (r(*x), 0, idx(6, 6), r(6, 6, 6)),
                      lambda: (r(*x), 1, idx(6, 6), r(6, 6, 6), {"alpha": 2})],
        "select_scatter": [lambda: (r(*x), r(6, 6), 0, 2), lambda: (r(*x), r(6, 6), 1, -1)],
        "diagonal_scatter": [lambda: (r(*x), r(6, 6), 0, 0, 2), lambda: (r(6, 6), r(6)), lambda: (r(6, 12), r(6), 1)],
        "slice_scatter": [lambda: (r(6, 12), r(6, 6), 1, 0, 12, 2), lambda: (r(*x), r(6, 6, 6), 0),
                          lambda: (r(6, 12), r(6, 6), 1, 6)],
        "select_backward": [lambda: (r(6, 6), [6, 6, 6], 0, 2), lambda: (r(6, 6), [6, 6, 6], 1, -1)],
        "slice_backward": [lambda: (r(6, 6, 6), [6, 12, 6], 1, 0, 12, 2), lambda: (r(6, 6, 6), [6, 6, 6], 0, 0, 6, 1)],
        "scatter_add": [lambda: (r(6, 12), 1, idx(12, 6, 6), r(6, 6)), lambda: (r(6, 12), 0, idx(6, 6, 12), r(6, 12))],
    }
    unique = [lambda: (r(6, 12), 1, torch.rand(6, 12).argsort(1)[:, half]),
              lambda: (r(6, 12), 0, torch.rand(6, 12).argsort(0))]
    for name in ("scatter", "scatter_"):
        found[name + ".src"] = [lambda case=case: (*case(), r(6, 12)) for case in unique]
        found[name + ".value"] = [lambda case=case: (*case(), 2.5) for case in unique]
    for name in ("index_fill", "index_fill_"):
        found[name + ".int_Scalar"] = [lambda: (r(*x), 0, idx(6, 6), 2.5), lambda: (r(*x), 1, idx(6, 6), 2.5)]
        found[name + ".int_Tensor"] = [lambda: (r(*x), 1, idx(6, 6), torch.tensor(2.5, dtype=f64))]
    for name in ("index_reduce", "index_reduce_"):
        found[name] = [lambda: (r(*x), 0, idx(6, 6), r(6, 6, 6), "amax"),
                       lambda: (r(*x), 1, idx(6, 6), r(6, 6, 6), "mean", {"include_self": False})]
    return found


def views():
    x = (6, 12, 6)
    shapes = [lambda: (r(*x), [72, 6]), lambda: (r(*x), [6, -1]), lambda: (r(6, 12), [6, 2, 6]),
              lambda: (r(6, 12), [6, 6, 2]),
              lambda: (r(*x), [12, 36]), lambda: (r(6, 1, 12), [6, 12]), lambda: (r(6, 12), [6, 1, 12])]
    expands = [lambda: (r(6, 1, 12), [6, 6, 12]), lambda: (r(6, 12), [6, -1, 12]), lambda: (r(1, 12), [6, 12])]
    return {
        "view": shapes, "reshape": shapes + [lambda: (r(12, 6).t(), [72])], "_unsafe_view": shapes[:3],
        "view_copy": shapes[:3], "expand": expands, "expand_copy": expands,
        "permute": [lambda: (r(*x), [2, 0, 1]), lambda: (r(6, 12), [1, 0])],
        "transpose.int": [lambda: (r(*x), 1, 2), lambda: (r(6, 12), 0, -1)],
        "t": [lambda: (r(6, 12),), lambda: (r(6),)],
        "unsqueeze": [lambda: (r(6, 12), 0), lambda: (r(6, 12), -1), lambda: (r(6, 12), 1)],
        "squeeze": [lambda: (r(6, 1, 12),)], "squeeze.dim": [lambda: (r(6, 1, 12), 1), lambda: (r(6, 12), 0)],
        "squeeze.dims": [lambda: (r(6, 1, 12, 1), [1, 3])],
        "squeeze_": [lambda: (r(6, 1, 12),)], "squeeze_.dim": [lambda: (r(6, 1, 12), 1)],
        "squeeze_.dims": [lambda: (r(6, 1, 12), [1])],
        "select.int": [lambda: (r(*x), 0, 2), lambda: (r(*x), 1, -1), lambda: (r(6, 12), -1, 3)],
        "slice.Tensor": [lambda: (r(*x), 0, 0, 6), lambda: (r(*x), 1, 3, 9), lambda: (r(*x), 1, 0, 12, 2),
                         lambda: (r(*x), -1, -4)],
        "split.Tensor": [lambda: (r(*x), 6, 1), lambda: (r(6, 12), 2), lambda: (r(6, 12), 5, 1)],
        "split_with_sizes": [lambda: (r(*x), [6, 4, 2], 1), lambda: (r(6, 12), [2, 4])],
        "split_with_sizes_copy": [lambda: (r(*x), [6, 4, 2], 1)],
        "unbind.int": [lambda: (r(6, 12, 6),), lambda: (r(6, 12), 1)],
        "diagonal": [lambda: (r(6, 12),), lambda: (r(*x), 0, 0, 2), lambda: (r(*x), 1, 1, 2)],
        "diagonal_copy": [lambda: (r(*x), 0, 0, 2)], "diag_embed": [lambda: (r(6, 6),), lambda: (r(6, 6), 0, 0, 2)],
        "diag": [lambda: (r(6),), lambda: (r(6, 12),)],
        "view.dtype": [lambda: (r(6, 12), torch.int64), lambda: (r(6, 12), torch.int32)],
        "view_as_real": [lambda: (torch.view_as_complex(r(6, 12, 2)),)], "view_as_complex": [lambda: (r(6, 12, 2),)],
        "_conj": [lambda: (torch.view_as_complex(r(6, 12, 2)),)],
        "contiguous": [lambda: (r(6, 12),), lambda: (r(12, 6).t(),)],
        "alias": [lambda: (r(6, 12),)], "detach": [lambda: (r(6, 12),)], "detach_": [lambda: (r(6, 12),)],
        "cat": [lambda: ([r(6, 12), r(6, 12)],), lambda: ([r(6, 12), r(6, 6)], 1), lambda: ([r(6, 12, 6)] * 3, -1)],
        "stack": [lambda: ([r(6, 12), r(6, 12)],), lambda: ([r(6, 12), r(6, 12)], -1), lambda: ([r(6, 12)] * 3, 1)],
        "repeat": [lambda: (r(6, 12), [2, 3]), lambda: (r(6, 12), [2, 1, 1]), lambda: (r(6, 12), [1, 2])],
        "flip": [lambda: (r(*x), [1]), lambda: (r(6, 12), [0, -1])],
        "roll": [lambda: (r(*x), [2], [1]), lambda: (r(6, 12), [5]), lambda: (r(6, 12), [1, 2], [0, 1])],
        "tril": [lambda: (r(6, 12),), lambda: (r(6, 6, 12), 1)],
        "triu": [lambda: (r(6, 12),), lambda: (r(6, 6, 12), -1)],
        "constant_pad_nd": [lambda: (r(*x), [1, 2]), lambda: (r(*x), [0, 0, 2, 2], 1.5), lambda: (r(6, 12), [-1, 1])],
        "eye.m_out": [lambda: (6, 12, {"out": z(6, 12)})],
        "is_same_size": [lambda: (r(6, 12), r(6, 12)), lambda: (r(6, 12), r(6, 6))],
        "equal": [lambda: (r(6, 12), r(6, 12)), lambda: (z(6, 12), z(6, 12))],
    }


def reductions():
    x = (6, 6, 6)
    found = {}
    for name in ("sum.dim_IntList", "mean.dim", "amax", "amin", "any.dims", "var.correction", "std.correction",
                 "var_mean.correction", "logsumexp", "linalg__powsum", "linalg_vector_norm", "nansum"):
        rest = (3.0,) if "linalg_" in name else ()
        found[name] = [lambda rest=rest, dims=dims, keep=keep: (r(*x), *rest, dims, keep)
                       for dims, keep in [([0], False), ([1, -1], True), ([2], False)]]
        if name.endswith("correction"):
            cases = [([0], {"correction": 1}), ([1, -1], {"correction": 0, "keepdim": True}), (None, {"correction": 2})]
            found[name] = [lambda case=case: (r(*x), *case) for case in cases]
    for name in ("all.dim", "any.dim", "prod.dim_int", "argmax", "argmin", "max.dim", "min.dim", "median.dim",
                 "nanmedian.dim", "mode"):
        found[name] = [lambda dim=dim, keep=keep: (r(*x), dim, keep)
                       for dim, keep in [(0, False), (1, True), (-1, False)]]
    for name in ("sum", "mean", "max", "min", "prod", "any", "all", "median", "nanmedian"):
        found[name] = [lambda: (r(6, 12),), lambda: (r(*x),)]
    for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort"):
        found[name] = [lambda: (r(*x), 0), lambda: (r(*x), -1)]
    found.update({
        "kthvalue": [lambda: (r(*x), 3, 0), lambda: (r(*x), 2, 2, True)],
        "topk": [lambda: (r(*x), 3), lambda: (r(*x), 6, 0), lambda: (r(*x), 6, 1, False)],
        "sort.stable": [lambda: (r(*x), {"stable": True, "dim": 1, "descending": True}),
                        lambda: (r(6, 12), {"stable": False})],
        "norm.Scalar": [lambda: (r(6, 12),), lambda: (r(*x), 3)], "histc": [lambda: (r(6, 12), 12, -2, 2)],
        "bucketize.Tensor": [lambda: (r(6, 12), r(6).sort().values),
                             lambda: (r(6, 12), r(6).sort().values, {"right": True})],
        "_foreach_max": [lambda: ([r(6, 12), r(6)],)],
    })
    return found


def pool_backward(x):
    out, indices = aten.max_pool2d_with_indices(x, [2, 2])
    return r(*out.shape), x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices


def pools():
    return {
        "avg_pool1d": [lambda: (r(6, 6, 12), [2])],
        "avg_pool2d": [lambda: (r(6, 6, 2, 6), [2, 2]), lambda: (r(6, 6, 6), [3, 3])],
        "avg_pool3d": [lambda: (r(6, 6, 2, 2, 2), [2, 2, 2])],
        "_adaptive_avg_pool2d": [lambda: (r(6, 6, 2, 6), [2, 3])],
        "_adaptive_avg_pool3d": [lambda: (r(6, 6, 2, 2, 2), [2, 1, 1])],
        "_adaptive_avg_pool2d_backward": [lambda: (r(6, 6, 2, 3), r(6, 6, 2, 6))],
        "adaptive_avg_pool1d": [lambda: (r(6, 6, 12), [6])],
        "adaptive_max_pool1d": [lambda: (r(6, 6, 12), [6]), lambda: (r(6, 12), [6])],
        "adaptive_max_pool2d": [lambda: (r(6, 6, 2, 6), [2, 3])],
        "adaptive_max_pool3d": [lambda: (r(6, 6, 2, 2, 2), [2, 1, 1])],
        "max_pool1d_with_indices": [lambda: (r(6, 6, 12), [2]), lambda: (r(6, 12), [3])],
        "max_pool2d_with_indices": [lambda: (r(6, 6, 2, 6), [2, 2]), lambda: (r(6, 6, 6), [3, 3], [1, 1], [1, 1])],
        "max_pool2d_with_indices_backward": [lambda: pool_backward(r(6, 6, 2, 6)), lambda: pool_backward(r(6, 6, 6))],
        "max_pool3d_with_indices": [lambda: (r(6, 6, 2, 2, 2), [2, 2, 2])],
        "max_unpool2d": [lambda: (*aten.max_pool2d_with_indices(r(6, 6, 2, 6), [2, 2]), [2, 6])],
        "max_unpool3d": [lambda: (*aten.max_pool3d_with_indices(r(6, 6, 2, 2, 2), [2, 2, 2]), [2, 2, 2], [2, 2, 2],
                                  [0, 0, 0])],
        "fractional_max_pool2d": [lambda: (r(6, 6, 2, 6), [2, 2], [1, 3], u(6, 6, 2))],
        "fractional_max_pool3d": [lambda: (r(6, 6, 3, 3, 3), [2, 2, 2], [1, 1, 1], u(6, 6, 3))],
        "grid_sampler_2d": [lambda mode=mode: (r(6, 6, 2, 6), r(6, 2, 6, 2).tanh(), mode, 0, False) for mode in (0, 1)],
        "grid_sampler_3d": [lambda: (r(6, 6, 2, 2, 2), r(6, 2, 2, 2, 3).tanh(), 0, 1, True)],
        "grid_sampler_2d_backward": [lambda: (r(6, 6, 2, 6), r(6, 6, 2, 6), r(6, 2, 6, 2).tanh(), 0, 0, False,
                                              [True, True])],
        "grid_sampler_3d_backward": [lambda: (r(6, 6, 2, 2, 2), r(6, 6, 2, 2, 2), r(6, 2, 2, 2, 3).tanh(), 0, 1, True,
                                              [True, True])],
    }


def upsamples():
    found = {}
    for num, names in {1: ["upsample_linear1d", "upsample_nearest1d", "_upsample_nearest_exact1d"],
                       2: ["upsample_bilinear2d", "upsample_bicubic2d", "upsample_nearest2d",
                           "_upsample_nearest_exact2d",
                           "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"],
                       3: ["upsample_trilinear3d", "upsample_nearest3d", "_upsample_nearest_exact3d"]}.items():
        small, large = {1: ([6], [12]), 2: ([2, 3], [2, 6]), 3: ([1, 2, 3], [1, 2, 6])}[num]
        for name in names:
            corners = () if "nearest" in name else (False,)
            found[name] = [lambda small=small, large=large, corners=corners: (r(6, 6, *small), large, *corners)]
            found[name + "_backward"] = [
                lambda small=small, large=large, corners=corners: (r(6, 6, *large), large, [6, 6, *small], *corners)]
    return found


def linear_algebra():
    def x():
        return spd(6, 6, 6)

    def complex_rows():
        return torch.view_as_complex(r(6, 12, 2))

    found = {name: [lambda: (x(),)] for name in
             ("_linalg_det", "_linalg_slogdet", "cholesky", "cholesky_inverse", "linalg_cholesky_ex", "linalg_inv_ex",
              "_linalg_eigh", "linalg_eig", "linalg_lu", "linalg_lu_factor_ex", "linalg_matrix_exp", "linalg_qr",
              "_linalg_svd",
              "geqrf", "linalg_ldl_factor_ex", "linalg_pinv.atol_rtol_tensor")}
    found.update({
        "_linalg_solve_ex": [lambda: (x(), r(6, 6, 12)), lambda: (x(), r(6, 6))],
        "cholesky_solve": [lambda: (r(6, 6, 12), torch.linalg.cholesky(x()))],
        "linalg_solve_triangular": [lambda: (torch.linalg.cholesky(x()), r(6, 6, 12), {"upper": False})],
        "triangular_solve": [lambda: (r(6, 6, 12), torch.linalg.cholesky(x()), False)],
        "linalg_lu_solve": [lambda: (*torch.linalg.lu_factor(x()), r(6, 6, 12))],
        "linalg_ldl_solve": [lambda: (*torch.linalg.ldl_factor(x()), r(6, 6, 12))],
        "lu_unpack": [lambda: torch.linalg.lu_factor(x())],
        "linalg_householder_product": [lambda: torch.geqrf(x())], "ormqr": [lambda: (*torch.geqrf(x()), r(6, 6, 12))],
        "linalg_cross": [lambda: (r(6, 12, 3), r(6, 12, 3)), lambda: (r(6, 3, 12), r(6, 3, 12), {"dim": 1})],
        "_linalg_check_errors": [lambda: (torch.zeros(6, dtype=torch.int32), "op", {"is_matrix": False})],
        "_fft_r2c": [lambda: (r(6, 12), [1], 0, True), lambda: (r(6, 6, 12), [0], 0, False)],
        "_fft_c2c": [lambda: (complex_rows(), [1], 0, True), lambda: (complex_rows(), [0], 1, False)],
        "_fft_c2r": [lambda: (complex_rows(), [1], 0, 22), lambda: (complex_rows(), [0], 0, 6)],
    })
    return found


def attention_backward(causal):
    q, k, v = r(6, 6, 6, 2), r(6, 6, 6, 2), r(6, 6, 6, 2)
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return r(*out.shape), q, k, v, out, logsumexp, 0.0, causal


def attention():
    def qkv(*sizes):
        return r(*sizes), r(*sizes), r(*sizes)

    return {
        "_scaled_dot_product_flash_attention_for_cpu": [
            lambda: qkv(6, 6, 6, 2), lambda: (*qkv(2, 6, 6, 6), 0.0, True),
            lambda: (*qkv(6, 6, 6, 2), {"attn_mask": r(6, 6, 6, 6)})],
        "_scaled_dot_product_flash_attention_for_cpu_backward": [lambda: attention_backward(False)],
        "_scaled_dot_product_attention_math": [lambda: qkv(6, 6, 6, 2), lambda: (*qkv(2, 6, 6, 6), None, 0.0, True)],
    }


def optimizers():
    def lists():
        return [[r(6, 12), r(6)], [r(6, 12), r(6)], [r(6, 12), r(6)], [u(6, 12), u(6)]]

    def adam(amsgrad, lr):
        steps = [torch.tensor(3.0), torch.tensor(3.0)]
        settings = dict(lr=lr, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=amsgrad, maximize=False)
        return (*lists(), [u(6, 12), u(6)] if amsgrad else [], steps, settings)

    found = {}
    for name in ("_fused_adam", "_fused_adam_", "_fused_adamw", "_fused_adamw_"):
        found[name] = [lambda: adam(False, 0.01), lambda: adam(True, 0.01)]
        found[name + ".tensor_lr"] = [lambda: adam(False, torch.tensor(0.01)), lambda: adam(True, torch.tensor(0.01))]
    found["_fused_sgd_"] = [lambda: (*lists()[:3],
                                     dict(weight_decay=0.1, momentum=0.9, lr=0.01, dampening=0.0, nesterov=True,
                                                        maximize=False, is_first_step=False))]
    found["_fused_adagrad_"] = [lambda: (*lists()[:2], [u(6, 12), u(6)], [torch.tensor(3.0), torch.tensor(3.0)],
                                         dict(lr=0.01, lr_decay=0.1, weight_decay=0.1, eps=1e-8, maximize=False))]
    found["_amp_foreach_non_finite_check_and_unscale_"] = [
        lambda: ([r(6, 12).float(), r(6).float()], torch.tensor([0.0]), torch.tensor([0.5])),
        lambda: ([r(6, 12).float().log(), r(6).float()], torch.tensor([0.0]), torch.tensor([0.5]))]
    return found


def random_numbers():
    return {
        "native_dropout": [lambda: (r(6, 12), 0.5, True)], "normal_functional": [lambda: (r(6, 12), 0.0, 1.0)],
        "randint_like.low_dtype_out": [lambda: (r(6, 12), 2, 9, {"out": z(6, 12)})],
        "randint_like.low_dtype": [lambda: (r(6, 12), 2, 9)], "bernoulli": [lambda: (u(6, 12),)],
        "multinomial": [lambda: (u(6, 12), 6, False), lambda: (u(12), 6, True)],
        "rrelu_with_noise_functional": [lambda: (r(6, 12), r(6, 12), 0.1, 0.3, True)],
    }


def explicit_calls():
    """op -> functions that make the arguments; a dict at the end holds keyword arguments."""
    found = {}
    for group in (products, norms, convolutions, losses, indexing, views, reductions, pools, upsamples, linear_algebra,
                  attention, optimizers, random_numbers):
        found.update(group())
    return {"aten::" + name: makers for name, makers in found.items()}


def value_for(argument, foreach, dtype, sizes):
    """A value of the argument's type."""
    def tensor(*shape):
        return u(*shape) if dtype == f64 else torch.randint(1, 4, shape).to(dtype)

    kind = str(argument.type)
    if kind == "Tensor" or kind == "Optional[Tensor]":
        if foreach:
            return tensor(2) if argument.name == "scalars" else tensor()
        return tensor(*sizes)
    if kind == "List[Tensor]":
        return [tensor(*sizes), tensor(6)]
    if kind == "List[number]":
        return [0.5, 2.0] if dtype == f64 else [1, 2]
    if argument.has_default_value():
        return argument.default_value
    simple = {"number": 0.5 if dtype == f64 else 2, "int": 2, "float": 0.5, "bool": True, "Optional[number]": 1,
              "Optional[str]": "floor"}
    return simple[kind]


def schema_calls(op, recorder):
    """Calls an op that takes tensors of one shape with arguments made from the types of its schema."""
    foreach = "_foreach" in op._schema.name
    if any(argument.is_out for argument in op._schema.arguments):
        return
    for dtype in (f64, torch.int64, torch.bool):
        num = len(recorder.calls[op])
        for sizes in ((6, 12), (2, 6, 6)):
            try:
                values = {a.name: value_for(a, foreach, dtype, sizes) for a in op._schema.arguments}
                args = [values[a.name] for a in op._schema.arguments if not a.kwarg_only]
                recorder.call(op, args, {a.name: values[a.name] for a in op._schema.arguments if a.kwarg_only},
                              pinned=True)
            except (RuntimeError, KeyError, ValueError, NotImplementedError):
                break
        if len(recorder.calls[op]) > num:
            return
