"""Every collective of torch.distributed on "caravan" against the same call on gloo."""

import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import ranks

COUNT = 1000
groups = {}


def group(backend):
    if backend == "caravan":
        return dist.group.WORLD
    if backend not in groups:
        groups[backend] = dist.new_group(backend=backend)
    return groups[backend]


def numbers(rank, count=COUNT, dtype=torch.float32):
    return (torch.arange(count) % 7 + 3 * rank).to(dtype)


def check_equal(name, run):
    """`run(group)` gives tensors, or anything that == compares."""
    a, b = run(group("gloo")), run(group("caravan"))
    a, b = (x if isinstance(x, (list, tuple)) else [x] for x in (a, b))
    assert len(a) == len(b), name
    for x, y in zip(a, b):
        same = torch.equal(x, y) and x.dtype == y.dtype if isinstance(x, torch.Tensor) else x == y
        assert same, f"{name}: gloo {x}, caravan {y}"


def into(function, out, *args, **kwargs):
    """The output of a call that fills its first argument."""
    function(out, *args, **kwargs)
    return out


def test_sums():
    rank, n = dist.get_rank(), dist.get_world_size()
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT):
        check_equal(f"all_reduce {op}", lambda g: into(dist.all_reduce, numbers(rank), op, group=g))
        if rank == 1:
            check_equal(f"reduce {op}", lambda g: into(dist.reduce, numbers(rank), 1, op, group=g))
        else:
            for backend in ("gloo", "caravan"):
                dist.reduce(numbers(rank), 1, op, group=group(backend))
        check_equal(f"reduce_scatter {op}", lambda g: into(
            dist.reduce_scatter, torch.empty(5), [numbers(rank + i, 5) for i in range(n)], op, group=g))
        check_equal(f"reduce_scatter_tensor {op}", lambda g: into(
            dist.reduce_scatter_tensor, torch.empty(5), numbers(rank, 5 * n), op, group=g))
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8):
        check_equal(f"all_reduce {dtype}", lambda g: into(dist.all_reduce, numbers(rank, dtype=dtype), group=g))
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        for dtype in (torch.int64, torch.int8):
            check_equal(f"all_reduce {op} {dtype}",
                        lambda g: into(dist.all_reduce, numbers(rank, 10, dtype), op, group=g))
    check_equal("transposed", lambda g: into(dist.all_reduce, numbers(rank, 12).view(3, 4).t(), group=g))
    check_equal("complex", lambda g: into(dist.all_reduce, numbers(rank, dtype=torch.complex64), group=g))
    check_equal("coalesced", lambda g: into(dist.all_reduce_coalesced, [numbers(rank), numbers(rank, 3)], group=g))


def test_moves():
    rank, n = dist.get_rank(), dist.get_world_size()

    def like(count=COUNT):
        return torch.empty(count)

    def lists():
        return [like() for _ in range(n)]

    check_equal("broadcast", lambda g: into(dist.broadcast, numbers(rank), 1, group=g))
    check_equal("all_gather", lambda g: into(dist.all_gather, lists(), numbers(rank), group=g))
    check_equal("all_gather_into_tensor",
                lambda g: into(dist.all_gather_into_tensor, like(n * COUNT), numbers(rank), group=g))
    check_equal("all_gather_coalesced", lambda g: sum(into(
        dist.all_gather_coalesced, [[like(3)] for _ in range(n)], [numbers(rank, 3)], group=g), []))
    check_equal("scatter", lambda g: into(
        dist.scatter, like(), [numbers(i) for i in range(n)] if rank == 0 else None, 0, group=g))
    for backend in ("gloo", "caravan"):
        gathered = lists() if rank == 0 else None
        dist.gather(numbers(rank), gathered, 0, group=group(backend))
        assert rank != 0 or all(torch.equal(x, numbers(i)) for i, x in enumerate(gathered))
    check_equal("all_to_all_single", lambda g: into(dist.all_to_all_single, like(n * 4), numbers(rank, n * 4), group=g))
    splits = [rank + i + 1 for i in range(n)]
    check_equal("uneven all_to_all_single", lambda g: into(
        dist.all_to_all_single, like(sum(splits)), numbers(rank, sum(splits)), splits, splits, group=g))
    outputs = [like(3) for _ in range(n)]
    dist.all_to_all(outputs, [numbers(rank + 5 * i, 3) for i in range(n)])  # gloo has none
    assert all(torch.equal(x, numbers(i + 5 * rank, 3)) for i, x in enumerate(outputs))


def test_objects():
    rank, n = dist.get_rank(), dist.get_world_size()
    thing = {"rank": rank, "text": "x" * 100 * rank}
    check_equal("all_gather_object", lambda g: into(dist.all_gather_object, [None] * n, thing, group=g))
    check_equal("broadcast_object_list", lambda g: into(dist.broadcast_object_list, [thing, rank], 1, group=g))
    check_equal("scatter_object_list", lambda g: into(
        dist.scatter_object_list, [None], [f"to {i}" for i in range(n)] if rank == 0 else None, 0, group=g))
    gathered = [None] * n if rank == 0 else None
    dist.gather_object(thing, gathered, 0)
    assert rank != 0 or [each["rank"] for each in gathered] == list(range(n))


