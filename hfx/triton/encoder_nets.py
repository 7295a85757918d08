"""In a server's own copy of an encoder its net runs in hfx's onnxruntime, which makes the answers, too.

What is published is for NVIDIA's onnxruntime, which runs graphs only, and has NAME_postprocess as a model of its own.
hfx's is Python and can do both where the answers are arithmetic alone. A hop less is 11 to 23 % of the processor time
of a request to a small net, with 16 callers or more (docs/benchmarks-encoder.md).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hfx.names import MANIFEST_FILE, NET_SUFFIX, POSTPROCESS_SUFFIX
from hfx.python_backends.onnxruntime.config import POSTPROCESS
from hfx.repository.catalog import model_folders
from hfx.repository.config_pbtxt import CONFIG, render_message
from hfx.triton.installation import ONNXRUNTIME
from hfx.triton.models import read_config

TYPE_STRING = 13
COMMENTS = ("Made by: hfx serve, for its own copy",)


def use_backend(repository: Path, backend: str) -> None:
    """Have the NAME_net of each encoder in `repository` run in hfx's `backend`, with NAME_postprocess where it can."""
    for folder in model_folders(repository):
        net, last = (repository / (folder.name + suffix) for suffix in (NET_SUFFIX, POSTPROCESS_SUFFIX))
        if not ((folder / MANIFEST_FILE).is_file() and net.is_dir()):
            continue  # no encoder of hfx
        configs = {path: read_config(path) for path in (net / CONFIG, *net.glob("configs/*.pbtxt"))}
        if any(config.backend != ONNXRUNTIME for config in configs.values()):
            continue
        step = read_config(last / CONFIG) if last.is_dir() else None
        merges = step is not None and all(_can_merge(config, step) for config in configs.values())
        for path, config in configs.items():
            config.backend = backend
            if merges:
                _add(config, step)
            if merges or backend != ONNXRUNTIME:
                _write(path, config)
        if merges:
            ensemble = read_config(folder / CONFIG)
            _merge(ensemble, net.name, last.name)
            _write(folder / CONFIG, ensemble)
            (last / "1").rename(net / POSTPROCESS)
            shutil.rmtree(last)


def _can_merge(net: Any, last: Any) -> bool:
    """Whether the step `last` has one process, and reads nothing but outputs of `net` and numbers of a row."""
    made = {tensor.name for tensor in net.output}
    is_small = all(
        tensor.name in made or ([*tensor.dims] == [1] and tensor.data_type != TYPE_STRING and not tensor.optional)
        for tensor in last.input
    )
    return is_small and sum(each.count for each in last.instance_group) <= 1


def _add(net: Any, last: Any) -> None:
    """Add to the configuration of a net what the step `last` reads and makes."""
    made = {tensor.name for tensor in net.output}
    for tensor in (each for each in last.input if each.name not in made):
        # Optional: warm-ups lack it, and requests that are sent to the net itself.
        net.input.add(
            name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, optional=True, allow_ragged_batch=True
        )
    net.output.extend(last.output)
    net.parameters[POSTPROCESS].string_value = POSTPROCESS


def _merge(ensemble: Any, net: str, last: str) -> None:
    """Make one step of the steps `net` and `last` of `ensemble`."""
    steps = {step.model_name: step for step in ensemble.ensemble_scheduling.step}
    made = {*steps[net].output_map.values()}
    reads = {name: tensor for name, tensor in steps[last].input_map.items() if tensor not in made}
    steps[net].input_map.update(reads)
    for name, tensor in [*steps[net].output_map.items()]:
        if tensor not in {each.name for each in ensemble.output}:
            del steps[net].output_map[name]
    steps[net].output_map.update(steps[last].output_map)
    ensemble.ensemble_scheduling.step.remove(steps[last])


def _write(path: Path, message: Any) -> None:
    path.unlink()  # it may be a link
    path.write_text(render_message(message, COMMENTS), "utf-8")
