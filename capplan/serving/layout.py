"""How one instance of a model is spread over GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capplan.errors import InputError, shown

if TYPE_CHECKING:
    from capplan.cards.model import Model

_LARGEST = 100_000


@dataclass(frozen=True)
class Layout:
    """One instance: ``tp * pp * dp`` GPUs.

    Parameters
    ----------
    tp : tensor parallelism inside one attention rank [GPUs]
    pp : pipeline stages [GPUs]
    dp : data-parallel attention ranks; each has its own KV pool, cap and queue [1]
    ep : GPUs the routed experts are spread over; None means tp * dp where dp > 1, else 1 (experts split by TP) [GPUs]
    dcp : decode context parallelism: ranks of a TP group that share one sequence's KV [GPUs]
    redundant_experts : copies of busy experts beyond one of each, over the whole instance [experts]

    Raises
    ------
    InputError : a size that is no positive integer, ep that does not divide the GPUs, dcp that does not divide tp
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int | None = None
    dcp: int = 1
    redundant_experts: int = 0

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "dcp", "redundant_experts"):
            _check(name, getattr(self, name), 0 if name == "redundant_experts" else 1)
        if self.ep is not None:
            _check("ep", self.ep, 1)
            if (self.tp * self.dp) % self.ep:
                raise InputError(f"{self.ep} does not divide tp * dp = {self.tp * self.dp}", key="layout.ep")
        if self.tp % self.dcp:
            raise InputError(f"{self.dcp} does not divide tp = {self.tp}", key="layout.dcp")

    @property
    def gpus(self) -> int:
        """GPUs of the instance."""
        return self.tp * self.pp * self.dp

    def expert_parallel(self, *, mixture: bool) -> int:
        """GPUs the experts are spread over; the rule for ``ep=None`` applied."""
        if self.ep is not None:
            return self.ep
        return self.tp * self.dp if mixture and self.dp > 1 else 1

    def __str__(self) -> str:
        parts = [f"TP{self.tp}"]
        parts += [f"PP{self.pp}"] if self.pp > 1 else []
        parts += [f"DP{self.dp}"] if self.dp > 1 else []
        parts += [f"EP{self.ep or self.tp * self.dp}"] if self.ep or self.dp > 1 else []
        parts += [f"DCP{self.dcp}"] if self.dcp > 1 else []
        return " ".join(parts)


def heads_divide(model: Model, tp: int) -> bool:
    """Whether a tensor parallelism divides the query heads of every layer."""
    return not any(heads % tp for heads in _query_heads(model))


def check_heads(model: Model, layout: Layout) -> None:
    """Refuse more pipeline stages than layers, and a tensor parallelism that does not divide the query heads.

    Raises
    ------
    InputError : it names the sizes that would do
    """
    if layout.pp > model.n_layers:
        raise InputError(f"{layout.pp} stages for the {model.n_layers} layers of {model.name}", key="layout.pp")
    for heads in _query_heads(model):
        if heads % layout.tp:
            sizes = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
            raise InputError(f"{layout.tp} does not divide the {heads} attention heads; use {sizes}", key="layout.tp")


def _query_heads(model: Model) -> Iterator[int]:
    return (group.attention.n_heads for group in model.layers if group.attention is not None)


def check_types(model: object, hardware: object, layout: object) -> None:
    """Refuse a name where the thing itself is wanted, and anything else.

    Raises
    ------
    InputError : it says how to read one
    """
    from capplan.cards.hardware import Hardware
    from capplan.cards.model import Model

    wanted = (("model", model, Model), ("hardware", hardware, Hardware), ("layout", layout, Layout))
    for key, value, kind in wanted:
        if not isinstance(value, kind):
            hint = f"; load_{key}(name) reads one" if isinstance(value, str) and kind is not Layout else ""
            raise InputError(f"must be a {kind.__name__}, not {type(value).__name__}{hint}", key=key)


def _check(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        problem = f"{shown(value)} must be a whole number, {least} or more and at most {_LARGEST:,}"
        raise InputError(problem, key=f"layout.{name}")
