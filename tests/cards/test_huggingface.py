"""Import of ``config.json``: what is read, what is refused, how weights are stored."""

import json
import shutil
from pathlib import Path

import pytest

from capplan.cards.huggingface import card_from_file, import_config, write_card
from capplan.cards.kv import kv_bytes, kv_bytes_per_token
from capplan.cards.model_card import card_json, import_card, load_model, model_from_card
from capplan.errors import InputError, UnsupportedModelError

CONFIGS = Path(__file__).parent.parent / "truth" / "model_configs"


def config(name, **changes):
    data = json.loads((CONFIGS / f"{name}.json").read_text())
    data.update(changes)
    return {key: value for key, value in data.items() if value != "absent"}


LLAMA, QWEN2, QWEN3 = "meta-llama__Meta-Llama-3.1-8B", "Qwen__Qwen2.5-7B", "Qwen__Qwen3-4B"
QWEN3_MOE, DEEPSEEK, GPT_OSS = "Qwen__Qwen3-30B-A3B", "deepseek-ai__DeepSeek-V3", "openai__gpt-oss-20b"
MISTRAL, MIXTRAL = "mistralai__Mistral-7B-v0.1", "mistralai__Mixtral-8x7B-v0.1"


def formats(model):
    return {matmul.name: matmul.format.name for _, matmul in model.matmuls()}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [({"model_type": "rwkv"}, "'rwkv' is not modelled"), ({"architectures": ["Grok9"]}, "'Grok9' is not the llama")],
)
def test_a_family_that_is_not_modelled_is_refused_by_name(changes, shown):
    with pytest.raises(UnsupportedModelError, match=shown) as caught:
        import_config(config(LLAMA, **changes), file="my.json")
    assert caught.value.file == "my.json"


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        (LLAMA, "sliding_window", 4096),
        (LLAMA, "attention_sink_size", 4),
        (LLAMA, "num_kv_shared_layers", 15),
        (LLAMA, "layer_types", ["sliding_attention"] * 32),
        (LLAMA, "compress_ratio", 4),
        (LLAMA, "moe_num_experts", 8),
        (LLAMA, "n_positions_per_block", 8),
        (LLAMA, "is_encoder_decoder", True),
        (LLAMA, "pruned_heads", {"1": [2]}),
        (QWEN2, "dual_chunk_attention_config", {"chunk_size": 262144}),
        (QWEN3_MOE, "shared_expert_intermediate_size", 512),
        (QWEN3_MOE, "use_sliding_window", True),
        (DEEPSEEK, "index_topk", 2048),
        (DEEPSEEK, "use_mla", False),
        (DEEPSEEK, "attention_bias", True),
        (GPT_OSS, "layer_types", ["linear_attention"] * 24),
    ],
)
def test_a_field_that_could_matter_stops_the_import(name, field, value):
    with pytest.raises(UnsupportedModelError, match=rf"^my\.json: {field}: .*it may change") as caught:
        import_config(config(name, **{field: value}), file="my.json")
    assert "\n" not in str(caught.value)


UNKNOWN = {
    "yoco": True, "use_yoco": True, "hyper_connections": 4, "mhc": True, "universal_transformer": True, "repeat": 2,
    "recycle": 3, "early_exit": True, "bitnet": True, "ternary": True, "engram": {"slots": 4}, "memory_slots": 64,
    "tokens_memory": 1024, "weight_sharing": "all", "anything": {"nested": 1}, "my_note": "hello",
}  # fmt: skip


@pytest.mark.parametrize("field", UNKNOWN)
def test_a_field_that_nobody_knows_stops_the_import_until_a_user_answers_for_it(field):
    data = config(LLAMA, **{field: UNKNOWN[field]})
    with pytest.raises(UnsupportedModelError, match=rf"^my\.json: {field}: .*this field is not understood; "):
        import_config(data, file="my.json")
    model = import_config(data, assume={field: UNKNOWN[field]})
    assert model.parameters_total == 8_030_261_248
    assert field in model.provenance["assumed"]


