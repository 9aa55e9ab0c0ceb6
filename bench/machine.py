"""Describes the processor that a benchmark runs on, and the instruction sets that the environment disables."""
import os
import platform

# Upper limits of the instruction sets. Each library reads its own variable.
FORCED = {"avx2": {"CARAVAN_SIMD": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
                   "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
          "avx512": {"CARAVAN_SIMD": "avx512", "ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI",
                     "MKL_ENABLE_INSTRUCTIONS": "AVX512"}}


def cpu_info():
    """The fields of the first processor in /proc/cpuinfo."""
    facts = {}
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if not key.strip():
                break
            facts[key.strip()] = value.strip()
    return facts


def processor_class(environment=os.environ):
    """The same as caravan::processor_class: vendor and best instruction set, such as "amd avx2"."""
    if platform.machine() != "x86_64":
        return "arm" if platform.machine() == "aarch64" else "other"
    facts = cpu_info()
    vendor = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}.get(facts.get("vendor_id"), "x86")
    flags = set(facts.get("flags", "").split())
    best = "avx2" if "avx2" in flags else "baseline"
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        best = "avx512_bf16" if "avx512_bf16" in flags else "avx512"
    most = environment.get("CARAVAN_SIMD") or best
    if best == "avx512_bf16" and "amx_bf16" in flags and most == best:
        most = "amx"
    return f"{vendor} {most}"


def describe(environment=os.environ):
    """One line: processor class, model name, and the limits in the environment."""
    forced = [f"{key}={environment[key]}" for key in FORCED["avx2"] if key in environment]
    text = f"{processor_class(environment)} ({cpu_info().get('model name', platform.machine())}, {os.cpu_count()} cores)"
    return text + (f", forced: {' '.join(forced)}" if forced else "")
