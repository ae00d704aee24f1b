"""Decode steps: properties that must hold whatever the constants, options, and what bad input gets."""

import pickle
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.cards.engine_card import load_engine
from capplan.cards.hardware_card import load_hardware
from capplan.cards.kv import kv_bytes_per_rank
from capplan.cards.model_card import load_model
from capplan.errors import InputError
from capplan.quantities.chain import Chain
from capplan.quantities.registry import all_quantities
from capplan.serving.layout import Layout
from capplan.serving.links import kv_read_bytes
from capplan.serving.prefill import prefill
from capplan.serving.prepared import prepare
from capplan.serving.step import decode_step
from capplan.serving.work import Work

H200, H100, H800 = load_hardware("h200"), load_hardware("h100"), load_hardware("h800")
LLAMA, DEEPSEEK, OSS = load_model("llama-3.1-8b"), load_model("deepseek-v3"), load_model("gpt-oss-120b")

CASES = [
    (LLAMA, H200, Layout()),
    (LLAMA, H100, Layout(tp=4)),
    (LLAMA, H100, Layout(tp=16)),
    (LLAMA, H200, Layout(tp=2, pp=4)),
    (OSS, H200, Layout(tp=2)),
    (DEEPSEEK, H200, Layout(tp=8)),
    (DEEPSEEK, H200, Layout(tp=8, dcp=4)),
    (DEEPSEEK, H200, Layout(dp=8)),
    (DEEPSEEK, H800, Layout(dp=144, redundant_experts=32)),
    (DEEPSEEK, H800, Layout(tp=4, dp=8)),
]
IDS = [f"{model.name} {layout}" for model, _, layout in CASES]


@pytest.mark.parametrize(("model", "hardware", "layout"), CASES, ids=IDS)
def test_seconds_are_the_sum_of_registered_parts(model, hardware, layout):
    for overlap in (False, True):
        step = decode_step(model, hardware, layout, 256, 4096, overlap=overlap, engine="vllm")
        assert step.seconds == pytest.approx(sum(step.parts.values()), rel=1e-12)
        assert step.parts.keys() <= all_quantities().keys()
        assert all(seconds >= 0 for seconds in step.parts.values())


@pytest.mark.parametrize(("model", "hardware", "layout"), CASES, ids=IDS)
def test_arrays_give_what_numbers_give(model, hardware, layout):
    batch, context = np.array([[1, 64], [300, 4096]]), np.array([128.0, 9000.0])
    together = decode_step(model, hardware, layout, batch, context, mtp=1, overlap=True)
    assert together.seconds.shape == together.limit.shape == (2, 2)
    for (i, j), n in np.ndenumerate(batch):
        alone = decode_step(model, hardware, layout, int(n), float(context[j]), mtp=1, overlap=True)
        assert together.seconds[i, j] == pytest.approx(alone.seconds, rel=1e-12)
        assert together.limit[i, j] == alone.limit
        for link, moved in alone.links.items():
            assert np.broadcast_to(together.links[link], (2, 2))[i, j] == pytest.approx(moved, rel=1e-12)


def test_large_arrays_are_sliced_without_a_trace():
    batch = np.linspace(1, 500, 20_000).reshape(2, -1)
    step = decode_step(LLAMA, H200, Layout(), batch, 4096)
    assert step.seconds.shape == step.parts["linear_seconds"].shape == batch.shape
    assert step.seconds[1, -1] == pytest.approx(decode_step(LLAMA, H200, Layout(), 500, 4096).seconds, rel=1e-12)


@pytest.mark.parametrize(("model", "hardware", "layout"), CASES, ids=IDS)
@pytest.mark.parametrize("overlap", [False, True])
def test_more_batch_or_context_never_speeds_a_step(model, hardware, layout, overlap):
    batches, contexts = np.unique(np.geomspace(1, 20_000, 200).astype(int)), np.geomspace(1, 2e5, 100)
    by_batch = decode_step(model, hardware, layout, batches, 2000, overlap=overlap).seconds
    by_context = decode_step(model, hardware, layout, 512, contexts, overlap=overlap).seconds
    assert (np.diff(by_batch) >= -1e-15).all()
    assert (np.diff(by_context) >= -1e-15).all()


FASTER = [
    constant.name
    for constant in fields(type(H200.kernels))
    if "bandwidth" in constant.name or "_flops" in constant.name or constant.name == "sustained_share"
]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(FASTER),
    case=st.sampled_from(CASES),
    batch=st.integers(1, 5000),
    context=st.integers(0, 100_000),
    overlap=st.booleans(),
)
def test_faster_hardware_never_slows_a_step(name, case, batch, context, overlap):
    model, hardware, layout = case
    better = replace(hardware, kernels=replace(hardware.kernels, **{name: 1.3 * getattr(hardware.kernels, name)}))
    before = decode_step(model, hardware, layout, batch, context, overlap=overlap).seconds
    assert decode_step(model, better, layout, batch, context, overlap=overlap).seconds <= before * (1 + 1e-12)


