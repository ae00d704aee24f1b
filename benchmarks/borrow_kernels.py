"""Fill ``kernels`` and ``bands`` nobody measured on a GPU from the nearest one where somebody did, by one rule.

Rule: a constant of a measured card, as a share of the peak it belongs to, holds on its relatives. So

* a streaming rate scales with the memory bandwidth,
* an arithmetic rate scales with the dense peak of that arithmetic; arithmetic a GPU lacks runs at its bf16 rate, and
  arithmetic only the relative has keeps the share of fp8,
* a rate over the fabric scales with the fabric, one between nodes with the network adapter,
* floors, ramps, paddings and shares are taken as they are,
* an error band is half as wide again in the logarithm: both ends to the power of 1.5, once for each time borrowed, and
  once more from another vendor.

Every number written here has kind ``assumed`` and its rule as source; numbers with any other source are left alone.
Run it again whenever a measured card or the list of constants changes::

    python benchmarks/borrow_kernels.py [--check]
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from capplan.cards.hardware import BAND_KINDS, Hardware, Kernels
from capplan.cards.hardware_card import kernel_base_unit, load_hardware
from capplan.formulas.error_band import BORROWED_EXPONENT, borrowed_factor

CARDS = Path(__file__).resolve().parent.parent / "hardware"
MARK = "borrowed"

DONORS = {
    "h100-sxm": "h200",
    "h800": "h100-sxm",
    "h20": "h200",
    "a100-80g": "h100-sxm",
    "a800": "a100-80g",
    "l40s": "h100-sxm",
    "b200": "h200",
    "b300": "b200",
    "gb200": "b200",
    "gb300": "b300",
    "rtx-pro-6000": "b200",
    "vr200": "b200",
    "mi300x": "h200",
    "mi325x": "h200",
    "mi350x": "h200",
    "mi355x": "h200",
}
"""Card to the card it borrows from, in an order that fills donors first."""

FIRST = ("h100-sxm", "b200", "b300", "a100-80g")
ORDER = [*FIRST, *(name for name in DONORS if name not in FIRST)]


def main(arguments: list[str]) -> int:
    """Rewrite every borrowing card; with ``--check`` only tell which would change (exit 1 if any)."""
    changed = [name for name in ORDER if borrow(name, write="--check" not in arguments)]
    print("\n".join(f"{name}: borrowed anew" for name in changed) or "all borrowed kernels and bands are up to date")
    return 1 if changed and "--check" in arguments else 0


def borrow(name: str, *, write: bool) -> bool:
    """Borrow kernels and bands of one card; True where its file changes."""
    path = CARDS / f"{name}.json"
    before = path.read_text(encoding="utf-8")
    card = json.loads(before)
    donor = load_hardware(CARDS / f"{DONORS[name]}.json")
    own = {key: number for key, number in card["kernels"].items() if not number["source"].startswith(MARK)}
    card["kernels"] = {constant: own.get(constant) or borrowed(constant, card, donor) for constant in wanted(donor)}
    own = card.get("bands", {})
    card["bands"] = {
        kind: own[kind] if kind in own and not is_borrowed(own[kind]) else borrowed_band(kind, card, donor)
        for kind in BAND_KINDS
    }
    after = render(card) + "\n"
    if write and after != before:
        path.write_text(after, encoding="utf-8")
    return after != before


def wanted(donor: Hardware) -> list[str]:
    """Constants a card needs, and those beyond that its donor has."""
    return [
        constant.name
        for constant in dataclasses.fields(Kernels)
        if constant.default is dataclasses.MISSING or f"kernels.{constant.name}" in donor.sources
    ]


def borrowed(constant: str, card: dict[str, Any], donor: Hardware) -> dict[str, Any]:
    """One constant by the rule, as it is written on the card."""
    base, rule = scaled(constant, card, donor)
    source = f"{MARK} from {donor.name}: {rule} (benchmarks/borrow_kernels.py)"
    return {"value": float(f"{base:.4g}"), "unit": kernel_base_unit(constant), "kind": "assumed", "source": source}


def is_borrowed(band: dict[str, Any]) -> bool:
    """Whether this script wrote a band."""
    return bool(band["low"]["source"].startswith(MARK))


def borrowed_band(kind: str, card: dict[str, Any], donor: Hardware) -> dict[str, Any]:
    """The donor's band, wider by the rule."""
    times = 1 if card["vendor"] == donor.vendor else 2
    power = f"its band to the power of {BORROWED_EXPONENT**times:g}"
    source = f"{MARK} from {donor.name}: {power} (benchmarks/borrow_kernels.py)"
    ends = {"low": donor.bands[kind].low, "high": donor.bands[kind].high}
    for _ in range(times):
        ends = {end: borrowed_factor(factor) for end, factor in ends.items()}
    return {
        end: {"value": float(f"{factor:.4g}"), "unit": "1", "kind": "assumed", "source": source}
        for end, factor in ends.items()
    }


