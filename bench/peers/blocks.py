"""Starts and controls libraries that time blocks of calls on request, for comm_peers.py and comm_limits.py.

A side is the ranks of one library: processes that read commands from pipes. bench/comm_block.cpp lists the commands.
"""
import os
import pathlib
import select
import shutil
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LEAST_SAMPLE_S = 20e-6
MOST_SAMPLES = 2000


class SideError(Exception):
    """A library that cannot be started, died, or gave a wrong result."""

    def __init__(self, side, text):
        super().__init__(f"{side}: {text}")
        self.side = side


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Side:
    """The ranks of one library. `command` gets the folder of the pipes as its last argument. It runs once if it is a launcher
    such as mpirun, or (`by_hand`) once per rank with the environment of torchrun."""

    def __init__(self, name, command, ranks=2, by_hand=False, environment=None):
        self.name, self.ranks = name, ranks
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="caravan_block_"))
        self.log = open(self.folder / "log", "w+")
        self.commands, self.answers, self.rest = [], [], [b""] * ranks
        for rank in range(ranks):
            for pipes, pipe in ((self.commands, "command"), (self.answers, "answer")):
                os.mkfifo(self.folder / f"{pipe}.{rank}")
                pipes.append(os.open(self.folder / f"{pipe}.{rank}", os.O_RDWR | os.O_CLOEXEC))  # O_RDWR: does not wait for the other end
        environment = os.environ | (environment or {})
        command = [*map(str, command), str(self.folder)]
        self.processes = []
        port = str(free_port())
        for rank in range(ranks if by_hand else 1):
            job = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if by_hand else {}
            self.processes.append(subprocess.Popen(command, env=environment | job, stdin=subprocess.DEVNULL, stdout=self.log,
                                                   stderr=self.log))
        try:
            for line in self.read_all(60):
                if line != "ready":
                    raise SideError(name, f"sent '{line}' instead of ready")
        except SideError:
            self.close()
            raise

    def read_all(self, seconds=120):
        """The next line of each rank."""
        deadline, lines = time.monotonic() + seconds, [None] * self.ranks
        while None in lines:
            for rank in range(self.ranks):
                if lines[rank] is None and b"\n" in self.rest[rank]:
                    line, _, self.rest[rank] = self.rest[rank].partition(b"\n")
                    lines[rank] = line.decode()
            waiting = [self.answers[rank] for rank in range(self.ranks) if lines[rank] is None]
            if not waiting:
                break
            ready = select.select(waiting, [], [], 0.5)[0]
            for descriptor in ready:
                self.rest[self.answers.index(descriptor)] += os.read(descriptor, 1 << 20)
            if not ready and (time.monotonic() > deadline or any(p.poll() is not None for p in self.processes)):
                self.log.flush()
                self.log.seek(0)
                raise SideError(self.name, f"no answer in {seconds} s, or it ended; the end of its output:\n" + self.log.read()[-2000:])
        return lines

    def ask(self, command):
        for descriptor in self.commands:
            os.write(descriptor, (command + "\n").encode())
        return self.read_all()

    def close(self):
        for descriptor in self.commands:
            os.write(descriptor, b"quit\n")
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for descriptor in self.commands + self.answers:
            os.close(descriptor)
        self.log.close()
        shutil.rmtree(self.folder)

    def check(self, what):
        for line in self.ask(f"check {what}"):
            if line != "right":
                raise SideError(self.name, f"{what}: {line}")

    def block(self, what, warm_ups, samples, calls):
        """Seconds of a call: the samples of a block, each of its slowest rank."""
        times = []
        for line in self.ask(f"run {what} {warm_ups} {samples} {calls}"):
            word, *numbers = line.split()
            if word != "times" or len(numbers) != samples:
                raise SideError(self.name, f"{what}: answered '{line[:100]}'")
            times.append(list(map(float, numbers)))
        return [max(column) / calls for column in zip(*times)]

    def plan(self, what, block_s):
        """warm-ups, samples and calls of a sample, so that a block of `what` takes about block_s."""
        calls = 1
        while True:
            one = min(self.block(what, 0, 5, calls))  # the others may have been disturbed
            if one * calls > 1e-3 or calls >= 1 << 14:
                break
            calls *= 4
        calls = max(1, round(LEAST_SAMPLE_S / one))
        samples = int(min(max(block_s / (one * calls), 1), MOST_SAMPLES))
        return (1 if one < block_s / 2 else 0), samples, calls


class Ours(Side):
    """Caravan's ranks, which also measure how far apart their cores are, and the memory."""

    def __init__(self, program, ranks=2):
        super().__init__("caravan", [program], ranks, by_hand=True)

    def ping(self):
        """Nanoseconds of a cache line between the cores of ranks 0 and 1, one way; None if they share one."""
        word = self.ask("ping")[0].split()[1]
        return None if word == "-" else float(word)

    def memory(self, bytes_):
        """GB/s read and written, of copying and of adding, all ranks together."""
        return tuple(map(float, self.ask(f"memory {bytes_}")[0].split()[1:]))


def mode(ping_ns):
    """The placement of the two cores that a ping shows; None for one in between."""
    if ping_ns is None:
        return None
    return "near" if ping_ns < 60 else "far" if ping_ns > 110 else None


def compile_mpi(compiler, out, extra=()):
    subprocess.run([*compiler, "-O3", "-march=native", str(HERE / "mpi_block.c"), "-o", str(out), *extra], check=True,
                   capture_output=True, text=True)


def start_openmpi(build):
    compile_mpi(["mpicc.openmpi"], build / "openmpi")
    return Side("openmpi", ["mpirun.openmpi", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--bind-to", "core", "-n", 2,
                            build / "openmpi"])


def start_mpich(build):
    compile_mpi(["mpicc.mpich"], build / "mpich")
    return Side("mpich", ["mpirun.mpich", "-bind-to", "core", "-n", 2, build / "mpich"])


def start_intel(build, prefix):
    """`prefix` holds lib/libmpi.so, include/mpi.h and bin/mpiexec.hydra: the folder of a virtual environment into which
    `pip install --no-deps impi-rt impi-devel` put them. Its own libfabric is not in those packages: Debian's libfabric1."""
    prefix = pathlib.Path(prefix).resolve()
    lib = prefix / "lib"
    compile_mpi(["gcc"], build / "intel", [f"-I{prefix}/include", f"-L{lib}", "-lmpi", f"-Wl,-rpath,{lib}"])
    return Side("intelmpi", [prefix / "bin/mpiexec.hydra", "-n", 2, build / "intel"],
                environment={"I_MPI_ROOT": str(prefix), "LD_LIBRARY_PATH": str(lib), "I_MPI_FABRICS": "shm", "I_MPI_PIN": "1"})


def start_gloo(python):
    return Side("gloo", [python, HERE / "gloo_block.py"], by_hand=True, environment={"OMP_NUM_THREADS": "1"})
