"""A step with prompts and decode tokens: between a decode step and a decode step with a prefill after it."""

import pytest

from capplan import Layout, decode_step, load_hardware, load_model, prefill
from capplan.serving.evaluation import Batch, evaluate_step
from capplan.serving.mixed import mixed_parts, mixed_seconds
from capplan.serving.prepared import prepare
from capplan.serving.work import Work

PLACES = {
    "dense": ("llama-3.1-8b", "h100", Layout()),
    "tensor parallel": ("qwen3-32b", "h100", Layout(tp=4)),
    "stages": ("llama-3.1-70b", "h100", Layout(tp=4, pp=2)),
    "mixture": ("qwen3-30b-a3b", "h200", Layout(tp=2)),
    "mixture, ranks": ("qwen3-30b-a3b", "h200", Layout(tp=2, dp=2)),
    "latents": ("deepseek-r1", "h200", Layout(tp=8)),
    "latents, ranks": ("deepseek-r1", "h200", Layout(dp=8, ep=8)),
    "chosen latents": ("glm-5-fp8", "b200", Layout(tp=8)),
    "recurrent": ("qwen3.5-397b-a17b", "b200", Layout(tp=8, ep=8)),
}
EXCHANGE = ("dispatch_seconds", "combine_seconds")


def place_of(name):
    model, gpu, layout = PLACES[name]
    return load_model(model), load_hardware(gpu), layout


def batch_of(layout, rank, context):
    return Batch(float(rank), float(rank * layout.dp), float(context), 0, None, 1.0, overlap=False)


def prompt_on_every_rank(layout, tokens):
    return Work(1.0, float(tokens), 0.0, float(tokens * layout.dp), 1.0, 1.0, prefill=True)


@pytest.mark.parametrize("name", PLACES)
def test_it_costs_no_less_than_decode_and_no_more_than_both_apart(name):
    model, hardware, layout = place_of(name)
    prepared = prepare(model, hardware, layout, None, None, "vllm", None)
    for rank, context, tokens in [(r, c, t) for r in (1, 16, 256) for c in (512, 8192) for t in (1, 128, 1024, 8192)]:
        batch = batch_of(layout, rank, context)
        decode = evaluate_step(prepared, batch, None)
        alone = prefill(model, hardware, layout, tokens, prompts=layout.dp, engine="vllm")
        parts = mixed_parts(prepared.plan, batch, prompt_on_every_rank(layout, tokens))
        assert sum(parts.values()) > decode.seconds
        assert parts.keys() == decode.parts.keys() | alone.parts.keys()
        assert sum(parts.values()) < decode.seconds + alone.seconds


@pytest.mark.parametrize("name", PLACES)
def test_it_grows_with_the_prompt(name):
    model, hardware, layout = place_of(name)
    plan = prepare(model, hardware, layout, None, None, "vllm", None).plan
    batch = batch_of(layout, 16, 2048)
    seconds = [mixed_seconds(plan, batch, prompt_on_every_rank(layout, 4**power)) for power in range(8)]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    ("name", "excess"), [("dense", 0.05), ("tensor parallel", 0.08), ("mixture", 0.11), ("latents", 0.11),
                         ("mixture, ranks", 0.09), ("latents, ranks", 0.06)],
)  # fmt: skip
def test_a_prompt_of_one_token_is_nearly_one_sequence_more(name, excess):
    """What is left are attention kernels of its own, and for latents the products that expand them; between ranks it
    takes the way of prompts to the experts."""
    model, hardware, layout = place_of(name)
    prepared = prepare(model, hardware, layout, None, None, "vllm", None)
    for rank in (1, 16, 64, 256):
        parts = mixed_parts(prepared.plan, batch_of(layout, rank, 512), prompt_on_every_rank(layout, 1))
        more = decode_step(model, hardware, layout, (rank + 1) * layout.dp, 512 * rank / (rank + 1), engine="vllm")
        own = {"attention_seconds", "engine_gap_seconds", *EXCHANGE, *(["linear_seconds"] if "latents" in name else [])}
        shared = parts.keys() - own
        assert {part: parts[part] for part in shared} == pytest.approx({part: more.parts[part] for part in shared})
        assert 0 < sum(parts.values()) / more.seconds - 1 < excess
