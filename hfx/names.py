"""Model, folder and tensor names, in one place.

Clients, generated configurations and the Python backends are connected only by these names. The backends, which import
nothing else of hfx, repeat them as literals, and a test compares the two. This module does no I/O.
"""

from __future__ import annotations

import re
from enum import StrEnum

from hfx.errors import UsageError

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]*")
NAME_MAX_LENGTH = 128  # a folder name with the longest suffix stays far below the 255 bytes that file systems allow

MANIFEST_FILE = "hfx.json"
COMPILED_TOKENIZER = "tokenizer.hfx"  # in NAME_tokenize/1, with the library of hfx/native that reads it
PACKAGES_FOLDER = "packages"  # in a version folder: unpacked wheels of a bundle (hfx.deploy)

# The members of a model NAME are NAME + suffix: an encoder's steps, or a generator's engine.
TOKENIZE_SUFFIX = "_tokenize"
NET_SUFFIX = "_net"
POSTPROCESS_SUFFIX = "_postprocess"
STREAM_SUFFIX = "_stream"
MEMBER_SUFFIXES = (TOKENIZE_SUFFIX, NET_SUFFIX, POSTPROCESS_SUFFIX, STREAM_SUFFIX)


class Task(StrEnum):
    """The task of a published model; the values are the hub's pipeline tags."""

    TEXT_CLASSIFICATION = "text-classification"
    TOKEN_CLASSIFICATION = "token-classification"
    QUESTION_ANSWERING = "question-answering"
    FEATURE_EXTRACTION = "feature-extraction"
    ZERO_SHOT_CLASSIFICATION = "zero-shot-classification"
    TEXT_RANKING = "text-ranking"
    FILL_MASK = "fill-mask"
    TEXT_GENERATION = "text-generation"
    SUMMARIZATION = "summarization"
    TEXT2TEXT_GENERATION = "text2text-generation"
    TRANSLATION = "translation"


class Kind(StrEnum):
    """The kind of an encoder, by its results. One task may have several kinds."""

    CLASSIFIER = "classifier"
    ANSWER_CLASSIFIER = "answer_classifier"  # a language model that scores a text by the tokens of its answers
    TOKENS = "tokens"  # classes of tokens, joined to entities
    SPANS = "spans"  # GLiNER: entities of the labels that a request names
    ANSWERS = "answers"
    ZERO_SHOT = "zero_shot"
    LABELS = "labels"  # GLiClass: the labels that a request names, in one pass
    MASKS = "masks"
    EMBEDDER = "embedder"
    SPARSE = "sparse"  # SPLADE: a number for each word of the vocabulary
    LATE = "late"  # ColBERT: vectors of the tokens of queries and of documents
    TOKEN_VECTORS = "token_vectors"
    STATIC = "static"  # a table of vectors, without a transformer
    CROSS_ENCODER = "cross_encoder"  # one score of a pair
    PAIR_CLASSIFIER = "pair_classifier"  # scores of several labels of a pair
    JUDGE = "judge"  # a language model that scores a pair by the token of its answer


GENERATION_TASKS = frozenset({Task.TEXT_GENERATION, Task.SUMMARIZATION, Task.TEXT2TEXT_GENERATION, Task.TRANSLATION})

# Tensors that clients see (ARCHITECTURE: tensor names).
TEXT_INPUT = "text_input"
CANDIDATE_LABELS = "candidate_labels"
TOP_K = "top_k"
MULTI_LABEL = "multi_label"
THRESHOLD = "threshold"
NESTED = "nested"  # an entity may be inside another one
MAX_ANSWER_LEN = "max_answer_len"
DOC_STRIDE = "doc_stride"
STRIDE = "stride"
WINDOW_TOKENS = "window_tokens"
HANDLE_IMPOSSIBLE_ANSWER = "handle_impossible_answer"
QUERY = "query"
RAW_SCORES = "raw_scores"
APPLY_SOFTMAX = "apply_softmax"
DIMENSIONS = "dimensions"
PROMPT_NAME = "prompt_name"
PROMPT = "prompt"
TARGETS = "targets"
QUESTION = "question"
CONTEXT = "context"
LABEL = "label"
SCORE = "score"
ENTITIES = "entities"
FILLS = "fills"
ANSWER = "answer"
ANSWERS = "answers"
START = "start"
END = "end"
EMBEDDING = "embedding"
TRUNCATED_TOKENS = "truncated_tokens"

