"""Open a folder or a hub id as a Checkpoint, whose files are checked before anything trusts them.

The links and paths of a checkpoint stay inside its folder. config_file.py checks JSON files, checkpoint_files.py
weights.
"""

from __future__ import annotations

import errno
import hashlib
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointCorrupt, CheckpointMissing, CheckpointUnsafe, CheckpointUnsupported, StorageFull
from hfx.exporter.checkpoint_files import (
    CONFIGS,
    LABELS_TOKENIZER,
    TOKENIZER_FILES,
    TOKENIZERS,
    find_weights,
    has_weights,
    make_view,
    stored_shapes,
)
from hfx.exporter.config_file import (
    AGAIN,
    GLINER_CONFIG,
    LABELLED,
    MATRYOSHKA,
    TOKENIZER_CONFIG,
    read_config,
    read_json,
    read_optional_json,
)
from hfx.exporter.encoder.checkpoint.module_list import (
    MODULES,
    ROUTERS,
    STATIC,
    home,
    is_static,
    module_kinds,
    read_modules,
    unsupported_modules,
)

WITHOUT_FILES = "ByT5Tokenizer"  # its tokens are bytes
ADAPTER = "adapter_config.json"  # the weights beside it have to be added to the weights of another model
OF_MODULES = "*_*/"  # the folders of modules: 0_Transformer, query_0_SparseStaticEmbedding
HUB_CONFIG_PATTERNS = [*CONFIGS, *(OF_MODULES + name for name in CONFIGS), ADAPTER]
HUB_PATTERNS = [
    *HUB_CONFIG_PATTERNS,
    *TOKENIZERS,
    *(f"{LABELS_TOKENIZER}/{name}" for name in (*CONFIGS, *TOKENIZERS)),
    *(OF_MODULES + name for name in TOKENIZERS),
    "*.safetensors",
    "*.index.json",
]
TABLE, MODEL2VEC, MAPPING = "embedding.weight", "embeddings", "mapping"  # tensors of a StaticEmbedding
HASH_CHUNK = 1 << 20
EMBEDDINGS = ("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight", "shared.weight")
HUB_ID = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
NAME_SHOWN = 100


@dataclass(frozen=True, eq=False)  # what is found out about one is kept by its identity
class Checkpoint:
    """A checkpoint on disk.

    `id` is what the user typed, and `revision` is the hub's commit (None for a folder). `config` is the parsed
    config.json (for a StaticEmbedding, the sizes of its table). `weights` are the weight files (safetensors if there
    are any). `folder` is the user's, for messages and for hfx's own checked reading; libraries get `view`. The folder
    `base` has the tokenizer of a GLiNER that was saved without it.
    """

    id: str
    folder: Path
    revision: str | None
    config: dict[str, Any]
    weights: tuple[Path, ...]
    base: Path | None = None

    @cached_property
    def home(self) -> Checkpoint:
        """The same checkpoint with the folder of its first module's files, which may be a subfolder, as `folder`."""
        folder = home(self.folder)
        return self if folder == self.folder else replace(self, folder=folder)

    @cached_property
    def view(self) -> Path:
        """A folder with the checkpoint's files for libraries, without anything that these could run or follow."""
        return make_view(self.folder, self.weights, self.base, self.config if LABELLED in self.config else None)

    @property
    def model_type(self) -> str:
        """Transformers' name of the architecture family, for example `distilbert`."""
        return str(self.config["model_type"])

    @property
    def architecture(self) -> str:
        """The class of the weights, for example `BertForTokenClassification`; empty if the config names none."""
        architectures = self.config.get("architectures") or [""]
        return str(architectures[0])

    @property
    def pickled(self) -> bool:
        """Whether the weights are pickles, which are only read with `weights_only=True`."""
        return any(file.suffix == ".bin" for file in self.weights)

    def sha256(self) -> str:
        """Return a hash of the names and contents of the files that an answer depends on."""
        digest = hashlib.sha256()
        names = (file.relative_to(self.view).as_posix() for file in self.view.rglob("*") if file.is_file())
        for name in sorted(names):
            digest.update(name.encode() + b"\0")
            own = self.folder / name  # GLiNER has no config.json but in the view
            with (own if own.is_file() else self.view / name).open("rb") as stream:
                while chunk := stream.read(HASH_CHUNK):
                    digest.update(chunk)
        return digest.hexdigest()

    def in_folder(self, text: str) -> str:
        """Return the `text` of a library's error with `folder` in the place of `view`."""
        return text.replace(str(self.view), str(self.folder))


