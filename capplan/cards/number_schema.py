"""The schema of a number on a card; imported only where a schema is needed."""

# No "from __future__ import annotations": pydantic would have to compile every annotation again.
from pydantic import BaseModel, ConfigDict, Field

from capplan.cards.number import Kind


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


class BandCard(BaseModel):
    """Measured over predicted at the 10th and the 90th percentile of rows that nothing was fitted to."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    low: Number
    high: Number