@pytest.mark.parametrize(("model", "hardware", "layout"), CASES, ids=IDS)
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8"])
def test_cache_read_by_a_step_is_the_cache_held(model, hardware, layout, kv_dtype):
    """Bytes of the step and bytes of the KV formula are one number; the layers of all stages pass one GPU a step."""
    plan = prepare(model, hardware, layout, None, kv_dtype, None, None).plan
    read = kv_read_bytes(plan, Work(5.0, 1, 3000.0, 5.0, 5.0, 1.0, prefill=False))
    held = kv_bytes_per_rank(model, 3000, kv_dtype, tp=layout.tp, pp=layout.pp, dcp=layout.dcp)
    assert read == pytest.approx(5 * held * layout.pp, rel=1e-12)


def test_weights_of_a_step_are_the_weights_of_the_card():
    """One sequence without context reads the model once, the input embedding not among it."""
    step = decode_step(LLAMA, H200, Layout(), 1, 0)
    read = LLAMA.weight_bytes() - LLAMA.embedding.weight_bytes
    assert step.links["hbm"] == pytest.approx(read, rel=0.002)
    assert step.links["nvlink"] == step.links["nic"] == step.links["pcie"] == 0


def test_links_of_expert_parallelism_by_hand():
    """128 tokens a GPU, 8 copies, 120 of 128 GPUs in other nodes; 1 B an element there, 2 B back; 58 layers."""
    step = decode_step(DEEPSEEK, H800, Layout(dp=128), 16384, 4096)
    even = 58 * 128 * 8 * 7168 * 3 * 120 / 128
    assert even < step.links["nic"] < 1.1 * even
    assert step.links["nvlink"] == pytest.approx(step.links["nic"] * 7 / 120)


def test_all_reduce_bytes_by_hand():
    step = decode_step(LLAMA, H200, Layout(tp=4), 32, 4096)
    reduced = 64 * 2 * 3 / 4 * 32 * 4096 * 2
    gathered = 32 * 128256 * 2 * 3 / 4
    assert step.links["nvlink"] == pytest.approx(reduced + gathered)
    spans = decode_step(LLAMA, H100, Layout(tp=16), 32, 4096)
    assert spans.links["nic"] > 0
    assert spans.seconds > decode_step(LLAMA, H100, Layout(tp=8), 32, 4096).seconds


def test_limit_names_what_takes_most_of_the_time():
    assert decode_step(LLAMA, H200, Layout(), 64, 8192).limit == "hbm"
    assert decode_step(DEEPSEEK, H800, Layout(dp=128), 16384, 4096).limit == "network"
    assert decode_step(DEEPSEEK, H800, Layout(dp=128), 16384, 4096, overlap=True).limit == "compute"
    assert decode_step(load_model("qwen3-4b"), H200, Layout(tp=8), 1, 128).limit in ("latency", "network")


def test_overlap_hides_communication_behind_the_other_micro_batch():
    plain = decode_step(DEEPSEEK, H800, Layout(dp=128), 16384, 4096)
    overlapped = decode_step(DEEPSEEK, H800, Layout(dp=128), 16384, 4096, overlap=True)
    assert overlapped.seconds < plain.seconds
    assert overlapped.parts["experts_seconds"] > plain.parts["experts_seconds"]
    alone = decode_step(LLAMA, H200, Layout(), 64, 8192, overlap=True)
    assert alone.seconds == decode_step(LLAMA, H200, Layout(), 64, 8192).seconds


@pytest.mark.parametrize(("layout", "batch"), [(Layout(tp=8), 1), (Layout(dp=8), 8), (Layout(dp=8), 3)])
def test_a_sequence_is_not_split_into_micro_batches(layout, batch):
    whole, split = (decode_step(DEEPSEEK, H200, layout, batch, 4096, overlap=overlap) for overlap in (False, True))
    assert split.seconds == pytest.approx(whole.seconds, rel=1e-12)
    assert split.links == pytest.approx(whole.links)


