"""The exceptions capplan raises. Every one carries a single line that a person can act on."""

from __future__ import annotations

from collections.abc import Iterable

_LISTED = 12
"""Known names an error lists; the others are counted."""


def shown(value: object) -> str:
    """What was given, on one line of at most 60 characters."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {int(value.bit_length() * 0.30103) + 1} digits"
    try:
        text = repr(value).replace("\n", " ")
    except Exception:  # an object that cannot be printed
        text = f"this {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


class CapplanError(Exception):
    """Base of every exception capplan raises on purpose."""


class InputError(CapplanError, ValueError):
    """Something the user gave cannot be used: the message names file, key, what is wrong and what is allowed.

    Parameters
    ----------
    problem : what is wrong and what would be right, without a final period
    key : dotted path of the offending key, if there is one
    file : the file it came from, if there is one
    """

    def __init__(self, problem: str, *, key: str | None = None, file: str | None = None) -> None:
        self.problem, self.key, self.file = problem, key, file
        super().__init__(": ".join(part for part in (file, key, problem) if part))

    def located(self, *, key: str | None = None, file: str | None = None) -> InputError:
        """The same error with the place filled in where it was still unknown."""
        return type(self)(self.problem, key=self.key or key, file=self.file or file)


class UnknownNameError(InputError):
    """A name nobody knows: a card, a key, a unit."""

    @classmethod
    def among(
        cls, name: str, known: Iterable[str], what: str, *, key: str | None = None, file: str | None = None
    ) -> UnknownNameError:
        """The error for ``name`` that is none of ``known``; names the nearest one."""
        import difflib

        names = sorted(known)
        wanted = name[:80].lower()
        near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.7)
        if not near and len(wanted) > 2:  # "price" for price_per_gpu_hour
            near = [known_name for known_name in names if wanted in known_name.lower()][:1]
        near = near or difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names[:_LISTED])}{more}"
        return cls(f"unknown {what} {name[:80]!r}; {hint}", key=key, file=file)


class UnitError(InputError):
    """A quantity with the wrong unit, without a needed unit, or that is no number at all."""


class UnsupportedModelError(InputError):
    """A model configuration with a field or layer kind that is not modelled."""
