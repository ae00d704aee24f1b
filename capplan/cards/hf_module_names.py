"""Names of modules in a quantisation config: whole names, parts of names, ``*`` wildcards and ``re:`` expressions.

Every pattern is matched in bounded time: expressions are translated into pieces of fixed shape between wildcards, and
one that could not be is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from capplan.errors import InputError

_NEVER_CONVERTED = re.compile(
    r"lm_head|(^|\.)head|embed|norm|vis|audio|multi_modal|projector|gate$|router|eh_proj|shared_head|mtp|merger|conv1d"
    r"|bias$|indexer|A_log|dt_proj|patch_merge"
)
"""Words of module names that no quantiser here touches, or that are not part of the text model."""

_PREFIXES = ("model.", "language_model.", "text_model.", "backbone.", "transformer.")
_EXPRESSION_PREFIXES = ("", "model.", "language_model.model.", "model.language_model.", "backbone.")
_EXPERT = re.compile(r"(?<=experts\.)(\d{1,6})(?=\.|$)", re.ASCII)
_LAYER = re.compile(r"layers\.(\d{1,6})(?=[.*]|$)", re.ASCII)
_DEEPEST_GROUP = 4
_MOST_CHOICES = 4
"""Groups, optional and repeated characters between two wildcards; more could take for ever to tell apart."""

MAX_NAME = 200
MAX_EXPRESSION = 2_000
MAX_WILDCARDS = 2_000


class ModulePatterns:
    """Names of modules a quantiser treats apart: left out, or in a format of their own.

    Parameters
    ----------
    patterns : as the config has them; prefixes of wrappers do not matter, and all experts of a layer go together

    Raises
    ------
    InputError : a name that is too long, an expression that is not understood, only some experts of a layer
    """

    def __init__(self, patterns: list[str]) -> None:
        expressions = [pattern for pattern in patterns if pattern.startswith("re:")]
        names = dict.fromkeys(_plain(pattern) for pattern in patterns if not pattern.startswith("re:"))
        wild = [name for name in names if "*" in name]
        self.used: set[str] = set()
        self.exact = _without_expert_numbers([name for name in names if "*" not in name])
        self.firsts = {name.partition(".")[0] for name in self.exact}
        self.wild = _by_layer(wild)
        self.expressions = [(text, _expression(text)) for text in dict.fromkeys(expressions)]
        self.of_any_layer = [pair for pair in self.expressions if not re.search(r"[0-9]|\\d|\\w|\[", pair[0])]
        self.of_some_layer = [pair for pair in self.expressions if pair not in self.of_any_layer]
        self.hits_of_any_layer: dict[str, set[str]] = {}
        self.names = [*self.exact, *wild, *(text for text, _ in self.expressions)]
        if len(wild) + len(self.expressions) > MAX_WILDCARDS:
            raise InputError(f"more than {MAX_WILDCARDS:,} names with wildcards")

    def match(self, module: str) -> bool:
        """Whether a module such as ``layers.3.self_attn.o_proj`` is among them."""
        parts = module.split(".")
        hits = self.exact.intersection(_spans(parts, self.firsts))
        for layer in ("", ".".join(parts[:2])):
            found = self.wild.get(layer, ())
            hits.update(name for name, head, wild in found if module.startswith(head) and _covers(wild, parts))
        hits |= _expression_hits(self.of_some_layer, module) | self._hits_of_any_layer(parts, module)
        self.used |= hits
        return bool(hits)

    def _hits_of_any_layer(self, parts: list[str], module: str) -> set[str]:
        """Expressions that meet the module whatever the number of its layer: looked up once for all layers."""
        if parts[0] != "layers":
            return _expression_hits(self.of_any_layer, module)
        name = ".".join(parts[2:])
        if name not in self.hits_of_any_layer:
            self.hits_of_any_layer[name] = _expression_hits(self.of_any_layer, module)
        return self.hits_of_any_layer[name]

    def last_layer(self) -> int:
        """The largest number of a layer that a name or a wildcard begins with; -1 where there is none."""
        return max((int(match[1]) for name in self.names if (match := _LAYER.match(name))), default=-1)

    def unused(self) -> list[str]:
        """Names that met no module of the text model and name none that is never converted."""
        return sorted(name for name in self.names if name not in self.used and not _NEVER_CONVERTED.search(name))


def _expression_hits(expressions: list[tuple[str, re.Pattern[str]]], module: str) -> set[str]:
    return {
        text
        for text, expression in expressions
        if any(expression.match(prefix + module) for prefix in _EXPRESSION_PREFIXES)
    }


def _spans(parts: list[str], firsts: set[str]) -> Iterator[str]:
    """Every run of neighbouring parts of a dotted name that begins with one of ``firsts``."""
    for first in range(len(parts)):
        if parts[first] in firsts:
            for last in range(first + 1, len(parts) + 1):
                yield ".".join(parts[first:last])


def _by_layer(names: list[str]) -> dict[str, list[tuple[str, str, re.Pattern[str]]]]:
    """Wildcards by the two parts all their modules begin with (``layers.3``), or under nothing."""
    found: dict[str, list[tuple[str, str, re.Pattern[str]]]] = {}
    for name in names:
        head = name[: name.index("*")]
        layer = ".".join(head.split(".")[:2]) if head.count(".") > 1 else ""
        found.setdefault(layer, []).append((name, head, _glob(name)))
    return found


def _covers(wild: re.Pattern[str], parts: list[str]) -> bool:
    """Whether a wildcard meets a module or one it is part of."""
    return any(wild.match(".".join(parts[:last])) for last in range(1, len(parts) + 1))


def _plain(pattern: str) -> str:
    """A name without the prefixes of wrappers."""
    if len(pattern) > MAX_NAME:
        raise InputError(f"a module name is longer than {MAX_NAME} characters")
    name = pattern
    while (prefix := next((p for p in _PREFIXES if name.startswith(p) and len(name) > len(p)), None)) is not None:
        name = name.removeprefix(prefix)
    return name.removesuffix(".")


def _without_expert_numbers(names: list[str]) -> set[str]:
    """The names with ``experts.7`` as ``experts.0``; all experts from the first on must be there."""
    experts: dict[str, set[int]] = {}
    for name in names:
        if match := _EXPERT.search(name):
            experts.setdefault(_EXPERT.sub("0", name, count=1), set()).add(int(match[1]))
    for name, numbers in experts.items():
        if len(numbers) != max(numbers) + 1:
            raise InputError(f"only some of the experts of {name[:80]!r} are named")
    return {_EXPERT.sub("0", name, count=1) for name in names}


def _glob(name: str) -> re.Pattern[str]:
    return _compiled([re.escape(piece) for piece in re.split(r"\*+", name)], whole=True)


def _compiled(pieces: list[str], *, whole: bool) -> re.Pattern[str]:
    """Pieces with anything between them; each is found at its first place once and for all, so nothing backtracks."""
    first, *rest = pieces
    if not rest:
        return re.compile(first + (r"\Z" if whole else ""), re.ASCII | re.DOTALL)
    middle = "".join(f"(?=(?P<_{i}>.*?{piece}))(?P=_{i})" for i, piece in enumerate(rest[:-1]))
    last = f".*{rest[-1]}" + (r"\Z" if whole else "")
    return re.compile(f"{first}{middle}{last}", re.ASCII | re.DOTALL)


def _expression(text: str) -> re.Pattern[str]:
    """A ``re:`` expression of literals, classes, alternatives and wildcards; met at the beginning of a name."""
    body = text.removeprefix("re:").removeprefix("^")
    whole = body.endswith("$") and not body.endswith("\\$")
    if len(text) > MAX_EXPRESSION:
        raise InputError(f"an expression is longer than {MAX_EXPRESSION:,} characters")
    pieces = _Expression(body[:-1] if whole else body, text).pieces()
    return _compiled(pieces, whole=whole)


class _Expression:
    """Reads an expression piece by piece; what it does not know it refuses."""

    _LITERAL = re.compile(r"[A-Za-z0-9_\-/,: ]|\\[.\-_/]", re.ASCII)
    _CLASS = re.compile(r"\\d|\[[A-Za-z0-9_\-]{1,40}\]", re.ASCII)

    def __init__(self, body: str, text: str) -> None:
        self.body, self.text, self.place, self.choices = body, text, 0, 0

    def pieces(self) -> list[str]:
        """Fixed pieces between wildcards."""
        pieces = [""]
        while self.place < len(self.body):
            if self.body.startswith((".*", ".+"), self.place):
                pieces[-1] += "." if self.body[self.place + 1] == "+" else ""
                pieces.append("")
                self.choices = 0
                self.place += 2
                self._take("?")
            else:
                pieces[-1] += self._atom(0)
        return pieces

    def _atom(self, depth: int) -> str:
        rest = self.body[self.place :]
        if match := self._CLASS.match(rest):
            self.place += match.end()
            if self._take("+"):
                self._choice()
                return match[0] + "{1,6}"
            return match[0] + self._optional()
        if match := self._LITERAL.match(rest):
            self.place += match.end()
            return re.escape(match[0].removeprefix("\\")) + self._optional()
        if rest.startswith("("):
            return self._group(depth)
        if rest.startswith(".") and not rest.startswith((".*", ".+", ".?", ".{")):
            self.place += 1
            return "."
        raise self._unknown()

    def _group(self, depth: int) -> str:
        """Alternatives of bounded length; a repeated group is refused."""
        self.place += 1
        self._choice()
        if self._take("?") and not self._take(":"):
            raise self._unknown()
        inside = ""
        while not self._take(")"):
            if self.place >= len(self.body) or depth >= _DEEPEST_GROUP:
                raise self._unknown()
            inside += "|" if self._take("|") else self._atom(depth + 1)
        return f"(?:{inside})" + self._optional()

    def _optional(self) -> str:
        if not self._take("?"):
            return ""
        self._choice()
        return "?"

    def _choice(self) -> None:
        self.choices += 1
        if self.choices > _MOST_CHOICES:
            raise self._unknown()

    def _take(self, character: str) -> str:
        if not self.body.startswith(character, self.place):
            return ""
        self.place += 1
        return character

    def _unknown(self) -> InputError:
        return InputError(f"{self.text[:80]!r} is a regular expression that is not understood")