def scaled(constant: str, card: dict[str, Any], donor: Hardware) -> tuple[float, str]:
    """The value in base units and the rule in words."""
    value = getattr(donor.kernels, constant)
    if "_flops" in constant:
        return scaled_flops(constant, card, donor)
    for part, place, peak, words in (
        ("stream_bandwidth", ("hbm_bandwidth",), donor.hbm_bandwidth, "its share of the memory bandwidth"),
        ("internode_bandwidth", ("nic", "bandwidth"), donor.nic.bandwidth, "its share of the network adapter"),
        ("_bandwidth", ("scale_up", "bandwidth"), donor.scale_up.bandwidth, "its share of the fabric"),
    ):
        if part in constant:
            return value * base_value(card, *place) / peak, words
    return value, "taken as it is"


def scaled_flops(constant: str, card: dict[str, Any], donor: Hardware) -> tuple[float, str]:
    """An arithmetic rate: its share of the peak; bf16 where the GPU lacks the arithmetic."""
    if constant == "gemm_flops_fp8_block":
        return scaled_flops_in_blocks(card, donor)
    if constant == "indexer_flops":
        return scaled_indexer_flops(card, donor)
    kind = constant.rsplit("_", 1)[-1]
    arithmetic = kind if kind in ("bf16", "fp8", "fp4") else "bf16"
    stem = constant.removesuffix(f"_{kind}") if kind == arithmetic else constant
    if arithmetic not in card["peak_flops"]:
        value, _ = scaled_flops(f"{stem}_bf16", card, donor)
        return value, f"the bf16 rate, for want of {arithmetic} arithmetic"
    shared = arithmetic if arithmetic in donor.peak_flops else "fp8"
    given = constant if shared == arithmetic else f"{stem}_{shared}"
    value = getattr(donor.kernels, given) / donor.peak_flops[shared]
    return value * base_value(card, "peak_flops", arithmetic), f"its share of the dense {shared} peak"


def scaled_flops_in_blocks(card: dict[str, Any], donor: Hardware) -> tuple[float, str]:
    """The rate of fp8 in blocks: its share of the fp8 peak; bf16 where the GPU lacks fp8."""
    if "fp8" not in card["peak_flops"]:
        value, _ = scaled_flops("gemm_flops_bf16", card, donor)
        return value, "the bf16 rate, for want of fp8 arithmetic"
    share = donor.kernels.gemm_flops_fp8_block / donor.peak_flops["fp8"]
    return share * base_value(card, "peak_flops", "fp8"), "its share of the dense fp8 peak"


def scaled_indexer_flops(card: dict[str, Any], donor: Hardware) -> tuple[float, str]:
    """The rate of the scores of an indexer, which are fp8: their share of its peak, of the bf16 peak for want of it."""
    kind = "fp8" if "fp8" in card["peak_flops"] else "bf16"
    share = donor.kernels.indexer_flops / donor.peak_flops["fp8" if "fp8" in donor.peak_flops else "bf16"]
    return share * base_value(card, "peak_flops", kind), f"its share of the dense {kind} peak"


def base_value(card: dict[str, Any], *place: str) -> float:
    """A number of the card file in base units."""
    number: Any = card
    for key in place:
        number = number[key]
    factors = {"B/s": 1, "GB/s": 1e9, "TB/s": 1e12, "Gb/s": 1.25e8, "TFLOP/s": 1e12, "FLOP/s": 1}
    return float(number["value"] * factors[number["unit"]])


def render(entry: Any, depth: int = 0) -> str:
    """JSON with one line a number, as the cards are written."""
    if not isinstance(entry, dict) or {"value", "unit"} <= entry.keys():
        return json.dumps(entry, ensure_ascii=False)
    pad = "  " * depth
    lines = (f"{pad}  {json.dumps(key)}: {render(part, depth + 1)}" for key, part in entry.items())
    return "{\n" + ",\n".join(lines) + f"\n{pad}}}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
