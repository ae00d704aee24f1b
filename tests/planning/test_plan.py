"""The main job: pools that meet their targets, and the properties every plan must have."""

import json
import math
from pathlib import Path

import pytest

from capplan.errors import InputError
from capplan.planning.deploy import all_checks, reload, view_of
from capplan.planning.plan import plan
from capplan.planning.problem import resolve
from capplan.planning.scenario import load_scenario

EXAMPLE = Path(__file__).parents[2] / "examples" / "reasoning-r1-h800.toml"
SMALL = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100"},
    "workload": {
        "input": {"law": "lognormal", "mean": "1k", "cv": 1.0, "max": "16k"},
        "output": {"law": "lognormal", "mean": "1k", "cv": 1.0, "max": "16k"},
        "rate": "10/s",
    },
    "slo": {"tpot_p99": "30ms", "ttft_p99": "2s"},
}


@pytest.fixture(scope="module")
def example():
    return plan(EXAMPLE)


def test_r1_on_h800(example):
    # The decode pool needs expert parallelism across nodes: 689 GB of fp8 weights with MTP layers do not fit 8 x 80 GB.
    assert example.feasible
    assert 40 <= example.gpus_total <= 64
    prefill, decode = example.pools
    assert decode.layout["ep"] > 8
    assert prefill.layout["tp"] > 1
    assert example.binding.name in ("tpot_p99", "kv_overflow")
    assert decode.kv_overflow_probability <= 0.001


def test_a_plan_meets_its_own_targets_when_evaluated_again(example):
    again = reload(example.problem, example.outcome.pools, example.problem.sizing_rate)
    checks = all_checks(example.problem, again)
    assert {"tpot_p99", "ttft_p99", "kv_overflow"} <= {check.name for check in checks}
    assert all(check.met for check in checks)


def test_percentiles_rise_and_e2e_holds_its_parts(example):
    values = example.to_dict()
    for name in ("ttft", "tpot", "itl", "step", "answer", "e2e"):
        row = [values[f"{name}_{p}_seconds"] for p in ("p50", "p90", "p99", "p999")]
        assert row == sorted(row)
        assert row[0] > 0
    for p in ("p50", "p90", "p99"):
        assert values[f"ttft_{p}_seconds"] < values[f"answer_{p}_seconds"] < values[f"e2e_{p}_seconds"]
    # P99s are neither added nor multiplied: E2E P99 stays below the sum of the parts' P99s.
    longest = example.problem.workload.output.quantile(0.99)
    assert values["e2e_p99_seconds"] < values["ttft_p99_seconds"] + longest * values["tpot_p99_seconds"]
    assert 0.98 < values["attainment"] <= 1


def test_time_to_answer_follows_the_law_of_reasoning_tokens(example):
    view, workload = example.view, example.problem.workload
    beyond = [view.percentile("answer", p) - view.percentile("ttft", p) for p in (0.5, 0.99)]
    steps = [workload.reasoning.quantile(p) for p in (0.5, 0.99)]
    for seconds, tokens in zip(beyond, steps, strict=True):
        assert seconds == pytest.approx(tokens * view.percentile("tpot", 0.5), rel=0.03)


def test_pools_add_up(example):
    data = example.to_dict()
    assert data["gpus_total"] == sum(pool["gpus"] for pool in data["pools"])
    assert data["cost_per_hour"] == pytest.approx(2.0 * data["gpus_total"])
    for pool in data["pools"]:
        layout = pool["layout"]
        assert pool["gpus"] == pool["instances"] * layout["tp"] * layout["pp"] * layout["dp"]
        for link in pool["links"].values():
            assert link["bytes_per_second"] == pytest.approx(sum(link["causes"].values()))
            assert 0 < link["utilization"] < 1
    json.dumps(data, allow_nan=False, default=float)