# Tensors of generators, with the names of TensorRT-LLM where it has the tensor. `top_k` of sampling is TOP_K.
MAX_TOKENS = "max_tokens"
MIN_TOKENS = "min_tokens"
NUM_BEAMS = "num_beams"
NUM_RETURN_SEQUENCES = "num_return_sequences"
DO_SAMPLE = "do_sample"
SEED = "seed"
STOP_WORDS = "stop_words"
REPETITION_PENALTY = "repetition_penalty"
NO_REPEAT_NGRAM_SIZE = "no_repeat_ngram_size"
LONG = "long"
OVERLAP = "overlap"
SOURCE_LANG = "source_lang"
TARGET_LANG = "target_lang"
STREAM = "stream"
TIMEOUT_MS = "timeout_ms"
VARIANT = "variant"  # parameter of NAME_net's configuration: how the net is written and run (hfx/exporter/variants)
MODEL_SHA256 = "model_sha256"  # parameter of a published model's configuration: see hfx.manifest.model_sha256
CANCEL_REQUEST = "cancel_request"  # an input of an engine: the id of another request, which the engine ends
RETURN_LOG_PROBS = "return_log_probs"
LOGPROBS = "logprobs"
PROMPT_LOGPROBS = "prompt_logprobs"
PROMPT_TOKEN_IDS = "prompt_token_ids"
# The settings that request log-probabilities.
LOG_PROBS = (RETURN_LOG_PROBS, LOGPROBS, PROMPT_LOGPROBS)
ADD_SPECIAL_TOKENS = "add_special_tokens"
TEXT_OUTPUT = "text_output"
FINISH_REASON = "finish_reason"
INPUT_TOKENS = "input_tokens"
OUTPUT_TOKENS = "output_tokens"
OUTPUT_LOG_PROBS = "output_log_probs"
# With `logprobs`, [tokens, 1 + alternatives]: each token, and the most probable tokens at its position.
TOKEN_IDS = "token_ids"
TOKEN_TEXTS = "token_texts"
TOKEN_LOG_PROBS = "token_log_probs"
TOKEN_SPECIAL = "token_special"
TOKEN_TABLES = (TOKEN_IDS, TOKEN_TEXTS, TOKEN_LOG_PROBS, TOKEN_SPECIAL)
# With `prompt_logprobs`, the same of the prompt's tokens.
PROMPT_LOG_PROBS = "prompt_log_probs"
PROMPT_TOKEN_TABLES = tuple("prompt_" + name for name in TOKEN_TABLES)
# For Triton's OpenAI frontend: two more outputs, and the inputs that request them.
NUM_INPUT_TOKENS = "num_input_tokens"
NUM_OUTPUT_TOKENS = "num_output_tokens"  # since the previous response
RETURN_NUM_INPUT_TOKENS = "return_num_input_tokens"
RETURN_NUM_OUTPUT_TOKENS = "return_num_output_tokens"

# Tensors between the members of an ensemble.
INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
TOKEN_TYPE_IDS = "token_type_ids"
LABEL_VECTORS = "label_vectors"  # of a bi-encoder, for the labels of a request
ITEM_SHAPE = "item_shape"
LOGITS = "logits"
START_LOGITS = "start_logits"
END_LOGITS = "end_logits"
OFFSETS = "offsets"
SPANS = "spans"


def check_name(name: str) -> str:
    """Return NAME if it can be a model's name. Raises UsageError otherwise.

    A NAME is `[a-z0-9][a-z0-9_-]*`, at most 128 characters, and does not end like a member of a model (`_tokenize`,
    `_net`, `_postprocess`, `_stream`), because its folder would collide with another model's.
    """
    if not NAME_PATTERN.fullmatch(name) or len(name) > NAME_MAX_LENGTH:
        raise UsageError(
            f"{name!r} can't be a model's name.",
            f"Use lower-case letters, digits, '_' and '-', at most {NAME_MAX_LENGTH}, a letter or digit first.",
        )
    if name.endswith(MEMBER_SUFFIXES):
        raise UsageError(
            f"{name!r} ends like a member of a model.",
            f"Choose a name without one of the endings {', '.join(MEMBER_SUFFIXES)}.",
        )
    return name


def default_name(model: str) -> str:
    """Return the NAME for a hub id or folder if the user gives none: its last part, in a NAME's alphabet.

    >>> default_name("facebook/bart-large-cnn")
    'bart-large-cnn'
    """
    last = model.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1].lower()
    return check_name(re.sub(r"[^a-z0-9_-]+", "-", last).strip("-_") or last)
