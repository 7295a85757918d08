"""Structured output: a JSON schema, a regular expression or a list of choices becomes a mask of tokens.

llguidance compiles and matches the grammars. A caller's grammar is first compiled in a separate process
(grammar_process.py). A grammar that takes too long or too much memory there, or kills the process, is refused.
"""

from __future__ import annotations

import json
import re
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Union

import numpy as np

from ..engine.constraint import NUMPY, Masking
from ..engine.generation_settings import STRUCTURE, Texts, of_scope
from ..engine.matcher import Floats, NewMatcher
from ..engine.processors import BANNED, Array
from ..engine.search import check_best
from ..errors import InvalidRequest, StepFailed, unusable
from .dates import with_real_dates
from .grammar_process import AT_ONCE, error_of
from .vocabulary import Vocabulary, read_vocabulary

PACKAGE = "llguidance"
INSTALL = "pip install 'llguidance>=1.9,<2'"
KEPT = 64  # compiled grammars, and refusals, that are stored for a model
FEW = 256  # if at most this many tokens may come next, they are listed; otherwise they are a mask
ROOM = 2**18  # bytes per grammar for storing texts and the few tokens that may come after each text
ENTRY = 250  # bytes of Python's own for each stored text and its tokens
# Limits of llguidance's parser. A lexer state takes 1 to 2 kB. An object with n optional properties needs 4 n items in
# a row. llguidance's default for the work of one parser step (its "fuel"), which takes about 15 ms, is kept.
LIMITS: Mapping[str, Any] = {"max_lexer_states": 50_000, "max_items_in_row": 10_000, "verbose_errors": False}
# At most one space between the parts of JSON, as json.dumps writes it. Without this limit, small models may write line
# ends without end.
SPACE = r"\x20"
# The only escapes that answers may have: those of characters that JSON can't contain literally. \u is not among them:
# with it, a key could also be spelled with escapes that it doesn't need, and the schema of that key would then not
# apply.
ESCAPES = 'nrbtf\\"'
# Allows every token whose bytes the grammar allows. By default, where only certain bytes can follow, llguidance would
# force the tokens into which the tokenizer divides these bytes.
HEAD = '%llguidance {"no_forcing": true}'
LONGEST_REASON = 300  # characters
NO_TOKEN = "NoExtension"  # how llguidance's error begins if no token may come next
_PLACE, _LINES = re.compile(r"^at \d+\(\d+\): "), re.compile(r"\n *\d+ \| ")
# The key of llguidance's options in a schema. A caller's options could allow text that is not JSON.
OPTIONS = "x-guidance"

Structure = tuple[str, Union[str, tuple[str, ...]]]  # the setting, and its value
Compiled = Union[NewMatcher, InvalidRequest]


