"""Quantisation configs as checkpoints have them: which module is stored how, and how many bytes that takes.

The configs are cut from repositories on the hub as ``aiconfigurator-core`` 0.12.0 ships them; arithmetic checks say
how a byte count comes about.
"""

import json
from pathlib import Path

import pytest

from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_module_names import ModulePatterns
from capplan.cards.hf_quantization import read_quantization
from capplan.cards.huggingface import import_config
from capplan.cards.model import Matmul
from capplan.cards.model_card import load_model
from capplan.cards.model_totals import layer_matmuls
from capplan.cards.weight_formats import FORMATS, weight_format
from capplan.errors import InputError, UnknownNameError, UnsupportedModelError

CONFIGS = Path(__file__).parents[1] / "truth" / "model_configs"


def quantization(options=None, side_car=None, **fields):
    data = {"dtype": "bfloat16", **fields}
    if options is not None:
        data["quantization_config"] = options
    side = {"quantization": side_car} if side_car is not None else None
    return read_quantization(ConfigFields(data, "config.json"), side, "hf_quant_config.json")


def group(bits, kind, strategy, size=None, inputs=None, targets=("Linear",), **more):
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": size, **more}
    return {"targets": list(targets), "weights": weights, "input_activations": inputs}


def compressed(*groups, ignore=(), **more):
    named = {f"group_{i}": one for i, one in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": list(ignore), **more}


KIMI_IGNORE = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


@pytest.mark.parametrize(
    ("weights", "form"),
    [
        (group(4, "int", "group", 32, symmetric=True), "int4_sym_g32"),  # Kimi-K2.5
        (group(4, "float", "group", 32, scale_dtype="torch.uint8"), "mxfp4"),  # Kimi-K3
    ],
)
def test_expressions_leave_all_but_the_routed_experts_alone(weights, form):
    read = quantization(compressed(weights, ignore=KIMI_IGNORE, kv_cache_scheme=None))
    assert read.module_format("layers.1.mlp.experts.0.gate_proj", experts=True) == form
    for module in ("layers.0.mlp.gate_proj", "layers.1.mlp.shared_experts.up_proj", "layers.1.self_attn.o_proj"):
        assert read.module_format(module) == "bf16"
    assert read.lm_head_format == "bf16"
    assert read.unused() == []


@pytest.mark.parametrize(
    ("weights", "form"),
    [
        (group(8, "float", "tensor"), "fp8"),
        (group(8, "float", "channel", inputs={"num_bits": 8, "strategy": "token"}), "fp8_channel"),  # Llama-4-Scout
        (group(8, "float", "block", block_structure=[128, 128]), "fp8_block"),
        (group(8, "float", "group", 32), "mxfp8"),
        (group(8, "int", "channel", inputs={"num_bits": 8, "type": "int"}), "int8_w8a8"),
        (group(8, "int", "channel"), "int8_channel"),
        (group(4, "int", "channel"), "int4_channel"),
        (group(4, "int", "group", 128, symmetric=False), "int4"),
        (group(4, "int", "group", 128), "int4_sym_g128"),
        (group(8, "int", "group", 64), "int8_sym_g64"),
        (group(4, "float", "tensor_group", 16, inputs={"num_bits": 4}), "nvfp4"),
        (group(4, "float", "tensor_group", 16), "nvfp4_w4a16"),
    ],
)
def test_formats_of_compressed_tensors(weights, form):
    assert quantization(compressed(weights)).module_format("layers.0.mlp.down_proj") == form


def test_groups_that_name_modules_come_before_all_linear_layers():
    options = compressed(
        group(4, "float", "tensor_group", 16, inputs={}),
        group(8, "float", "channel", targets=[r"re:.*self_attn\.(q|k|v|o)_proj$", "lm_head"]),
        ignore=[r"re:.*mlp\.gate$"],
    )
    read = quantization(options)
    assert read.module_format("layers.7.self_attn.k_proj") == "fp8_channel"
    assert read.module_format("layers.7.mlp.gate_proj") == "nvfp4"
    assert read.module_format("layers.7.mlp.gate") == "bf16"
    assert read.lm_head_format == "fp8_channel"


def test_modelopt_may_store_every_layer_its_own_way():
    """Qwen3.6-27B-NVFP4: linear attention in fp8, feed-forward in NVFP4 for 16-bit activations, lm_head too."""
    layers = {
        "model.language_model.layers.0.linear_attn.out_proj": {"quant_algo": "FP8"},
        "model.language_model.layers.0.mlp.gate_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    }
    options = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    read = quantization({**options, "ignore": ["mtp*"], "kv_cache_scheme": {"num_bits": 8, "type": "float"}})
    assert read.module_format("layers.0.linear_attn.out_proj") == "fp8"
    assert read.module_format("layers.0.mlp.gate_proj") == "nvfp4_w4a16"
    assert read.module_format("layers.0.self_attn.q_proj") == "bf16"
    assert (read.lm_head_format, read.kv_dtype) == ("nvfp4_w4a16", "fp8")
    assert read.unused() == []


def test_experts_named_one_by_one_must_all_be_there():
    names = [f"backbone.layers.1.mixer.experts.{expert}.up_proj" for expert in range(128)]
    layers = {name: {"quant_algo": "NVFP4"} for name in names}
    read = quantization(None, {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    assert read.module_format("layers.1.mixer.experts.0.up_proj", experts=True) == "nvfp4"
    with pytest.raises(InputError, match="only some of the experts"):
        quantization(None, {"quant_algo": "MIXED_PRECISION", "quantized_layers": {names[5]: layers[names[5]]}})


def test_experts_of_deepseek_v4_are_in_four_bits():
    options = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    read = quantization(options, expert_dtype="fp4")
    assert read.module_format("layers.3.mlp.experts.0.gate_proj", experts=True) == "mxfp4"
    assert read.module_format("layers.3.self_attn.o_proj") == "fp8_block"
    assert quantization(options, expert_dtype="fp8").module_format("x.experts.0", experts=True) == "fp8_block"


def test_an_fp8_checkpoint_whose_experts_were_quantised_again():
    """nvidia/DeepSeek-V4-Flash-NVFP4: what ModelOpt ignored is still in fp8 blocks."""
    read = quantization(
        {
            "quant_method": "fp8", "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "fmt": "e4m3",
            "scale_fmt": "ue8m0", "weight_block_size": [128, 128], "ignore": ["*.attn.*", "head", "mtp.*"],
            "group_size": 16, "kv_cache_quant_algo": None, "producer": {"name": "modelopt"},
            "quantized_layers": {f"layers.{i}.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in (0, 1)},
        },
        expert_dtype="fp4",
    )  # fmt: skip
    assert read.module_format("layers.0.ffn.experts.0.w1", experts=True) == "nvfp4"
    assert read.module_format("layers.0.attn.wo") == "fp8_block"


@pytest.mark.parametrize(
    ("algorithm", "form"),
    [
        ("FP8", "fp8"), ("FP8_PB_WO", "fp8_block"), ("FP8_PER_CHANNEL_PER_TOKEN", "fp8_channel"), ("NVFP4", "nvfp4"),
        ("W4A16_AWQ", "int4_sym_g128"), ("W4A16_NVFP4", "nvfp4_w4a16"), ("MXFP8", "mxfp8"),
    ],
)  # fmt: skip
def test_algorithms_of_modelopt(algorithm, form):
    size = {"W4A16_AWQ": 128, "NVFP4": 16}.get(algorithm)
    side_car = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    read = quantization(None, side_car | ({"group_size": size} if size else {}))
    assert read.module_format("layers.0.mlp.up_proj") == form
    assert read.kv_dtype == "fp8"


def test_the_type_of_the_cache_may_be_in_the_side_car_alone():
    """Qwen3.6-35B-A3B-NVFP4 has it there."""
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    assert quantization(config, {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}).kv_dtype == "fp8"
    assert quantization(config, {"quant_algo": "NVFP4"}).kv_dtype is None
    with pytest.raises(InputError, match="'FP8' differs from 'NVFP4' in the config"):
        quantization(config, {"quant_algo": "FP8"})


@pytest.mark.parametrize(
    ("config", "side_car", "words"),
    [
        ({"quant_method": "fp8"}, {"quant_algo": "NVFP4"}, "quant_algo: 'NVFP4' differs from 'fp8' in the config"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {"quant_algo": "FP8"}, "'FP8' differs from 'fp8'"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, {"quant_algo": "FP8"}, "'FP8' differs from 'awq'"),
        (compressed(group(8, "float", "tensor")), {"quant_algo": "W8A16"}, "differs from 'compressed-tensors'"),
        (
            {"quant_algo": "W4A16_AWQ", "group_size": 128},
            {"quant_algo": "W4A16_AWQ", "group_size": 64},
            "group_size: '64' differs from '128' in the config",
        ),
        (
            {"quant_algo": "FP8", "kv_cache_scheme": "FP8"},
            {"quant_algo": "FP8", "kv_cache_quant_algo": "INT8"},
            "kv_cache_quant_algo: 'int8' differs from 'fp8' in the config",
        ),
    ],
)
def test_a_side_car_that_contradicts_the_config_is_refused(config, side_car, words):
    with pytest.raises(InputError) as caught:
        quantization(config, side_car)
    assert words in str(caught.value)
    assert "hf_quant_config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_side_car_that_says_the_same_in_other_words_is_taken():
    assert quantization({"quant_method": "fp8"}, {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}).kv_dtype == "fp8"


@pytest.mark.parametrize("side_car", [[], "x", 3, {}, {"quantization": []}])
def test_a_side_car_that_is_none_is_refused(side_car):
    with pytest.raises(InputError, match="is missing or no table"):
        read_quantization(ConfigFields({"dtype": "bfloat16"}, "config.json"), side_car, "hf_quant_config.json")


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}, "int4_g64"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": False, "sym": True}, "int8_g128"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True}, "int4_channel"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int",
          "packing_format": "auto_round:auto_gptq", "extra_config": {"model.layers.0.self_attn.o_proj": {"bits": 16}}},
         "int4"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
         "fp8_channel"),
    ],
)  # fmt: skip
def test_other_methods(options, form):
    read = quantization(options)
    assert read.module_format("layers.0.mlp.up_proj") == form
    if "extra_config" in options:
        assert read.module_format("layers.0.self_attn.o_proj") == "bf16"


