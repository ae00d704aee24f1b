"""Whether the name under which an engine served a model is that of a card: spelled otherwise, or another model."""

from __future__ import annotations

import re
from functools import cache

from capplan.cards.model import Model

_VARIANTS = frozenset({
    "instruct", "it", "chat", "base", "hf", "thinking", "reasoning", "fp8", "fp4", "nvfp4", "mxfp4", "bf16", "fp16",
    "int4", "int8", "w4a16", "w8a8", "w4a8", "w8a16", "awq", "gptq", "autoround", "dynamic", "block", "quantized",
    "static", "kv", "g32", "g128", "gguf",
})  # fmt: skip
"""Words of a name that say tuning or number format, not architecture."""
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?[bt]")


def taken_for(name: str, model: Model) -> str | None:
    """A remark on a name that is not the card's; None for its own.

    Parameters
    ----------
    name : the engine serves the model under
    model : it is taken for
    """
    known = {one.lower() for one in own_names(model)}
    return None if name.lower() in known else f"the results call the model {name!r}; taken for {model.name}"


def another_model(name: str, model: Model) -> bool:
    """Whether a name is clearly that of another model.

    That is the name of another card, of a model of another size, or of a repository that shares no word with this one.
    Vendor, tuning and number format say nothing, nor does a name somebody made up.
    """
    words, known = _words(name), [_words(one) for one in own_names(model)]
    if words in known:
        return False
    if _cards().get(words, model.name) != model.name:
        return True
    sizes = set().union(*map(_sizes, known))
    if sizes and not _sizes(words) <= sizes:
        return True
    return bool(_REPOSITORY.fullmatch(name)) and not any(one & words for one in known)


def own_names(model: Model) -> list[str]:
    """Name, aliases and repository of a card."""
    repository = model.provenance.get("repository")
    return [model.name, *model.aliases, *([repository] if isinstance(repository, str) else [])]


def _words(name: str) -> frozenset[str]:
    """The words of a name without vendor, tuning and number format."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    return frozenset(word for word in re.split(r"[^a-z0-9.]+", last) if word) - _VARIANTS


def _sizes(words: frozenset[str]) -> set[str]:
    return {word for word in words if _SIZE.fullmatch(word)}


@cache
def _cards() -> dict[frozenset[str], str]:
    """Words of every shipped card to its name."""
    from capplan.cards.card_numbers import card_aliases
    from capplan.cards.store import card_names

    names = {name: name for name in card_names("models")} | dict(card_aliases("models"))
    return {_words(said): name for said, name in reversed(names.items())}