def test_shares_add_up_with_long_contexts_and_lone_sequences():
    """A lone long sequence walks over its cache on few multiprocessors: that excess is latency."""
    for model, layout in ((LLAMA, Layout()), (DEEPSEEK, Layout(tp=8)), (load_model("deepseek-v3.2"), Layout(tp=8))):
        for batch, context in ((1, 130_000), (64, 100)):
            step = decode_step(model, H200, layout, batch, context, engine="vllm")
            assert sum(step.shares.values()) == pytest.approx(step.seconds, rel=1e-9)
        read = prefill(model, H200, layout, 32768, engine="vllm")
        assert sum(read.shares.values()) == pytest.approx(read.seconds, rel=1e-9)


def test_layers_without_a_feed_forward_carry_their_share_of_the_small_kernels():
    """Nemotron-H alternates mixers and feed-forwards, each a layer of its own; Llama has both in a layer."""
    nano = load_model("nemotron-3-nano")
    parts = decode_step(nano, H200, Layout(), 1, 1024, engine="vllm").parts
    mixers = sum(g.count for g in nano.layers if g.attention is not None or g.recurrence is not None)
    rest = sum(g.count for g in nano.layers if g.feed_forward is not None)
    vllm = load_engine("vllm")
    beyond = vllm.layer_overhead_seconds - 5 * H200.kernels.elementwise_floor_seconds
    expected = vllm.step_gap_seconds + vllm.sequence_overhead_seconds + (0.6 * mixers + 0.4 * rest) * beyond
    assert parts["engine_gap_seconds"] == pytest.approx(expected)


def test_redundant_experts_and_skew():
    """(256 + 32) / 144 = 2 experts a GPU; an uneven load costs time."""
    base = decode_step(DEEPSEEK, H800, Layout(dp=144, redundant_experts=32), 144 * 128, 4096)
    skewed = decode_step(DEEPSEEK, H800, Layout(dp=144, redundant_experts=32), 144 * 128, 4096, skew=1.5)
    assert skewed.parts["experts_seconds"] > base.parts["experts_seconds"]
    assert skewed.parts["dispatch_seconds"] > base.parts["dispatch_seconds"]
    assert skewed.parts["attention_seconds"] == base.parts["attention_seconds"]


def test_drafts_cost_a_longer_verify_step_and_yield_tokens():
    """One multi-token-prediction draft: 1.8 times the tokens of a request a second in production (2505.09343)."""
    plain = decode_step(DEEPSEEK, H800, Layout(dp=128), 32 * 128, 4096, overlap=True)
    drafted = decode_step(DEEPSEEK, H800, Layout(dp=128), 32 * 128, 4096, overlap=True, mtp=1, acceptance=0.85)
    assert drafted.seconds > plain.seconds
    assert drafted.tokens_per_step == pytest.approx(1.85)
    assert drafted.parts["draft_seconds"] > 0
    served = decode_step(DEEPSEEK, H800, Layout(dp=128), 32 * 128, 4096, overlap=True, mtp=1, engine="vllm")
    assert served.parts["draft_seconds"] > drafted.parts["draft_seconds"] + 1e-5
    gain = drafted.tokens_per_second_per_gpu / plain.tokens_per_second_per_gpu
    assert 1.1 < gain < 1.85
    unknown = decode_step(DEEPSEEK, H800, Layout(dp=128), 4096, 4096, mtp=2)
    assert unknown.tokens is None is unknown.tokens_per_second_per_gpu


def test_engine_adds_its_gaps_and_none_adds_nothing():
    bare = decode_step(LLAMA, H200, Layout(tp=2), 64, 8192)
    assert decode_step(LLAMA, H200, Layout(tp=2), 64, 8192, engine="none").seconds == bare.seconds
    assert decode_step(LLAMA, H200, Layout(tp=2), 64, 8192, engine=load_engine("none")).seconds == bare.seconds
    served = decode_step(LLAMA, H200, Layout(tp=2), 64, 8192, engine="vllm")
    assert served.parts["engine_gap_seconds"] > 0
    assert served.seconds == decode_step(LLAMA, H200, Layout(tp=2), 64, 8192, engine=load_engine("vllm")).seconds


def test_formats_change_bytes_and_time():
    base = decode_step(LLAMA, H200, Layout(), 1, 1024)
    fp8 = decode_step(LLAMA, H200, Layout(), 1, 1024, weight_dtype="fp8")
    assert 0.45 < fp8.seconds / base.seconds < 0.75
    wide, narrow = (decode_step(LLAMA, H200, Layout(), 64, 32768, kv_dtype=kind) for kind in ("bf16", "fp8"))
    assert narrow.links["hbm"] < 0.6 * wide.links["hbm"]
    # An 8-bit cache halves the bytes, not the time.
    assert 0.6 < narrow.seconds / wide.seconds < 0.85


