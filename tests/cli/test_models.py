"""``capplan models import`` and ``show``: the way out of a refused field, and every number with its formula."""

import json
from pathlib import Path

import pytest

from capplan.cli.main import main

CONFIGS = Path(__file__).parents[1] / "truth" / "model_configs"
LLAMA = CONFIGS / "meta-llama__Meta-Llama-3.1-8B.json"


@pytest.fixture
def capplan(capsys):
    def call(*arguments):
        code = main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def config(tmp_path, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(LLAMA.read_text()) | changes))
    return path


def test_a_refused_field_may_be_assumed_and_the_card_records_it(capplan, tmp_path):
    path, card = config(tmp_path, attention_sink_size=4), tmp_path / "card.json"
    code, out, err = capplan("models", "import", path)
    assert (code, out) == (2, "")
    assert "attention_sink_size: 4: this field is not understood; it may change what attention caches" in err
    code, _, err = capplan("models", "import", path, "--assume", "attention_sink_size=null", "--output", card)
    assert code == 0
    assert "assumed: attention_sink_size = null (config: 4)" in err
    assert json.loads(card.read_text())["provenance"]["assumed"] == {"attention_sink_size": "null (config: 4)"}
    _, out, _ = capplan("models", "show", card, "--json")
    assert json.loads(out)["fields_assumed"] == {"attention_sink_size": "null (config: 4)"}
    assert json.loads(out)["parameters_total"] == 8_030_261_248


def test_assumptions_change_the_answer(capplan, tmp_path):
    card = tmp_path / "card.json"
    options = ("--assume", "num_key_value_heads=4", "--assume", "torch_dtype=float16", "--output", card)
    assert capplan("models", "import", config(tmp_path), *options)[0] == 0
    _, out, _ = capplan("kv", card, "--json")
    assert json.loads(out)["kv_bytes_per_token"] == 131_072 / 2
    assert json.loads(card.read_text())["lm_head_format"] == "fp16"


def test_an_undotted_name_means_the_text_part_of_a_wrapper(capplan, tmp_path):
    text = json.loads(LLAMA.read_text()) | {"compress_ratio": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "any_vl", "text_config": text, "vision_config": {}}))
    for field in ("compress_ratio", "text_config.compress_ratio"):
        code, out, _ = capplan("models", "import", path, "--assume", f"{field}=null", "--name", "wrapped")
        assert code == 0
        assert json.loads(out)["provenance"]["assumed"] == {"text_config.compress_ratio": "null (config: 4)"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["head_dim"], "must be field=value"),
        (["=3"], "must be field=value"),
        (["head_dim=1", "head_dim=2"], "given twice"),
        (["head_dim=NaN"], "NaN is no value"),
        (["head_dim=Infinity"], "Infinity is no value"),
        (["head_dim=-5"], "-5 must be a whole number"),
        (["nowhere.head_dim=128"], "'nowhere' is no table"),
        (["vocab_size.x=1"], "'vocab_size' is no table"),
        (["model_type=bert"], "'bert' is not modelled"),
        (["num_kv_heads=4"], "--assume num_kv_heads: has no effect on this model; did you mean num_key_value_heads?"),
    ],
)
def test_assumptions_that_are_refused(capplan, tmp_path, settings, message):
    options = [part for setting in settings for part in ("--assume", setting)]
    code, out, err = capplan("models", "import", config(tmp_path), *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_wrapper_that_is_not_known_is_told(capplan, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "any_vl", "text_config": json.loads(LLAMA.read_text())}))
    code, _, err = capplan("models", "import", path, "--output", tmp_path / "card.json")
    assert code == 0
    assert "llama: the text part alone is modelled; the wrapper 'any_vl' is not known" in err


def test_help_says_what_an_assumption_is(capplan):
    _, out, _ = capplan("models", "import", "--help")
    for words in ("--assume FIELD=VALUE", "hf_quant_config.json", "--name", "--output", "text_config.head_dim=128"):
        assert words in " ".join(out.split())


