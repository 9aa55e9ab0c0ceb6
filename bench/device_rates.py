#!/usr/bin/env python3
"""What kernels reach on an accelerator: matrix products by shape, fused attention, memory-bound kernels, launches.

  device_rates.py [OUT.csv]

Prints a CSV with the columns kind, dtype, batch, m, n, k, seconds, rate (FLOP/s or bytes a second): medians of ten
timed repetitions after three, each long enough for the clock. The planner's numbers for products and attention
(src/caravan/cost/constants.h) can be held against it.
"""
import statistics
import sys

import torch

ROWS = []


def seconds_of(work):
    """Median time of one call on the device."""
    for _ in range(3):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    repeats = max(1, min(200, int(2e-3 / max(begin.elapsed_time(end) * 1e-3, 1e-6))))
    times = []
    for _ in range(10):
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / repeats)
    return statistics.median(times)


def add(kind, dtype, batch, m, n, k, seconds, amount):
    ROWS.append((kind, dtype, batch, m, n, k, f"{seconds:.4e}", f"{amount / seconds:.4e}"))


def products(name, dtype):
    shapes = [(m, n, k) for m in (512, 2048, 4096, 8192) for n, k in
              ((1024, 1024), (4096, 1024), (1024, 4096), (2048, 2048), (4096, 4096), (16384, 4096), (4096, 16384),
               (8192, 8192), (1536, 12288), (12288, 1536))]
    shapes += [(16384, 12288, 12288), (2048, 50257, 2048), (2048, 50304, 2048), (2049, 4096, 4096), (64, 4096, 4096),
               (128, 128, 65536), (8192, 64, 8192), (2048, 2048, 64), (2048, 2048, 128)]
    for m, n, k in shapes:
        a = torch.randn(m, k, device="cuda", dtype=dtype)
        b = torch.randn(n, k, device="cuda", dtype=dtype)
        add("product", name, 1, m, n, k, seconds_of(lambda: torch.mm(a, b.t())), 2 * m * n * k)
    for batch, m, n, k in ((96, 2048, 2048, 128), (96, 2048, 128, 2048), (256, 512, 512, 64), (32, 1024, 1024, 64)):
        a = torch.randn(batch, m, k, device="cuda", dtype=dtype)
        b = torch.randn(batch, k, n, device="cuda", dtype=dtype)
        add("product", name, batch, m, n, k, seconds_of(lambda: torch.bmm(a, b)), 2 * batch * m * n * k)


def attention(name, dtype):
    for batch, heads, length, width in ((8, 16, 1024, 64), (4, 32, 2048, 128), (2, 32, 4096, 128), (1, 32, 8192, 128),
                                        (1, 16, 16384, 128), (4, 16, 2048, 64), (8, 12, 512, 64)):
        q, k, v = (torch.randn(batch, heads, length, width, device="cuda", dtype=dtype, requires_grad=True)
                   for _ in range(3))
        run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        flops = 2 * 2 * batch * heads * length * length * width / 2
        add("attention", name, batch * heads, length, length, width, seconds_of(run), flops)
        out = run()
        gradient = torch.randn_like(out)
        back = lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)
        add("attention backward", name, batch * heads, length, length, width, seconds_of(back), 2.5 * flops)


def memory():
    for mib in (1, 16, 64, 256, 1024):
        x = torch.randn(mib << 18, device="cuda")
        y = torch.empty_like(x)
        add("copy", "fp32", 1, mib << 18, 0, 0, seconds_of(lambda: y.copy_(x)), 2 * x.nbytes)
        add("add", "fp32", 1, mib << 18, 0, 0, seconds_of(lambda: torch.add(x, y, out=y)), 3 * x.nbytes)
        h = x.to(torch.bfloat16).view(-1, 4096)
        add("gelu", "bf16", 1, h.numel(), 0, 0, seconds_of(lambda: torch.nn.functional.gelu(h)), 2 * h.nbytes)
        add("layer_norm", "bf16", 1, h.numel(), 0, 0,
            seconds_of(lambda: torch.nn.functional.layer_norm(h, (4096,))), 2 * h.nbytes)
        add("softmax", "bf16", 1, h.numel(), 0, 0, seconds_of(lambda: torch.softmax(h, -1)), 2 * h.nbytes)
    tiny = torch.zeros(16, device="cuda")
    add("launch", "fp32", 1, 16, 0, 0, seconds_of(lambda: tiny.add_(1)), 1)
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device="cuda")
    add("to device", "int", 1, host.numel(), 0, 0, seconds_of(lambda: there.copy_(host, non_blocking=True)), host.nbytes)
    add("to host", "int", 1, host.numel(), 0, 0, seconds_of(lambda: host.copy_(there, non_blocking=True)), host.nbytes)


def sustained(dtype):
    """A minute-long run is bound by power: the rate of a large product after four seconds of it."""
    a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
    b = torch.randn(8192, 8192, device="cuda", dtype=dtype)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(2500):
        torch.mm(a, b)
    begin.record()
    for _ in range(2500):
        torch.mm(a, b)
    end.record()
    end.synchronize()
    add("sustained", "bf16", 1, 8192, 8192, 8192, begin.elapsed_time(end) * 1e-3 / 2500, 2 * 8192 ** 3)


def main():
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    products("bf16", torch.bfloat16)
    torch.backends.cuda.matmul.allow_tf32 = False
    for m in (2048, 8192):
        a = torch.randn(m, m, device="cuda")
        add("product", "fp32", 1, m, m, m, seconds_of(lambda: torch.mm(a, a)), 2 * m ** 3)
        torch.backends.cuda.matmul.allow_tf32 = True
        add("product", "tf32", 1, m, m, m, seconds_of(lambda: torch.mm(a, a)), 2 * m ** 3)
        torch.backends.cuda.matmul.allow_tf32 = False
    attention("bf16", torch.bfloat16)
    memory()
    sustained(torch.bfloat16)
    text = "kind,dtype,batch,m,n,k,seconds,rate\n" + "".join(",".join(map(str, row)) + "\n" for row in ROWS)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(text)
    print(text)


if __name__ == "__main__":
    main()
