"""The playground: a page at / of the front on which users try the served models (docs/playground.md).

The page is static and holds no secrets, so reading it needs no key. The requests of the page need a key, as all
requests do.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hfx import names
from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, Document, Route
from hfx.front.model_files import ModelFiles
from hfx.front.refusals import Header, Refusal, dumped, error_object
from hfx.names import GENERATION_TASKS, Task
from hfx.python_backends.engine.generation_settings import CHUNKS, SETTINGS, TRANSLATION, Setting, of_scope
from hfx.tasks import TASKS
from hfx.tasks.task import FieldKind, FormField

KINDS: Mapping[str, FieldKind] = {"INT32": "integer", "UINT64": "integer", "FP32": "number", "BOOL": "choice"}
PARAMETERS = "parameters."  # before the names of settings, in the paths of fields
LANGUAGES = of_scope(TRANSLATION)
COMMON = ("max_tokens", "temperature", "top_p", "num_beams", *LANGUAGES)  # the page folds the other settings away
UNSHOWN = (*names.LOG_PROBS, names.PROMPT_TOKEN_IDS, names.ADD_SPECIAL_TOKENS)  # the page shows texts, not tokens


async def list_models(request: DialectRequest) -> bytes:
    """GET /models: return the served models, with the fields of a request to each."""
    models = await request.inference.catalog.models()
    return dumped({"models": [described(model, request.files) for model in models]})


def described(model: ServedModel, files: ModelFiles) -> dict[str, Any]:
    """Return a model's name, task, checkpoint, precision, fields, and whether it has a chat template.

    The checkpoint and the precision are null if the repository does not have them. `max_tokens` is the number of tokens
    at which an encoder cuts a text; it is null for models that cut none.
    """
    manifest: Mapping[str, Any] = {}
    longest, has_chat = None, False
    with suppress(Refusal):
        manifest = files.manifest(model)
        if model.task not in (*GENERATION_TASKS, Task.QUESTION_ANSWERING):
            longest = files.text_settings(model)["max_length"]
    with suppress(Refusal):
        has_chat = model.task in GENERATION_TASKS and files.chat(model) is not None
    fields = (*_form(model, files), *_settings(model, files))
    return {
        "name": model.name,
        "task": model.task,
        "source": manifest.get("source", {}).get("id"),
        "precision": manifest.get("precision"),
        "max_tokens": longest,
        "has_chat": has_chat,
        "fields": [asdict(field) for field in fields],
    }


def _form(model: ServedModel, files: ModelFiles) -> tuple[FormField, ...]:
    """Return the fields of the model's task, of its parameters those that the model takes.

    An example text with a mask uses the model's own mask token.
    """
    taken, fields = model.metadata.input_types, TASKS[model.task].form
    form = tuple(field for field in fields if field.path.removeprefix(PARAMETERS) in (field.path, *taken))
    if model.task is Task.FILL_MASK:
        with suppress(Refusal):
            text, *others = form
            value = text.value.replace("[MASK]", files.settings(model)["mask_token"])
            return (replace(text, value=value), *others)
    return form


def _settings(model: ServedModel, files: ModelFiles) -> tuple[FormField, ...]:
    """Return fields for the settings that a generator can honour, with its own defaults.

    If the generator's files can't be read, the general defaults are used, and languages and chunks are left out.
    """
    if model.task not in GENERATION_TASKS:
        return ()
    configuration: Mapping[str, Any] = {}
    with suppress(Refusal):
        configuration = files.generation(model)
    served = [setting for setting in SETTINGS.values() if setting.dtype and setting.name not in UNSHOWN]
    lacking = () if configuration.get("languages") else LANGUAGES
    lacking += () if configuration.get("max_source") is not None else of_scope(CHUNKS)
    return tuple(_setting_field(setting, configuration) for setting in served if setting.name not in lacking)


def _setting_field(setting: Setting, configuration: Mapping[str, Any]) -> FormField:
    choices = _choices(setting, configuration)
    return FormField(
        PARAMETERS + setting.name,
        setting.name,
        "lines" if setting.is_list else "choice" if choices else KINDS.get(setting.dtype, "line"),
        f"{setting.text}; one in each line" if setting.is_list else setting.text,
        default=_default(setting, configuration),
        allowed=setting.allowed,
        choices=choices,
        is_common=setting.name in COMMON,
    )


def _default(setting: Setting, configuration: Mapping[str, Any]) -> Any:
    default = setting.default
    if setting.name == names.LONG and configuration:
        default = "error" if configuration["max_source"] is None else "truncate"
    is_drawn = setting.name == names.SEED  # for each request
    return None if is_drawn else configuration.get("defaults", {}).get(setting.name, default)


def _choices(setting: Setting, configuration: Mapping[str, Any]) -> tuple[Any, ...]:
    if setting.name in LANGUAGES:
        return tuple(sorted(configuration["languages"]["ids"]))
    has_chunks = configuration.get("max_source") is not None
    return tuple(choice for choice in setting.choices if choice != "chunk" or has_chunks)


FOLDER = Path(__file__).parent
PAGE = "page.html"
SCRIPTS = (
    "page.js", "form.js", "calls.js", "requests.js", "generation.js", "answers.js", "timing.js", "snippets.js",
    "cut.js", "elements.js", "theme.js", "docs.js",
)  # fmt: skip
STYLES = ("page.css",)
MEDIA_TYPES = {".html": b"text/html", ".js": b"text/javascript", ".css": b"text/css"}
# Allow only these files and requests to this server: no inline script or style, no other origin, no frame around it.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", POLICY),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


def document_route(path: str, file: str, summary: str) -> Route:
    """Return a route to a file of this folder. The file is read once, when the route is made."""
    media_type = MEDIA_TYPES[Path(file).suffix] + b"; charset=utf-8"
    document = Document((FOLDER / file).read_bytes(), ((b"content-type", media_type), *HEADERS))

    async def send(request: DialectRequest) -> Document:
        return document

    return Route("GET", path, send, summary, is_public=True)


ROUTES = (
    document_route("/", PAGE, "The playground, a page without a key."),
    document_route("/docs", "docs.html", "All paths as a page, with the fields of their bodies."),
    *(document_route(f"/playground/{file}", file, "A file of the playground.") for file in (*SCRIPTS, *STYLES)),
    Route("GET", "/models", list_models, "The served models, and the fields of a request to each."),
)
DIALECT = Dialect("hfx", ROUTES, error_object)