def test_show_says_every_number_with_its_formula(capplan):
    code, out, _ = capplan("models", "show", "deepseek-v3", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["parameters_total"] == sum(data["parameters_by_part"].values()) == 671_026_404_352
    assert data["weight_bytes"] == pytest.approx(sum(data["weight_bytes_by_format"].values()))
    assert data["kv_bytes_per_token"] == {"bf16": 70_272, "fp8": 35_136, "fp8_ds_mla": 40_016}
    assert data["kv_bytes"]["bf16"]["8192"] == 70_272 * 8192
    assert data["state_bytes_per_sequence"] == 0
    assert data["flops_per_token"]["8192"] > data["flops_per_token"]["0"] > 0
    assert "kv_lora_rank" in data["fields_read"]
    assert {"rms_norm_eps", "num_key_value_heads"} <= set(data["fields_unread"])
    assert set(data["formulas"]) <= set(data)
    assert data["provenance"]["repository"] == "deepseek-ai/DeepSeek-V3"


def test_show_as_a_table_names_the_fields_that_were_not_read(capplan):
    _, out, _ = capplan("models", "show", "gpt-oss-20b")
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "swiglu_limit" in lines["fields not read"]
    assert "mxfp4" in lines["weight_bytes: mxfp4"]
    assert "input embedding counted in total, not in active" in lines["parameters_active"]
    assert "12 of 24 layers slide over 128" in lines["attention"]
    assert "49,152" in lines["kv_bytes_per_token bf16 (declared)"]
    assert "min(context, window)" in lines["kv_bytes fp8 at 32,768"]


def test_fit_prints_worst_case_and_expected_concurrency(capplan):
    arguments = ("fit", "gpt-oss-120b", "--gpu", "h200", "--context", "9472", "--set", "kv_pool_gib=57.24")
    code, out, err = capplan(*arguments, "--set", "max_num_batched_tokens=8192", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["worst_case_sequences_per_rank"] == pytest.approx(93.62, abs=0.01)
    assert data["expected_context_tokens"] == 4736
    assert data["expected_sequences_per_rank"] > data["max_sequences_per_rank"] > 93.62
    assert "--expected-context" in err
    _, out, _ = capplan(*arguments, "--expected-context", "8k", "--json")
    assert json.loads(out)["expected_sequences_per_rank"] == pytest.approx(200, abs=10)
    _, out, _ = capplan(*arguments, "--workload", "reasoning-r1-production", "--json")
    assert json.loads(out)["expected_context_tokens"] == pytest.approx(3438, rel=0.01)
    assert capplan(*arguments, "--workload", "fixed-1k-8k", "--expected-context", "1k")[0] == 2


def test_fit_offers_both_policies_of_windows(capplan):
    tokens = []
    for policy in ((), ("--unified-pages",)):
        _, out, _ = capplan("fit", "gpt-oss-20b", "--gpu", "h100", *policy, "--json")
        tokens.append(json.loads(out)["max_sequences_per_rank"])
    assert 1.9 < tokens[0] / tokens[1] < 2.0


def test_kv_offers_both_policies_of_windows_and_expanded_latents(capplan):
    """hf-mem issue 70: gpt-oss-20b, 32 x 8,192 take 6.09 GiB windowed, 12.00 GiB in unified pages."""
    for policy, gib in (((), 6.09), (("--unified-pages",), 12.0)):
        _, out, _ = capplan("kv", "gpt-oss-20b", "--context", "8k", *policy, "--json")
        assert 32 * json.loads(out)["kv_bytes"] / 2**30 == pytest.approx(gib, abs=0.005)
    _, out, _ = capplan("kv", "deepseek-v3", "--context", "1", "--expand-mla", "--json")
    assert json.loads(out)["kv_bytes"] == 61 * 128 * (192 + 128) * 2


def test_the_card_says_where_its_config_is_from(capplan, tmp_path):
    options = ("--repository", "meta-llama/Llama-3.1-8B", "--retrieved-from", "a mirror", "--note", "as released")
    code, out, _ = capplan("models", "import", config(tmp_path), *options, "--alias", "small", "--alias", "l8")
    card = json.loads(out)
    assert code == 0
    assert card["aliases"] == ["small", "l8"]
    assert card["provenance"]["url"] == "https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json"
    assert card["provenance"]["notes"] == ["as released"]
