"""Hardware cards: reading a card file into :class:`~capplan.cards.hardware.Hardware`.

What a file may hold is said by :mod:`capplan.cards.hardware_schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from capplan.cards.card_numbers import built_card, card_aliases, card_band, in_base_units, whole
from capplan.cards.hardware import Fabric, Hardware, Kernels
from capplan.cards.number import Sources
from capplan.cards.store import card_names, find_card
from capplan.quantities import units

SCHEMA = "capplan.hardware/1"


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


def hardware_card_schema() -> dict[str, Any]:
    """The JSON Schema of a hardware card."""
    from capplan.cards.hardware_schema import hardware_card_schema as schema

    return schema()


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
    return built_card("hardware", path, partial(_from_data, file=str(path)), _validated)


def _validated(data: dict[str, Any], file: str) -> dict[str, Any]:
    from capplan.cards.hardware_schema import validated

    return validated(data, file)


def _from_data(data: Mapping[str, Any], file: str) -> Hardware:
    values = {key: value for key, value in data.items() if value is not None}
    if values.pop("schema") != SCHEMA:
        raise ValueError("another schema")
    return _hardware(file, Sources(data), **values)


def _hardware(
    file: str,
    sources: Sources,
    *,
    name: str,
    title: str,  # noqa: ARG001 (a card has it for its readers)
    vendor: str,
    architecture: str,
    hbm_bytes: Any,
    hbm_bandwidth: Any,
    peak_flops: dict[str, Any],
    scale_up: dict[str, Any],
    nic: dict[str, Any],
    pcie_bandwidth: Any,
    gpus_per_node: Any,
    kernels: dict[str, Any],
    bands: dict[str, Any] | None = None,
    price_per_gpu_hour: Any = None,
    aliases: list[str] | None = None,
) -> Hardware:
    price = price_per_gpu_hour
    return Hardware(
        name=name,
        vendor=vendor,
        architecture=architecture,
        hbm_bytes=in_base_units(hbm_bytes, units.BYTES, "hbm_bytes"),
        hbm_bandwidth=in_base_units(hbm_bandwidth, units.BANDWIDTH, "hbm_bandwidth"),
        peak_flops={
            kind: in_base_units(number, units.FLOPS, f"peak_flops.{kind}") for kind, number in peak_flops.items()
        },
        scale_up=_fabric("scale_up", **scale_up),
        nic=_fabric("nic", **nic),
        pcie_bandwidth=in_base_units(pcie_bandwidth, units.BANDWIDTH, "pcie_bandwidth"),
        gpus_per_node=whole(gpus_per_node, "gpus_per_node"),
        kernels=_kernels(kernels),
        bands={kind: card_band(f"bands.{kind}", **ends) for kind, ends in (bands or {}).items()},
        price_per_gpu_hour=None if price is None else in_base_units(price, units.MONEY, "price_per_gpu_hour"),
        aliases=tuple(aliases or ()),
        sources=sources,
        file=file,
    )


def _fabric(key: str, *, name: str, bandwidth: Any, gpus: Any) -> Fabric:
    speed = in_base_units(bandwidth, units.BANDWIDTH, f"{key}.bandwidth")
    return Fabric(name, speed, whole(gpus, f"{key}.gpus"))


def _kernels(card: Mapping[str, Any]) -> Kernels:
    given = ((name, number) for name, number in card.items() if number is not None)
    return Kernels(
        **{
            name: in_base_units(number, _kernel_units(name), f"kernels.{name}", least=_least(name))
            for name, number in given
        }
    )


def _least(name: str) -> float | None:
    """Times and sizes may be zero; what something is divided by may not."""
    return None if "_bandwidth" in name or "_flops" in name or name == "sustained_share" else 0.0
