"""Reading scenarios: files, dictionaries, keywords; and one clear line for everything that is wrong."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.errors import InputError, UnknownNameError
from capplan.planning.problem import resolve
from capplan.planning.scenario import Scenario, full_key, load_scenario, parse_setting, parse_value, scenario_schema

EXAMPLE = Path(__file__).parents[2] / "examples" / "reasoning-r1-h800.toml"
MINIMAL = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100"},
    "workload": {"input": 1000, "output": 1000, "rate": "2/s"},
}


def test_the_example_in_base_units():
    scenario = load_scenario(EXAMPLE)
    assert scenario.workload.rate == 20.0
    assert scenario.slo.ttft_p99 == 6.0
    assert scenario.slo.tpot_p99 == pytest.approx(0.05)
    assert scenario.hardware.max_gpus == 512


def test_toml_json_and_dictionary_agree(tmp_path):
    toml, js = tmp_path / "a.toml", tmp_path / "a.json"
    toml.write_text(
        'model = "llama-3.1-8b"\n[hardware]\ngpu = "h100"\n[workload]\ninput = 1000\noutput = 1000\nrate = "2/s"'
    )
    js.write_text(json.dumps(MINIMAL))
    assert load_scenario(toml) == load_scenario(js) == load_scenario(MINIMAL)


def test_a_scenario_reads_back_as_itself():
    scenario = load_scenario(EXAMPLE)
    assert load_scenario(scenario) == scenario
    assert load_scenario(scenario, tpot_p99="30ms").slo.tpot_p99 == pytest.approx(0.03)


def test_keywords_replace_keys_by_short_or_dotted_name():
    scenario = load_scenario(MINIMAL, tpot_p99="30ms", **{"serving.headroom": "20%"}, tp=2, gpu="h200")
    assert scenario.slo.tpot_p99 == pytest.approx(0.03)
    assert scenario.serving.headroom == pytest.approx(0.2)
    assert scenario.serving.layout.tp == 2
    assert scenario.hardware.gpu == "h200"


def test_a_key_replaces_its_rival():
    scenario = load_scenario(EXAMPLE, concurrency=64)
    assert scenario.workload.rate is None
    assert scenario.workload.concurrency == 64
    assert load_scenario(MINIMAL, workload="chat").workload.input is None


@pytest.mark.parametrize("name", ["a.toml", "a.json"])
def test_files_are_looked_for_beside_the_scenario_first(tmp_path, monkeypatch, name):
    folder, here = tmp_path / "scenarios", tmp_path / "here"
    (folder / "data").mkdir(parents=True)
    here.mkdir()
    text = "arrival_s,isl,osl\n" + "".join(f"{n},500,{{}}\n" for n in range(1, 40))
    (folder / "data" / "own.csv").write_text(text.format(*range(100, 139)))
    (here / "other.csv").write_text(text.format(*range(200, 239)))
    (folder / "h100").mkdir()  # the name of a card stays one
    data = {**MINIMAL, "workload": {"trace": "data/own.csv"}}
    toml = 'model = "llama-3.1-8b"\nhardware.gpu = "h100"\nworkload.trace = "data/own.csv"\n'
    (folder / name).write_text(json.dumps(data) if name.endswith("json") else toml)
    monkeypatch.chdir(here)
    scenario = load_scenario(Path("..") / "scenarios" / name)
    assert Path(scenario.workload.trace).resolve() == folder / "data" / "own.csv"
    assert scenario.hardware.gpu == "h100"
    assert resolve(scenario).workload.output.mean == pytest.approx(119)
    assert resolve(load_scenario(scenario)).workload.output.mean == pytest.approx(119)
    given = load_scenario(folder / name, trace="other.csv")
    assert resolve(given).workload.output.mean == pytest.approx(219)
    (folder / name).write_text((folder / name).read_text().replace("data/own.csv", "other.csv"))
    assert resolve(load_scenario(folder / name)).workload.output.mean == pytest.approx(219)


def test_a_trace_that_is_not_there_is_told_as_one():
    with pytest.raises(InputError, match=r"no-such\.csv\.gz: there is no such trace file"):
        resolve(load_scenario({**MINIMAL, "workload": {"trace": "../no-such.csv.gz"}}))
    with pytest.raises(InputError, match=r"workload\.trace: 'chat-azure-2023' must end in \.csv"):
        resolve(load_scenario({**MINIMAL, "workload": {"trace": "chat-azure-2023"}}))


def test_rivals_given_together_on_top_of_a_file_are_refused():
    with pytest.raises(InputError, match="exactly one of rate"):
        load_scenario(EXAMPLE, rate="3/s", concurrency=64)
    with pytest.raises(InputError, match="exactly one of card"):
        load_scenario(MINIMAL, input="1k", output="1k", workload="chat-azure-2023")


BAD = [
    ({"slo": {"tpot_p99": 50}}, "slo.tpot_p99"),
    ({"slo": {"tpot_p99": "50"}}, "no unit"),
    ({"slo": {"tpot_p99": "-50ms"}}, "above zero"),
    ({"slo": {"tpot_p99": "50 GiB"}}, "does not fit"),
    ({"slo": {"tpot_p99": float("nan")}}, "slo.tpot_p99"),
    ({"slo": {"tpot_p98": "50ms"}}, "tpot_p99"),
    ({"slo": {"kv_overflow": 2}}, "kv_overflow"),
    ({"hardware": {"gpu": "h100", "max_gpus": 0}}, "max_gpus"),
    ({"hardware": {"gpu": "h100", "max_gpus": "many"}}, "max_gpus"),
    ({"hardware": {"gpus": "h100"}}, "hardware.gpus"),
    ({"hardware": "h100"}, "hardware"),
    ({"workload": {"rate": "2/s"}}, "exactly one of card, trace"),
    ({"workload": {"card": "chat", "input": 1, "output": 1, "rate": "2/s"}}, "exactly one of card, trace"),
    ({"workload": {"card": "chat"}}, "rate"),
    ({"workload": {"card": "chat", "rate": "2/s", "concurrency": 3}}, "exactly one of rate"),
    ({"workload": {"card": "chat", "rate": "0/s"}}, "above zero"),
    ({"serving": {"headroom": 1.5}}, "headroom"),
    ({"serving": {"mode": "agregated"}}, "aggregated"),
    ({"serving": {"layout": {"tp": 0}}}, "tp"),
    ({"serving": {"layout": {"tp": 2}, "decode_layout": {"tp": 2}}}, "not both"),
    ({"override": {"kv_pool_gb": 24}}, "kv_pool_gib"),
    ({"override": {"kv_pool_gib": -1}}, "kv_pool_gib"),
    ({"override": {"kv_pool_gib": "24 ms"}}, "kv_pool_gib"),
    ({"model": ""}, "model"),
    ({"modle": "x"}, "modle"),
]


@pytest.mark.parametrize(("changes", "named"), BAD)
def test_what_is_wrong_is_named_in_one_line(changes, named):
    with pytest.raises(InputError) as caught:
        load_scenario({**MINIMAL, **changes})
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert len(message) < 500


def test_the_file_is_named(tmp_path):
    for name, text in {"a.toml": "model = ", "b.json": "{", "c.json": "[1]", "d.toml": "x = 1"}.items():
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(InputError, match=name):
            load_scenario(path)
    with pytest.raises(InputError, match=r"missing\.toml"):
        load_scenario(tmp_path / "missing.toml")


def test_short_names_are_unique_and_unknown_ones_get_a_hint():
    assert full_key("tpot_p99") == "slo.tpot_p99"
    assert full_key("workload") == "workload.card"
    with pytest.raises(UnknownNameError, match="tpot_p99"):
        full_key("tpot_p9")


def test_settings():
    assert parse_setting("slo.tpot_p99=30ms") == ("slo.tpot_p99", "30ms")
    assert parse_setting("workload.input={law='lognormal', mean=10}")[1] == {"law": "lognormal", "mean": 10}
    with pytest.raises(InputError, match=r"slo\.tpot_p99=30ms"):
        parse_setting("slo.tpot_p99")
    with pytest.raises(InputError):
        parse_value("{a=")


@given(st.text(max_size=200))
def test_no_text_escapes_as_anything_but_an_input_error(text):
    with contextlib.suppress(InputError):
        load_scenario({**MINIMAL, "slo": {"tpot_p99": text}})


def test_schema_accepts_the_example():
    jsonschema = pytest.importorskip("jsonschema")
    import sys

    if sys.version_info >= (3, 11):
        import tomllib

        jsonschema.validate(tomllib.loads(EXAMPLE.read_text()), scenario_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": 3}, scenario_schema())
    assert Scenario.model_fields.keys() <= scenario_schema()["properties"].keys()


def test_keys_of_many_parts_are_refused_before_they_are_parsed(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text("a." * 50_000 + "b = 1")
    with pytest.raises(InputError, match=r"deep\.toml: line 1"):
        load_scenario(path)


def test_devices_and_pipes_are_no_scenarios():
    with pytest.raises(InputError, match="no regular file"):
        load_scenario("/dev/zero")


def test_an_override_is_named_once():
    with pytest.raises(InputError) as caught:
        load_scenario({**MINIMAL, "override": {"kv_pool_gib": -1}})
    assert str(caught.value).count("kv_pool_gib") == 1


@pytest.mark.parametrize("source", [None, 5, [], b"x", float("nan")])
def test_what_is_no_scenario_is_refused(source):
    with pytest.raises(InputError, match="must be a path"):
        load_scenario(source)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"concurrency": 8, "dispersion": 4}, "has no dispersion of arrivals"),
        ({"concurrency": 8, "dispersion_window": "1h"}, "has no dispersion of arrivals"),
        ({"rate": "1/s", "dispersion_window": "1h"}, "belongs to a dispersion"),
    ],
)
def test_bursts_belong_to_arrivals(section, told):
    with pytest.raises(InputError, match=told):
        load_scenario(
            {"model": "llama-3.1-8b", "hardware": {"gpu": "h100"}, "workload": {"card": "fixed-1k-1k", **section}}
        )


def test_a_closed_loop_on_top_of_a_file_drops_its_bursts():
    base = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100"}}
    loaded = load_scenario({**base, "workload": {"card": "fixed-1k-1k", "rate": "1/s", "dispersion": 4}}, concurrency=8)
    assert (loaded.workload.rate, loaded.workload.dispersion) == (None, 1.0)
