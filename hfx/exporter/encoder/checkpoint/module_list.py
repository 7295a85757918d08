"""The modules of a sentence-transformers checkpoint: those listed in modules.json, and those of a Router."""

from __future__ import annotations

from pathlib import Path

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN, read_json, read_json_value, read_optional_json
from hfx.python_backends.settings import DOCUMENT, QUERY

Routes = dict[str, list[tuple[str, str]]]
MODULES = "modules.json"
LIBRARY = "sentence_transformers."  # the types of the library's modules begin with this
SPLADE, LOGIT_SCORE = "SpladePooling", "LogitScore"
STATIC, SPARSE_STATIC = "StaticEmbedding", "SparseStaticEmbedding"  # tables of vectors, and of numbers
FIRST = ("Transformer", "MLMTransformer", STATIC)
ROUTERS, ROUTES = ("Router", "Asym"), ("router_config.json", "config.json")  # the latter before version 5
STANFORD = "HF_ColBERT"  # in checkpoints of this architecture, modules.json is about a copy in a subfolder


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """Return the kinds and paths of the modules; none without modules.json.

    For a Router with a `query_table`, the route for documents takes the Router's place.
    Raises CheckpointCorrupt and CheckpointUnsafe.
    """
    modules = _listed(folder)
    routes = _routes(folder, modules)
    return [*routes[DOCUMENT], *modules[1:]] if _looks_queries_up(routes) else modules


def module_kinds(folder: Path) -> list[str]:
    """Return the kinds of the modules that `read_modules` returns."""
    return [kind for kind, _ in read_modules(folder)]


def query_table(folder: Path) -> str:
    """Return the path of a Router's table, in which each token of a query has its number; empty without a table."""
    routes = _routes(folder, _listed(folder))
    return routes[QUERY][0][1] if _looks_queries_up(routes) else ""


def is_static(folder: Path) -> bool:
    """Return whether the first module of the checkpoint in `folder` is a table of embeddings."""
    return module_kinds(folder)[:1] == [STATIC]


def home(folder: Path) -> Path:
    """Return the folder of the first module's files: the checkpoint's `folder`, or a subfolder of it."""
    kind, path = (*read_modules(folder), ("", ""))[0]
    is_copy = STANFORD in str(read_optional_json(folder / "config.json").get("architectures"))
    return folder / path if kind in FIRST and not is_copy else folder


def unsupported_modules(folder: Path, supported: str) -> CheckpointUnsupported:
    """Return the error for modules other than the `supported` ones."""
    kinds = ", ".join(module_kinds(folder)) or "(none)"
    if {*module_kinds(folder)[:1]} & {*ROUTERS}:
        routes = {name: [kind for kind, _ in route] for name, route in _routes(folder, _listed(folder)).items() if name}
        shown = "; ".join(f"{name}: {', '.join(route)}" for name, route in routes.items()) or "with rules of its own"
        return CheckpointUnsupported(
            f"{folder / MODULES} lists a Router, whose routes hfx can't export together ({shown}).",
            "Save each route as a model of its own, such as "
            "SentenceTransformer(modules=[*model[0].sub_modules['query']]).save(FOLDER), and export these. Of Routers, "
            f"hfx exports those with {SPARSE_STATIC} for queries, and Transformer, {SPLADE} for documents by default.",
        )
    return not_exported(f"{folder / MODULES} lists the modules {kinds}", supported)


def not_exported(what: str, supported: str) -> CheckpointUnsupported:
    """Return the error for a file's unsupported content.

    `what` describes the content, as the beginning of a sentence.
    """
    return CheckpointUnsupported(f"{what}, which hfx can't export.", f"Supported: {supported}.")


def _looks_queries_up(routes: Routes) -> bool:
    is_split = routes.keys() == {QUERY, DOCUMENT, ""} and routes[""] == routes[DOCUMENT]
    return is_split and [kind for kind, _ in routes[QUERY]] == [SPARSE_STATIC]


def _listed(folder: Path) -> list[tuple[str, str]]:
    file = folder / MODULES
    if not file.exists():
        return []
    try:
        return _inside(folder, [(_kind(str(entry["type"])), str(entry["path"])) for entry in read_json_value(file)])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(f"{file} is not a list of modules: {error!r}.", AGAIN) from error


def _inside(folder: Path, modules: list[tuple[str, str]]) -> list[tuple[str, str]]:
    outside = [path for _, path in modules if not (folder / path).resolve().is_relative_to(folder.resolve())]
    if outside:
        raise CheckpointUnsafe(
            f"{folder / MODULES} or a Router names {outside[0]!r}, outside the checkpoint.",
            "Use a checkpoint you trust.",
        )
    return modules


def _routes(folder: Path, modules: list[tuple[str, str]]) -> Routes:
    """Return the modules of each route of a Router; the default route also has the name "".

    The result is empty if the first module is no Router, or if the Router chooses its routes in another way
    (`route_mappings`, or a default route that it lacks).
    """
    kind, path = (*modules, ("", ""))[0]
    if kind not in ROUTERS:
        return {}
    files = [folder / path / name for name in ROUTES]
    file = next(filter(Path.is_file, files), files[0])
    config = read_json(file)
    try:
        kinds = {str(name): _kind(str(each)) for name, each in config["types"].items()}
        routes = {
            str(route): _inside(folder, [(kinds[name], str(Path(path) / name)) for name in names])
            for route, names in config["structure"].items()
        }
        parameters = config["parameters"]
        first = next(iter(routes)) if parameters.get("allow_empty_key", True) else ""
        default = parameters.get("default_route") or first
        if parameters.get("route_mappings") or default not in routes:
            return {}
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise CheckpointCorrupt(f"{file} has no routes of modules: {error!r}.", AGAIN) from error
    return routes | {"": routes[default]}


def _kind(path: str) -> str:
    """Return the class name of a module of the library, wherever versions 2 to 6 put it; any other path unchanged."""
    return path.rsplit(".", 1)[-1] if path.startswith(LIBRARY) else path
