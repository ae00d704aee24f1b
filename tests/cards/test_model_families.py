"""Families beyond the configs handed over, kinds of layers, and what a user answers for."""

import json
from pathlib import Path

import pytest

from capplan.cards.hardware_card import load_hardware
from capplan.cards.huggingface import card_from_file, import_config
from capplan.cards.kv import kv_bytes, kv_bytes_per_rank, kv_bytes_per_token, kv_chain
from capplan.cards.kv_summary import attention_summary
from capplan.cards.model_card import card_json, load_model, model_from_card
from capplan.errors import InputError, UnsupportedModelError
from capplan.serving.layout import Layout
from capplan.serving.step import decode_step
from capplan.serving.weights import weights_per_gpu

TRUTH = Path(__file__).parent.parent / "truth"
CONFIGS = TRUTH / "model_configs"
CLASSES = json.loads((TRUTH / "model_class_defaults.json").read_text())["models"]


def config(name, **changes):
    data = json.loads((CONFIGS / f"{name}.json").read_text())
    data.update(changes)
    return {key: value for key, value in data.items() if value != "absent"}


def imported(name):
    return load_model(CONFIGS / f"{name}.json")


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_built_from_its_defaults(name):
    assert import_config(CLASSES[name]["config"]).parameters_total == CLASSES[name]["parameters_total"]


SPARSE = (
    "deepseek-ai__DeepSeek-V3.2",
    "deepseek-ai__DeepSeek-V4-Flash",
    "meta-llama__Llama-3.2-11B-Vision",
    "reconstructed/google__gemma-3n-E4B-text",
)
RECURRENT = (
    "Qwen__Qwen3-Next-80B-A3B-Instruct",
    "MiniMaxAI__MiniMax-M1-80k",
    "moonshotai__Kimi-K3",
    "mistralai__Mamba-Codestral-7B-v0.1",
    "tiiuae__falcon-mamba-7b",
    "Zyphra__Zamba2-7B",
)
PLAIN = ("google__gemma-3-27b-it", "zai-org__GLM-4.5-Air", "microsoft__phi-4")


@pytest.mark.parametrize("name", [*SPARSE, *RECURRENT, *PLAIN])
def test_the_time_of_a_family_is_known(name):
    assert decode_step(imported(name), load_hardware("h200"), Layout(tp=8), batch=8, context=4096).seconds > 0


@pytest.mark.parametrize(
    "name", [*SPARSE, *RECURRENT, "google__gemma-4-26B-A4B", "openai-community__gpt2", "facebook__opt-350m"]
)
def test_all_weights_are_somewhere(name):
    model = imported(name)
    shares = weights_per_gpu(model, Layout())
    whole = shares.attention + shares.feed_forward + shares.experts + shares.embeddings
    assert whole == pytest.approx(model.weight_bytes(), rel=1e-9)
    parts = weights_per_gpu(model, Layout(tp=2))
    one = parts.attention + parts.feed_forward + parts.experts + parts.embeddings
    assert whole / 2 <= one < whole


@pytest.mark.parametrize(
    "name", [*SPARSE, *RECURRENT, "google__gemma-4-26B-A4B", "facebook__opt-350m", "xai-org__grok-1"]
)
def test_a_card_comes_back(name):
    model = imported(name)
    data = json.loads(card_json(card_from_file(CONFIGS / f"{name}.json")))
    again = model_from_card(data)
    assert again == model_from_card(json.loads(card_json(data)))
    assert (again.layers, again.look_ups, again.projections) == (model.layers, model.look_ups, model.projections)
    assert again.parameters_total == model.parameters_total
    assert again.weight_bytes() == model.weight_bytes()


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("deepseek-ai__DeepSeek-V3.2", "MLA 512+64, 61 of 61 layers read 2,048 tokens"),
        (
            "zai-org__GLM-5.2",
            "MLA 512+64, 21 of 78 layers read 2,048 tokens, 57 of 78 layers read 2,048 tokens another chose",
        ),
        ("Qwen__Qwen3-Next-80B-A3B-Instruct", "GQA 2 x 256, 36 of 48 layers gated delta rule"),
        ("tiiuae__falcon-mamba-7b", "64 of 64 layers Mamba"),
        ("meta-llama__Llama-3.2-11B-Vision", "GQA 8 x 128, cross-attention 8 x 128"),
    ],
)
def test_attention_in_a_few_words(name, summary):
    assert attention_summary(imported(name)) == summary


