"""llama.cpp through its C API (llama-cpp-python's ctypes), fed with token ids: all rows of a batch in one context.

Precisions are its own: "q8_0", "q4_0" and "q4_k_m" beside "fp32". Matrices are repacked when a file is loaded, as its
server does. The library is compiled for the processor at hand when it is installed. The variant "kv8" keeps keys and
values in q8_0 in place of f16. An embedder computes all texts in one call, in which each token's attention covers the
tokens of all texts under a mask; with the variant "apart" each text has a call.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.child import Run
from bench.packages import Packages
from bench.peers import Batch, Ids, Model, Tokenizer

PACKAGES = (Packages("llama.cpp", ("llama-cpp-python==0.3.36", "diskcache==5.6.3", "gguf==0.19.0")),)
FILE = "model.gguf"
FORMATS = {"fp32": "ALL_F32", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0", "q4_k_m": "MOSTLY_Q4_K_M"}
STEP = 2048  # tokens that a call takes at most


def convert(model: Model, folder: str, precision: str, variant: str) -> None:
    """The weights as a GGUF file, with its vocabulary if that is GPT-2's kind, then quantized by llama.cpp.

    Raises ValueError for an architecture that is not measured.
    """
    library = _library()
    whole = Path(folder) / "whole.gguf"
    _write(Path(model.folder), whole, np.float32 if precision == "fp32" else np.float16)
    target = Path(folder) / FILE
    if precision == "fp32":
        whole.rename(target)
        return
    options = library.llama_model_quantize_default_params()
    options.ftype = getattr(library, f"LLAMA_FTYPE_{FORMATS[precision]}")
    if code := library.llama_model_quantize(os.fsencode(whole), os.fsencode(target), ctypes.byref(options)):
        raise ValueError(f"llama_model_quantize returned {code}")
    whole.unlink()


def open_net(model: Model, folder: str, precision: str, threads: int, variant: str) -> Net | Embedder:
    """The converted model."""
    net = Net(Path(folder) / FILE, threads, variant)
    return Embedder(net, model, apart=variant == "apart") if model.kind == "embedder" else net


class Net:
    """A model, and a context for the case at hand."""

    def __init__(self, path: Path, threads: int, variant: str) -> None:
        self._llama = llama = _library()
        self._threads, self._variant = threads, variant
        self._model = llama.llama_model_load_from_file(os.fsencode(path), llama.llama_model_default_params())
        if not self._model:
            raise ValueError(f"{path.name} can't be loaded")
        self._vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self._context: Any = None
        self._size = (0, 0)

    def generate(self, prompts: Sequence[Ids], batch: Batch) -> list[Ids]:
        """The new ids of each row."""
        if (batch.beams, batch.ngram) != (1, 0):
            raise ValueError("llama.cpp's API has greedy answers alone")
        self._open(len(prompts), max(map(len, prompts)) + batch.new)
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), False)
        last = self._prefill(prompts)
        written = [[token] for token in last]
        for step in range(batch.new - 1):
            tokens = [(last[row], len(prompt) + step, row, True) for row, prompt in enumerate(prompts)]
            last = _likeliest(self._decode(tokens))
            for row, token in enumerate(last):
                written[row].append(token)
        return written

    def logits(self, ids: Ids) -> NDArray[np.float32]:
        """The logits after each of the ids [ids, vocabulary], as a row alone gives them."""
        self._open(1, len(ids))
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), False)
        return self._decode([(token, place, 0, True) for place, token in enumerate(ids)]).copy()

    def embed(self, texts: Sequence[Ids]) -> NDArray[np.float32]:
        """The mean of the hidden states of each text's tokens [texts, width]."""
        llama = self._llama
        self._open(len(texts), max(map(len, texts)), embeds=True)
        self._decode([(token, place, row, True) for row, ids in enumerate(texts) for place, token in enumerate(ids)])
        width = llama.llama_model_n_embd(self._model)
        found = (llama.llama_get_embeddings_seq(self._context, row) for row in range(len(texts)))
        return np.stack([np.ctypeslib.as_array(each, (width,)) for each in found])

    def _open(self, rows: int, length: int, embeds: bool = False) -> None:
        if self._size == (rows, length):
            return
        if self._context:
            self._llama.llama_free(self._context)
        options = self._llama.llama_context_default_params()
        cells = -(-length // 256) * 256  # llama.cpp rounds up to so many, and refuses a context that is short of it
        options.n_ctx, options.n_seq_max, options.n_batch = rows * cells, rows, max(STEP, rows)
        if embeds:  # attention in both directions needs all tokens in one micro-batch
            options.embeddings, options.pooling_type = True, self._llama.LLAMA_POOLING_TYPE_MEAN
            options.n_batch = options.n_ubatch = rows * cells
        options.n_threads = options.n_threads_batch = self._threads
        options.flash_attn_type = self._llama.LLAMA_FLASH_ATTN_TYPE_AUTO
        if self._variant == "kv8":
            options.type_k = options.type_v = self._llama.GGML_TYPE_Q8_0
        self._context = self._llama.llama_init_from_model(self._model, options)
        if not self._context:
            raise ValueError(f"no context for {rows} rows of {length} tokens")
        self._size = (rows, length)

    def _prefill(self, prompts: Sequence[Ids]) -> list[int]:
        """The first new token of each row, from calls of at most STEP tokens."""
        found: list[int] = []
        entries = [
            (token, place, row, place == len(prompt) - 1)
            for row, prompt in enumerate(prompts)
            for place, token in enumerate(prompt)
        ]
        for begin in range(0, len(entries), STEP):
            found += _likeliest(self._decode(entries[begin : begin + STEP]))
        return found

    def _decode(self, entries: Sequence[tuple[int, int, int, bool]]) -> NDArray[np.float32]:
        """The logits after each of `entries` (token, position, row, wanted) that is wanted, until the next call."""
        llama = self._llama
        batch = llama.llama_batch_init(len(entries), 0, 1)
        try:
            batch.n_tokens = len(entries)
            for index, (token, position, row, wanted) in enumerate(entries):
                batch.token[index], batch.pos[index], batch.logits[index] = token, position, wanted
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
            if code := llama.llama_decode(self._context, batch):
                raise ValueError(f"llama_decode returned {code}")
        finally:
            llama.llama_batch_free(batch)
        count = sum(wanted for *_, wanted in entries)
        if not count or not llama.llama_get_logits(self._context):
            return np.empty((0, self._vocabulary), np.float32)
        return np.ctypeslib.as_array(llama.llama_get_logits(self._context), (count, self._vocabulary))


class Embedder:
    """Texts through the checkpoint's tokenizer, as the file has no vocabulary."""

    def __init__(self, net: Net, model: Model, apart: bool) -> None:
        self._net, self._tokenizer, self._apart = net, Tokenizer(model), apart

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The embedding of each text."""
        return self._embed(self._tokenizer.encode(texts, 0))

    def net(self, texts: Sequence[str]) -> Run:
        """The net alone."""
        ids = self._tokenizer.encode(texts, 0)
        return lambda: self._embed(ids)

    def _embed(self, ids: Sequence[Ids]) -> NDArray[np.float32]:
        calls = [[each] for each in ids] if self._apart else [ids]
        return np.concatenate([self._net.embed(call) for call in calls])


def _likeliest(logits: NDArray[np.float32]) -> list[int]:
    return [int(token) for token in logits.argmax(axis=1)]


def _library() -> Any:
    """The C API, silent."""
    # Threads that sleep between operators would cost two cores 1.8 times as long; longer waits would disturb others.
    os.environ["GOMP_SPINCOUNT"] = "100000"
    llama = importlib.import_module("llama_cpp.llama_cpp")
    llama.llama_log_set(_silent(llama), None)
    llama.llama_backend_init()
    return llama


@functools.cache
def _silent(llama: Any) -> Any:
    return llama.llama_log_callback(lambda level, text, data: None)


def _write(checkpoint: Path, target: Path, dtype: type[np.floating[Any]]) -> None:
    """The GGUF file, its matrices in `dtype`; BERT's learned positions and types, which are added, in float32."""
    import gguf

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    kind = {"gpt2": "GPT2", "llama": "LLAMA", "qwen3": "QWEN3", "bert": "BERT"}.get(config["model_type"])
    if kind is None:
        raise ValueError(f"{config['model_type']} is not measured in llama.cpp")
    architecture = gguf.MODEL_ARCH[kind]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    layers = _describe(writer, config)
    _add_vocabulary(writer, json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8")))
    names = gguf.get_tensor_name_map(architecture, layers)
    for source, values in _tensors(checkpoint, config):
        name = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise ValueError(f"llama.cpp has no tensor for {source}")
        added = values.ndim == 1 or (kind == "BERT" and name.startswith(("position_embd", "token_types")))
        writer.add_tensor(name, values.astype(np.float32 if added else dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: dict[str, Any]) -> int:
    """The file's keys, from config.json; returns the number of layers."""
    if config["model_type"] == "gpt2":
        width, heads, layers = config["n_embd"], config["n_head"], config["n_layer"]
        writer.add_context_length(config["n_positions"])
        writer.add_feed_forward_length(config.get("n_inner") or 4 * width)
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    elif config["model_type"] == "bert":
        width, heads, layers = (config[key] for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_causal_attention(False)
        writer.add_token_type_count(config["type_vocab_size"])
    else:
        width, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
        size = config.get("head_dim") or width // heads
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_dimension_count(size)
        writer.add_rope_freq_base((config.get("rope_parameters") or config).get("rope_theta", 1e4))
        writer.add_key_length(size)
        writer.add_value_length(size)
    writer.add_embedding_length(width)
    writer.add_head_count(heads)
    writer.add_block_count(layers)
    writer.add_vocab_size(config["vocab_size"])
    return int(layers)


def _add_vocabulary(writer: Any, tokenizer: dict[str, Any]) -> None:
    """The pieces and merges of a byte-level BPE, which a server needs; None of other kinds, which get ids."""
    import gguf

    model = tokenizer["model"]
    if model["type"] != "BPE" or (tokenizer["pre_tokenizer"] or {}).get("type") != "ByteLevel":
        writer.add_tokenizer_model("none")
        return
    special = {token["id"] for token in tokenizer["added_tokens"]}
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    kinds = (gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL for number in range(len(pieces)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types(list(kinds))
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]])
    writer.add_add_bos_token(False)
    for role in (writer.add_bos_token_id, writer.add_eos_token_id):
        role(max(special))


def _tensors(checkpoint: Path, config: dict[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """The checkpoint's tensors in llama.cpp's layout: (out, in), and llama's rotated halves interleaved."""
    import torch
    from safetensors import safe_open

    heads = {"q_proj": config.get("num_attention_heads", 0), "k_proj": config.get("num_key_value_heads", 0)}
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                if name.endswith((".attn.bias", ".attn.masked_bias")) or name.startswith("pooler."):
                    continue
                values = tensors.get_tensor(name).to(torch.float32).numpy()
                module = name.split(".")[-2]
                if config["model_type"] == "gpt2" and module.startswith("c_") and values.ndim == 2:
                    values = values.T
                if config["model_type"] == "llama" and module in heads:
                    halves = values.reshape(heads[module], 2, -1, values.shape[1])
                    values = halves.swapaxes(1, 2).reshape(values.shape)
                yield name, values