class GrammarCompiler:
    """Compiles the structured outputs of a model, for any thread. `special` says whether a token has no text."""

    def __init__(
        self, tokenizer: Any, special: Any, vocab_size: int, eos_ids: Sequence[int], masking: Masking = NUMPY
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._size = vocab_size
        self._eos = tuple(eos_ids)
        self._masking = masking
        self._lock = threading.Lock()
        self._compiling = threading.BoundedSemaphore(AT_ONCE)
        self._opened: tuple[Any, Vocabulary] | None = None
        self._compiled: OrderedDict[Structure, Compiled] = OrderedDict()

    def compile(self, texts: Texts) -> NewMatcher | None:
        """Return the maker of a request's matchers; None without structured output.

        Raises InvalidRequest if the structured output can't be compiled, and QueueFull.
        """
        structure = structure_of(texts)
        if structure is None:
            return None
        known = self._known(structure)
        if known is None:
            with self._compiling:  # many requests with the same new grammar may come at once
                known = self._known(structure) or self._keep(structure, self._compile(structure))
        if isinstance(known, InvalidRequest):
            # A copy, which has no traceback of the first time.
            raise InvalidRequest(known.field, None, known.allowed, known.message)
        return known

    def _known(self, structure: Structure) -> Compiled | None:
        with self._lock:
            known = self._compiled.get(structure)
            if known is not None:
                self._compiled.move_to_end(structure)
        return known

    def _keep(self, structure: Structure, compiled: Compiled) -> Compiled:
        with self._lock:
            self._compiled[structure] = compiled
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return compiled

    def _compile(self, structure: Structure) -> Compiled:
        tokenizer, vocabulary = self._open(structure)
        try:
            grammar = written(structure, vocabulary.loses_space)
            check(structure, grammar)
            return self._matcher(structure, grammar, tokenizer, vocabulary.tokens)
        except InvalidRequest as refusal:
            return refusal

    def _matcher(self, structure: Structure, grammar: str, tokenizer: Any, tokens: Sequence[bytes]) -> NewMatcher:
        from llguidance import LLMatcher, LLParserLimits

        first = LLMatcher(tokenizer, grammar, limits=LLParserLimits(**LIMITS), log_level=0)
        if first.is_error():
            raise _refused(structure, first.get_error())
        begin = Grammar(first, tokens, self._eos, self._masking)
        try:
            begin.new().few()
        except StepFailed as error:
            raise _refused(structure, error.message) from None
        return begin.new

    def _open(self, structure: Structure) -> tuple[Any, Vocabulary]:
        """Return llguidance's tokenizer and the vocabulary.

        Raises InvalidRequest if the model can't be used with these.
        """
        name, value = structure
        if not self._eos:
            raise unusable(name, value, "this model has no token that ends an answer")
        with self._lock:
            if self._opened is None:
                _check_installed(name, value)
                vocabulary = read_vocabulary(self._tokenizer, self._special, self._size)
                if vocabulary is None:
                    raise unusable(name, value, "this model's tokenizer joins tokens by rules")
                self._opened = _opened(vocabulary, self._eos), vocabulary
            return self._opened


class Grammar:
    """A compiled grammar, which its matchers share. `first` is llguidance's matcher of a new sequence.

    `known` maps a text, whichever tokens it consists of, to the tokens that may come after it, ascending, or to None if
    they are many.
    """

    def __init__(self, first: Any, tokens: Sequence[bytes], eos: tuple[int, ...], masking: Masking) -> None:
        self.first, self.tokens, self.eos, self.masking = first, tokens, eos, masking
        self.ends: Array = np.array(sorted(eos))
        self.known: dict[bytes, Array | None] = {}
        self.room = ROOM

    def new(self) -> TokenMatcher:
        """Return the matcher of a new sequence."""
        return TokenMatcher(self)


class TokenMatcher:
    """A Matcher of a grammar.

    llguidance's own matcher is made, and gets the tokens so far, only if the next tokens are not stored.

    `_text` is the text of the tokens so far; None once there was no room to store the next tokens.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._text: bytes | None = b""
        self._over = False
        self._own: Any = None
        self._untaken: list[int] = []
        self._mask: bytes | None = None

    def few(self) -> Array | None:
        """Return the tokens that may come next, if they are few; else None."""
        few = self._known()
        return few if few is not None or self._text is not None else few_of(self.mask())

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        if (few := self._known()) is not None:
            return _has(few, token)
        matcher = self._matcher()
        return bool(matcher.is_accepting() if token in self._grammar.eos else matcher.validate_tokens([token]) == 1)

    def best(self, logits: Floats, argmax: int) -> int:
        """Return the best token that may come next. If the allowed tokens are not few, `argmax` is checked first."""
        few = self._known()
        if few is not None:
            best = int(few[logits[few].argmax()]) if few.size else -1
        else:
            best = argmax if self.allows(argmax) else self._grammar.masking.best(logits, self.mask())
        check_best(float(logits[best]) if best >= 0 else float("-inf"))
        return best

    def forbid(self, scores: Floats) -> None:
        """Set to minus infinity the scores of the tokens that may not come next."""
        few = self._known()
        if few is None:
            self._grammar.masking.forbid(scores, self.mask())
        else:
            kept = scores[few]
            scores.fill(BANNED)
            scores[few] = kept

    def mask(self) -> bytes:
        """Return the mask of the tokens that may come next (see constraint.py). Raises StepFailed if that fails."""
        if self._mask is not None:
            return self._mask
        matcher = self._matcher()
        bits = bytearray(matcher.compute_bitmask())
        if matcher.is_error():
            raise StepFailed(_short(matcher.get_error()), "Send a simpler schema or regular expression")
        may_end = matcher.is_accepting()
        for token in self._grammar.eos:
            bit = 1 << token % 8
            bits[token // 8] = bits[token // 8] | bit if may_end else bits[token // 8] & ~bit
        self._mask = bytes(bits)
        return self._mask

    def take(self, token: int) -> None:
        """Add `token` to the sequence."""
        few, is_end = self._known(), token in self._grammar.eos
        if few is None:
            self._over = is_end or not self._matcher().consume_token(token)
        else:
            self._over = is_end or not _has(few, token)
            self._untaken.append(token)
        if self._text is not None:
            self._text += self._grammar.tokens[token]
        self._mask = None

    def copy(self) -> TokenMatcher:
        """Return an independent copy."""
        copied = copy(self)
        copied._own, copied._untaken = self._own and self._own.deep_copy(), [*self._untaken]
        return copied

    def _known(self) -> Array | None:
        """Return the tokens that may come next if they are few, and are stored or can still be stored; else None."""
        grammar, text = self._grammar, self._text
        if self._over or text is None:
            return grammar.ends if self._over else None
        if text not in grammar.known:
            if grammar.room <= 0:
                self._text = None
                return None
            few = grammar.known[text] = few_of(self.mask())
            grammar.room -= ENTRY + len(text) + (0 if few is None else few.nbytes)
        return grammar.known[text]

    def _matcher(self) -> Any:
        """Return llguidance's matcher with all tokens so far."""
        if self._own is None:
            self._own = self._grammar.first.deep_copy()
        if self._untaken:
            self._own.consume_tokens(self._untaken)
            self._untaken = []
        return self._own


def few_of(mask: bytes) -> Array | None:
    """Return the tokens of a mask, ascending, if they are few; else None."""
    if len(mask) - mask.count(0) > FEW:
        return None
    words = np.frombuffer(mask, np.uint32)
    at = np.flatnonzero(words)
    rows, bits = np.nonzero(np.unpackbits(words[at].view(np.uint8), bitorder="little").reshape(-1, 32))
    return at[rows] * 32 + bits if len(bits) <= FEW else None


def _has(few: Array, token: int) -> bool:
    at = bisect_left(few, token)  # a tenth of the time of `token in few`
    return at < len(few) and bool(few[at] == token)


def structure_of(texts: Texts) -> Structure | None:
    """Return the structured output that the settings name, as (setting, value); None if they name none."""
    return next(((name, value) for name in of_scope(STRUCTURE) if (value := getattr(texts, name))), None)


def written(structure: Structure, loses_space: bool) -> Any:
    """Return the grammar of a structured output, in the format that llguidance reads. Raises InvalidRequest."""
    from llguidance import LLMatcher

    name, value = structure
    if name == "json_schema":
        assert isinstance(value, str)
        rule = f"%json {json.dumps(_schema(name, value))}"
    else:
        regex = value if isinstance(value, str) else "|".join(map(_escaped, value))
        lark = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"][0]["lark_grammar"]
        rule = lark.removeprefix("start: ")
    start = f'start: " " form\nform: {rule}' if loses_space else f"start: {rule}"
    return LLMatcher.grammar_from_lark(f"{HEAD}\n{start}")


def check(structure: Structure, grammar: str) -> None:
    """Compile a grammar in another process. Raises InvalidRequest with the error of the grammar, or QueueFull."""
    try:
        error = error_of(grammar, LIMITS)
    except OSError as reason:
        raise unusable(*structure, f"the model's machine has no Python that checks it ({reason})") from None
    if error:
        raise _refused(structure, error)


def _opened(vocabulary: Vocabulary, eos: tuple[int, ...]) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper

    class Tokens:
        eos_token_id = eos[0]
        bos_token_id = None
        tokens = vocabulary.tokens
        special_token_ids = vocabulary.unusable

        def __call__(self, text: str) -> list[int]:
            return []  # masks do not need it

    return LLTokenizer(TokenizerWrapper(Tokens()), n_vocab=len(vocabulary.tokens), eos_token=list(eos))


def _schema(name: str, text: str) -> Any:
    """Return a schema with hfx's own options. Raises InvalidRequest."""
    try:
        schema = json.loads(text)
        _refuse_unenforced(name, text, schema)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(name, text, f"a JSON schema as JSON text ({error})") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest(name, text, "a JSON schema that is an object, or true")
    return {**with_real_dates(schema), OPTIONS: {"whitespace_pattern": SPACE, "json_allowed_escapes": ESCAPES}}


def _refuse_unenforced(name: str, text: str, part: Any) -> None:
    """Refuse parts of a schema that llguidance accepts, but does not enforce."""
    if isinstance(part, list):
        for each in part:
            _refuse_unenforced(name, text, each)
    if not isinstance(part, dict):
        return
    if OPTIONS in part:
        raise InvalidRequest(name, text, f"a schema without {OPTIONS}")
    # Keys that are not among `properties` may come twice, so minProperties is not enforced.
    least, required = part.get("minProperties"), part.get("required")
    if isinstance(least, int) and least > max(1, len(required) if isinstance(required, list) else 0):
        raise InvalidRequest(name, text, "a schema without minProperties, or one with as many required properties")
    for each in part.values():
        _refuse_unenforced(name, text, each)


def _escaped(text: str) -> str:
    return re.sub(r"([\\.+*?()|\[\]{}^$#&\-~/])", r"\\\1", text)


def _check_installed(name: str, value: Any) -> None:
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        message = f"{name} needs the package {PACKAGE}, which the model's Python lacks ({error}). {INSTALL}"
        raise InvalidRequest(name, value, "", message) from None


def _refused(structure: Structure, reason: str) -> InvalidRequest:
    name, value = structure
    return InvalidRequest(name, value, f"a structured output that {PACKAGE} can compile ({_short(reason)})")


def _short(reason: str) -> str:
    """Return an error of llguidance without places and lines of the grammar, which the caller has not written."""
    if reason.startswith(NO_TOKEN):
        return "no tokens of this model make one"
    reason = _PLACE.sub("", _LINES.split(reason)[0]).removeprefix("failed to compile JSON schema: ")
    reason = reason.rpartition("error: ")[2]  # it comes after the whole regular expression
    return " ".join(reason.split())[:LONGEST_REASON]
