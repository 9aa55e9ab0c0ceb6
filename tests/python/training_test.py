"""DistributedDataParallel and FSDP2 on "caravan" and on gloo: every bit of losses, gradients and parameters."""

import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import gpt
import ranks

SIZE = gpt.Size(layers=2, width=32, heads=2, context=16, vocabulary=64, batch=3)
STEPS = 3
gloo = None


def group_of(backend):
    global gloo
    if backend == "caravan":
        assert dist.get_backend() == "caravan"
        return dist.group.WORLD
    gloo = gloo or dist.new_group(backend="gloo")
    return gloo


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def train(model, accumulate=None):
    """The results of a run: each step's loss and gradients, and the parameters at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    left = []
    before = [local(parameter).detach().clone() for parameter in model.parameters()]
    for step in range(STEPS):
        if accumulate is not None:
            with accumulate():
                gpt.loss_of(model, SIZE, dist.get_rank(), 100 + step).backward()
        loss = gpt.loss_of(model, SIZE, dist.get_rank(), step)
        loss.backward()
        left.append(loss.detach().clone())
        left += [local(parameter.grad).clone() for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    after = [local(parameter).detach().clone() for parameter in model.parameters()]
    assert all(not torch.equal(a, b) for a, b in zip(before, after)), "a parameter was not trained"
    return left + after


def check_equal(name, run):
    of_gloo, of_caravan = run("gloo"), run("caravan")
    assert len(of_gloo) == len(of_caravan) > STEPS
    for i, (a, b) in enumerate(zip(of_gloo, of_caravan)):
        assert a.dtype == b.dtype and torch.equal(a, b), f"{name}: value {i} of {len(of_gloo)} differs"


def ddp(backend, hook=None, accumulates=False, **options):
    model = DistributedDataParallel(gpt.make(SIZE), process_group=group_of(backend), **options)
    if hook is not None:
        model.register_comm_hook(group_of(backend), hook)
    return train(model, model.no_sync if accumulates else None)


def test_ddp():
    cases = {
        "one bucket": {},
        "many buckets": {"bucket_cap_mb": 0.01},
        "gradients in the buckets": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01},
        "static graph": {"static_graph": True, "bucket_cap_mb": 0.01},
        "unused parameters": {"find_unused_parameters": True},
        "hook": {"hook": default_hooks.allreduce_hook, "bucket_cap_mb": 0.01},
        "fp16 gradients": {"hook": default_hooks.fp16_compress_hook, "bucket_cap_mb": 0.01},
        "two micro-batches": {"accumulates": True},
    }
    for name, options in cases.items():
        check_equal(f"DDP, {name}", lambda backend: ddp(backend, **options))


def test_ddp_with_buckets_of_the_backend():
    os.environ["DDP_DISABLE_COMM_MEM"] = "0"
    check_equal("DDP, allocateTensor", lambda backend: ddp(backend, gradient_as_bucket_view=True))
    del os.environ["DDP_DISABLE_COMM_MEM"]


def fsdp(backend, takes_memory=False, **options):
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,)) if backend == "caravan" else DeviceMesh.from_group(group_of(backend), "cpu")
    model = gpt.make(SIZE)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if takes_memory and backend == "caravan":
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_allocate_memory_from_process_group_for_comm(True)
    return train(model)


def test_fsdp2():
    cases = {
        "ZeRO-3": {},
        "ZeRO-2": {"reshard_after_forward": False},
        "bf16, sums in fp32": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
        "bf16": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
        "allocateTensor": {"takes_memory": True},
    }
    for name, options in cases.items():
        check_equal(f"FSDP2, {name}", lambda backend: fsdp(backend, **options))


if __name__ == "__main__":
    ranks.main(globals(), 2)