@pytest.mark.parametrize("name", ["deepseek-ai__DeepSeek-V4-Flash", "zai-org__GLM-5.2", "google__gemma-4-26B-A4B"])
@pytest.mark.parametrize("context", [100, 10_000])
def test_the_chain_ends_in_the_number(name, context):
    model = imported(name)
    links = kv_chain(model, context).links
    assert links["kv_bytes_per_sequence"].value == kv_bytes(model, context)
    assert links["kv_bytes_per_token"].value == pytest.approx(kv_bytes_per_token(model))


def test_ranks_split_state_and_heads_but_no_index_key():
    hybrid, sparse = imported("Qwen__Qwen3-Next-80B-A3B-Instruct"), imported("MiniMaxAI__MiniMax-M3")
    assert kv_bytes_per_rank(hybrid, 0, tp=2) == hybrid.state_bytes_per_sequence / 2
    assert kv_bytes_per_rank(sparse, 1000, tp=4) == 1000 * (122_880 / 4 + 14_592)


def test_the_type_of_a_state():
    name = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
    wide, narrow = imported(name), import_config(config(name, mamba_ssm_cache_dtype="bfloat16"))
    assert wide.state_bytes_per_sequence == 49_082_368
    assert narrow.state_bytes_per_sequence == 24_965_120
    assumed = import_config(config(name, mamba_ssm_cache_dtype="absent"))
    assert assumed.provenance["fields_assumed"]["state_dtype"] == "fp32"
    with pytest.raises(UnsupportedModelError, match="mamba_ssm_cache_dtype: 'int8': not a type of a state"):
        import_config(config(name, mamba_ssm_cache_dtype="int8"))


def test_windows_in_all_their_spellings():
    exaone = config("LGAI-EXAONE__EXAONE-4.0-32B")
    listed = import_config(exaone)
    spelt = import_config({key: value for key, value in exaone.items() if key != "layer_types"})
    assert kv_bytes(spelt, 10_000) == kv_bytes(listed, 10_000)
    gemma = config("google__gemma-3-1b-it")
    assert kv_bytes(import_config({**gemma, "sliding_window_pattern": 2}), 10_000) > kv_bytes(
        import_config(gemma), 10_000
    )
    llama = config("meta-llama__Llama-4-Scout-17B-16E-Instruct")
    text = {**llama["text_config"], "no_rope_layers": [1, 1, 1, 0] * 12}
    assert kv_bytes(import_config({**llama, "text_config": text}), 10**6) == kv_bytes(import_config(llama), 10**6)


def test_a_falcon_says_by_flags_how_many_heads_it_caches():
    assert kv_bytes_per_token(imported("tiiuae__falcon-7b-instruct")) == 8_192
    assert kv_bytes_per_token(imported("tiiuae__falcon-40b")) == 122_880
    many = import_config(config("tiiuae__falcon-7b-instruct", multi_query=False))
    assert kv_bytes_per_token(many) == 71 * 8_192