def test_messages():
    rank, n = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % n, (rank - 1) % n
    received = torch.empty(COUNT)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, numbers(rank), after), dist.P2POp(dist.irecv, received, before)])
    for work in works:
        work.wait()
    assert torch.equal(received, numbers(before))
    if rank == 0:
        dist.send(numbers(9, 5), 1)
    elif rank == 1:
        received = torch.empty(5)
        assert dist.recv(received, 0) == 0
        assert torch.equal(received, numbers(9, 5))
    dist.barrier()


def test_tags_and_any_source():
    rank, n = dist.get_rank(), dist.get_world_size()
    for backend in ("gloo", "caravan"):
        g = group(backend)
        if rank == 0:
            works = [dist.isend(numbers(tag, 5), 1, group=g, tag=tag) for tag in (1, 2)]
            for work in works:
                work.wait()
            received = {}
            for _ in range(n - 1):
                value = torch.empty(5)
                received[dist.recv(value, group=g, tag=9)] = value
            assert sorted(received) == list(range(1, n)), backend
            assert all(torch.equal(value, numbers(source, 5)) for source, value in received.items()), backend
        else:
            if rank == 1:
                for tag in (2, 1):
                    value = torch.empty(5)
                    assert dist.recv(value, 0, group=g, tag=tag) == 0
                    assert torch.equal(value, numbers(tag, 5)), backend
            dist.send(numbers(rank, 5), 0, group=g, tag=9)
    dist.barrier()


def test_sparse():
    rank = dist.get_rank()

    def call(g):
        indices = torch.arange(2 * (rank + 1)).view(2, -1) % 3
        value = torch.sparse_coo_tensor(indices, numbers(rank, rank + 1), (3, 4))
        dist.all_reduce(value, group=g)
        return value.to_dense()

    check_equal("sparse", call)


def test_the_profiler_names_each_call():
    def events(g):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            value = numbers(dist.get_rank(), 6)
            dist.all_reduce(value, group=g)
            dist.broadcast(value, 0, group=g)
            dist.reduce(value, 0, group=g)
            dist.all_gather([value.clone() for _ in range(dist.get_world_size())], value, group=g)
            dist.barrier(group=g)
        own = [e for e in profile.events() if e.name.split(":")[0] in ("gloo", "caravan")]
        return [(e.name.split(":")[1], e.input_shapes) for e in own]

    check_equal("profiler", events)


def test_a_split_group():
    for backend in ("gloo", "caravan"):
        part = group(backend).split_group([0, 1], timeout=timedelta(seconds=20), group_name=f"part of {backend}")
        if dist.get_rank() < 2:
            value = numbers(dist.get_rank(), 4)
            part.allreduce([value]).wait()
            assert torch.equal(value, numbers(0, 4) + numbers(1, 4)), backend
    dist.barrier()


def test_subgroups():
    rank = dist.get_rank()
    last = dist.get_world_size() - 1
    pair = dist.new_group([last, 0], timeout=timedelta(seconds=20))
    alone = dist.new_group([1])
    if rank in (0, last):
        value = torch.tensor([float(rank + 1)])
        dist.all_reduce(value, group=pair)
        assert value.item() == last + 2
        dist.destroy_process_group(pair)
    if rank == 1:
        value = torch.tensor([5.0])
        dist.all_reduce(value, group=alone)
        assert value.item() == 5
    dist.barrier()


def test_works():
    rank, n = dist.get_rank(), dist.get_world_size()
    other = dist.new_group(backend="caravan")
    first, second = numbers(rank), torch.full((2_000_000,), 1.0)
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, group=other, async_op=True)]
    for work in works if rank % 2 == 0 else reversed(works):
        work.wait()
    assert second[-1].item() == n and all(work.is_completed() and work.is_success() for work in works)

    value = numbers(rank)
    future = dist.all_reduce(value, async_op=True).get_future().then(lambda done: done.value()[0].sum().item())
    assert future.wait() == sum(numbers(i).sum().item() for i in range(n))

    gathered = functional.all_gather_tensor(numbers(rank, 4), 0, dist.group.WORLD)
    assert torch.equal(gathered + 0, torch.cat([numbers(i, 4) for i in range(n)]))

    # A second thread may use its own group while this one waits.
    def in_thread():
        dist.barrier(group=other)

    thread = threading.Thread(target=in_thread)
    thread.start()
    dist.barrier()
    thread.join()


def test_refusals():
    error = ranks.error_of(lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND))
    assert "no BAND of Float" in error, error
    other = (dist.get_rank() + 1) % dist.get_world_size()
    assert "not contiguous" in ranks.error_of(lambda: dist.send(torch.ones(3, 3).t(), other))
    dist.barrier()


if __name__ == "__main__":
    ranks.main(globals(), int(sys.argv[1]) if len(sys.argv) > 1 else 3)
