"""``concurrency``: the simulated grid, agreement of its ways, limits, policies, errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.tail_runs import barrier_table, cap_table, collect, routing_table
from capplan.cards.workload import Workload
from capplan.cards.workload_card import load_workload
from capplan.errors import InputError, UnknownNameError
from capplan.formulas.length_laws import Exponential, LogNormal, Pareto
from capplan.quantities.chain import Chain
from capplan.serving.stationary import ROUTINGS, Stationary, concurrency
from tests.reference.tail_laws import grid_workload

EXPONENTIAL = Workload(1000, Exponential(1001))
STEP = (0.012, 1.2e-4, 0.0)
RATE = 0.6 / (EXPONENTIAL.mean_decode_steps * 1.2e-4)


def off(ratios: list[float], share: float) -> float:
    """That percentile of |ratio - 1|."""
    return float(np.quantile(np.abs(np.array(ratios) - 1), share))


@pytest.mark.simulation
@pytest.mark.parametrize("method", ["closed", "exact"])
def test_percentiles_on_the_simulated_poisson_grid(method: str) -> None:
    found = collect("open_poisson", method)
    for name in ("step P99", "TPOT P99", "ITL P99", "TPOT P50", "TPOT mean", "batch mean"):
        assert off(found["10 and more"][name], 0.5) < 0.004, name
        assert off(found["10 and more"][name], 0.95) < 0.02, name
        assert off(found["2 to 10"][name], 0.95) < 0.05, name
    assert off(found["10 and more"]["batch P99"], 0.95) < 0.03


@pytest.mark.simulation
def test_percentiles_on_the_simulated_bursty_grid() -> None:
    found = collect("open_bursty", "closed")["10 and more"]
    assert off(found["TPOT P99"], 0.5) < 0.006
    assert off(found["TPOT P99"], 0.95) < 0.02
    assert off(found["step P99"], 0.95) < 0.03


@pytest.mark.simulation
def test_cap_on_the_simulated_grid() -> None:
    for arrivals, limit in (("poisson", 0.15), ("h2", 0.2)):
        found = cap_table()[arrivals]
        assert off(found["P(wait)"], 0.95) < limit
        assert off(found["TPOT mean"], 0.95) < 0.02
        assert off(found["TPOT P99"], 0.5) < 0.015
        assert off(found["TPOT P99"], 0.95) < 0.04
        assert off(found["wait mean"], 0.5) < 0.12


@pytest.mark.simulation
def test_routing_and_barrier_on_the_simulated_grid() -> None:
    for name, ratios in routing_table().items():
        assert off(ratios["TPOT P99"], 0.5) < 0.025, name
        assert off(ratios["step P99"], 0.95) < 0.07, name
    for name, ratios in barrier_table().items():
        assert off(ratios["step mean"], 0.95) < 0.045, name


# Simulated over 12 M requests: P99 of the step time, TPOT P50 and P99, in ms.
@pytest.mark.parametrize(
    ("row", "step", "half", "tail"),
    [
        (("exp", "fixed", 100, 0.0, 0.6), 36.05, 30.25, 35.82),
        (("exp", "fixed", 100, 0.85, 0.6), 36.30, 30.16, 36.13),
        (("prod", "prod", 100, 0.85, 0.7), 55.66, 40.50, 55.31),
        (("prod", "fixed", 50, 0.5, 0.8), 84.08, 60.01, 83.97),
    ],
)
@pytest.mark.parametrize("method", ["closed", "exact"])
def test_percentiles_against_measured_vectors(
    row: tuple[str, str, float, float, float], step: float, half: float, tail: float, method: str
) -> None:
    steps, prompt, ratio, share, load = row
    workload = grid_workload(steps, prompt)
    b = 0.012 / ratio
    c = share * b / workload.mean_context
    rate = load / (workload.mean_decode_steps * b)
    state = concurrency(workload, rate, (0.012, b - c * workload.mean_context, c), method=method)
    assert 1e3 * state.step_quantile(0.99) == pytest.approx(step, rel=0.018)
    # The mean batch of the last run is itself 1.7 % below the exact mean.
    assert 1e3 * state.tpot_quantile(0.5) == pytest.approx(half, rel=0.018)
    assert 1e3 * state.tpot_quantile(0.99) == pytest.approx(tail, rel=0.018)


def figures(state: Stationary) -> list[float]:
    names = ("step_mean", "mean", "std", "load", "itl_mean", "tpot_mean", "shape_index", "relaxation_seconds")
    quantiles = [law(p) for law in (state.step_quantile, state.itl_quantile, state.tpot_quantile) for p in (0.5, 0.99)]
    return [getattr(state, name) for name in names] + quantiles + [state.quantile(0.99)]


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_three_ways_agree_without_context_cost(load: float) -> None:
    rate = load / (EXPONENTIAL.mean_decode_steps * STEP[1])
    expected = figures(concurrency(EXPONENTIAL, rate, STEP))
    table = STEP[0] + STEP[1] * np.arange(500)
    for step_time in (lambda n: STEP[0] + STEP[1] * n, table, lambda n: STEP[0] + STEP[1] * float(n)):
        assert figures(concurrency(EXPONENTIAL, rate, step_time)) == pytest.approx(expected, rel=1e-6)
    assert figures(concurrency(EXPONENTIAL, rate, STEP, method="exact")) == pytest.approx(expected, rel=0.01)


def test_line_that_touches_a_mixture_of_experts() -> None:
    def step_time(n: Any) -> Any:
        return 0.010 + 0.02 * (1 - (1 - 8 / 256) ** n) + 5e-5 * n

    whole = concurrency(EXPONENTIAL, 4.0, step_time)
    n = whole.moments.batch_mean
    slope = (step_time(n + 1) - step_time(n - 1)) / 2
    line = concurrency(EXPONENTIAL, 4.0, (step_time(n) - slope * n, slope, 0.0))
    assert whole.tpot_quantile(0.99) == pytest.approx(line.tpot_quantile(0.99), rel=0.01)
    assert whole.mean == pytest.approx(line.mean, rel=0.01)
    assert whole.std == pytest.approx(line.std, rel=0.02)


def test_littles_law() -> None:
    workload = Workload(LogNormal(1000, 1), LogNormal(801, 1))
    state = concurrency(workload, 4.0, (0.01, 2e-5, 2e-8))
    assert state.mean == pytest.approx(4.0 * workload.mean_decode_steps * state.itl_mean, rel=1e-9)
    assert state.step_mean == pytest.approx(0.01 / (1 - state.load), rel=1e-12)


def test_percentiles_rise_with_load_and_with_bursts() -> None:
    tails = [concurrency(EXPONENTIAL, RATE * share, STEP).tpot_quantile(0.99) for share in (0.2, 0.6, 1.0, 1.5)]
    assert tails == sorted(tails)
    bursty = [concurrency(EXPONENTIAL, RATE, STEP, dispersion=i).tpot_quantile(0.99) for i in (0.5, 1.0, 4.0, 16.0)]
    assert bursty == sorted(bursty)


def test_quantiles_take_arrays_and_rise() -> None:
    state = concurrency(EXPONENTIAL, RATE, (0.012, 6e-5, 4e-8), cap=250)
    p = np.array([0.05, 0.5, 0.9, 0.99, 0.999])
    for law in (state.step_quantile, state.itl_quantile, state.tpot_quantile, state.e2e_quantile, state.quantile):
        many = law(p)
        assert (np.diff(many) >= 0).all()
        assert many == pytest.approx([law(float(one)) for one in p], rel=3e-3)


def test_shares_within_invert_the_quantiles() -> None:
    state = concurrency(EXPONENTIAL, RATE, (0.012, 6e-5, 4e-8))
    for p in (0.1, 0.5, 0.99, 0.999):
        assert state.tpot_share_within(state.tpot_quantile(p)) == pytest.approx(p, abs=1e-5)
        assert state.itl_share_within(state.itl_quantile(p)) == pytest.approx(p, abs=1e-9)


def test_a_cap_makes_requests_wait() -> None:
    free = concurrency(EXPONENTIAL, RATE, STEP)
    tight = concurrency(EXPONENTIAL, RATE, STEP, cap=170)
    wide = concurrency(EXPONENTIAL, RATE, STEP, cap=100_000)
    assert 0.05 < tight.wait_probability < 0.5
    assert tight.quantile(0.99) == 170
    assert tight.mean < free.mean
    assert tight.tpot_quantile(0.99) < free.tpot_quantile(0.99)
    assert tight.e2e_quantile(0.99) > free.e2e_quantile(0.99)
    assert tight.step_mean == free.step_mean
    assert wide.wait_quantile(0.9999) == 0.0
    assert wide.e2e_quantile(0.99) == pytest.approx(free.e2e_quantile(0.99), rel=1e-6)


@pytest.mark.parametrize("rate", [0.1, 1.0, 1.6, 2.0, 2.2, 3.0, 40.0])
@pytest.mark.parametrize("dispersion", [1.0, 16.0])
@pytest.mark.parametrize("method", ["closed", "exact"])
def test_no_percentile_exceeds_a_full_batch(rate: float, dispersion: float, method: str) -> None:
    """The largest step there is takes a + e cap."""
    a, e, cap = 0.012, 1.5e-4, 40
    state = concurrency(EXPONENTIAL, rate, (a, e, 0.0), cap, dispersion, method=method)
    most = a + e * cap
    for p in (0.5, 0.9, 0.99, 0.9999, 1 - 1e-9):
        for law in (state.step_quantile, state.itl_quantile, state.tpot_quantile):
            assert a <= law(p) <= most
            assert law(np.array([0.5, p]))[1] <= most
    for mean in (state.step_mean, state.step_mean_over_time, state.itl_mean, state.tpot_mean):
        assert a <= mean <= most
    assert state.mean <= cap
    assert state.tpot_share_within(most) == state.itl_share_within(most) == 1.0
    if rate > 1.7:
        assert state.step_quantile(0.99) == state.itl_quantile(0.99) == pytest.approx(most)


def test_contexts_spread_the_step_time_of_a_full_batch() -> None:
    workload = load_workload("reasoning-r1-production")
    step, cap = (0.012, 3e-5, 3e-9), 100
    b = step[1] + step[2] * workload.mean_context
    rate = 0.97 * cap / (workload.mean_decode_steps * (step[0] + b * cap))
    state, held = concurrency(workload, rate, step, cap), concurrency(workload, 2 * rate, step, cap)
    assert held.step_mean == pytest.approx(step[0] + b * cap)
    assert held.step_std == pytest.approx(step[2] * workload.context_std * math.sqrt(cap))
    for name in ("step_quantile", "itl_quantile", "tpot_quantile"):
        for p in (0.5, 0.99, 0.9999):
            assert getattr(state, name)(p) <= getattr(held, name)(p) * (1 + 1e-9)
    assert held.step_quantile(0.99) > held.step_mean + 2.4 * held.step_std
    free = concurrency(workload, rate, step)
    assert state.e2e_quantile(0.5) > 0.0
    assert state.tpot_quantile(0.9999) < free.tpot_quantile(0.9999)


def test_a_cap_on_steps_that_cost_the_same_is_erlang_c() -> None:
    offered, cap, blocked = 36.0, 40, 1.0
    for servers in range(1, cap + 1):
        blocked = offered * blocked / (servers + offered * blocked)
    expected = blocked / (1 - offered / cap * (1 - blocked))
    rate = offered / (EXPONENTIAL.mean_decode_steps * 0.012)
    for step_time in ((0.012, 0.0, 0.0), lambda n: 0.012 + 0.0 * n):
        state = concurrency(EXPONENTIAL, rate, step_time, cap)
        assert state.wait_probability == pytest.approx(expected, rel=1e-3)
        assert state.quantile(0.9999) == cap
        assert state.tpot_quantile(0.99) == pytest.approx(0.012)


def test_a_full_batch_bounds_any_step_time() -> None:
    def step_time(n: Any) -> Any:
        return 0.010 + 0.02 * (1 - (1 - 8 / 256) ** n) + 5e-5 * n

    for rate in (1.0, 1.4, 2.5, 4.0):
        state = concurrency(EXPONENTIAL, rate, step_time, cap=40)
        for law in (state.step_quantile, state.itl_quantile, state.tpot_quantile):
            assert law(0.999) <= step_time(40) * (1 + 1e-12)


def test_more_than_the_rank_can_do_is_an_answer() -> None:
    state = concurrency(EXPONENTIAL, 20.0, STEP)
    assert not state.stable
    assert state.load == pytest.approx(2.4, rel=1e-3)
    for value in (state.mean, state.step_mean, state.quantile(0.5), state.tpot_quantile(0.99), state.e2e_quantile(0.5)):
        assert value == math.inf
    assert "1 or more" in state.warnings[0]
    held = concurrency(EXPONENTIAL, 20.0, STEP, cap=100)
    assert not held.stable
    assert held.mean == pytest.approx(100)
    assert held.step_mean == pytest.approx(0.024)
    assert held.tpot_quantile(0.99) == pytest.approx(0.024, rel=1e-6)
    assert held.wait_quantile(0.5) == math.inf
    beyond = concurrency(EXPONENTIAL, 20.0, lambda n: 0.012 + 1.2e-4 * n, cap=100)
    assert beyond.tpot_quantile(0.99) == pytest.approx(0.024, rel=1e-6)


def test_warnings_say_where_the_laws_end() -> None:
    assert concurrency(EXPONENTIAL, RATE, STEP).warnings == ()
    assert "above 0.9" in concurrency(EXPONENTIAL, RATE * 1.55, STEP).warnings[0]
    heavy = Workload(LogNormal(1000, 6), 1001)
    few = concurrency(heavy, 0.5, (0.012, 1e-4, 1e-6)).warnings
    assert any("shape index" in warning for warning in few)
    assert any("nearly fixed" in warning for warning in few)


def test_one_instance_is_the_same_behind_any_router() -> None:
    means = {r: concurrency(EXPONENTIAL, RATE, STEP, routing=r).tpot_quantile(0.99) for r in ("random", "round-robin")}
    assert means["random"] == means["round-robin"]
    many = [
        concurrency(EXPONENTIAL, RATE, STEP, dispersion=3.0, routing=r, instances=8).tpot_quantile(0.99)
        for r in ("random", "round-robin", "least-loaded")
    ]
    assert many == sorted(many, reverse=True)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("dispersion", [1.0, 16.0])
def test_batch_and_step_time_agree_where_only_the_batch_costs(routing: str, dispersion: float) -> None:
    """With c = 0, T = a + e N whatever splits the stream, bursts included."""
    a, e, _ = STEP
    state = concurrency(EXPONENTIAL, RATE, STEP, dispersion=dispersion, routing=routing, instances=64)
    assert state.step_std / e == pytest.approx(math.sqrt(state.moments.batch_variance), rel=1e-9)
    assert state.step_mean_over_time == pytest.approx(a + e * state.mean, rel=1e-9)
    for p in (0.5, 0.9, 0.99):
        assert state.step_quantile(p) == pytest.approx(a + e * state.quantile(p), abs=1.1 * e)


@pytest.mark.simulation
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("context_seconds", [1e-9, 1e-7])
def test_tokens_of_all_requests_take_what_a_token_takes(routing: str, context_seconds: float) -> None:
    """Conservation: TPOT over requests, each weighed by its tokens, is ITL, whatever a router does."""
    workload = Workload(input=LogNormal(800, 1.0, max=8192), output=LogNormal(400, 1.0, max=8192))
    step = (0.01, 1.5e-4 - 1e3 * context_seconds, context_seconds)
    rate = 0.6 / (399 * (step[1] + step[2] * workload.mean_context))
    state = concurrency(workload, rate, step, routing=routing, instances=8)
    nodes = workload.decode_nodes(240)
    tpot = state._tpot_on(nodes)
    tokens = tpot.weights * nodes.steps[nodes.steps > 0]
    assert tokens @ tpot.mean / tokens.sum() == pytest.approx(state.itl_mean, rel=0.002)


def test_batch_behind_a_router_on_the_simulated_grid() -> None:
    for name, ratios in routing_table().items():
        assert off(ratios["batch std"], 0.5) < 0.10, name
        assert off(ratios["batch std"], 0.95) < 0.16, name


def test_least_kv_leaves_the_batch_uneven_where_contexts_differ() -> None:
    workload = load_workload("reasoning-r1-production")
    step = (0.012, 3e-5, 0.85 * 2e-4 / workload.mean_context)
    rate = 0.5 / (workload.mean_decode_steps * 2e-4)
    one = concurrency(workload, rate, step)
    many = concurrency(workload, rate, step, routing="least-kv", instances=64)
    assert 0.8 < many.std / one.std < math.sqrt(3.0)
    assert many.step_std < 0.7 * one.step_std


def test_chain_names_and_overrides_the_quantities() -> None:
    chain = Chain(record=True)
    plain = concurrency(EXPONENTIAL, RATE, STEP, cap=200, chain=chain)
    assert chain.links["step_mean_seconds"].value == plain.step_mean
    assert chain.links["decode_load"].source == "capplan.formulas.stationary.decode_load"
    assert {"heavy_load_factor", "step_variance", "slot_load", "peakedness"} <= set(chain.links)
    changed = Chain({"step_variance": 1e-4})
    assert concurrency(EXPONENTIAL, RATE, STEP, chain=changed).step_std == pytest.approx(1e-2)
    assert changed.used_overrides == {"step_variance"}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"request_rate": 0}, "request_rate"),
        ({"request_rate": float("nan")}, "request_rate"),
        ({"request_rate": "5"}, "request_rate"),
        ({"step_time": (1, 2)}, "step_time"),
        ({"step_time": "fast"}, "step_time"),
        ({"step_time": (0, 1e-4, 0)}, "step_time"),
        ({"step_time": (0.01, -1e-4, 0)}, "step_time"),
        ({"step_time": np.array([0.01, 0.0])}, "step_time"),
        ({"cap": 0}, "cap"),
        ({"cap": 2.5}, "cap"),
        ({"dispersion": 0}, "dispersion"),
        ({"routing": "fair"}, "routing"),
        ({"method": "guess"}, "method"),
        ({"instances": 0}, "instances"),
        ({"workload": 3}, "workload"),
        ({"workload": Workload(100, 1)}, "workload.output"),
        ({"workload": Workload(100, Pareto(10, 1.5))}, "workload"),
    ],
)
def test_bad_input_names_the_field(change: dict[str, Any], key: str) -> None:
    given: dict[str, Any] = {"workload": EXPONENTIAL, "request_rate": 1.0, "step_time": STEP} | change
    with pytest.raises(InputError) as caught:
        concurrency(**given)
    assert caught.value.key == key


@pytest.mark.parametrize("p", [0, 1, -0.1, "0.5", float("nan")])
def test_a_probability_must_lie_between_zero_and_one(p: Any) -> None:
    with pytest.raises(InputError):
        concurrency(EXPONENTIAL, RATE, STEP).tpot_quantile(p)


def test_unknown_override_is_an_error() -> None:
    with pytest.raises(UnknownNameError):
        Chain({"step_variants": 1.0})


def test_truth_rows_say_where_they_come_from() -> None:
    rows = json.loads((Path(__file__).parents[1] / "truth/tail_rows.json").read_text(encoding="utf-8"))
    assert "simulations" in rows["source"]


@pytest.mark.parametrize("name", ["reasoning-r1-production", "chat-azure-2023", "long-prompt-mooncake-synthetic"])
def test_few_nodes_are_enough(name: str) -> None:
    workload = load_workload(name)
    rate = 0.7 / (workload.mean_decode_steps * (2e-5 + 3e-9 * workload.mean_context))
    state = concurrency(workload, rate, (0.012, 2e-5, 3e-9))
    fine = state._tpot_on(workload.decode_nodes(1500))
    assert state.tpot_quantile(0.99) == pytest.approx(fine.quantile(0.99), rel=1e-4)
    assert state.tpot_mean == pytest.approx(fine.total_mean, rel=1e-4)


def test_percentiles_by_output_length() -> None:
    workload = Workload(1000, LogNormal(1001, 1.0, max=32_768))
    state = concurrency(workload, 0.6 / (1000 * 1.2e-4), (0.012, 6e-5, 4e-8))
    short, long = (2.0, 200.0), (8000.0, 32_768.0)
    assert state.tpot_quantile(0.99, short) > state.tpot_quantile(0.99, long)  # long requests average the step time
    assert state.tpot_quantile(0.99, (2.0, 1e9)) == pytest.approx(state.tpot_quantile(0.99), rel=2e-3)
    assert state.e2e_quantile(0.99, short) < state.e2e_quantile(0.5) < state.e2e_quantile(0.01, long)
    assert state.tpot_quantile(np.array([0.5, 0.9]), short).shape == (2,)
    with pytest.raises(InputError, match="no request has"):
        state.tpot_quantile(0.5, (1e7, 1e8))


@pytest.mark.parametrize("kind", ["law", "classes", "sample"])
def test_percentiles_of_a_range_are_those_of_its_lengths(kind: str) -> None:
    """A step that costs the same whatever it holds: decode time over the step is D, cut at both ends."""
    law = LogNormal(200, 1.2, max=4000)
    drawn = np.maximum(np.round(law.sample(2_000_000, np.random.default_rng(2))), 1.0)
    if kind == "sample":
        workload = Workload(joint=(np.full(len(drawn), 100.0), drawn))
    else:
        workload = Workload(100, law) if kind == "law" else Workload(classes=[(0.5, 100, law), (0.5, 300, law)])
    state = concurrency(workload, 1.0, (0.01, 0.0, 0.0))
    for outputs in ((1000, 4000), (2000, 4000), (2, 20), (300, 600), (100, 100), (4000, 4000)):
        inside = drawn[(drawn >= outputs[0]) & (drawn <= outputs[1])] - 1.0
        for p in (0.1, 0.5, 0.9, 0.99):
            true = np.quantile(inside, p, method="inverted_cdf")
            assert state.e2e_quantile(p, outputs) / 0.01 == pytest.approx(true, rel=0.01, abs=0.6), (outputs, p)


def test_short_requests_suffer_most_behind_a_cap() -> None:
    tight = concurrency(EXPONENTIAL, RATE, STEP, cap=160)
    assert tight.slowdown(10.0) > tight.slowdown(1000.0) > 1.0
    assert concurrency(EXPONENTIAL, RATE, STEP).slowdown(10.0) == 1.0
    assert math.isinf(concurrency(EXPONENTIAL, RATE, STEP, cap=20).slowdown(10.0))
    with pytest.raises(InputError, match="two output tokens"):
        tight.slowdown(1.0)


def warned(workload: Workload, rate: float, step: tuple[float, float, float], **options: Any) -> str:
    return " ".join(concurrency(workload, rate, step, **options).warnings)


def test_every_range_is_warned_of() -> None:
    assert warned(EXPONENTIAL, RATE, STEP) == ""
    assert "above 0.9" in warned(EXPONENTIAL, RATE * 1.55, STEP)
    assert "1 or more" in warned(EXPONENTIAL, RATE * 1.7, STEP)
    assert "nearly fixed" in warned(Workload(1000, 1001), RATE, STEP)
    few = (0.012, 1.2e-3, 0.0)
    assert "between 2 and 10: P99 of step time and TPOT within 3 %" in warned(EXPONENTIAL, RATE / 10, few)
    assert "within 17 % (bursts)" in warned(EXPONENTIAL, RATE / 10, few, dispersion=2.0)
    assert "below 2" in warned(EXPONENTIAL, RATE / 100, (0.012, 1.2e-2, 0.0))


def test_a_horizon_beyond_a_sixth_of_the_record_is_warned_of() -> None:
    horizon = concurrency(EXPONENTIAL, RATE, STEP).dispersion_horizon_seconds
    assert "sixth" in warned(EXPONENTIAL, RATE, STEP, dispersion=4.0, dispersion_window=5 * horizon)
    assert "sixth" not in warned(EXPONENTIAL, RATE, STEP, dispersion=4.0, dispersion_window=7 * horizon)
    assert "sixth" not in warned(EXPONENTIAL, RATE, STEP, dispersion_window=5 * horizon)  # Poisson needs no record
    with pytest.raises(InputError, match="dispersion_window"):
        concurrency(EXPONENTIAL, RATE, STEP, dispersion_window=0.0)


def test_a_flat_arrival_spectrum_is_an_index_of_dispersion() -> None:
    for routing, instances in (("random", 4), ("round-robin", 4), ("least-loaded", 4), ("random", 1)):
        options: dict[str, Any] = {"routing": routing, "instances": instances, "method": "exact"}
        index = concurrency(EXPONENTIAL, RATE, STEP, dispersion=6.0, **options)
        flat = concurrency(EXPONENTIAL, RATE, STEP, dispersion=6.0, arrival_spectrum=lambda w: 6.0 + 0.0 * w, **options)
        assert flat.step_std == pytest.approx(index.step_std, rel=1e-9)
        assert flat.tpot_quantile(0.99) == pytest.approx(index.tpot_quantile(0.99), rel=1e-9)


def test_slow_bursts_count_and_fast_ones_do_not() -> None:
    """A stream whose rate switches, at two correlation times around the relaxation time of the batch."""
    tau = concurrency(EXPONENTIAL, RATE, STEP).relaxation_seconds

    def deviation(time: float) -> float:
        return concurrency(
            EXPONENTIAL, RATE, STEP, method="exact", arrival_spectrum=lambda w: 1 + 5.0 / (1 + (w * time) ** 2)
        ).step_std

    calm = concurrency(EXPONENTIAL, RATE, STEP, method="exact").step_std
    assert calm < deviation(100 * tau) < deviation(tau / 100)  # the same index at 0: slow bursts are spread thin
    assert "within 17 % (bursts)" in warned(
        EXPONENTIAL, RATE / 10, (0.012, 1.2e-3, 0.0), method="exact", arrival_spectrum=lambda w: 2.0 + 0.0 * w
    )


@pytest.mark.parametrize("options", [{"method": "closed"}, {"method": "exact", "arrival_spectrum": 3.0}])
def test_an_arrival_spectrum_needs_the_exact_method_and_a_function(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="arrival_spectrum"):
        concurrency(EXPONENTIAL, RATE, STEP, **{"arrival_spectrum": lambda w: w, **options})
