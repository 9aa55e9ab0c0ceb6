#!/usr/bin/env python3
"""Compares generation with transformers and llama.cpp: tokens per second of prompts (prefill) and of texts (decode).

  generate.py --caravan build/release/bin/caravan [--python PYTHON] [--batches 1,8,32] [--threads 1,2]
              [--precisions fp32,bf16] [--repeat 3] [--tokens 64] [--prompt 512] [--layers 30] [--keep FOLDER]
              [--llama-cpp FOLDER] [--ranks]

A model of random weights with the shape of SmolLM2-135M, greedy, prompts of --prompt tokens together, but at least 32
each, texts of --tokens. The programs alternate --repeat times. Caravan's figures are those of `caravan generate
--times`: the first token belongs to the prompt. PYTHON has torch, transformers and tokenizers. `limit` is what decoding
can reach if each step reads all weights once, at the bandwidth that a sum of 1 GiB has on as many threads.

--llama-cpp is a folder with libllama and libggml, such as package/bins/linux-x64 in what `npm pack
@node-llama-cpp/linux-x64` fetches; without it llama.cpp is left out. PYTHON then needs gguf too. Before each
measurement its logits are compared with those of transformers. Its cache is of fp16, as by default.

--ranks adds `caravan generate --ranks N`, tensor parallel over as many ranks of a thread as there are threads.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
LLAMA_CPP = str(pathlib.Path(__file__).resolve().parent / "llama_cpp.py")
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def make_model(folder, layers):
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=None)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(folder + "/tokenizer.json")
    pathlib.Path(folder, "generation_config.json").write_text('{"do_sample": false}')


def prompt_length(arguments, batch):
    return max(32, arguments.prompt // batch)


def peer(folder, arguments, batch, threads, precision):
    """In a process of its own: prints seconds of the prompts, and of the tokens after them, bandwidth, and bytes."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, DTYPES[precision])).eval()
    ids = torch.randint(0, 256, (batch, prompt_length(arguments, batch)), generator=torch.Generator().manual_seed(1))

    def seconds(tokens):
        begin = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
                       min_new_tokens=tokens, pad_token_id=0)
        return time.perf_counter() - begin

    seconds(2)
    first = seconds(1)
    rest = seconds(arguments.tokens + 1) - first
    buffer = torch.zeros(1 << 28)
    best = 1e9
    for _ in range(3):
        begin = time.perf_counter()
        buffer.sum()
        best = min(best, time.perf_counter() - begin)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    print(json.dumps([first, rest, buffer.nbytes / best, weights]))