def test_pipeline_stages_keep_the_weights_read_by_each_micro_batch():
    whole, staged = (decode_step(LLAMA, H200, Layout(tp=1, pp=pp), 64, 4096) for pp in (1, 4))
    assert staged.parts["pipeline_seconds"] > 0
    assert staged.parts["attention_seconds"] < whole.parts["attention_seconds"]
    assert staged.parts["linear_seconds"] == pytest.approx(whole.parts["linear_seconds"], rel=0.05)


def test_decode_context_parallelism_reads_less_and_exchanges_more():
    whole, split = (decode_step(DEEPSEEK, H200, Layout(tp=8, dcp=dcp), 64, 65536) for dcp in (1, 8))
    assert split.parts["context_parallel_seconds"] > 0
    assert split.links["nvlink"] > whole.links["nvlink"]
    assert split.links["hbm"] < whole.links["hbm"]
    assert split.parts["attention_seconds"] < whole.parts["attention_seconds"]


def test_answers_can_be_pickled():
    step = decode_step(LLAMA, H200, Layout(), 64, 8192)
    again = pickle.loads(pickle.dumps(step))
    assert (again.seconds, again.limit, again.links) == (step.seconds, step.limit, step.links)


def test_override_of_a_part_and_of_a_constant():
    chain = Chain({"attention_seconds": 5e-3}, record=True)
    step = decode_step(LLAMA, H200, Layout(), 64, 8192, chain=chain)
    assert step.parts["attention_seconds"] == 5e-3
    assert chain.used_overrides == {"attention_seconds"}
    assert chain.links["step_seconds"].value == step.seconds
    assert "H200" in chain.links["gemm_stream_bandwidth"].source
    slow = Chain({"attention_stream_bandwidth": 2e12})
    assert decode_step(LLAMA, H200, Layout(), 64, 8192, chain=slow).seconds > 1.5 * step.seconds
    assert slow.used_overrides == {"attention_stream_bandwidth"}
    assert decode_step(LLAMA, H200, Layout(), 64, 8192, chain=Chain()).seconds == pytest.approx(
        decode_step(LLAMA, H200, Layout(), 64, 8192).seconds
    )


def test_chain_lists_only_constants_in_use():
    dense, mixture = Chain(record=True), Chain(record=True)
    decode_step(LLAMA, H800, Layout(), 64, 8192, chain=dense)
    decode_step(DEEPSEEK, H800, Layout(dp=32), 512, 4096, chain=mixture)
    assert not {"mla_decode_flops", "moe_flops_fp8", "all_reduce_bandwidth", "internode_bandwidth"} & dense.links.keys()
    assert {"mla_decode_flops", "moe_flops_fp8", "dispatch_bandwidth", "internode_bandwidth"} <= mixture.links.keys()
    assert "mla_floor_seconds" in mixture.assumptions()


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": -1}, "batch"),
        ({"batch": float("nan")}, "batch"),
        ({"batch": float("inf")}, "batch"),
        ({"batch": "64"}, "batch"),
        ({"batch": True}, "batch"),
        ({"batch": np.array([1.0, np.nan])}, "batch"),
        ({"context": -1}, "context"),
        ({"context": None}, "context"),
        ({"skew": 0.5}, "skew"),
        ({"mtp": -1}, "mtp"),
        ({"mtp": 1.5}, "mtp"),
        ({"acceptance": 0.8}, "acceptance"),
        ({"mtp": 2, "acceptance": 1.2}, "acceptance"),
        ({"mtp": 2, "acceptance": [0.8]}, "acceptance"),
        ({"kv_dtype": "fp7"}, "kv_dtype"),
        ({"weight_dtype": "bf17"}, "weight_dtype"),
        ({"overlapp": True}, "overlap"),
        ({"engine": "vlm"}, "vllm"),
        ({"engine": 3}, "engine"),
        ({"model": "llama"}, "model"),
        ({"layout": Layout(tp=2, ep=2)}, "layout.ep"),
    ],
)
def test_bad_input_is_one_line_that_names_the_key(changed, key):
    arguments = {"model": LLAMA, "hardware": H200, "layout": Layout(), "batch": 64, "context": 8192, **changed}
    with pytest.raises(InputError, match=key) as refused:
        decode_step(**arguments)
    assert "\n" not in str(refused.value)


def test_a_number_needs_no_numpy():
    code = (
        "import sys; from capplan.serving.step import decode_step; from capplan.serving.layout import Layout;"
        "from capplan.cards.hardware_card import load_hardware; from capplan.cards.model_card import load_model;"
        "decode_step(load_model('llama-3.1-8b'), load_hardware('h200'), Layout(), 64, 8192);"
        "assert not {'numpy', 'sympy', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
