"""Faults are errors that name the rank, on every remaining rank. Rank 1 kills itself at the end."""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist

import ranks


def test_a_mismatched_call():
    group = dist.new_group()
    count = 12 if dist.get_rank() == 1 else 10
    error = ranks.error_of(lambda: dist.all_reduce(torch.ones(count), group=group))
    assert "[10]" in error and "[12]" in error, error
    assert ranks.error_of(lambda: dist.barrier(group=group)) == error
    dist.barrier()  # the other groups continue


def test_a_rank_that_does_not_come():
    group = dist.new_group(timeout=timedelta(seconds=1))
    if dist.get_rank() == 0:
        error = ranks.error_of(lambda: dist.all_reduce(torch.ones(3), group=group))
        assert "rank 1 of 2 did not join within 1 s" in error, error
    dist.barrier()


def test_a_wait_of_its_own_length():
    if dist.get_rank() == 0:
        value = torch.zeros(3)
        work = dist.irecv(value, 1)
        assert "0.05 s" in ranks.error_of(lambda: work.wait(timedelta(milliseconds=50)))
        dist.send(torch.zeros(1), 1)
        work.wait()
        assert value.sum().item() == 3
    else:
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.ones(3), 0)


def test_a_killed_rank():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.ones(2, 3)).sum().backward()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = ranks.error_of(lambda: model(torch.ones(2, 3)).sum().backward())
    assert "rank 1" in error, error


if __name__ == "__main__":
    ranks.main(globals(), 2, [0, -signal.SIGKILL])
