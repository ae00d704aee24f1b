"""Hardware cards: the schema of a card file, and reading one into :class:`~capplan.cards.hardware.Hardware`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from capplan.cards.card_numbers import card_aliases, in_base_units, numbers_of, whole
from capplan.cards.hardware import Fabric, Hardware, Kernels
from capplan.cards.number import Number
from capplan.cards.store import card_names, find_card, read_json
from capplan.cards.validation import one_line
from capplan.errors import InputError
from capplan.quantities import units

SCHEMA = "capplan.hardware/1"

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_Name = Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f]+$")


def _kernel_units(name: str) -> Mapping[str, float]:
    """The units a kernel constant may be written in, told by its name."""
    if "_seconds" in name:
        return units.SECONDS
    if "_bandwidth" in name:
        return units.BANDWIDTH
    return units.FLOPS if "_flops" in name else {"1": 1.0}


def kernel_base_unit(name: str) -> str:
    """The base unit of a kernel constant, told by its name.

    >>> kernel_base_unit("mla_floor_seconds"), kernel_base_unit("moe_narrow_outputs")
    ('s', '1')
    """
    return next(unit for unit, factor in _kernel_units(name).items() if factor == 1.0)


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


def hardware_card_schema() -> dict[str, Any]:
    """The JSON Schema of a hardware card."""
    return HardwareCard.model_json_schema(by_alias=True)


def load_hardware(name_or_path: str | Path) -> Hardware:
    """Read a hardware card: a shipped name or alias (``h100``), or the path of a card file.

    Parameters
    ----------
    name_or_path : card name, alias (case does not matter) or file

    Returns
    -------
    hardware : data-sheet numbers and kernel constants of one GPU, in base units, with the source of each

    Raises
    ------
    InputError : the file is no valid card; UnknownNameError : no such card, alias or file

    Examples
    --------
    >>> load_hardware("h200").hbm_bytes
    150109880320.0
    """
    text = str(name_or_path)
    shipped = text.lower() in card_names("hardware")
    return _load(find_card("hardware", text, None if shipped else card_aliases("hardware")))


def _load(path: Path) -> Hardware:
    stamp = path.stat() if path.is_file() else None
    return _read(path, (stamp.st_mtime_ns, stamp.st_size) if stamp else None)


@cache
def _read(path: Path, _stamp: tuple[int, int] | None) -> Hardware:
    try:
        card = HardwareCard.model_validate(read_json(path))
    except ValidationError as error:
        raise one_line(error, str(path), HardwareCard) from None
    try:
        return _hardware(card, str(path))
    except InputError as error:
        raise error.located(file=str(path)) from None


def _hardware(card: HardwareCard, file: str) -> Hardware:
    price = card.price_per_gpu_hour
    return Hardware(
        name=card.name,
        vendor=card.vendor,
        architecture=card.architecture,
        hbm_bytes=in_base_units(card.hbm_bytes, units.BYTES, "hbm_bytes"),
        hbm_bandwidth=in_base_units(card.hbm_bandwidth, units.BANDWIDTH, "hbm_bandwidth"),
        peak_flops={
            kind: in_base_units(number, units.FLOPS, f"peak_flops.{kind}") for kind, number in card.peak_flops.items()
        },
        scale_up=_fabric(card.scale_up, "scale_up"),
        nic=_fabric(card.nic, "nic"),
        pcie_bandwidth=in_base_units(card.pcie_bandwidth, units.BANDWIDTH, "pcie_bandwidth"),
        gpus_per_node=whole(card.gpus_per_node, "gpus_per_node"),
        kernels=_kernels(card.kernels),
        price_per_gpu_hour=None if price is None else in_base_units(price, units.MONEY, "price_per_gpu_hour"),
        aliases=tuple(card.aliases),
        sources=dict(numbers_of(card)),
        file=file,
    )


def _fabric(card: FabricCard, key: str) -> Fabric:
    bandwidth = in_base_units(card.bandwidth, units.BANDWIDTH, f"{key}.bandwidth")
    return Fabric(card.name, bandwidth, whole(card.gpus, f"{key}.gpus"))


def _kernels(card: BaseModel) -> Kernels:
    given = ((name, number) for name, number in card if number is not None)
    return Kernels(
        **{name: in_base_units(number, _kernel_units(name), f"kernels.{name}", least=0.0) for name, number in given}
    )