def test_windows_of_dots_go_by_its_class():
    """Its class has no ``use_sliding_window``: where that is absent, ``sliding_window`` and ``layer_types`` hold."""
    data = config("reconstructed/rednote-hilab__dots.llm1.inst", sliding_window=4096, use_sliding_window="absent")
    assert {group.attention.window for group in import_config(data | {"max_window_layers": 8}).layers} == {None, 4096}
    types = ["full_attention", "sliding_attention"] * (data["num_hidden_layers"] // 2)
    assert {group.attention.window for group in import_config(data | {"layer_types": types}).layers} == {None, 4096}
    with pytest.raises(InputError, match="use_sliding_window: false"):
        import_config(data | {"layer_types": types, "use_sliding_window": False})


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("tencent__Hunyuan", "use_cla", True, "use_cla: True: only False is modelled"),
        ("deepseek-ai__DeepSeek-V4-Flash", "compress_ratios", [4, 8], "compress_ratios: must be a list of at least 43"),
        (
            "deepseek-ai__DeepSeek-V4-Flash",
            "compress_ratios",
            [8] * 44,
            "ratios of 0, 4 and 128 are modelled, not 8",
        ),
        (
            "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "hybrid_override_pattern",
            "M" * 51 + "X",
            "the letters M",
        ),
        ("zai-org__GLM-5.2", "indexer_types", ["full"] * 77, "must name 78 layers"),
        ("apple__OpenELM-1_1B-Instruct", "ffn_multipliers", [1.0] * 27, "must be a list of 28 numbers"),
        ("apple__OpenELM-1_1B-Instruct", "num_kv_heads", [3] * 28, "must divide"),
        ("Zyphra__Zamba2-7B", "n_mamba_heads", 8, "n_mamba_heads: 8 differs from 112"),
        ("tiiuae__Falcon-H1-0.5B", "mamba_d_ssm", 1024, "mamba_d_ssm: 1024 differs from mamba_n_heads"),
        ("mosaicml__mpt-7b", "no_bias", False, "no_bias: False: only True is modelled"),
        ("Qwen__Qwen-7B", "intermediate_size", 22_017, "must be even: gate and up together"),
        ("ai21labs__AI21-Jamba-1.5-Mini", "sliding_window", 4096, "sliding_window: 4096: only None is modelled"),
    ],
)
def test_a_kind_that_is_not_modelled_is_refused(name, field, value, message):
    stem = "reconstructed/tencent__Hunyuan-A13B-Instruct" if name == "tencent__Hunyuan" else name
    with pytest.raises(InputError, match=message):
        import_config(config(stem, **{field: value}))


LLAMA = "meta-llama__Meta-Llama-3.1-8B"


COHERE2 = {
    "layer_switch": 4, "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj",
    "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True,
    "use_parallel_embedding": True,
}  # fmt: skip


def test_fields_of_first_configs_say_what_the_class_does():
    """As in c4ai-command-r7b-12-2024; the numbers are those of the class built from its defaults."""
    data = CLASSES["cohere2"]["config"]
    untyped = {key: value for key, value in data.items() if key != "layer_types"}
    assert import_config(data | COHERE2).parameters_total == CLASSES["cohere2"]["parameters_total"]
    for more in ({}, {"sliding_window_pattern": 4}):
        assert import_config(untyped | COHERE2 | more).layers == import_config(data).layers
    for field, value in [("use_parallel_block", False), ("use_embedding_sharing", False), ("layer_switch", 3)]:
        with pytest.raises(InputError, match=field):
            import_config(data | COHERE2 | {field: value})
    with pytest.raises(InputError, match="layer_switch"):
        import_config(untyped | COHERE2 | {"sliding_window_pattern": 2})


def test_the_inner_width_of_falcon():
    """Falcon2-11B: ``ff_factor`` 4."""
    data = config("tiiuae__falcon-40b")
    same = import_config(data).parameters_total
    assert import_config(data | {"ff_factor": 4, "ffn_hidden_size": 32768}).parameters_total == same
    wider = import_config(data | {"ff_factor": 5}).parameters_total
    assert (
        wider - same == 60 * 2 * 8192 * 8192 == import_config(data | {"ffn_hidden_size": 40960}).parameters_total - same
    )
    with pytest.raises(InputError, match="ff_factor: 4 times hidden_size differs from the inner width 40960"):
        import_config(data | {"ff_factor": 4, "ffn_hidden_size": 40960})


def test_norms_of_falcon_side_by_side():
    data = config("tiiuae__falcon-40b")
    one = import_config(data, assume={"num_ln_in_parallel_attn": 1})
    assert import_config(data).parameters_total - one.parameters_total == 60 * 2 * 8192
    with pytest.raises(UnsupportedModelError, match="num_ln_in_parallel_attn: 3"):
        import_config(data | {"num_ln_in_parallel_attn": 3})


def test_norms_of_the_heads_of_stablelm():
    """transformers StableLmLayerNormPerHead: one weight vector a head, no bias; StableLM-2-12B has them."""
    data = config("stabilityai__stablelm-2-zephyr-1_6b")
    more = import_config(data | {"qk_layernorm": True}).parameters_total - import_config(data).parameters_total
    assert more == 24 * (32 + 32) * 64