def test_what_an_unknown_field_would_change_is_not_known():
    with pytest.raises(UnsupportedModelError) as caught:
        import_config(config(LLAMA, yoco=True))
    assert str(caught.value).endswith(
        "yoco: True: this field is not understood; what it would change is not known; "
        "--assume FIELD=VALUE answers for it"
    )


@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        ("num_kv_heads", 4, "num_key_value_heads"),
        ("text_config.hiden_size", 4, "hidden_size"),
        ("head_dimm", 64, "head_dim"),
    ],
)
def test_an_assumption_that_nothing_reads_is_refused(field, value, meant):
    with pytest.raises(InputError, match=rf"--assume {field}: has no effect on this model; did you mean {meant}\?"):
        import_config(config(LLAMA), assume={field: value})


def test_an_assumption_that_differs_from_a_field_nobody_reads_is_refused():
    with pytest.raises(InputError, match="--assume rope_theta: has no effect on this model"):
        import_config(config(LLAMA), assume={"rope_theta": 1.0})


@pytest.mark.parametrize(
    ("field", "value"),
    [("transformers_version", "9"), ("rope_theta", 1.0), ("attention_window", None), ("license", "mit"),
     ("loss_type", "ForCausalLM"),
     ("tokenizer_padding_side", "left"), ("model_max_length", 4096), ("transformers.js_config", {"dtype": "q4"}),
     ("my_switch", False), ("repeat", 0),
     ("is_encoder_decoder", False), ("pruned_heads", {}), ("unsloth_fixed", True)],
)  # fmt: skip
def test_a_harmless_field_is_listed_as_unread(field, value):
    model = import_config(config(LLAMA, **{field: value}))
    assert field in model.fields_unread
    assert model.parameters_total == 8_030_261_248


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        (LLAMA, "hidden_size", "absent", "hidden_size: is missing, and a default would be a guess"),
        (LLAMA, "hidden_size", -4096, "hidden_size: -4096 must be a whole number from 1"),
        (LLAMA, "hidden_size", 4096.0, "hidden_size: 4096.0 must be a whole number"),
        (LLAMA, "hidden_size", True, "hidden_size: True must be a whole number"),
        (LLAMA, "hidden_size", 4095, "hidden_size: 4095 is no multiple of 32 heads"),
        (LLAMA, "num_hidden_layers", 10**30, "num_hidden_layers: 1000.* must be a whole number from 1 to 2,000"),
        (LLAMA, "num_key_value_heads", 7, "num_key_value_heads: 7 must divide 32 heads"),
        (LLAMA, "vocab_size", float("nan"), "vocab_size: nan must be a whole number"),
        (LLAMA, "attention_bias", "no", "attention_bias: 'no' must be true or false"),
        (LLAMA, "model_type", "absent", "model_type: is missing"),
        (LLAMA, "architectures", ["LlamaForCausalLMEagle3"], "'LlamaForCausalLMEagle3' is not the llama"),
        (LLAMA, "torch_dtype", "int3", "torch_dtype: 'int3': not a type of weights"),
        (QWEN2, "num_key_value_heads", "absent", "num_key_value_heads: is missing"),
        (QWEN3, "head_dim", "absent", "head_dim: is missing"),
        (QWEN3_MOE, "num_experts_per_tok", 129, "num_experts_per_tok: 129 must be a whole number from 1 to 128"),
        (QWEN3_MOE, "mlp_only_layers", "all", "mlp_only_layers: must be a list of layer numbers"),
        (QWEN3_MOE, "mlp_only_layers", [48], "mlp_only_layers: must be layer numbers below 48"),
        (QWEN3_MOE, "mlp_only_layers", [-1], "mlp_only_layers: must be layer numbers below 48"),
        (QWEN2, "layer_types", ["sliding_attention"] * 28, "use_sliding_window: false .* rules out the sliding_att"),
        (GPT_OSS, "layer_types", ["full_attention"], "layer_types: must name 24 layers, one each"),
        (GPT_OSS, "experts_per_token", 8, "num_experts_per_tok: 4 differs from experts_per_token 8"),
        (MISTRAL, "sliding_window", "absent", "sliding_window: is missing; write null for full attention"),
        (LLAMA, "quantization_config", [], "quantization_config: must be a table"),
    ],
)
def test_a_field_that_is_missing_or_wrong(name, field, value, message):
    with pytest.raises(InputError, match=rf"^my\.json: .*{message}") as caught:
        import_config(config(name, **{field: value}), file="my.json")
    assert "\n" not in str(caught.value)


