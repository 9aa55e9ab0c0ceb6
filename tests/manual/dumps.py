"""Reads and compares what `caravan train --dump DIR` writes. Needs numpy, not torch: it loads fast."""

import json
import math
import pathlib
import struct

import numpy

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1", "BOOL": "u1"}


def read_tensors(path):
    """The tensors of a safetensors file by name."""
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        flat = numpy.frombuffer(data[8 + size + first:8 + size + end], DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def read_step(folder):
    """Batch, parameters, gradients and metrics of one dumped step."""
    step = {part: read_tensors(folder / f"{part}.safetensors") for part in ("batch", "parameters", "gradients")}
    return step | json.loads((folder / "metrics.json").read_text())


def read_dump(folder):
    """The steps of a dump in order."""
    steps = sorted(pathlib.Path(folder).glob("step_*"), key=lambda path: int(path.name[5:]))
    return [read_step(step) for step in steps]


def tensor_errors(ours, theirs, floor):
    """|a - b| / (|b| + floor * largest * sqrt(n)) of each tensor; `largest` is the largest element of all of `theirs`.

    The floor keeps tensors that are zero but for rounding, such as the gradient of a bias of keys, from counting."""
    largest = max((float(numpy.abs(b).max()) for b in theirs.values() if b.size), default=0.0)
    errors = {}
    for name, b in theirs.items():
        a = ours[name].astype(float)
        b = b.astype(float)
        scale = float(numpy.linalg.norm(b)) + floor * largest * math.sqrt(b.size)
        difference = float(numpy.linalg.norm(a - b))
        errors[name] = difference / scale if scale > 0 else (math.inf if difference > 0 else 0.0)
    return errors


def step_errors(ours, theirs, first_ours=None, first_theirs=None, floor=1e-6):
    """Relative errors of loss, norm, gradients and, given the first step of both, of the updates since then.

    Raises ValueError if the two steps do not hold the same tensors."""
    for part in ("batch", "parameters", "gradients"):
        if ours[part].keys() != theirs[part].keys():
            raise ValueError(f"{part} of other names: {sorted(ours[part].keys() ^ theirs[part].keys())[:3]}")
        for name, tensor in theirs[part].items():
            if ours[part][name].shape != tensor.shape:
                raise ValueError(f"{part}, {name}: {ours[part][name].shape} instead of {tensor.shape}")
    errors = {}
    for key in ("loss", "grad_norm"):
        errors[key] = relative(ours[key], theirs[key])
    for name, error in tensor_errors(ours["gradients"], theirs["gradients"], floor).items():
        errors[f"gradient of {name}"] = error
    if first_ours is not None:
        updates = [{name: new["parameters"][name].astype(float) - old["parameters"][name] for name in new["parameters"]}
                   for new, old in ((ours, first_ours), (theirs, first_theirs))]
        for name, error in tensor_errors(*updates, 0.01).items():  # 1 %: parameters are rounded to fp32
            errors[f"update of {name}"] = error
    return errors


def relative(ours, theirs):
    """The relative difference of two numbers, infinite if only one of them is not finite."""
    if ours is None or theirs is None:  # JSON has no infinity
        return 0.0 if ours == theirs else math.inf
    return abs(ours - theirs) / max(abs(theirs), 1e-30)


def first_difference(ours, theirs):
    """The bitwise difference between the first batches and parameters of two dumps, "" if there is none."""
    for part in ("batch", "parameters"):
        for name, tensor in theirs[part].items():
            if name not in ours[part] or ours[part][name].tobytes() != tensor.tobytes():
                return f"{part}: {name}"
    return ""


def worst(errors):
    """The name and the value of the largest error; a NaN counts as the largest."""
    name = max(errors, key=lambda each: math.inf if math.isnan(errors[each]) else errors[each])
    return name, errors[name]