def test_fields_of_hunyuan_and_granite_that_change_nothing():
    hunyuan = {
        "model_type": "hunyuan_v1_dense", "architectures": ["HunYuanDenseV1ForCausalLM"], "vocab_size": 128167,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768, "tie_word_embeddings": True,
    }  # fmt: skip
    more = {"add_classification_head": False, "dense_list": [4096, 0], "norm_type": "hf_rms", "org_vocab_size": 128167}
    assert import_config(hunyuan | more).parameters_total == import_config(hunyuan).parameters_total
    with pytest.raises(UnsupportedModelError, match="add_classification_head: True"):
        import_config(hunyuan | {"add_classification_head": True})
    granite = config("reconstructed/ibm-granite__granite-4.0-h-small")
    same = import_config(granite).parameters_total
    assert import_config(granite | {"normalization_function": "rmsnorm"}).parameters_total == same
    with pytest.raises(UnsupportedModelError, match="normalization_function"):
        import_config(granite | {"normalization_function": "layernorm"})


def test_what_a_user_answers_for_is_taken_and_recorded():
    strange = config(LLAMA, attention_sink_size=4)
    with pytest.raises(UnsupportedModelError, match="attention_sink_size"):
        import_config(strange)
    model = import_config(strange, assume={"attention_sink_size": 4, "num_key_value_heads": 4})
    assert kv_bytes_per_token(model) == 65_536
    assert model.provenance["assumed"] == {"attention_sink_size": "4", "num_key_value_heads": "4"}
    assert "attention_sink_size" in model.fields_read


def test_a_user_may_say_which_family_a_config_is_of():
    data = config(LLAMA, model_type="my_llama", architectures=["MyLlama"])
    with pytest.raises(UnsupportedModelError, match="model type 'my_llama' is not modelled"):
        import_config(data)
    assert import_config(data, assume={"model_type": "llama"}).parameters_total == 8_030_261_248


def test_a_user_may_answer_for_the_text_part_of_a_wrapper():
    data = config("google__gemma-3-27b-it")
    for key in ("sliding_window", "text_config.sliding_window"):
        model = import_config(data, assume={key: 512})
        assert {group.attention.window for group in model.layers} == {None, 512}
    assert data["text_config"]["sliding_window"] == 1024


def test_a_wrapper_whose_text_part_names_another_family():
    """MiniMax-M3 as published calls its text part minimax_m2."""
    text = {**config("MiniMaxAI__MiniMax-M3", architectures="absent"), "model_type": "minimax_m2"}
    wrapped = {"model_type": "minimax_m3_vl", "text_config": text, "vision_config": {"depth": 3}, "hidden_size": 6144}
    assert import_config(wrapped).layers == imported("MiniMaxAI__MiniMax-M3").layers
    with pytest.raises(UnsupportedModelError, match="hidden_size: 4096: this field is not understood"):
        import_config({**wrapped, "hidden_size": 4096})


def test_layer_lists_longer_than_the_model_and_heads_of_sliding_layers():
    """Step-3.5: the last words are those of prediction layers; 196 B parameters, 11 B active as published."""
    data = {
        "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "hidden_size": 4096, "head_dim": 128,
        "intermediate_size": 11264, "num_hidden_layers": 45, "max_position_embeddings": 262144, "vocab_size": 128896,
        "moe_layers_enum": ",".join(map(str, range(3, 45))), "num_attention_heads": 64, "num_attention_groups": 8,
        "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
        "num_nextn_predict_layers": 3, "use_head_wise_attn_gate": True, "sliding_window": 512,
        "layer_types": ["full_attention", *["sliding_attention"] * 3] * 12,
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
                                    "num_attention_groups": 8, "head_dim": 128},
    }  # fmt: skip
    model = import_config(data)
    assert model.parameters_total / 1e9 == pytest.approx(196.96, abs=0.01)
    assert model.parameters_active / 1e9 == pytest.approx(11.46, abs=0.01)
    assert kv_bytes(model, 10_000) == 4096 * (12 * 10_000 + 33 * 512)
    assert "not modelled and not counted" in model.provenance["notes"][0]


def test_short_convolutions_of_lfm2():
    """LFM2-1.2B: 1.17 B parameters; ten layers keep two columns of their input."""
    data = {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 2048,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "conv_L_cache": 3,
        "max_position_embeddings": 128000, "conv_bias": False, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "block_auto_adjust_ff_dim": True, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    }  # fmt: skip
    model = import_config(data)
    assert model.parameters_total == 1_170_340_608
    assert model.state_bytes_per_sequence == 10 * 2 * 2048 * 2