def open_checkpoint(model: str, revision: str | None = None) -> Checkpoint:
    """Check the checkpoint `model` (a folder, or a hub id with `revision`), and return it ready to be loaded.

    Raises CheckpointMissing, CheckpointCorrupt, CheckpointUnsafe or CheckpointUnsupported; messages name the file.
    """
    folder, commit, config, base = _look_at(model, revision, HUB_PATTERNS)
    own = home(folder)
    weights = find_weights(own)
    if is_static(folder):
        return _of_table(Checkpoint(model, folder, commit, config, weights))
    if base:
        shapes = stored_shapes(weights)
        rows = [shape[0] for name, shape in shapes.items() if name.endswith(EMBEDDINGS) and len(shape) == 2]
        return Checkpoint(model, folder, commit, config | {"vocab_size": max(rows, default=0)}, weights, base)
    if not any((own / name).is_file() for name in TOKENIZER_FILES) and not _spells_bytes(own, config):
        raise CheckpointCorrupt(
            f"{own} has no tokenizer ({', '.join(TOKENIZER_FILES)}).",
            "Save the tokenizer beside the weights: AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER).",
        )
    return Checkpoint(model, folder, commit, config, weights)


def _spells_bytes(folder: Path, config: dict[str, Any]) -> bool:
    """Return whether the tokenizer works on bytes and needs no files."""
    file = folder / TOKENIZER_CONFIG
    stated = read_json(file) if file.is_file() else config
    return bool(stated.get("tokenizer_class") == WITHOUT_FILES)


def open_config(model: str, revision: str | None = None) -> Checkpoint:
    """Open the checkpoint for `--dry-run`, which compares the weights of a folder, and fetches none from the hub.

    The weights of a StaticEmbedding are an exception: only they have its sizes.
    """
    folder, commit, config, _ = _look_at(model, revision, HUB_CONFIG_PATTERNS)
    if is_static(folder) or (commit is None and has_weights(home(folder))):
        return open_checkpoint(model, commit)
    return Checkpoint(model, folder, commit, config, ())