def run(command, threads, ranks=1):
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:threads])
    environment = os.environ | {"OMP_NUM_THREADS": str(threads // ranks)}
    result = subprocess.run(["taskset", "-c", cores, *command], env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{result.stderr[-2000:]}")
    return result


def ours(folder, arguments, batch, threads, precision, ranks=1):
    """Seconds of the prompts and of the tokens after the first, as --times prints them."""
    length = prompt_length(arguments, batch)
    letters = "abcdefghijklmnopqrstuvwxyz"
    path = pathlib.Path(folder, "prompts.txt")
    texts = [(letters[i % 26:] + letters * (length // 26 + 1))[:length] for i in range(batch)]
    path.write_text("\n".join(texts) + "\n")
    printed = run([arguments.caravan, "generate", folder, "--prompts", str(path), "--tokens",
                   str(arguments.tokens + 1), "--temperature", "0", "--batch", str(batch), "--precision", precision,
                   "--json", "--times", "--ranks", str(ranks)], threads, ranks).stderr
    counts = [int(count) for count in re.findall(r"(\d+) tokens in", printed)]
    if counts != [batch * length, batch * arguments.tokens]:
        sys.exit(f"generate.py: {batch} prompts of {length} tokens and {arguments.tokens} more each: {printed}")
    return [float(seconds) for seconds in re.findall(r"in ([\d.]+) s", printed)]


def llama_cpp(folder, arguments, batch, threads, precision):
    """Seconds of the prompts, and of the tokens after them, version and variant, and the error of its logits."""
    return json.loads(run(
        [arguments.python, LLAMA_CPP, folder, "--library", arguments.llama_cpp, "--batch", str(batch), "--threads",
         str(threads), "--precision", precision, "--tokens", str(arguments.tokens), "--length",
         str(prompt_length(arguments, batch))], threads).stdout)


def text_of(rates):
    return f"{statistics.median(rates):8.1f} ({min(rates):.1f} to {max(rates):.1f})"


def compare_one(arguments, folder, precision, threads, batch):
    script = [arguments.python, str(pathlib.Path(__file__).resolve())]
    sizes = ["--tokens", str(arguments.tokens), "--prompt", str(arguments.prompt)]
    peers = ["transformers"] + ["llama.cpp"] * bool(arguments.llama_cpp)
    over_ranks = [f"{threads} ranks"] * (arguments.ranks and threads > 1)
    seconds_of = {name: [] for name in ["caravan", *over_ranks, *peers]}
    limits = []
    for _ in range(arguments.repeat):
        seconds_of["caravan"].append(ours(folder, arguments, batch, threads, precision))
        theirs = json.loads(
            run([*script, "--peer", folder, str(batch), str(threads), precision, *sizes], threads).stdout)
        limits.append(batch * theirs[2] / theirs[3])
        seconds_of["transformers"].append(theirs[:2])
        for name in over_ranks:
            seconds_of[name].append(ours(folder, arguments, batch, threads, precision, threads))
        if arguments.llama_cpp:
            *seconds, variant, error = llama_cpp(folder, arguments, batch, threads, precision)
            seconds_of["llama.cpp"].append(seconds)
    work = batch * prompt_length(arguments, batch), batch * arguments.tokens
    rates = {name: [[work[i] / seconds[i] for seconds in runs] for i in (0, 1)] for name, runs in seconds_of.items()}
    print(f"{precision}, {threads} threads, batch {batch}, tokens/s; limit {text_of(limits)}")
    for name, both in rates.items():
        print(f"  {name:13} prefill {text_of(both[0])}   decode {text_of(both[1])}")
    share = statistics.median(rates["caravan"][1]) / statistics.median(limits)
    notes = {"transformers": f"{100 * share:.0f} % of the limit"}
    if arguments.llama_cpp:
        notes["llama.cpp"] = f"{variant}, error of its logits {error:.4f}"
    for name in over_ranks + peers:
        ratio = [statistics.median(rates["caravan"][i]) / statistics.median(rates[name][i]) for i in (0, 1)]
        note = "; " + notes[name] if name in notes else ""
        print(f"  caravan / {name}: prefill {ratio[0]:.2f}, decode {ratio[1]:.2f}{note}", flush=True)


def compare(arguments, folder):
    if not pathlib.Path(folder, "config.json").exists():
        pathlib.Path(folder).mkdir(exist_ok=True)
        run([arguments.python, str(pathlib.Path(__file__).resolve()), "--make", folder, "--layers",
             str(arguments.layers)], 1)
    if arguments.llama_cpp and not pathlib.Path(folder, "gguf/expected.npz").exists():
        run([arguments.python, LLAMA_CPP, folder, "--convert"], 1)
    if "bf16" in arguments.precisions and "avx512_bf16" not in machine.cpu_info().get("flags", ""):
        print("no avx512_bf16: products of bf16 are not native")
    for precision in arguments.precisions.split(","):
        for threads in map(int, arguments.threads.split(",")):
            for batch in map(int, arguments.batches.split(",")):
                compare_one(arguments, folder, precision, threads, batch)
    print(machine.describe())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--caravan", default=str(ROOT / "build/release/bin/caravan"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--keep", help="folder for the model, which is made there if it is missing")
    parser.add_argument("--llama-cpp", help="folder with libllama")
    parser.add_argument("--ranks", action="store_true", help="also over ranks")
    arguments = parser.parse_args()
    if arguments.make:
        return make_model(arguments.make, arguments.layers)
    if arguments.peer:
        folder, batch, threads, precision = arguments.peer
        return peer(folder, arguments, int(batch), int(threads), precision)
    with tempfile.TemporaryDirectory() as temporary:
        compare(arguments, arguments.keep or temporary)


if __name__ == "__main__":
    main()
