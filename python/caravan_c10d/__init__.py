"""The backend "caravan" of torch.distributed: collectives of the processes of one host over shared memory.

    import caravan_c10d
    torch.distributed.init_process_group("caravan")
"""

import atexit

import torch.distributed as dist

from caravan_c10d import _C

dist.Backend.register_backend("caravan", _C.create, devices=["cpu"])
# While the interpreter is alive: the thread that completes futures may need it.
atexit.register(_C.stop)