def _of_table(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint of a StaticEmbedding with the sizes of its table in its config.

    Raises CheckpointCorrupt if there is no table or no tokenizer, and CheckpointUnsupported for a pickle.
    """
    if checkpoint.pickled:
        message = f"{checkpoint.weights[0]} is a pickle, which hfx does not read for a table."
        raise CheckpointUnsupported(message, "Save it as safetensors.")
    shapes, folder = stored_shapes(checkpoint.weights), checkpoint.home.folder
    table = shapes.get(TABLE) or shapes.get(MODEL2VEC, ())
    rows = shapes[MAPPING] if MAPPING in shapes and TABLE not in shapes else table[:1]
    if len(table) != 2 or len(rows) != 1 or 0 in (*table, *rows):
        raise CheckpointCorrupt(f"The weights in {folder} are no table of embeddings ({TABLE} or {MODEL2VEC}).", AGAIN)
    if not (folder / TOKENIZER_FILES[0]).is_file():
        raise CheckpointCorrupt(f"{folder} has no {TOKENIZER_FILES[0]}, which a {STATIC} needs.", AGAIN)
    return replace(checkpoint, config=checkpoint.config | {"vocab_size": rows[0], "hidden_size": table[1]})


def _look_at(
    model: str, revision: str | None, patterns: list[str]
) -> tuple[Path, str | None, dict[str, Any], Path | None]:
    """Return the folder, commit, config and `base` of a checkpoint, after checking that it stays inside its folder."""
    folder, commit, root = _locate(model, revision, patterns)
    if (folder / ADAPTER).is_file():
        raise CheckpointUnsupported(
            f"{folder / ADAPTER}: these are the weights of an adapter, not of a model.",
            "Merge it first: model.merge_and_unload().save_pretrained(FOLDER).",
        )
    if any((folder / name).exists() for name in ("config.json", MODULES)):  # else it may be a home of a million files
        refuse_special_files(folder, root)
    modules, own = read_modules(folder), home(folder)
    if is_static(folder):
        stated = read_optional_json(folder / "config.json")
        kept = {field: stated[field] for field in MATRYOSHKA if field in stated}
        return folder, commit, {"model_type": STATIC, "architectures": [STATIC], **kept}, None
    if {*module_kinds(folder)[:1]} & {*ROUTERS}:
        raise unsupported_modules(folder, "")
    if modules and "model_type" not in read_optional_json(own / "config.json"):
        first = " in ".join(filter(None, modules[0]))
        raise CheckpointUnsupported(
            f"{folder / MODULES} begins with {first}: the folder has no transformer's config.json.",
            f"hfx exports models that begin with a Transformer or a {STATIC}.",
        )
    base = _base_of(own)
    return folder, commit, read_config(own, base), base


def _base_of(folder: Path) -> Path | None:
    """Return the folder of the encoder that a GLiNER was trained from, if its own folder has no tokenizer.

    So it was saved by the first versions of gliner. The encoder is a model of the hub: no path is followed.
    Raises CheckpointMissing and CheckpointUnsupported.
    """
    file = folder / GLINER_CONFIG
    if not file.is_file() or any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    name = str(read_json(file).get("model_name"))
    if not re.fullmatch(HUB_ID, name):
        raise CheckpointUnsupported(
            f"{folder} has no tokenizer, and model_name in {file} is {name[:NAME_SHOWN]!r}, no model of the hub.",
            "Save it with its tokenizer: GLiNER.from_pretrained(MODEL).save_pretrained(FOLDER).",
        )
    base, _, root = _fetch(name, None, [*CONFIGS, *TOKENIZERS])
    refuse_special_files(base, root)
    return base


def _locate(model: str, revision: str | None, patterns: list[str]) -> tuple[Path, str | None, Path]:
    """Return the folder of the checkpoint, its commit, and the root folder that its links may not leave."""
    shown = model if len(model) <= NAME_SHOWN else model[:NAME_SHOWN] + "..."
    try:
        path = Path(model).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # a name too long, the home of an unknown user, a folder without access
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointMissing(
            f"{shown} can't be opened: {reason}.",
            "Check the path, or pass a hub id such as org/name.",
        ) from error
    if not model.strip():
        raise CheckpointMissing("The model has no name.", "Pass a checkpoint's folder or a hub id such as org/name.")
    if is_folder:
        if revision:
            raise CheckpointMissing(
                f"{model} is a folder, which has no revision {revision!r}.", "Leave --revision out."
            )
        return path.resolve(), None, link_root(path.resolve())
    if exists:
        raise CheckpointMissing(f"{model} is a file.", "Pass the folder that holds config.json and the weights.")
    if model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model:
        raise CheckpointMissing(f"There is no folder {shown}.", "Check the path, or pass a hub id such as org/name.")
    return _fetch(model, revision, patterns)


def link_root(folder: Path) -> Path:
    """Return the folder into which links of `folder` may lead: itself, or the cache of a model from the hub."""
    cache = folder.parent.parent
    return cache if folder.parent.name == "snapshots" and cache.name.startswith("models--") else folder


def _fetch(model: str, revision: str | None, patterns: list[str]) -> tuple[Path, str | None, Path]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
        if patterns is HUB_PATTERNS and not any(home(folder).glob("*.safetensors")):
            folder = Path(snapshot_download(model, revision=revision, allow_patterns=[*patterns, "*.bin"]))
    except GatedRepoError as error:
        raise CheckpointMissing(
            f"{model!r} is on the hub, but its owner must let you in.",
            f"Accept its terms at https://huggingface.co/{model} and log in with `hf auth login`.",
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointMissing(
            f"{model!r} has no revision {revision!r}.", "Pass a branch, tag or commit of it (--revision)."
        ) from error
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise CheckpointMissing(
            f"{model!r} is neither a folder here nor a model on the hub.",
            "Check the spelling; for a private model, log in with `hf auth login`.",
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:  # ValueError: it is no JSON
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise StorageFull(
                f"No room to download {model!r}: {error}.", "Free space, or point HF_HOME at a larger disk."
            ) from error
        raise CheckpointMissing(
            f"The hub can't be reached for {model!r}, and no copy is in the local cache.",
            "Check the network, or download the model elsewhere and pass its folder: hfx export ./FOLDER. "
            f"There is no folder {model!r} here.",
        ) from error
    return folder, folder.name, link_root(folder)


def refuse_special_files(folder: Path, root: Path) -> None:
    """Refuse links that lead out of `root`, and pipes, sockets and devices, before anything is opened."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not _resolved(path).is_relative_to(root.resolve()):
            raise CheckpointUnsafe(
                f"{path} is a link that leads outside the checkpoint.",
                "Replace the link by the file that it points to, if you trust it.",
            )
        if path.exists() and not path.is_file() and not path.is_dir():
            raise CheckpointUnsafe(f"{path} is a pipe, a socket or a device, no file.", "Use a checkpoint you trust.")


def _resolved(link: Path) -> Path:
    try:
        return link.resolve()
    except (OSError, RuntimeError) as error:
        raise CheckpointUnsafe(f"{link} is a link that leads back to itself.", "Remove it.") from error
