"""Runs a test script on several ranks.

A script defines test_* functions and ends with `ranks.main(globals(), num_ranks)`, which starts the script once for
each rank. Every rank runs the functions in order with the default process group on "caravan". Under torchrun, or with
RANK in the environment, the process is a rank itself.
"""

import faulthandler
import os
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import timedelta

SECONDS = 100  # a run that hangs prints the stacks of its ranks


def main(namespace, num_ranks, expected_exits=None):
    if "RANK" in os.environ:
        be_rank(namespace)
    else:
        sys.exit(run(num_ranks, expected_exits or [0] * num_ranks))


def run(num_ranks, expected_exits):
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(num_ranks):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_RANK=str(rank),
                       LOCAL_WORLD_SIZE=str(num_ranks), TEST_STORE=os.path.join(folder, "store"))
            processes.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
        deadline = time.monotonic() + SECONDS + 10
        try:
            exits = [process.wait(max(0, deadline - time.monotonic())) for process in processes]
        finally:
            for process in processes:
                process.kill()
    if exits != expected_exits:
        print(f"exit codes of the ranks: {exits}, expected: {expected_exits}")
    return int(exits != expected_exits)


def be_rank(namespace):
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    warnings.simplefilter("ignore", FutureWarning)  # newer torch deprecates names that are the only ones in older torch
    import torch
    import torch.distributed as dist

    import caravan_c10d  # noqa: F401: the line that a user adds

    torch.set_num_threads(1)
    store = os.environ.get("TEST_STORE")
    where = {} if store is None else {
        "init_method": f"file://{store}", "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("caravan", timeout=timedelta(seconds=60), **where)
    for name, function in list(namespace.items()):
        if name.startswith("test_"):
            try:
                function()
            except BaseException:
                print(f"rank {dist.get_rank()}: {name} failed", flush=True)
                raise
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


def error_of(call):
    """The message of the RuntimeError that `call` raises."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")