def test_explicit_head_width_is_not_hidden_size_over_heads():
    # Qwen3-4B: 128 and not 2560/32 = 80 (LMCache issue 688: 147,456 B, not 92,160).
    assert kv_bytes_per_token(load_model(CONFIGS / f"{QWEN3}.json")) == 147_456
    narrow = import_config(config(LLAMA, head_dim=64))
    assert kv_bytes_per_token(narrow) == 65_536


def test_missing_or_null_kv_heads_of_llama_mean_multi_head_attention():
    for value in ("absent", None):
        assert kv_bytes_per_token(import_config(config(LLAMA, num_key_value_heads=value))) == 4 * 131_072


def test_what_the_class_of_llama_takes_where_a_field_is_absent_is_listed():
    model = import_config(config(LLAMA, num_key_value_heads="absent", max_position_embeddings="absent"))
    taken = model.provenance["fields_assumed"]
    assert (taken["num_key_value_heads"], taken["max_position_embeddings"]) == ("32", "2048")


def test_biases_of_llama_when_flagged():
    plain = import_config(config(LLAMA)).parameters_total
    attention = import_config(config(LLAMA, attention_bias=True)).parameters_total
    feed_forward = import_config(config(LLAMA, mlp_bias=True)).parameters_total
    assert attention - plain == 32 * (4096 + 2 * 1024 + 4096)
    assert feed_forward - plain == 32 * (2 * 14336 + 4096)


def test_a_window_that_is_declared_but_off():
    data = config(QWEN2)
    assert data["sliding_window"] == 131_072
    assert data["use_sliding_window"] is False
    assert import_config(data).layers[0].attention.window is None


def test_a_window_that_is_on_from_a_layer_on():
    model = import_config(config(QWEN2, use_sliding_window=True, max_window_layers=20, sliding_window=4096))
    assert [(group.count, group.attention.window) for group in model.layers] == [(20, None), (8, 4096)]
    assert kv_bytes(model, 10_000) == 2048 * (20 * 10_000 + 8 * 4096)


def test_windows_of_mistral_and_of_gpt_oss():
    assert load_model(CONFIGS / f"{MISTRAL}.json").layers[0].attention.window == 4096
    assert import_config(config(MISTRAL, sliding_window=None)).layers[0].attention.window is None
    listed = load_model(CONFIGS / f"{GPT_OSS}.json")
    assert [(group.count, group.attention.window) for group in listed.layers] == [(12, 128), (12, None)]
    assert import_config(config(GPT_OSS, layer_types="absent")).layers == listed.layers


def test_which_layers_are_a_mixture():
    model = import_config(config(QWEN3_MOE, decoder_sparse_step=2, mlp_only_layers=[1, 3]))
    experts = {group.feed_forward.n_experts: group.count for group in model.layers}
    assert experts == {0: 26, 128: 22}
    assert next(g for g in model.layers if not g.feed_forward.n_experts).feed_forward.matmuls[1].inputs == 6144
    sparse = import_config(config(DEEPSEEK, first_k_dense_replace=1, moe_layer_freq=2))
    assert [group.count for group in sparse.layers if group.feed_forward.n_experts] == [30]


def test_without_shared_experts_or_prediction_layers():
    model = import_config(config(DEEPSEEK, n_shared_experts=None, num_nextn_predict_layers=0))
    assert model.mtp_layers == ()
    assert "shared_experts" not in model.parameters_by_part
    assert model.weight_bytes(mtp=True) == model.weight_bytes()


def test_a_config_written_by_transformers_lacks_the_mixture_step():
    model = import_config(config(DEEPSEEK, moe_layer_freq="absent"))
    assert model.layers == load_model("deepseek-v3").layers
    assert model.provenance["fields_assumed"] == {"moe_layer_freq": "1"}


