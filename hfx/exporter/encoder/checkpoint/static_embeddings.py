"""StaticEmbedding of sentence-transformers, also from model2vec's files: each token has a vector in a table.

A text's vector is the mean of the vectors of its tokens, without special tokens; a text without tokens has zeros. The
library reads only tokenizer.json, by means of tokenizers, and truncates a text only if that file says so.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hfx.errors import CheckpointCorrupt
from hfx.exporter.checkpoint_files import MAX_TOKENIZER_BYTES, stored_shapes
from hfx.exporter.config_file import AGAIN, read_bytes
from hfx.exporter.source import MAPPING, MODEL2VEC, TABLE, Checkpoint
from hfx.exporter.tensors import CheckpointTensors
from hfx.exporter.tokenizer import check_ids
from hfx.exporter.tokenizer_checks import TOKENIZER_FILE, try_built, try_files

if TYPE_CHECKING:
    import torch

TOKEN_WEIGHTS = "weights"  # model2vec multiplies the vectors by these


def truncation(checkpoint: Checkpoint) -> tuple[int | None, str]:
    """Return how many tokens of a text the tokenizer keeps (None: all), and on which side it cuts the others off.

    Raises CheckpointCorrupt if tokenizer.json is not a tokenizer.
    """
    file = checkpoint.home.folder / TOKENIZER_FILE
    try:
        stated = json.loads(read_bytes(file, MAX_TOKENIZER_BYTES))["truncation"]
        return (int(stated["max_length"]), str(stated["direction"]).lower()) if stated else (None, "right")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"{file} is not a tokenizer: {error!r}.", AGAIN) from error


def load_static_tokenizer(checkpoint: Checkpoint) -> Any:
    """Return the tokenizer as the library uses it, wrapped for transformers.

    Raises CheckpointCorrupt and CheckpointUnsafe.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    try_files(checkpoint.home)
    spec = json.loads((checkpoint.home.view / TOKENIZER_FILE).read_bytes())
    _, side = truncation(checkpoint)
    backend = Tokenizer.from_str(json.dumps(spec | {"post_processor": None, "truncation": None, "padding": None}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, truncation_side=side)
    try_built(checkpoint.home, tokenizer)
    check_ids(checkpoint, tokenizer)
    return tokenizer


def load_table(checkpoint: Checkpoint) -> torch.nn.Module:
    """Return the table as a torch module whose hidden states are the tokens' vectors. Raises CheckpointCorrupt."""
    import torch
    from transformers import PretrainedConfig
    from transformers.modeling_outputs import BaseModelOutput

    tensors = CheckpointTensors(checkpoint)
    name = TABLE if TABLE in tensors else MODEL2VEC
    others = {each for each in (MAPPING, TOKEN_WEIGHTS) if each in tensors and name == MODEL2VEC}
    tokens, width = checkpoint.config["vocab_size"], checkpoint.config["hidden_size"]
    rows = stored_shapes(checkpoint.weights)[name][0]
    table = tensors.parameter(name, rows, width)
    factors = tensors.parameter(TOKEN_WEIGHTS, tokens) if TOKEN_WEIGHTS in others else None
    tensors.require()
    mapping = torch.from_numpy(tensors.indices(MAPPING, rows)) if MAPPING in others else None

    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = PretrainedConfig(vocab_size=tokens, hidden_size=width)
            self.table = torch.nn.Parameter(torch.from_numpy(table.read()))
            self.factors = None if factors is None else torch.nn.Parameter(torch.from_numpy(factors.read()))

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, return_dict: bool = True) -> Any:
            ids = input_ids * attention_mask  # a trace has no input that nothing reads
            hidden = self.table[ids if mapping is None else mapping[ids]]
            if self.factors is not None:
                hidden = hidden * self.factors[ids].unsqueeze(-1)
            return BaseModelOutput(last_hidden_state=hidden)

    return Table().eval()