def test_rules_of_gptqmodel_leave_modules_out():
    rules = {r"-:.*attn.*": {}, r"-:.*shared_expert.*": {}}
    read = quantization({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": rules})
    assert read.module_format("layers.0.self_attn.q_proj") == "bf16"
    assert read.module_format("layers.0.mlp.experts.0.up_proj", experts=True) == "int4"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quant_method": "aqlm"}, "'aqlm': this method is not modelled"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {r"\+:.*": {"bits": 8}}}, "dynamic"),
        ({"quant_method": "gptq", "bits": 2, "group_size": 128}, "bits: 2"),
        ({"quant_method": "awq", "bits": 4, "w_bit": 8, "group_size": 128}, "w_bit"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "data_type": "mx_fp"}, "data_type"),
        ({"quant_algo": "NVFP4", "group_size": 32}, "NVFP4 has groups of 16"),
        ({"quant_algo": "NVFP4", "kv_cache_scheme": "NVFP4"}, "only a cache of FP8 or INT8"),
        ({"quant_algo": "MIXED_PRECISION"}, "must say which layer"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP3"}}}, "'FP3' is not modelled"),
        ({"quant_algo": "FP8", "kv_cache_scheme": "FP8", "kv_cache_quant_algo": "INT8"}, "differs from"),
        (compressed(group(3, "int", "group", 32)), "int, 3, group are not modelled"),
        (compressed(group(8, "float", "group", 64)), "groups other than 32"),
        (compressed(group(4, "int", "group", 32, targets=["MoEGate"])), "target 'MoEGate' is not modelled"),
        (compressed(group(8, "float", "tensor"), group(8, "float", "channel")), "two groups over all linear layers"),
        (compressed(group(4, "float", "group", 64)), "float, 4, group are not modelled"),
        ({"quant_method": "fp8", "secret_rank": 4}, "secret_rank"),
        ({"quant_method": "gptq", "group_size": 128}, "bits: is missing"),
        ({"quant_method": "awq", "group_size": 128}, "bits: is missing"),
        ({"quant_method": "awq", "bits": 3, "group_size": 128}, "only 4, 8 is modelled"),
        ({"quant_method": "mxfp4"}, "routed experts only, and the config counts none"),
        *[
            (compressed(group(8, "float", "channel"), format=name), f"{name!r}: only")
            for name in ("dense", "naive-quantized", "marlin-24", "fakequant", "sparse-24-bitmask")
        ],
        *[
            (compressed(group(8, "float", "channel"), quantization_status=name), f"{name!r}: only 'compressed'")
            for name in ("frozen", "calibration", "initialized")
        ],
        (compressed(group(4, "int", "channel"), format="int-quantized"), "does not store weights of type, bits int, 4"),
        (compressed(group(8, "float", "channel"), format="pack-quantized"), "does not store weights"),
        (compressed({**group(8, "float", "channel"), "format": "marlin-24"}), "format 'marlin-24' is not modelled"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(options, words):
    with pytest.raises(InputError) as caught:
        quantization(options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["fp6", 4, ["fp4"]])
def test_unknown_types_of_experts_are_refused(value):
    with pytest.raises(UnsupportedModelError, match="expert_dtype"):
        quantization({"quant_method": "fp8"}, expert_dtype=value)


def test_compression_config_is_the_old_name():
    options = compressed(group(8, "float", "tensor"))
    data = ConfigFields({"dtype": "bfloat16", "compression_config": options}, "config.json")
    assert read_quantization(data, None, "").module_format("layers.0.mlp.up_proj") == "fp8"


@pytest.mark.parametrize(
    ("form", "bits"),
    [
        ("mxfp4", 4.25), ("nvfp4", 4.5), ("nvfp4_w4a16", 4.5), ("mxfp8", 8.25), ("fp8_block", 8 + 32 / 128**2),
        ("int4", 4 + 20 / 128), ("int4_sym_g32", 4.5), ("int4_g32", 4 + 20 / 32), ("int8_g128", 8 + 24 / 128),
        ("fp8", 8.0), ("bf16", 16.0), ("int4_channel", 4 + 16 / 4096), ("fp8_channel", 8 + 16 / 4096),
    ],
)  # fmt: skip
def test_bits_of_a_weight_with_its_scales(form, bits):
    matrix = Matmul("o", 4096, 4096, "row", weight_format(form))
    assert matrix.weight_bytes * 8 / matrix.parameters == pytest.approx(bits, rel=1e-12)


@pytest.mark.parametrize(
    "name", ["int4_g0", "int3_g128", "int4_sym", "fp8_block_0x128", "mxfp5", "INT4", "int4_g9999999"]
)
def test_formats_nobody_knows(name):
    with pytest.raises(UnknownNameError, match="weight format"):
        weight_format(name)


def test_names_of_formats_come_back():
    for name in [*FORMATS, "int4_g64", "int4_sym_g32", "int8_g128", "int8_sym_g64", "fp8_block_1x128"]:
        assert weight_format(name).name == name


@pytest.mark.parametrize(
    ("pattern", "module", "meets"),
    [
        ("self_attn", "layers.3.self_attn.o_proj", True),
        ("gate", "layers.3.mlp.gate_proj", False),
        ("model.layers.3", "layers.30.mlp.up_proj", False),
        ("model.layers.3*", "layers.30.mlp.up_proj", True),
        ("model.layers.1.*", "layers.1.mlp.up_proj", True),
        ("*.mlp.shared_expert.*", "layers.1.mlp.shared_expert.up_proj", True),
        ("*.mlp.shared_expert.*", "layers.1.mlp.experts.0.up_proj", False),
        ("language_model.model.layers.1.self_attn*", "layers.1.self_attn.q_b_proj", True),
        ("backbone.layers.4.mixer.in_proj", "layers.4.mixer.in_proj", True),
        (r"re:^model\.layers\.(0|1|2)\.mlp.*", "layers.2.mlp.up_proj", True),
        (r"re:^model\.layers\.(0|1|2)\.mlp.*", "layers.3.mlp.up_proj", False),
        (r"re:.*layers\.\d+\.mlp\.gate$", "layers.33.mlp.gate", True),
        (r"re:.*layers\.\d+\.mlp\.gate$", "layers.33.mlp.gate_proj", False),
        (r"re:.*layers\.[0-9]+\.self_attn\.(q_a|kv_a)_proj.*", "layers.9.self_attn.kv_a_proj_with_mqa", True),
        (r"re:.*\.experts\..+", "layers.9.mlp.experts", False),
        (r"re:layers?\.9.+proj", "layers.9.mlp.up_proj", True),
    ],
)
def test_names_of_modules(pattern, module, meets):
    assert ModulePatterns([pattern]).match(module) is meets


@pytest.mark.parametrize(
    "pattern",
    [
        "re:(a+)+$",
        "re:(a|b)*",
        "re:(?!x)y",
        "re:a{3}",
        "re:(",
        "re:[^a]",
        "re:a)",
        r"re:\w+",
        "re:" + "(a|aa)?" * 100,
        "re:" + "a" * 3000,
        "b" * 300,
    ],
)
def test_names_that_are_refused(pattern):
    with pytest.raises(InputError, match=r"not understood|longer than"):
        ModulePatterns([pattern])


def test_hostile_patterns_are_matched_in_bounded_time():
    """Without care, either of these runs for longer than the universe has been there."""
    patterns = ModulePatterns(["re:" + ".*a" * 300, "*a" * 90, "re:" + ".*(a|aa)" * 200 + "c"])
    assert not patterns.match("a" * 80 + "b")


def stored_elements(model):
    """What the hub counts: packed 4-bit weights and their scales by the byte, the rest by the element."""
    layers = [pair for group in (*model.layers, *model.mtp_layers) for pair in layer_matmuls(group)]
    ends = 2 * [(1, model.embedding), (1, model.lm_head)]  # the MTP layer brings copies
    return sum(
        times * (matmul.weight_bytes if matmul.format.name == "nvfp4" else matmul.parameters)
        for times, matmul in (*layers, *ends)
    )


def test_some_matrices_of_attention_are_quantised():
    """NVFP4 of DeepSeek-V3.1 and R1 leaves all of attention but the output in 16 bits.

    The hub counts 393.6 billion elements in nvidia/DeepSeek-R1-0528-NVFP4-v2, of the same recipe.
    """
    model = load_model("deepseek-v3.1-nvfp4")
    formats = {matmul.name: matmul.format.name for matmul in model.layers[0].attention.matmuls}
    assert formats == {"qkv_a": "bf16", "q_b": "bf16", "kv_b": "bf16", "o": "nvfp4"}
    assert stored_elements(model) / 1e9 == pytest.approx(393.6, abs=0.05)
    assert model.kv_dtype == "fp8"


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("kimi-k2.5", 594.2),  # 60 x 384 x 3 x 7,168 x 2,048 elements of 4.5 bits, 11.7 billion of 16
        ("deepseek-v4-flash", 155.6),  # experts of 4.25 bits
        ("qwen3-235b-a22b-nvfp4", 134.1),
    ],
)
def test_bytes_of_whole_checkpoints(name, gigabytes):
    assert load_model(name).weight_bytes() / 1e9 == pytest.approx(gigabytes, rel=1e-3)


FP8 = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "model.layers.4.eh_proj"]}