def wrapped(name, outer=(), inner=()):
    text = config(name, **dict(inner))
    return {
        "model_type": "any_vl",
        "architectures": ["AnyVLForConditionalGeneration"],
        "text_config": text,
        **dict(outer),
    }


def test_the_text_part_of_a_wrapper():
    model = import_config(wrapped(LLAMA, {"vision_config": {"hidden_size": 3}, "image_token_index": 5}))
    assert model.parameters_total == 8_030_261_248
    assert "text_config.hidden_size" in model.fields_read
    assert "vision_config" in model.fields_unread
    assert model.sources["hidden_size"].source == "config.json: text_config.hidden_size"


def test_a_wrapper_may_say_how_the_text_part_is_tied_and_stored():
    outer = {"tie_word_embeddings": True, "quantization_config": {"quant_method": "fp8"}, "dtype": "bfloat16"}
    inner = {"tie_word_embeddings": "absent", "torch_dtype": "absent"}
    model = import_config(wrapped(LLAMA, outer, inner))
    assert model.tied_embeddings
    assert formats(model)["qkv"] == "fp8"
    with pytest.raises(InputError, match="tie_word_embeddings: True differs from the one in text_config"):
        import_config(wrapped(LLAMA, {"tie_word_embeddings": True}))


def test_a_wrapper_with_a_field_that_could_matter_is_refused():
    with pytest.raises(UnsupportedModelError, match="cross_attention_layers"):
        import_config(wrapped(LLAMA, {"cross_attention_layers": [3, 8]}))


@pytest.mark.parametrize("architecture", ["LlavaForSequenceClassification", "BagelMoT", "AnyVL"])
def test_a_wrapper_of_another_class_is_refused(architecture):
    with pytest.raises(UnsupportedModelError, match=f"architectures: .*'{architecture}' is no class known to wrap"):
        import_config(wrapped(LLAMA, {"architectures": [architecture]}))


def test_a_wrapper_that_is_not_known_is_told():
    taken = import_config(wrapped(LLAMA)).provenance["fields_assumed"]
    assert taken["text_config.model_type"] == (
        "llama: the text part alone is modelled; the wrapper 'any_vl' is not known"
    )
    assert (
        "text_config.model_type"
        not in import_config(wrapped(LLAMA, {"model_type": "llava"})).provenance["fields_assumed"]
    )


@pytest.mark.parametrize("part", ["outer", "inner"])
def test_layers_of_a_wrapper_that_are_not_understood(part):
    for name, value in [("vision_cross_attention_layers", [3, 8]), ("memory_num_layers", 4)]:
        with pytest.raises(UnsupportedModelError, match=name):
            import_config(wrapped(LLAMA, **{part: {name: value}}))


def test_a_wrapper_with_another_vocabulary():
    with pytest.raises(InputError, match="vocab_size: 128300 differs from the one in text_config"):
        import_config(wrapped(LLAMA, {"vocab_size": 128300}))
    assert import_config(wrapped(LLAMA, {"vocab_size": 128300}), assume={"vocab_size": 128300}).vocab_size == 128300
    assert import_config(wrapped(LLAMA, {"vocab_size": 128256})).vocab_size == 128256


def test_a_wrapper_that_leaves_the_text_part_to_class_defaults_says_which():
    # A part inside a wrapper is written without what equals the defaults of its class.
    model = load_model(CONFIGS / "llava-hf__llava-1.5-7b-hf.json")
    assert model.parameters_total == 6_738_939_904
    assert model.provenance["fields_assumed"]["text_config.num_hidden_layers"] == "32"
    with pytest.raises(InputError, match="num_hidden_layers: is missing, and a default would be a guess"):
        import_config(config(LLAMA, num_hidden_layers="absent"))


def quantized(name, **options):
    return import_config(config(name, quantization_config=options))


