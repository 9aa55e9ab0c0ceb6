#!/usr/bin/env python3
"""Real calls of ATen ops, for the tests of the placement rules of global tensors.

  op_samples.py --registry FILE                  the ops for which torch's DTensor has a rule
  op_samples.py --record FILE [--ops ..] [--per-op N]
                                                 calls of these ops: arguments before, results after

Calls come from torch's own op_db, seen below autograd, from op_sample_calls.py (dims that are multiples of 6, so that 2
and 3 ranks share them evenly), and are derived from those for variants (`out=`, in-place). Needs numpy, expecttest and
sympy, which torch imports for op_db. The same torch and processor give the same file.

Format of FILE, read by op_samples.cpp: torch.save of {"format": 1, "bytes": uint8 tensor, "calls": [(name, arguments,
results or None), ..]}. `arguments` has one entry for each argument of the schema, in its order. `results` are the
returned values followed by the arguments that are written; None for ops whose result is not determined by the arguments
(random numbers, uninitialized memory). A tuple (dtype, offset, sizes, strides) is a tensor, its elements in "bytes";
dtypes, layouts and memory formats are the numbers of c10, devices strings.
"""
import argparse
import collections
import ctypes
import io
import itertools
import random
import sys
import warnings
import zipfile

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from op_sample_calls import explicit_calls, schema_calls

warnings.filterwarnings("ignore")

MAX_NUMEL = 2304  # of a tensor
MAX_CANDIDATES = 80  # of an op, of which the most different are kept
DTYPES = {torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5,
          torch.float32: 6, torch.float64: 7, torch.complex64: 9, torch.complex128: 10, torch.bool: 11,
          torch.bfloat16: 15, torch.float8_e5m2: 23, torch.float8_e4m3fn: 24}
MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2,
                  torch.channels_last_3d: 3}
UNINITIALIZED = ("empty", "new_empty", "empty_like", "new_empty_strided", "empty_strided")


class Unfit(Exception):
    """The call cannot be recorded: too large, a kind of value the file does not have, .."""


class Elements:
    """A tensor's elements at one moment: the stretch of its storage, sizes and strides."""

    def __init__(self, tensor):
        if tensor.layout != torch.strided or tensor.dtype not in DTYPES:
            raise Unfit("kind of tensor")
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
            raise Unfit("kind of tensor")
        tensor = tensor.detach().resolve_conj().resolve_neg()
        self.dtype, self.sizes, self.strides = tensor.dtype, list(tensor.shape), list(tensor.stride())
        self.numel = tensor.numel()
        span = 0
        if self.numel:
            span = sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides)) + 1
        if max(span, self.numel) > MAX_NUMEL:
            raise Unfit("too large")
        if span > self.numel:  # what lies between the elements may be uninitialized
            stretch = torch.zeros(span, dtype=self.dtype)
            tensor = torch.as_strided(stretch, self.sizes, self.strides).copy_(tensor)
        self.bytes = ctypes.string_at(tensor.data_ptr(), span * tensor.element_size()) if span else b""

    def tensor(self):
        if not self.bytes:
            return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype)
        stretch = torch.frombuffer(bytearray(self.bytes), dtype=torch.uint8).view(self.dtype)
        return torch.as_strided(stretch, self.sizes, self.strides)


def snapshot(value):
    """A copy of an argument or result, tensors as Elements."""
    if isinstance(value, torch.Tensor):
        return Elements(value)
    if isinstance(value, (list, tuple)):
        return [snapshot(item) for item in value]
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, torch.dtype):
        if value not in DTYPES:
            raise Unfit("dtype")
        return value
    if isinstance(value, (torch.memory_format, torch.layout, torch.device)):
        return value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Unfit(f"a {type(value).__name__}")


def restored(value):
    """The argument of which this is a snapshot."""
    if isinstance(value, Elements):
        return value.tensor()
    return [restored(item) for item in value] if isinstance(value, list) else value


def elements_in(value):
    if isinstance(value, Elements):
        return [value]
    return [found for item in value for found in elements_in(item)] if isinstance(value, list) else []


def written(argument):
    return argument.alias_info is not None and argument.alias_info.is_write


def bound(op, args, kwargs):
    """The arguments in the order of the schema, defaults filled in."""
    values = []
    for i, argument in enumerate(op._schema.arguments):
        if i < len(args) and not argument.kwarg_only:
            values.append(args[i])
        elif argument.name in kwargs:
            values.append(kwargs[argument.name])
        else:
            values.append(argument.default_value)
    if any(str(a.type) == "Tensor" and not isinstance(v, torch.Tensor) for a, v in zip(op._schema.arguments, values)):
        raise Unfit("a number as a tensor")  # that only Python takes
    # So does Python with a number for a list of fixed length, int[2].
    return [[v] * a.N if a.N and isinstance(v, (int, float)) else v for a, v in zip(op._schema.arguments, values)]


