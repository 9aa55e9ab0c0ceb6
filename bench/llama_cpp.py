"""What generate.py runs of llama.cpp: the model as GGUF, and the times of its library.

  llama_cpp.py MODEL --convert
  llama_cpp.py MODEL --library FOLDER --batch 8 --threads 1 --precision fp32 --tokens 64 --length 64

The first writes to MODEL/gguf what the second reads. The second uses the defaults of llama.cpp: flash attention and a
cache of fp16. The binding is for the headers of llama.cpp 0.5.0. What it sets is read back, so that another layout is
noticed.
"""
import argparse
import ctypes
import json
import pathlib
import re
import time

import numpy

CHECKED_PROMPT = 64
CHECKED_TOKENS = 8
# Largest error of the logits against transformers in fp32, relative to their norm. It is 0.0013 in fp32, because of
# attention in fp16 (0.000001 without), and 0.011 in bf16. Without the permutation in convert() it is over 0.1.
TOLERANCE = {"fp32": 0.003, "bf16": 0.025}


def convert(folder):
    """Writes the model of transformers in both precisions, and what transformers makes of a prompt."""
    import gguf
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    target = pathlib.Path(folder, "gguf")
    target.mkdir(exist_ok=True)
    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for precision, kind in (("fp32", gguf.GGMLQuantizationType.F32), ("bf16", gguf.GGMLQuantizationType.BF16)):
        writer = gguf.GGUFWriter(target / f"{precision}.gguf", "llama")
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_vocab_size(config.vocab_size)
        writer.add_tokenizer_model("no_vocab")
        for name, parameter in model.named_parameters():  # a tied output is no parameter of its own
            data = parameter.detach().numpy()
            for layer, count in heads.items():
                if f".{layer}." in name:  # rotary pairs are neighbours there, and halves of a head here
                    data = data.reshape(count, 2, -1, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
            kept = data.ndim == 1  # gains of norms stay in fp32, as in its own converter
            writer.add_tensor(names.get_name(name, (".weight",)), data if kept else gguf.quants.quantize(data, kind),
                              raw_dtype=None if kept else kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    ids = torch.randint(0, 256, (1, CHECKED_PROMPT), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        result = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
                                max_new_tokens=CHECKED_TOKENS, output_logits=True, return_dict_in_generate=True)
    numpy.savez(target / "expected.npz", prompt=ids[0].numpy(), logits=torch.cat(result.logits).numpy())


class ModelParams(ctypes.Structure):
    _fields_ = [("all", ctypes.c_uint64 * 64)]  # more than it has; passed on as it is


class ContextParams(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in (
        "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq", "n_threads",
        "n_threads_batch")] + [("rest", ctypes.c_uint64 * 64)]  # more than it has


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p),
                ("pos", ctypes.POINTER(ctypes.c_int32)), ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("logits", ctypes.POINTER(ctypes.c_int8))]


class ThreadpoolParams(ctypes.Structure):
    _fields_ = [("all", ctypes.c_uint64 * 128)]  # more than it has


def open_library(folder):
    paths = sorted(pathlib.Path(folder).resolve().glob("libllama.*so*"))
    if not paths:
        raise SystemExit(f"no libllama in {folder}")
    library = ctypes.CDLL(str(paths[0]))  # finds the symbols of libggml too, which it needs
    pointer = ctypes.c_void_p
    for name, result, arguments in (
            ("llama_version", ctypes.c_char_p, []),
            ("ggml_backend_load_all_from_path", None, [ctypes.c_char_p]),
            ("ggml_backend_reg_by_name", pointer, [ctypes.c_char_p]),
            ("ggml_backend_reg_get_proc_address", pointer, [pointer, ctypes.c_char_p]),
            ("ggml_threadpool_params_default", ThreadpoolParams, [ctypes.c_int]),
            ("llama_model_default_params", ModelParams, []),
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, ModelParams]),
            ("llama_context_default_params", ContextParams, []),
            ("llama_init_from_model", pointer, [pointer, ContextParams]),
            ("llama_attach_threadpool", None, [pointer, pointer, pointer]),
            ("llama_n_ctx_seq", ctypes.c_uint32, [pointer]),
            ("llama_n_seq_max", ctypes.c_uint32, [pointer]),
            ("llama_n_threads", ctypes.c_int32, [pointer]),
            ("llama_n_threads_batch", ctypes.c_int32, [pointer]),
            ("llama_get_model", pointer, [pointer]),
            ("llama_model_get_vocab", pointer, [pointer]),
            ("llama_vocab_n_tokens", ctypes.c_int32, [pointer]),
            ("llama_get_memory", pointer, [pointer]),
            ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
            ("llama_batch_init", Batch, [ctypes.c_int32] * 3),
            ("llama_decode", ctypes.c_int32, [pointer, Batch]),
            ("llama_get_logits", ctypes.POINTER(ctypes.c_float), [pointer])):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    library.ggml_backend_load_all_from_path(str(paths[0].parent).encode())
    return library