def test_fp8_leaves_router_head_and_embedding_alone():
    model = quantized(DEEPSEEK, quant_method="fp8", weight_block_size=[128, 128])
    assert formats(model) == {
        **dict.fromkeys(("qkv_a", "q_b", "kv_b", "o", "gate_up", "down", "shared_gate_up", "shared_down"), "fp8_block"),
        **dict.fromkeys(("router", "embedding", "lm_head"), "bf16"),
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [64, 128]}, "fp8_block_64x128"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
          "modules_to_not_convert": None}, "int4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": True}, "int4_g64"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}, "nvfp4"),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}, "kv_cache_scheme": "FP8"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"], "config_groups":
          {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}},
         "fp8_channel"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights":
          {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}}, "int4_sym_g32"),
    ],
)  # fmt: skip
def test_quantisation_methods(options, expected):
    assert formats(quantized(LLAMA, **options))["qkv"] == expected


def test_bytes_of_four_bit_weights():
    # AWQ, groups of 128: 4 bits, a 16-bit scale and a 4-bit zero point a group, 4.16 bits a weight.
    model = quantized(LLAMA, quant_method="awq", bits=4, group_size=128)
    linear = 1_342_177_280 + 5_637_144_576
    assert model.weight_bytes() == linear * (4 + 20 / 128) / 8 + 2 * (2 * 525_336_576 + 266_240)


@pytest.mark.parametrize(
    "options",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "gptq", "bits": 3, "group_size": 128},
        {"quant_method": "fp8", "fmt": "e5m2"},
        {"quant_method": "fp8", "expert_dtype": "fp4"},
        {"quant_method": "fp8", "weight_block_size": "128"},
        {"quant_algo": "MIXED_PRECISION"},
        {"quant_algo": "FP8", "kv_cache_quant_algo": "INT3"},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}},
        {},
    ],
)
def test_a_quantisation_that_is_not_modelled_is_refused(options):
    with pytest.raises(UnsupportedModelError, match=r"quantization_config\..*it may change") as caught:
        quantized(LLAMA, **options)
    assert caught.value.file == "config.json"


def test_modules_left_out_by_name_wildcard_and_simple_expression():
    whole = quantized(LLAMA, quant_method="fp8", modules_to_not_convert=["lm_head", "self_attn"])
    assert formats(whole) == {"qkv": "bf16", "o": "bf16", "gate_up": "fp8", "down": "fp8", "embedding": "bf16",
                              "lm_head": "bf16"}  # fmt: skip
    for pattern in ("model.layers.3.mlp", "model.layers.3.mlp*", r"re:.*layers\.3\.mlp.*"):
        model = quantized(LLAMA, quant_method="fp8", modules_to_not_convert=[pattern])
        kinds = sorted((g.count, g.feed_forward.matmuls[0].format.name) for g in model.layers)
        assert kinds == [(1, "bf16"), (31, "fp8")], pattern


def test_a_matrix_left_out_on_its_own_keeps_its_type():
    model = quantized(LLAMA, quant_method="fp8", modules_to_not_convert=["model.layers.3.self_attn.o_proj"])
    kinds = sorted((g.count, *(m.format.name for m in g.attention.matmuls)) for g in model.layers)
    assert kinds == [(1, "fp8", "bf16"), (31, "fp8", "fp8")]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("model.layers.3.self_attn.k_proj", "layer 3 has only some of self_attn.q_proj"),
        ("model.layers.3.mixer", "names 'layers.3.mixer', which no layer has"),
        ("re:(a+)+$", "is a regular expression that is not understood"),
        ("x" * 300, "longer than 200 characters"),
    ],
)
def test_modules_left_out_that_are_not_understood(pattern, message):
    with pytest.raises(InputError, match=message):
        quantized(LLAMA, quant_method="fp8", modules_to_not_convert=[pattern])


def test_a_layer_beyond_the_last_is_one_of_multi_token_prediction():
    model = quantized(DEEPSEEK, quant_method="fp8", modules_to_not_convert=["model.layers.61*"])
    assert formats(model)["o"] == "fp8"
    assert {matmul.format.name for matmul in model.mtp_layers[0].attention.matmuls} == {"bf16"}


