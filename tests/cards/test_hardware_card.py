"""Hardware cards: what they say, that every source arrives, and that bad cards are refused in one line."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from capplan.cards.card_numbers import card_aliases
from capplan.cards.hardware import BAND_KINDS, Kernels
from capplan.cards.hardware_card import hardware_card_schema, load_hardware
from capplan.cards.store import card_names, card_root, read_json
from capplan.errors import InputError, UnitError, UnknownNameError
from capplan.formulas.error_band import borrowed_factor

ROOT = Path(__file__).resolve().parents[2]
NAMES = card_names("hardware")
MEASURED = {"h100-sxm", "h200", "b200"}


def card_file(name):
    return card_root() / "hardware" / f"{name}.json"


@pytest.mark.parametrize("name", NAMES)
def test_every_card_loads_and_every_source_arrives(name):
    card, hardware = read_json(card_file(name)), load_hardware(name)
    assert hardware.name == name
    assert set(hardware.sources) == set(numbers(card))
    assert all(number.source and number.unit for number in hardware.sources.values())


def numbers(entry, prefix=""):
    """Dotted keys of every number of a raw card."""
    for key, part in entry.items():
        if isinstance(part, dict):
            yield from [prefix + key] if {"value", "unit"} <= part.keys() else numbers(part, f"{prefix}{key}.")


@pytest.mark.parametrize("name", NAMES)
def test_cards_fulfil_the_published_schema(name):
    jsonschema.validate(read_json(card_file(name)), hardware_card_schema())


@pytest.mark.parametrize("name", NAMES)
def test_measured_rates_stay_below_the_data_sheet(name):
    """A kernel above its peak would mean a sparse figure, a wrong unit or a fit that is no physics."""
    hardware = load_hardware(name)
    kernels = hardware.kernels
    assert 0.5 < kernels.gemm_stream_bandwidth / hardware.hbm_bandwidth < 1
    for kind in ("bf16", "fp8", "fp4"):
        peak = hardware.peak_flops.get(kind, hardware.peak_flops["bf16"])
        assert 0.4 < getattr(kernels, f"gemm_flops_{kind}") / peak < 1
        assert getattr(kernels, f"moe_flops_{kind}") < peak * 1.001
    assert 0.3 < kernels.all_reduce_bandwidth / hardware.scale_up.bandwidth < 1


@pytest.mark.parametrize("name", NAMES)
def test_dense_peaks_double_with_each_halving_of_the_element(name):
    peaks = load_hardware(name).peak_flops
    if "fp8" in peaks:
        assert 1.9 < peaks["fp8"] / peaks["bf16"] < 4.4
    if "fp4" in peaks:
        assert 1.9 < peaks["fp4"] / peaks["fp8"] < 3.1


def test_figures_of_the_hopper_cards():
    h200, h100, h800 = (load_hardware(name) for name in ("h200", "H100", "h800"))
    assert h200.hbm_bytes == 150_109_880_320  # measured
    assert h100.hbm_bytes == 81_090 * 2**20  # 79.19 GiB in vLLM's and PyTorch's messages
    assert h100.hbm_bandwidth == 3.35e12
    assert h100.peak_flops == {"bf16": 989.4e12, "fp8": 1978.9e12}  # dense, half of the data sheet's figures
    assert (h100.scale_up.bandwidth, h800.scale_up.bandwidth) == (450e9, 200e9)
    assert h100.nic.bandwidth == 50e9  # 400 Gb/s
    assert h200.sources["hbm_bytes"].kind == "measured"


def test_memory_is_what_the_driver_reports_not_the_name():
    nameplate = {"b200": 180e9, "mi300x": 192e9, "a100-80g": 80e9, "l40s": 48e9}
    for name, marketing in nameplate.items():
        assert load_hardware(name).hbm_bytes != marketing
    assert load_hardware("vr200").sources["hbm_bytes"].kind == "assumed"  # no driver figure: said so


def test_an_nvl72_rack_is_one_fabric():
    assert load_hardware("gb200").scale_up.gpus == 72
    assert load_hardware("gb200").gpus_per_node == 4
    assert load_hardware("h100").scale_up.gpus == 8


def test_aliases_are_unique_and_no_card_name():
    aliases = [alias for name in NAMES for alias in load_hardware(name).aliases]
    assert len(aliases) == len(set(aliases)) == len(card_aliases("hardware"))
    assert not set(aliases) & set(NAMES)
    assert load_hardware("a100").name == "a100-80g"


def test_borrowed_kernels_follow_their_donor():
    """The rule of benchmarks/borrow_kernels.py, on a card whose donor has the same constants."""
    h200, mi300x = load_hardware("h200"), load_hardware("mi300x")
    ratio = mi300x.hbm_bandwidth / h200.hbm_bandwidth
    source = mi300x.sources["kernels.moe_stream_bandwidth"]
    assert source.kind == "assumed"
    assert source.source.startswith("borrowed from h200")
    assert mi300x.kernels.attention_stream_bandwidth / mi300x.hbm_bandwidth < 1
    assert ratio == pytest.approx(5.3 / 4.8)


@pytest.mark.parametrize("name", NAMES)
def test_every_card_has_every_error_band_and_a_borrowed_one_is_wider(name):
    card = load_hardware(name)
    bands, sources = card.bands, card.sources
    assert tuple(bands) == BAND_KINDS
    for kind, band in bands.items():
        assert 0.2 < band.low < 1 < band.high < 5
        low, high = (sources[f"bands.{kind}.{end}"] for end in ("low", "high"))
        assert band.assumed == ("assumed" in (low.kind, high.kind))
        borrowed = re.match(r"borrowed from ([a-z0-9-]+): ", low.source)
        if borrowed:
            donor = load_hardware(borrowed[1])
            low, high = donor.bands[kind].low, donor.bands[kind].high
            assert band.assumed
            assert band.low < low
            assert high < band.high
            for _ in range(1 if card.vendor == donor.vendor else 2):
                low, high = borrowed_factor(low), borrowed_factor(high)
            assert (band.low, band.high) == pytest.approx((low, high), rel=1e-3)
        else:
            assert name in MEASURED


def test_a_card_without_bands_is_a_card(tmp_path):
    assert load_hardware(changed(tmp_path, lambda card: card.pop("bands"))).bands == {}
    only = changed(tmp_path, lambda card: card.update(bands={"prefill": card["bands"]["prefill"]}))
    assert set(load_hardware(only).bands) == {"prefill"}


def test_the_schema_names_every_band():
    bands = hardware_card_schema()["properties"]["bands"]["anyOf"][0]
    assert tuple(bands["propertyNames"]["enum"]) == BAND_KINDS


def test_the_script_that_borrows_runs_and_knows_every_card():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "borrow_kernels.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr
    text = (ROOT / "benchmarks" / "borrow_kernels.py").read_text(encoding="utf-8")
    assert set(NAMES) - {"h200"} == set(re.findall(r'^    "([a-z0-9-]+)": "[a-z0-9-]+",$', text, re.M))


def test_unknown_names_get_the_nearest():
    with pytest.raises(UnknownNameError, match="h200"):
        load_hardware("h2000")


def changed(tmp_path, change=dict):
    card = read_json(card_file("h200"))
    change(card)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(card), encoding="utf-8")
    return path


def test_a_card_may_be_written_by_hand_in_other_units(tmp_path):
    path = changed(tmp_path, lambda card: card["hbm_bytes"].update(value=139.8, unit="GiB"))
    assert load_hardware(path).hbm_bytes == pytest.approx(139.8 * 2**30)
    assert load_hardware(str(path)).file == str(path)


def test_a_changed_file_is_read_again(tmp_path):
    path = changed(tmp_path, lambda card: card["price_per_gpu_hour"].update(value=1.0))
    assert load_hardware(path).price_per_gpu_hour == 1.0
    path.write_text(path.read_text(encoding="utf-8").replace('"value": 1.0', '"value": 2.25'), encoding="utf-8")
    assert load_hardware(path).price_per_gpu_hour == 2.25


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda card: card.pop("hbm_bytes"), "hbm_bytes: is missing"),
        (lambda card: card.update(hbm_byte=1), "hbm_byte.*unknown key"),
        (lambda card: card["kernels"].pop("mla_floor_seconds"), "kernels.mla_floor_seconds: is missing"),
        (lambda card: card["kernels"].update(mla_speed=card["hbm_bytes"]), "unknown key 'mla_speed'"),
        (lambda card: card["hbm_bandwidth"].update(unit="GB"), "hbm_bandwidth.unit: unit 'GB' does not fit"),
        (lambda card: card["hbm_bandwidth"].update(value=-1.0), "hbm_bandwidth.value: -1 must be above zero"),
        (lambda card: card["hbm_bandwidth"].update(value=1e300), "must be above zero"),
        (lambda card: card["hbm_bytes"].update(value=True), "hbm_bytes.value"),
        (lambda card: card["hbm_bytes"].pop("source"), "hbm_bytes.source: is missing"),
        (lambda card: card["hbm_bytes"].update(kind="guessed"), "hbm_bytes.kind"),
        (lambda card: card["gpus_per_node"].update(value=7.5), "gpus_per_node.value: 7.5 must be a whole number"),
        (lambda card: card.update(schema="capplan.hardware/9"), "schema"),
        (lambda card: card["bands"].update(decode=card["bands"]["prefill"]), "bands.*decode"),
        (lambda card: card["bands"]["prefill"].pop("high"), "bands.prefill.high: is missing"),
        (
            lambda card: card["bands"]["prefill"]["low"].update(value=0.0),
            "bands.prefill.low.value: 0 must be above zero",
        ),
        (lambda card: card["bands"]["prefill"]["low"].update(value=1.1), "bands.prefill: 1.1 to 1.19 must have 1"),
        (lambda card: card["bands"]["prefill"]["high"].update(value=1e3), "bands.prefill: .* within 0.01 to 100"),
        (lambda card: card["bands"]["prefill"]["high"].update(unit="s"), "bands.prefill.high.unit: unit 's'"),
        (lambda card: card["peak_flops"].update(int3=card["peak_flops"]["bf16"]), "int3"),
    ],
)
def test_bad_cards_are_refused_in_one_line_that_names_the_key(tmp_path, change, words):
    with pytest.raises(InputError, match=words) as refused:
        load_hardware(changed(tmp_path, change))
    assert "\n" not in str(refused.value)
    assert "mine.json" in str(refused.value)


def test_not_a_number_is_refused(tmp_path):
    path = changed(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("150109880320", "NaN"), encoding="utf-8")
    with pytest.raises(InputError, match=r"hbm_bytes\.value"):
        load_hardware(path)


def test_units_of_another_kind_are_unit_errors(tmp_path):
    with pytest.raises(UnitError):
        load_hardware(changed(tmp_path, lambda card: card["kernels"]["mla_floor_seconds"].update(unit="B")))


def test_the_schema_names_every_kernel_constant():
    kernels = hardware_card_schema()["$defs"]["KernelsCard"]["properties"]
    assert set(kernels) == {constant.name for constant in dataclasses.fields(Kernels)}
