"""A number on a card: value, unit, source and kind always travel together."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["spec", "measured", "fitted", "assumed"]


class Number(BaseModel):
    """One sourced number.

    ``kind`` says how far to trust it: ``spec`` (a data sheet, a config file), ``measured`` (on silicon), ``fitted``
    (a constant of a formula, fitted to measurements) or ``assumed`` (nobody measured it; every answer that uses it
    lists it).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    value: float
    unit: str = Field(min_length=1, max_length=40)
    source: str = Field(min_length=1, max_length=400)
    kind: Kind