def test_layers_the_model_does_not_have_are_refused():
    """A side-car of a deeper model; layer 4 of 4 is the first prediction layer."""
    assert quantization(FP8, num_hidden_layers=4, num_nextn_predict_layers=1).quantized == "fp8"
    side_car = {"quant_algo": "FP8", "exclude_modules": ["model.layers.3.mlp", "model.layers.79.self_attn*"]}
    for config, beside, named in ((FP8, None, 4), (None, side_car, 79), ({"quant_method": "fp8"}, side_car, 79)):
        with pytest.raises(InputError, match=f"names layer {named}, and the model has 4 ") as caught:
            quantization(config, beside, num_hidden_layers=4)
        assert caught.value.file == ("config.json" if beside is None else "hf_quant_config.json")


def llama(**options):
    text = (CONFIGS / "meta-llama__Meta-Llama-3.1-8B.json").read_text(encoding="utf-8")
    return import_config({**json.loads(text), **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"intermediate_size": 10_944}, "groups of 128 do not divide the 10,944 inputs of down (int4)"),
        ({"hidden_size": 4_160, "head_dim": 128}, "groups of 128 do not divide the 4,160 inputs of gate_up (int4)"),
    ],
)
def test_groups_that_do_not_divide_the_rows_are_refused(options, words):
    """DeepSeek-V2-Lite has 10,944: its AWQ checkpoints take groups of 64."""
    with pytest.raises(InputError) as caught:
        llama(**options, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    assert words in str(caught.value)


def test_groups_count_only_where_a_matrix_is_quantised():
    left_out = {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["mlp"]}
    assert llama(intermediate_size=10_944, quantization_config=left_out).weight_bytes() > 0
    assert llama(
        intermediate_size=10_944, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 64}
    ).weight_bytes()


@pytest.mark.parametrize("side_car", [[], "x"])
def test_import_config_refuses_a_side_car_that_is_none(side_car):
    text = (CONFIGS / "meta-llama__Meta-Llama-3.1-8B.json").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="quantization: is missing or no table"):
        import_config(json.loads(text), side_car=side_car)