def test_assumptions_are_listed(example):
    text = " ".join(example.assumptions)
    assert "engine vLLM" in text
    assert "independent" in text


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_raising_the_rate_never_lowers_the_gpus(mode):
    sizes = [plan(SMALL, mode=mode, rate=f"{rate}/s").gpus_total for rate in (2, 5, 9, 14, 25, 40, 80)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


def test_longer_outputs_never_need_fewer_decode_gpus():
    def decode_gpus(factor):
        base = resolve(load_scenario(SMALL, mode="disaggregated", tp=1))
        from capplan.planning.search import decode_search

        longer = base.with_workload(base.workload.scaled_output(factor))
        return decode_search(longer, 1024, longer.sizing_rate).best.gpus

    sizes = [decode_gpus(factor) for factor in (0.5, 1, 1.5, 2.5, 4, 8)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


def test_a_looser_target_never_needs_more():
    sizes = [plan(SMALL, mode="disaggregated", tpot_p99=f"{ms}ms").gpus_total for ms in (15, 20, 30, 60)]
    assert sizes == sorted(sizes, reverse=True)


def test_auto_is_the_cheaper_mode():
    both = {mode: plan(SMALL, mode=mode).gpus_total for mode in ("aggregated", "disaggregated", "auto")}
    assert both["auto"] == min(both["aggregated"], both["disaggregated"])


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_bursts_need_no_fewer_gpus_and_lengthen_the_tail(mode):
    calm, bursty = (plan(SMALL, mode=mode, dispersion=d, rate="40/s") for d in (1, 30))
    assert bursty.gpus_total >= calm.gpus_total
    # On the same pools bursts lengthen both tails.
    pools, rate = calm.outcome.pools, calm.problem.rate
    for name in ("ttft", "tpot"):
        before, after = (view_of(p.problem, reload(p.problem, pools, rate)) for p in (calm, bursty))
        assert after.percentile(name, 0.99) > before.percentile(name, 0.99)


def test_a_cap_that_binds_makes_requests_wait():
    free, capped = (plan(SMALL, mode="disaggregated", tp=1, max_num_seqs=cap) for cap in (None, 40))
    assert capped.gpus_total >= free.gpus_total
    assert capped.pools[1].max_num_seqs_per_rank == 40
    assert 0 < capped.view.stationary.wait_probability < 1
    wait = capped.view.stationary.wait_quantile(0.999)
    assert capped.view.percentile("ttft", 0.999) > capped.view.prefilled.quantile(0.5) + wait


def test_prefix_hits_shorten_prefill_but_not_the_context():
    cold, warm = (plan(SMALL, mode=mode, prefix_hit=hit) for mode, hit in (("aggregated", 0), ("aggregated", 0.5)))
    assert warm.view.percentile("ttft", 0.9) < cold.view.percentile("ttft", 0.9)
    # A request holds as many tokens, whether its prefix was computed or found.
    held = [answer.pools[0].kv_use_mean / answer.pools[0].batch_mean for answer in (cold, warm)]
    assert held[1] == pytest.approx(held[0], rel=0.01)


def test_requests_longer_than_the_model_takes_are_warned_of():
    long = {**SMALL, "workload": {"input": "200k", "output": 100, "rate": "0.05/s"}, "slo": {}}
    assert any("the model takes 131,072" in line for line in plan(long).warnings)
    assert not any("the model takes" in line for line in plan(SMALL).warnings)


def test_an_override_changes_the_answer_and_is_named():
    base = plan(SMALL, mode="aggregated", tp=1)
    tight = plan(SMALL, mode="aggregated", tp=1, **{"override.kv_pool_gib": 6})
    assert tight.gpus_total > base.gpus_total
    assert tight.pools[0].kv_capacity_tokens_per_rank == pytest.approx(6 * 2**30 / 131_072, rel=1e-3)
    assert any("kv_pool_gib" in line for line in tight.assumptions)
    slow = plan(SMALL, mode="disaggregated", **{"override.attention_stream_bandwidth": "1TB/s"})
    assert slow.pools[1].instances > plan(SMALL, mode="disaggregated").pools[1].instances


def test_infeasible_latency_names_the_nearest_target():
    answer = plan(SMALL, tpot_p99="1ms", mode="disaggregated")
    assert not answer.feasible
    nearest = answer.nearest["tpot_p99"]
    assert nearest > 0.001
    # The nearest target is feasible when it is asked for.
    assert plan(SMALL, tpot_p99=f"{nearest * 1.001}s", mode="disaggregated", max_gpus=1024).feasible


def test_too_few_gpus_is_infeasible_and_says_why():
    answer = plan(EXAMPLE, max_gpus=24)
    assert not answer.feasible
    assert answer.nearest
    assert "infeasible with 24 GPUs" in answer.to_text()


def test_a_model_that_does_not_fit_says_what_is_missing():
    answer = plan(EXAMPLE, max_gpus=8)
    assert not answer.feasible
    assert answer.outcome.missed[0].name == "memory_missing_bytes"
    assert answer.outcome.missed[0].value > 2**30
    assert plan(EXAMPLE, max_gpus=int(answer.nearest["max_gpus"])).feasible


def test_ttft_that_no_replica_can_fix_is_not_fixed_by_replicas():
    # One prompt alone takes longer than the target: more instances do not help, and the plan says so.
    answer = plan(SMALL, ttft_p99="20ms", mode="disaggregated")
    assert not answer.feasible
    assert answer.nearest["ttft_p99"] > 0.02


def test_closed_loop_sizes_for_the_rate_it_causes():
    changed = {**SMALL, "workload": {**SMALL["workload"], "concurrency": 200}}
    del changed["workload"]["rate"]
    answer = plan(changed, mode="aggregated")
    assert answer.feasible
    in_flight = answer.problem.rate * answer.view.e2e.mean
    assert in_flight == pytest.approx(200, rel=0.1)


def test_thinking_budget_shortens_the_tail():
    free, cut = plan(EXAMPLE), plan(EXAMPLE, thinking_budget="4k")
    assert cut.view.percentile("e2e", 0.99) < free.view.percentile("e2e", 0.99)
    assert cut.gpus_total <= free.gpus_total


def test_fixed_layouts_are_kept():
    answer = plan(
        EXAMPLE, **{"serving.decode_layout": {"tp": 4, "dp": 8}, "serving.prefill_layout": {"tp": 8, "dp": 2}}
    )
    prefill, decode = answer.pools
    assert (prefill.layout["tp"], prefill.layout["dp"]) == (8, 2)
    assert (decode.layout["tp"], decode.layout["dp"]) == (4, 8)


def test_margins_lie_beyond_the_plan(example):
    margins = example.margins
    assert margins.rate.factor >= 1 / (1 - 0.1) * 0.99
    assert margins.output.factor > 1
    beyond = reload(example.problem, example.outcome.pools, example.problem.rate * margins.rate.factor * 1.03)
    assert beyond is None or not all(check.met for check in all_checks(example.problem, beyond))


def test_unknown_names_stop_with_one_line():
    for changes in ({"model": "llama-9"}, {"gpu": "h1000"}, {"engine": "vlm"}, {"workload": "chatt"}):
        with pytest.raises(InputError) as caught:
            plan(SMALL, **changes)
        assert "\n" not in str(caught.value)


def test_numbers_are_finite(example):
    def walk(value):
        if isinstance(value, dict):
            for item in value.values():
                walk(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                walk(item)
        elif isinstance(value, float):
            assert math.isfinite(value)

    walk(example.to_dict())


def test_an_override_reaches_prefill_and_transfer_or_is_refused():
    base = plan(SMALL, mode="disaggregated", ttft_p99="60s")
    slow = plan(SMALL, mode="disaggregated", ttft_p99="60s", **{"override.kv_transfer_seconds": "5s"})
    assert slow.view.percentile("ttft", 0.5) == pytest.approx(base.view.percentile("ttft", 0.5) + 5, abs=0.1)
    slower = plan(SMALL, mode="disaggregated", ttft_p99="60s", **{"override.context_attention_flops": "1TFLOP/s"})
    assert slower.view.percentile("ttft", 0.99) > 2 * base.view.percentile("ttft", 0.99)
    for name in ("dispatch_bandwidth", "mem_fraction_static", "aggregated_max_rate"):
        with pytest.raises(InputError, match=name):
            plan(SMALL, mode="disaggregated", **{f"override.{name}": 0.5})


def test_a_step_time_that_was_measured_replaces_ours():
    answer = plan(SMALL, mode="disaggregated", tp=1, **{"override.step_seconds": "12ms"})
    assert answer.view.percentile("tpot", 0.5) == pytest.approx(0.012, rel=0.02)


def test_chunks_read_earlier_kv_again():
    whole = plan(SMALL, mode="disaggregated", max_num_batched_tokens="32k")
    chunked = plan(SMALL, mode="disaggregated", max_num_batched_tokens="512")
    assert chunked.view.percentile("ttft", 0.99) > whole.view.percentile("ttft", 0.99)


def test_a_prefill_pool_holds_its_longest_prompts():
    long = {
        "model": "llama-3.1-70b",
        "hardware": {"gpu": "h100", "max_gpus": 128},
        "workload": {"card": "long-prompt-mooncake-synthetic", "rate": "1/s"},
        "slo": {"tpot_p99": "100ms", "ttft_p99": "60s"},
    }
    prefill = plan(long, mode="disaggregated").pools[0]
    assert prefill.kv_capacity_tokens_per_rank > 100_000


def test_a_binding_cap_is_paid_with_more_ranks():
    chat = {
        "model": "llama-3.1-70b",
        "hardware": {"gpu": "h100", "max_gpus": 64},
        "workload": {"card": "chat-azure-2023", "rate": "8/s"},
        "slo": {"tpot_p99": "40ms", "ttft_p99": "1.5s"},
    }
    assert plan(chat, mode="disaggregated", max_num_seqs=40).feasible


@pytest.mark.parametrize("changes", [{"tpot_p99": "2ms"}, {"max_gpus": 1, "rate": "60/s"}, {"ttft_p99": "30ms"}])
def test_every_nearest_answer_is_feasible_when_asked(changes):
    answer = plan(SMALL, **changes)
    assert not answer.feasible
    nearest = dict(answer.nearest)
    alone = {key: nearest.pop(key) for key in ("max_gpus", "rate") if key in nearest}
    units = {"max_gpus": int, "rate": lambda rate: f"{rate}/s"}
    for key, value in alone.items():
        assert plan(SMALL, **{**changes, key: units[key](value)}).feasible, key
    if nearest:
        targets = {
            key: value if key in ("kv_overflow", "attainment") else f"{value}s" for key, value in nearest.items()
        }
        assert plan(SMALL, **{**changes, **targets}).feasible
    assert alone or nearest


def test_a_closed_loop_on_few_gpus_slows_down_instead_of_failing():
    changed = {**SMALL, "workload": {**SMALL["workload"], "concurrency": 500}, "slo": {"tpot_p99": "5s"}}
    del changed["workload"]["rate"]
    answer = plan(changed, mode="aggregated", max_gpus=4)
    assert answer.feasible
    assert answer.problem.rate * answer.view.e2e.mean == pytest.approx(500, rel=0.05)


def test_outputs_of_one_token_are_refused():
    with pytest.raises(InputError, match="nothing decodes"):
        plan(EXAMPLE, thinking_budget=1)


def test_layout_of_one_pool_has_no_part_in_aggregated_mode():
    with pytest.raises(InputError, match="prefill_layout"):
        plan(SMALL, mode="aggregated", **{"serving.prefill_layout": {"tp": 2}})
    assert plan(SMALL, mode="auto", **{"serving.prefill_layout": {"tp": 2}}).pools[0].layout["tp"] == 2


def test_a_closed_loop_that_cannot_be_held_is_infeasible():
    loop = {
        "model": "qwen3-32b",
        "hardware": {"gpu": "h100"},
        "workload": {"card": "fixed-1k-1k", "concurrency": 200},
        "slo": {"tpot_p99": "15ms"},
    }
    few, enough = plan(loop, max_gpus=4), plan(loop)
    assert not few.feasible
    assert enough.feasible
    assert enough.problem.rate * enough.view.e2e.mean == pytest.approx(200, rel=0.03)
    assert few.nearest["max_gpus"] >= enough.gpus_total


def test_a_pool_too_small_for_its_requests_is_an_answer():
    answer = plan(SMALL, mode="disaggregated", **{"override.kv_capacity_tokens": 1000})
    assert not answer.feasible
    assert "longest request" in answer.to_text()


def test_skew_needs_experts():
    with pytest.raises(InputError, match="skew"):
        plan(SMALL, skew=3.0)


def test_an_override_that_moves_nothing_is_refused():
    for name in ("kv_utilization", "kv_batch", "held_mean_tokens"):
        with pytest.raises(InputError, match=name):
            plan(SMALL, mode="disaggregated", **{f"override.{name}": 0.5})


@pytest.mark.parametrize(
    ("engine", "flags"),
    [("vllm", "--tensor-parallel-size 2"), ("sglang", "--tp-size 2"), ("tensorrt-llm", "--tp_size 2")],
)
def test_flags_give_every_engine_its_gpus(engine, flags):
    answer = plan(SMALL, mode="aggregated", engine=engine, layout={"tp": 2})
    assert flags in answer.pools[0].engine_flags
