"""transformers' `generate` over whatever model offers it: torch's, optimum's on ONNX Runtime, optimum-intel's.

Owns the generation settings: greedy or beams, exactly as many new tokens as the case says. Knows no runtime.
"""

from __future__ import annotations

from typing import Any

from bench.generation_cases import Batch, Model
from bench.processes import Prepare, Run


def prepared(net: Any, model: Model) -> Prepare:
    """Cases of `net`; a run gives the number of new tokens of each row."""
    import torch
    from transformers import GenerationConfig

    def prepare(case: Batch) -> Run:
        ids = torch.tensor(case.prompts())
        # No end token, so nothing ends early. Set as the model's own: defaults of a passed one would yield to that.
        config = GenerationConfig(
            do_sample=False,
            num_beams=case.beams,
            no_repeat_ngram_size=case.ngram,
            max_new_tokens=case.new,
            pad_token_id=0,
            decoder_start_token_id=model.start,
        )
        given = 1 if model.start is not None else case.prompt

        def run() -> tuple[int, ...]:
            net.generation_config = config
            with torch.inference_mode():
                found = net.generate(input_ids=ids, attention_mask=torch.ones_like(ids))
            return (int(found.shape[1]) - given,) * len(found)

        return run

    return prepare


def model_class(model: Model, prefix: str = "Auto") -> str:
    """The name of the class that generates: of transformers, or with another prefix of optimum."""
    task = "CausalLM" if model.start is None else "Seq2SeqLM"
    return f"{prefix}ModelFor{task}"
