"""Layers that read a part of their cache, in a step and a prefill."""

from dataclasses import replace

import pytest

from capplan import Layout, decode_step, load_hardware, load_model, prefill
from capplan.cards.kv import kv_bytes
from capplan.serving.kernel_plan import build_plan
from capplan.serving.links import kv_read_bytes, kv_written_bytes
from capplan.serving.sparse_plan import core_pairs
from capplan.serving.work import Work

H200 = load_hardware("h200")
SPARSE = ("deepseek-v3.2", "glm-5.2", "minimax-m3", "deepseek-v4-pro")


def work(sequences, new, cached, prefilled=False):
    return Work(sequences, new, cached, sequences * new, sequences, 1.0, prefill=prefilled)


def plan_of(model):
    return build_plan(model, model.layers, H200, Layout(), None, None)


def dense(model):
    """The same model, every layer reading all of its cache."""
    layers = tuple(
        replace(group, attention=replace(group.attention, indexer=None, selected_tokens=0)) for group in model.layers
    )
    return replace(model, layers=layers)


@pytest.mark.parametrize("name", SPARSE[:3])
def test_a_long_context_costs_less_than_all_of_it(name):
    model = load_model(name)
    sparse, full = (decode_step(one, H200, Layout(), 32, 131072) for one in (model, dense(model)))
    names = "attention_seconds", "sparse_attention_seconds", "indexer_seconds"
    core = sum(sparse.parts.get(name, 0.0) for name in names)
    assert core < 0.8 * full.parts["attention_seconds"]
    assert sparse.links["hbm"] < full.links["hbm"]


def test_the_core_stops_growing_where_the_selection_is_full():
    model = load_model("deepseek-v3.2")
    parts = [decode_step(model, H200, Layout(), 32, context).parts for context in (1024, 2048, 65536)]
    cores = [part["sparse_attention_seconds"] for part in parts]
    assert cores[0] < cores[1] == cores[2]
    assert parts[1]["indexer_seconds"] < parts[2]["indexer_seconds"]


def test_only_layers_with_an_indexer_of_their_own_pay_for_one():
    """GLM-5.2 chooses in 21 of its 78 layers, GLM-5 in all 78."""
    shared, own = (
        decode_step(load_model(name), H200, Layout(), 32, 65536).parts["indexer_seconds"]
        for name in ("glm-5.2", "glm-5")
    )
    assert shared == pytest.approx(own * 21 / 78)


@pytest.mark.parametrize("name", SPARSE)
def test_a_pass_writes_the_cache_it_leaves_behind(name):
    model = load_model(name)
    written = kv_written_bytes(plan_of(model), work(3.0, 128.0, 0.0, True))
    assert written == pytest.approx(3 * kv_bytes(model, 128), rel=1e-9)


def test_cache_read_by_hand():
    """DeepSeek-V3.2, bf16: 61 layers of 2,048 latents of 576 elements and an index key of 128 of every token."""
    read = kv_read_bytes(plan_of(load_model("deepseek-v3.2")), work(2.0, 1.0, 10_000.0))
    assert read == 2 * 61 * (2048 * 576 * 2 + 10_000 * 128 * 2)


def test_entries_of_compressed_attention_by_hand():
    """A window of 128 tokens, and 1,024 of the entries of 4 tokens each, or all of the entries of 128."""
    chosen, whole = (next(one for one in plan_of(load_model("deepseek-v4-pro")).sparse if one.tokens_per_entry == r)
                     for r in (4, 128))  # fmt: skip
    assert core_pairs(chosen, work(1.0, 1.0, 2048.0)) == 128 + 512
    assert core_pairs(chosen, work(1.0, 1.0, 65536.0)) == 128 + 1024
    assert core_pairs(whole, work(1.0, 1.0, 65536.0)) == 128 + 512
    first = core_pairs(whole, work(1.0, 2.0, 0.0, True))
    assert first == pytest.approx(1 + 2 + 3 / 128)


def test_verifying_drafts_scores_for_every_query():
    model = load_model("deepseek-v3.2")
    one, four = (decode_step(model, H200, Layout(), 64, 32768, mtp=drafts, acceptance=None) for drafts in (0, 3))
    assert four.parts["sparse_attention_seconds"] > 2 * one.parts["sparse_attention_seconds"]


def test_a_prompt_without_images_skips_cross_attention():
    """Llama-3.2-11B-Vision is Llama-3.1-8B with 8 layers more, which text does not pass."""
    vision, text = load_model("llama-3.2-11b-vision"), load_model("llama-3.1-8b")
    for run in (
        lambda model: decode_step(model, H200, Layout(), 8, 4096),
        lambda model: prefill(model, H200, Layout(), 512),
    ):
        assert run(vision).seconds == pytest.approx(run(text).seconds, rel=0.01)


def test_a_layer_without_a_cache_reads_as_much_and_writes_nothing():
    model = load_model("llama-3.1-8b")
    half = tuple(
        replace(group, count=16, attention=replace(group.attention, stores_kv=stores))
        for group in model.layers
        for stores in (True, False)
    )
    shared = replace(model, layers=half)
    own, borrowed = (decode_step(one, H200, Layout(), 32, 8192) for one in (model, shared))
    assert borrowed.seconds == pytest.approx(own.seconds, rel=1e-9)
    assert own.links["hbm"] - borrowed.links["hbm"] == pytest.approx(32 * 16 * 4096)
