"""The schema of a hardware card: what its file may hold, and which line says what is wrong with one."""

# No "from __future__ import annotations": pydantic would have to compile every annotation again.
from dataclasses import MISSING, fields
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from capplan.cards.hardware import Kernels
from capplan.cards.number_schema import BandCard, Number
from capplan.cards.validation import one_line

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_Name = Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f]+$")

KernelsCard: type[BaseModel] = create_model(
    "KernelsCard",
    __config__=_STRICT,
    **{
        constant.name: (Number, ...) if constant.default is MISSING else (Number | None, None)
        for constant in fields(Kernels)
    },  # type: ignore[call-overload]
)
"""One :class:`Number` for each field of :class:`Kernels`; those with a default there may be left out."""


class FabricCard(BaseModel):
    """A link of one GPU, and how many GPUs it joins."""

    model_config = _STRICT

    name: str = _Name
    bandwidth: Number
    gpus: Number


class HardwareCard(BaseModel):
    """One GPU kind and the node around it, every number with its unit, source and kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, title="capplan hardware card")

    schema_id: Literal["capplan.hardware/1"] = Field(alias="schema")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,39}$")
    title: str = _Name
    vendor: str = _Name
    architecture: str = _Name
    aliases: list[str] = Field(default_factory=list, max_length=20)
    hbm_bytes: Number
    hbm_bandwidth: Number
    peak_flops: dict[Literal["bf16", "fp8", "fp4"], Number] = Field(min_length=1)
    scale_up: FabricCard
    nic: FabricCard
    pcie_bandwidth: Number
    gpus_per_node: Number
    price_per_gpu_hour: Number | None = None
    kernels: KernelsCard  # type: ignore[valid-type]
    bands: dict[Literal["decode_kernels", "decode_dense", "decode_mixture", "prefill", "ttft"], BandCard] | None = None


def hardware_card_schema() -> dict[str, Any]:
    """The JSON Schema of a hardware card."""
    return HardwareCard.model_json_schema(by_alias=True)


def validated(data: dict[str, Any], file: str) -> dict[str, Any]:
    """The plain data of a card, as the schema leaves them.

    Raises
    ------
    InputError : unknown or missing key, a number without source, a value of the wrong type; one line
    """
    try:
        return HardwareCard.model_validate(data).model_dump(by_alias=True, exclude_none=True)
    except ValidationError as error:
        raise one_line(error, file, HardwareCard) from None