class Context:
    def __init__(self, library, model, batch, threads, length):
        self.library = library
        params = library.llama_context_default_params()
        params.n_ctx = batch * (-(-length // 256) * 256)  # each sequence has its part, of whole blocks
        params.n_batch = max(params.n_batch, batch * length)
        params.n_seq_max = batch
        params.n_threads = params.n_threads_batch = threads
        self.context = library.llama_init_from_model(
            library.llama_model_load_from_file(str(model).encode(), library.llama_model_default_params()), params)
        if not self.context:
            raise SystemExit("llama.cpp makes no context")
        got = [getattr(library, f"llama_{name}")(self.context) for name in
               ("n_ctx_seq", "n_seq_max", "n_threads", "n_threads_batch")]
        if got != [params.n_ctx // batch, batch, threads, threads]:
            raise SystemExit(f"this llama.cpp has another layout of its parameters than 0.5.0: {got}")
        # Threads that stay, as in its own programs; otherwise it starts them anew for each step.
        registry = library.ggml_backend_reg_by_name(b"CPU")
        make = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ThreadpoolParams))(
            library.ggml_backend_reg_get_proc_address(registry, b"ggml_threadpool_new"))
        pool = make(ctypes.byref(library.ggml_threadpool_params_default(threads)))
        library.llama_attach_threadpool(self.context, pool, None)
        self.vocabulary = library.llama_vocab_n_tokens(
            library.llama_model_get_vocab(library.llama_get_model(self.context)))
        self.batch = library.llama_batch_init(batch * length, 0, 1)
        self.position = 0

    def clear(self):
        self.library.llama_memory_clear(self.library.llama_get_memory(self.context), True)
        self.position = 0

    def logits(self, ids):
        """Logits [sequence, word] after the next tokens of all sequences [sequence, token]."""
        count, length = ids.shape
        batch = self.batch
        batch.n_tokens = ids.size
        for i in range(ids.size):
            sequence, step = divmod(i, length)
            batch.token[i] = ids[sequence, step]
            batch.pos[i] = self.position + step
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = step == length - 1
        if self.library.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode fails")
        self.position += length
        return numpy.ctypeslib.as_array(self.library.llama_get_logits(self.context), (count, self.vocabulary))


def check(context, folder, precision):
    """Against the logits of transformers in fp32. Greedy tokens must be the same in fp32."""
    expected = numpy.load(pathlib.Path(folder, "gguf/expected.npz"))
    ids = expected["prompt"][None]
    worst = 0
    for row in expected["logits"]:
        logits = context.logits(ids)[0]
        worst = max(worst, float(numpy.linalg.norm(logits - row) / numpy.linalg.norm(row)))
        if precision == "fp32" and logits.argmax() != row.argmax():
            raise SystemExit("llama.cpp chooses other tokens than transformers")
        ids = row.argmax()[None, None]
    if not worst < TOLERANCE[precision]:
        raise SystemExit(f"the logits of llama.cpp differ from those of transformers by {worst:.4f} of their norm")
    context.clear()
    return worst


def measure(arguments):
    """Prints seconds of the prompts, and of the tokens after them, version and variant, and the error of logits."""
    library = open_library(arguments.library)
    length = max(arguments.length + arguments.tokens, CHECKED_PROMPT + CHECKED_TOKENS)
    context = Context(library, pathlib.Path(arguments.model, f"gguf/{arguments.precision}.gguf"), arguments.batch,
                      arguments.threads, length)
    error = check(context, arguments.model, arguments.precision)
    prompts = numpy.random.default_rng(1).integers(0, 256, (arguments.batch, arguments.length))

    def seconds(tokens):
        context.clear()
        begin = time.perf_counter()
        chosen = context.logits(prompts).argmax(1)
        first = time.perf_counter()
        for _ in range(tokens):
            chosen = context.logits(chosen[:, None]).argmax(1)
        return first - begin, time.perf_counter() - first

    seconds(2)
    first, rest = seconds(arguments.tokens)
    loaded = set(re.findall(r"libggml-cpu[^/\s]*", pathlib.Path("/proc/self/maps").read_text()))
    print(json.dumps([first, rest, f"{library.llama_version().decode()}, {' '.join(sorted(loaded))}", error]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--convert", action="store_true")
    parser.add_argument("--library")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    arguments = parser.parse_args()
    if arguments.convert:
        convert(arguments.model)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