def split(op, values):
    """Arguments in the order of the schema as positional and keyword arguments."""
    arguments = op._schema.arguments
    return ([value for argument, value in zip(arguments, values) if not argument.kwarg_only],
            {argument.name: value for argument, value in zip(arguments, values) if argument.kwarg_only})


def is_random(op):
    name = op._schema.name.split("::")[1]
    return torch.Tag.nondeterministic_seeded in op.tags or name in UNINITIALIZED or any(
        argument.name == "generator" for argument in op._schema.arguments)


class Call:
    """One recorded call."""

    def __init__(self, op, arguments, results, pinned):
        self.op, self.arguments, self.results, self.pinned = op, arguments, results, pinned
        self.inputs = elements_in(arguments)
        self.numel = sum(item.numel for item in self.inputs)
        if self.numel + sum(item.numel for item in elements_in(results or [])) > 3 * MAX_NUMEL:
            raise Unfit("too large")
        sizes = [size for item in self.inputs for size in item.sizes]
        self.sixes = sum(size > 0 and size % 6 == 0 for size in sizes) / max(len(sizes), 1)

    def traits(self):
        """What tells this call from others of the op."""
        found = set()
        for argument, value in zip(self.op._schema.arguments, self.arguments):
            found.update((argument.name, trait) for trait in traits_of(value))
        if self.inputs and all(item.numel for item in self.inputs):
            found.add("full")
        return found


def traits_of(value):
    if isinstance(value, Elements):
        contiguous = not value.numel or value.tensor().is_contiguous()
        return [f"rank {len(value.sizes)}", f"{value.dtype}", "dense" if contiguous else "strided",
                "singletons" if 1 in value.sizes else ""]
    if isinstance(value, list):
        return [f"length {len(value)}"] + [trait for item in value for trait in traits_of(item)]
    return ["float"] if isinstance(value, float) else [f"{type(value).__name__} {value}"]


class Recorder(TorchDispatchMode):
    """Keeps the calls of some ops that run under it."""

    def __init__(self, ops):
        super().__init__()
        self.calls = {op: [] for op in ops}
        self.seen = {op: set() for op in ops}

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = self.call(op, args, kwargs or {})
        if op._schema.name.split("::")[1] in UNINITIALIZED:
            out.untyped_storage().fill_(0)  # it may be an argument of the next call
        return out

    def call(self, op, args, kwargs, pinned=False):
        """Calls op and records the call if it is one to keep."""
        if op not in self.calls or (len(self.calls[op]) >= MAX_CANDIDATES and not pinned):
            return op(*args, **kwargs)
        try:
            arguments = snapshot(bound(op, args, kwargs))
        except Unfit:
            return op(*args, **kwargs)
        out = op(*args, **kwargs)
        try:
            results = None
            if not is_random(op):
                num = len(op._schema.returns)
                returned = [out] if num == 1 else list(out or [])
                values = bound(op, args, kwargs)
                results = snapshot(returned + [v for a, v in zip(op._schema.arguments, values) if written(a)])
            call = Call(op, arguments, results, pinned)
        except Unfit:
            return out
        key = tuple(sorted(map(str, call.traits())))
        if pinned or key not in self.seen[op]:
            self.seen[op].add(key)
            self.calls[op].append(call)
        return out