def test_a_side_car_says_how_weights_and_cache_are_stored(tmp_path):
    name = "nvidia__Llama-3.1-70B-Instruct-FP8"
    folder = tmp_path / "llama-fp8"
    folder.mkdir()
    shutil.copy(CONFIGS / f"{name}.json", folder / "config.json")
    assert load_model(folder).kv_dtype == "bf16"
    shutil.copy(CONFIGS / f"{name}.hf_quant_config.json", folder / "hf_quant_config.json")
    for place in (folder, folder / "config.json"):
        model = load_model(place)
        assert model.name == "llama-fp8"
        assert model.kv_dtype == "fp8"
        assert model.file == str(folder / "config.json")
        # vLLM reports 67.72 GiB of weights for the 70B in fp8 (llm-d's sizing table).
        assert model.weight_bytes() / 2**30 == pytest.approx(67.72, abs=0.1)


def test_an_edited_side_car_is_read_again(tmp_path):
    shutil.copy(CONFIGS / f"{LLAMA}.json", tmp_path / "config.json")
    side_car = tmp_path / "hf_quant_config.json"
    for algorithm, expected in (("FP8", "fp8"), ("NVFP4", "nvfp4")):
        side_car.write_text(json.dumps({"quantization": {"quant_algo": algorithm}}))
        assert formats(load_model(tmp_path))["qkv"] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"quantization": {"quant_algo": "W4A8"}}', "quantization.quant_algo: 'W4A8': algorithm .* is not modelled"),
        ('{"producer": 1}', "quantization: is missing or no table"),
        ("[", "is not valid JSON"),
    ],
)
def test_a_side_car_that_is_not_understood(tmp_path, text, message):
    shutil.copy(CONFIGS / f"{LLAMA}.json", tmp_path / "config.json")
    (tmp_path / "hf_quant_config.json").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_model(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "hf_quant_config.json"))


def test_a_float32_checkpoint_is_served_in_16_bits_and_says_so():
    model = import_config(config(LLAMA, torch_dtype="float32"))
    assert model.weight_bytes() == 2 * model.parameters_total
    assert model.provenance["fields_assumed"]["dtype"] == "bf16 (float32 given)"


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(InputError, match=r"config\.json: cannot be read"):
        load_model(tmp_path)


def test_writing_a_card(tmp_path):
    card = tmp_path / "mine.json"
    write_card(CONFIGS / f"{MIXTRAL}.json", card, name="mine", repository="mistralai/Mixtral-8x7B-v0.1")
    model = load_model(card)
    assert model.name == "mine"
    assert model.layers == load_model(CONFIGS / f"{MIXTRAL}.json").layers
    assert model.provenance["repository"] == "mistralai/Mixtral-8x7B-v0.1"
    assert model.parameters_total == 46_702_792_704


def test_importing_a_card_from_a_folder(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    shutil.copy(CONFIGS / f"{LLAMA}.json", folder / "config.json")
    assert import_card(folder)["name"] == "my-llama"
    card = import_card(folder / "config.json", "other")
    assert card["name"] == "other"
    assert model_from_card(json.loads(card_json(card))).layers == load_model("llama-3.1-8b").layers


def test_the_name_of_an_import_is_safe_to_print():
    assert card_from_file(CONFIGS / f"{MIXTRAL}.json", name="=cmd|' /C calc'!A0")["name"] == "cmd-C-calc-A0"


NASTY = [
    None,
    [],
    {},
    "x",
    "",
    -1,
    0,
    1.5,
    1e308,
    float("nan"),
    True,
    False,
    [1, "a", None],
    {"a": {"b": [1]}},
    "9" * 400,
]


@pytest.mark.parametrize("name", [LLAMA, QWEN2, QWEN3_MOE, DEEPSEEK, GPT_OSS, MIXTRAL])
def test_a_spoiled_config_is_refused_or_gives_a_sane_model(name):
    data = config(name)
    spoiled = [{**data, field: value} for field in data for value in NASTY]
    options = data.get("quantization_config", {})
    spoiled += [
        {**data, "quantization_config": {**options, field: value}} for field in [*options, "bits"] for value in NASTY
    ]
    for document in spoiled:
        line, model = outcome(document)
        assert model is not None or line.startswith("my.json: ")
        assert len(line.splitlines()) <= 1
        assert model is None or 0 < model.parameters_active <= model.parameters_total < 1e15
        assert model is None or 0 < model.weight_bytes() < 1e16


def outcome(data):
    try:
        return "", import_config(data, file="my.json")
    except InputError as error:
        return str(error), None