class Composites(TorchFunctionMode):
    """Records ops that autograd takes apart, so that the recorder below it never sees them."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder
        self.names = {}
        for op in recorder.calls:
            if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
                self.names[op._schema.name.split("::")[1]] = op.overloadpacket

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        packet = self.names.get(getattr(function, "__name__", None))
        if packet is not None:
            try:
                name = torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs)
                op = getattr(packet, name or "default")
                with torch.no_grad():
                    copies = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), (args, kwargs))
                    self.recorder.call(op, *copies)
            except Exception:  # an overload that is Python's alone, an error that the caller gets below
                pass
        return function(*args, **kwargs)


def registry():
    """The ops for which DTensor has a rule: op -> whether the rule is one of its pointwise ones."""
    from torch.distributed.tensor import DTensor

    propagator = DTensor._op_dispatcher.sharding_propagator
    single = propagator.op_single_dim_strategy_funcs

    def pointwise(op):
        function = single[op].func if op in single and op not in propagator.op_strategy_funcs else None
        while function is not None:
            if function.__qualname__.startswith("_register_single_dim_pointwise"):
                return True
            cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
            function = cells["base_fn"].cell_contents if "base_fn" in cells else None
            function = getattr(function, "func", function)
        return False

    ops = set(propagator.op_strategy_funcs) | set(propagator.op_to_rules) | set(single)
    return {op: pointwise(op) for op in sorted(ops, key=lambda op: op.name())}


def packet_of(name):
    try:
        return getattr(torch.ops.aten, name)
    except AttributeError:
        return None


def overloads(packet):
    return [] if packet is None else [getattr(packet, name) for name in packet.overloads()]


def signature(op):
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]


def bases(op):
    """Ops whose calls can be made calls of op: the same without `out`, or not in-place."""
    name = op._schema.name.split("::")[1]
    if any(a.is_out for a in op._schema.arguments):
        found = overloads(packet_of(name)) + overloads(packet_of(name + "_"))
    elif name.endswith("_") and not name.endswith("__"):
        found = overloads(packet_of(name[:-1]))
    elif name.startswith("__i"):
        found = overloads(packet_of("__" + name[3:]))
    else:
        found = overloads(packet_of(name + "_"))
    return [base for base in found if base is not op and signature(base) == signature(op)]


def derive(recorder, op, num):
    """Calls op with the recorded arguments of a base."""
    for base in bases(op):
        for call in chosen(recorder.calls.get(base, []), num):
            try:
                values = restored(call.arguments)
                outs = [a for a in op._schema.arguments if a.is_out]
                if outs:
                    args, kwargs = split(base, restored(call.arguments))
                    made = base(*args, **kwargs)
                    made = list(made) if isinstance(made, (list, tuple)) else [made]
                    if str(outs[0].type) == "List[Tensor]":
                        made = [made]
                    values += [tree_map(torch.zeros_like, value) for value in made]
                args, kwargs = split(op, values)
                recorder.call(op, args, kwargs, call.pinned)
            except Exception:
                continue


def divisible(calls):
    """Whether one of the calls has a matrix, and multiples of 6 only."""
    return any(call.sixes == 1 and any(len(item.sizes) > 1 for item in call.inputs) for call in calls)


def chosen(calls, num):
    """The most different calls: pinned ones first, then those with most traits that no earlier one has, small ones."""
    kept, seen = [], set()
    rest = list(calls)
    num = max(num, sum(call.pinned for call in calls) + 1)
    while rest and len(kept) < num:
        best = max(rest, key=lambda call: (call.pinned, bool(call.numel), len(call.traits() - seen) * bool(kept)
                                           + call.sixes - call.numel / 200))
        rest.remove(best)
        kept.append(best)
        seen |= best.traits()
    return kept


def seed(name):
    value = sum(map(ord, name))
    torch.manual_seed(value)
    random.seed(value)
    import numpy

    numpy.random.seed(value)


def tensors_in(value):
    leaves = tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def run_sample(info, sample, recorder, composites):
    """One call of an OpInfo, and its backward."""
    with composites, recorder:
        out = info.op(sample.input, *sample.args, **sample.kwargs)
        outs = [t for t in tensors_in(out) if t.requires_grad and t.is_floating_point()]
        inputs = [t for t in tensors_in((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
        if outs and inputs:
            grads = [torch.rand_like(t) for t in outs]
            torch.autograd.grad(outs, inputs, grads, allow_unused=True)


def use_sizes():
    """Lets op_db make tensors with dims 6 and 12 where it has 5 and 10."""
    from torch.testing._internal import common_methods_invocations as methods
    from torch.testing._internal import opinfo

    import torch.testing._internal.opinfo.definitions  # noqa: F401

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal.opinfo") or module is methods:
            for constant, size in {"S": 6, "M": 12, "L": 12}.items():
                if isinstance(getattr(module, constant, None), int):
                    setattr(module, constant, size)
    return methods.op_db


def run_op_db(recorder, log):
    composites = Composites(recorder)
    for info in use_sizes():
        if info.name.startswith(("_refs", "torch.ops", "_native_")):
            continue
        supported = info.supported_dtypes("cpu")
        wanted = [torch.float64, torch.int64, torch.bool, torch.float32, torch.complex128]
        dtype = next((d for d in wanted if d in supported), None)
        if dtype is None:
            continue
        seed(info.full_name if hasattr(info, "full_name") else info.name)
        differentiable = info.supports_autograd and dtype.is_floating_point
        try:
            for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=differentiable), 60):
                try:
                    run_sample(info, sample, recorder, composites)
                except Exception as error:  # a sample that this build cannot run
                    log.append(f"{info.name}: {str(error)[:120]}")
        except Exception as error:
            log.append(f"{info.name}: samples: {str(error)[:120]}")


def explicit_ops():
    """The ops of op_sample_calls.py: op -> functions that make arguments."""
    def named(name):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        return getattr(packet_of(packet), overload or "default")

    return {named(name): makers for name, makers in explicit_calls().items()}


def run_explicit(recorder, log):
    for op, makers in explicit_ops().items():
        for make in makers:
            if op not in recorder.calls:
                break
            seed("explicit")  # equal tensors in many calls are stored once
            args = make()
            kwargs = args[-1] if args and isinstance(args[-1], dict) else {}
            args = [a for a in args if not isinstance(a, dict)]
            try:
                recorder.call(op, args, kwargs, pinned=True)
            except Exception as error:
                log.append(f"{op.name()}: {str(error)[:200]}")


class Writer:
    """Makes the file: equal tensors are stored once."""

    def __init__(self):
        self.bytes, self.offsets, self.tensors = bytearray(), {}, {}

    def encode(self, value):
        if isinstance(value, Elements):
            if value.bytes not in self.offsets:
                self.bytes += bytes(-len(self.bytes) % 16)
                self.offsets[value.bytes] = len(self.bytes)
                self.bytes += value.bytes
            entry = (DTYPES[value.dtype], self.offsets[value.bytes], value.sizes, value.strides)
            return self.tensors.setdefault(str(entry), entry)
        if isinstance(value, list):
            return [self.encode(item) for item in value]
        if isinstance(value, torch.dtype):
            return DTYPES[value]
        if isinstance(value, torch.memory_format):
            return MEMORY_FORMATS[value]
        if isinstance(value, torch.layout):
            return 0
        return str(value) if isinstance(value, torch.device) else value

    def write(self, path, calls):
        encoded = [(call.op.name(), self.encode(call.arguments), self.encode(call.results)) for call in calls]
        stored = torch.frombuffer(self.bytes, dtype=torch.uint8)
        archive = io.BytesIO()  # to a path, torch.save would write its name into the file
        torch.save({"format": 1, "bytes": stored, "calls": encoded}, archive)
        with zipfile.ZipFile(archive) as plain, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
            for name in plain.namelist():  # torch reads what is compressed, but writes it as it is
                file.writestr(zipfile.ZipInfo(name), plain.read(name), zipfile.ZIP_DEFLATED)


def record(path, names, per_op, per_pointwise):
    torch.set_num_threads(1)
    rules = {op: pointwise for op, pointwise in registry().items() if op.namespace == "aten"}
    rules.update({op: False for op in explicit_ops() if op not in rules})
    if names:
        rules = {op: pointwise for op, pointwise in rules.items() if op.name() in names}
    recorder = Recorder(list(rules) + [base for op in rules for base in bases(op)])
    log = []
    run_explicit(recorder, log)
    run_op_db(recorder, log)
    for op, pointwise in rules.items():
        if (pointwise or "_foreach" in op.name()) and not divisible(recorder.calls[op]):
            seed(op.name())
            schema_calls(op, recorder)
    for op in rules:
        if not divisible(recorder.calls[op]):
            derive(recorder, op, 2)
    kept, missing = [], []
    for op, pointwise in rules.items():
        few = pointwise or any(a.is_out for a in op._schema.arguments)
        calls = chosen(recorder.calls[op], per_pointwise if few else per_op)
        kept += calls
        if not calls:
            missing.append(f"{op.name()} {'pointwise' if pointwise else 'other'}")
    Writer().write(path, kept)
    return rules, kept, missing, log


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--registry", metavar="FILE", help="write the ops that have a rule in DTensor")
    parser.add_argument("--record", metavar="FILE", help="write calls of these ops")
    parser.add_argument("--ops", nargs="*", help="only these, such as aten::mm")
    parser.add_argument("--per-op", type=int, default=6, help="calls of an op, pinned ones included (%(default)s)")
    parser.add_argument("--per-pointwise", type=int, default=2, help="of a pointwise op or one with out= (%(default)s)")
    parser.add_argument("--verbose", action="store_true", help="print the samples that could not be run")
    options = parser.parse_args()
    if options.registry:
        rules = registry()
        with open(options.registry, "w") as file:
            file.writelines(f"{op.name()} {'pointwise' if kind else 'other'}\n" for op, kind in rules.items())
        print(f"{len(rules)} ops, {sum(not kind for kind in rules.values())} not pointwise")
    if options.record:
        rules, kept, missing, log = record(options.record, options.ops, options.per_op, options.per_pointwise)
        others = [op for op, pointwise in rules.items() if not pointwise]
        with_calls = {call.op for call in kept}
        print(f"{len(kept)} calls of {len(with_calls)} of {len(rules)} ops; of those not pointwise, "
              f"{sum(op in with_calls for op in others)} of {len(others)}")
        print(*(["without a call:"] + missing if missing else []), sep="\n  ")
        if options.verbose:
            print("failed:", *(f"{text} ({count})" for text, count in collections.Counter(log).items()), sep="\n  ")


if __name__ == "__main__":
    main()
