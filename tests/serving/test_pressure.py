import math

import numpy as np
import pytest

from benchmarks.pressure_runs import grid_pairs
from capplan.cards.workload import Workload
from capplan.errors import InputError, UnknownNameError
from capplan.formulas.length_laws import LogNormal, Pareto
from capplan.formulas.overflow import overflow_probability, random_count_demand
from capplan.planning.residents import running_size_moments
from capplan.quantities.chain import Chain
from capplan.serving.pressure import kv_pressure
from capplan.serving.stationary import concurrency

STEP = (0.006, 2e-5, 4e-8, 2.7e-5)
WORKLOAD = Workload(input=500, output=LogNormal(1000, 1.0, max=9049))


def pairs(kind):
    """(predicted, simulated) of every held-out run of a kind."""
    return grid_pairs(kind, "test")


def mean_error(kind, field, truth, relative=False):
    errors = [
        abs(getattr(p, field) / t[truth] - 1 if relative else getattr(p, field) - t[truth]) for p, t in pairs(kind)
    ]
    return float(np.mean(errors))


def test_closed_loop_recompute_and_batch():
    assert len(pairs("closed")) == 81
    assert mean_error("closed", "recompute_per_token", "rho") <= 0.02
    assert mean_error("closed", "batch", "B", relative=True) <= 0.006
    assert mean_error("closed", "utilization", "util") <= 0.006
    assert mean_error("closed", "overflow_probability", "wf") <= 0.015
    assert mean_error("closed", "hit_share", "p1") <= 0.04
    assert mean_error("closed", "step_seconds", "T", relative=True) <= 0.01


def test_rare_preemption_is_not_understated():
    """Far below capacity the skewness of the demand rules; a normal law is 1.3 times too low on these runs."""
    rare = [(p, t) for p, t in pairs("closed") if 0.001 < t["rho"] < 0.06 and p.overflow_probability < 0.1]
    ratio = np.array([math.log(p.recompute_per_token / t["rho"]) for p, t in rare])
    assert len(ratio) >= 6
    assert abs(ratio.mean()) < 0.15
    assert np.abs(ratio).max() < 0.6


def test_open_loop():
    assert len(pairs("open")) >= 18
    assert mean_error("open", "recompute_per_token", "rho") <= 0.04
    assert mean_error("open", "batch", "Bt", relative=True) <= 0.02
    queued = [math.log(p.waiting / t["Q"]) for p, t in pairs("open") if t["Q"] > 0.5]
    assert np.abs(queued).mean() < 0.35


@pytest.mark.parametrize(
    ("kind", "rho", "batch"), [("wm", 0.04, 0.01), ("apc", 0.04, 0.01), ("res", 0.015, 0.02), ("cap", 0.03, 0.01)]
)
def test_policies(kind, rho, batch):
    assert mean_error(kind, "recompute_per_token", "rho") <= rho
    assert mean_error(kind, "batch", "B", relative=True) <= batch
    assert mean_error(kind, "utilization", "util") <= 0.01


def test_swap_moves_instead_of_computing():
    found = pairs("swap")
    assert np.mean([abs(p.swapped_per_token - t["swtok"]) / 2 for p, t in found]) <= 0.05
    assert all(p.recompute_per_token == 0 for p, _ in found)


def test_cap_is_a_smaller_number_in_flight():
    capped = kv_pressure(WORKLOAD, 90_000, concurrency=500, max_num_seqs=62)
    alone = kv_pressure(WORKLOAD, 90_000, concurrency=62)
    assert capped.recompute_per_token == alone.recompute_per_token
    assert capped.batch == alone.batch
    assert capped.waiting == pytest.approx(500 - alone.batch)


def test_no_policy_is_the_plain_law():
    plain = kv_pressure(WORKLOAD, 90_000, concurrency=70)
    almost = kv_pressure(WORKLOAD, 90_000, concurrency=70, watermark=1e-9)
    assert almost.recompute_per_token == pytest.approx(plain.recompute_per_token, rel=1e-6)
    assert almost.batch == pytest.approx(plain.batch, rel=1e-6)


def test_bytes_of_constant_size_are_tokens():
    tokens = kv_pressure(WORKLOAD, 90_000, concurrency=70, block_size=1)
    in_bytes = kv_pressure(WORKLOAD, 90_000 * 70_272, concurrency=70, kv=lambda context: 70_272 * context)
    assert in_bytes.batch == pytest.approx(tokens.batch, rel=0.003)
    assert in_bytes.recompute_per_token == pytest.approx(tokens.recompute_per_token, abs=0.01)
    assert in_bytes.victim_tokens == pytest.approx(tokens.victim_tokens, rel=0.02)
    assert in_bytes.utilization == pytest.approx(tokens.utilization, rel=0.003)


def test_a_window_holds_less_and_a_state_holds_more():
    plain, window, state = (
        kv_pressure(WORKLOAD, 90_000 * 1000, concurrency=70, kv=kv)
        for kv in (lambda c: 1000 * c, lambda c: 1000 * min(c, 1024), lambda c: 1000 * c + 2e6)
    )
    assert window.recompute_per_token < plain.recompute_per_token < 1
    assert window.batch > plain.batch > state.batch
    constant = kv_pressure(WORKLOAD, 60e6, concurrency=70, kv=lambda _: 1e6)
    assert constant.batch == pytest.approx(60, rel=0.02)  # a cache that never grows is never preempted
    assert constant.recompute_per_token < 0.01


def test_joint_lengths():
    """Long prompts with long answers need more KV than the same lengths drawn apart."""
    random = np.random.default_rng(3)
    output = random.lognormal(6.5, 0.9, 20_000)
    together = Workload(joint=(np.round(output), np.round(output)))
    apart = Workload(joint=(np.round(output), random.permutation(np.round(output))))
    joint, independent = (kv_pressure(w, 200_000, concurrency=60) for w in (together, apart))
    assert joint.overflow_probability > 2 * independent.overflow_probability
    assert joint.safe_cap(0.001) < independent.safe_cap(0.001)


def test_safe_cap_keeps_its_promise():
    cap = kv_pressure(WORKLOAD, 90_000, concurrency=10).safe_cap(0.001)
    at_cap, beyond = (kv_pressure(WORKLOAD, 90_000, concurrency=cap + more) for more in (0, 5))
    assert at_cap.overflow_probability <= 0.0015
    assert beyond.overflow_probability > at_cap.overflow_probability


def test_gaps_in_steps_and_seconds():
    steps = kv_pressure(WORKLOAD, 90_000, concurrency=90)
    seconds = kv_pressure(WORKLOAD, 90_000, concurrency=90, step_time=(0.01, 0.0, 0.0))
    assert steps.gap_quantile(0.01) == 1.0
    assert 1.0 < steps.gap_quantile(0.9) < steps.gap_quantile(0.99)
    assert seconds.gap_quantile(0.99) == pytest.approx(0.01 * steps.gap_quantile(0.99))
    longer = kv_pressure(WORKLOAD, 90_000, concurrency=90, step_time=(0.01, 0.0, 0.0, 1e-9))
    assert longer.gap_quantile(0.99) > seconds.gap_quantile(0.99)


def test_open_loop_loads_and_stability():
    calm, near, beyond = (kv_pressure(WORKLOAD, 90_000, request_rate=r, step_time=STEP) for r in (2.0, 4.9, 9.0))
    assert calm.stable
    assert not calm.metastable
    assert calm.recompute_per_token < 1e-6
    assert calm.load_saturated < near.load_saturated < beyond.load_saturated
    assert calm.load_peak <= calm.load_saturated
    assert not beyond.stable
    assert beyond.metastable
    assert math.isinf(beyond.waiting)
    assert any("stays full" in text for text in beyond.warnings)
    assert calm.gap_quantile(0.9) == pytest.approx(calm.step_seconds)


def test_step_time_as_function_array_and_coefficients_agree():
    coefficients = (0.01, 1e-4, 0.0)
    line = kv_pressure(WORKLOAD, 90_000, request_rate=2.5, step_time=coefficients)
    function = kv_pressure(WORKLOAD, 90_000, request_rate=2.5, step_time=lambda n: 0.01 + 1e-4 * n)
    array = kv_pressure(WORKLOAD, 90_000, request_rate=2.5, step_time=0.01 + 1e-4 * np.arange(200))
    for other in (function, array):
        assert other.batch == pytest.approx(line.batch, rel=1e-9)
        assert other.step_seconds == pytest.approx(line.step_seconds, rel=1e-9)


def test_warnings_name_what_is_out_of_range():
    fixed = kv_pressure(Workload(input=1000, output=2000), 100_000, concurrency=60)
    assert any("convoys" in text for text in fixed.warnings)
    small = kv_pressure(WORKLOAD, 15_000, concurrency=60)
    assert any("pool holds" in text for text in small.warnings)
    assert any("half the pool" in text for text in small.warnings)
    assert kv_pressure(WORKLOAD, 90_000, concurrency=60).warnings == ()


def test_chain_records_and_overrides():
    chain = Chain({"recompute_per_token": 0.25}, record=True)
    found = kv_pressure(WORKLOAD, 90_000, concurrency=60, chain=chain)
    assert found.recompute_per_token == 0.25
    assert chain.links["recompute_per_token"].overridden
    assert chain.links["kv_batch"].value == found.batch
    assert chain.links["kv_utilization"].inputs["capacity"] == 90_000


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"concurrency": None}, "concurrency"),
        ({"request_rate": 1.0}, "concurrency"),
        ({"concurrency": math.nan}, "concurrency"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": None, "request_rate": 1.0}, "step_time"),
        ({"concurrency": None, "request_rate": -1.0, "step_time": STEP}, "request_rate"),
        ({"step_time": (0.0, 0.0, 1e-8)}, "step_time"),
        ({"step_time": (0.01, -1e-5, 0.0)}, "step_time"),
        ({"step_time": lambda n: 0 * n}, "step_time"),
        ({"kv_capacity": math.inf}, "kv_capacity"),
        ({"max_num_seqs": 0.5}, "max_num_seqs"),
        ({"watermark": 1.0}, "watermark"),
        ({"watermark": 0.1, "policy": "reserve", "reserve_tokens": 5}, "watermark"),
        ({"policy": "reserve"}, "reserve_tokens"),
        ({"reserve_tokens": 100}, "reserve_tokens"),
        ({"block_size": 0}, "block_size"),
        ({"token_budget": True}, "token_budget"),
        ({"kv": lambda _: math.nan}, "kv"),
        ({"workload": "production"}, "workload"),
        ({"workload": Workload(input=1, output=Pareto(500, 2.0))}, "workload"),
    ],
)
def test_bad_input_is_one_line_with_its_key(arguments, key):
    call = {"workload": WORKLOAD, "kv_capacity": 90_000, "concurrency": 60} | arguments
    with pytest.raises(InputError) as caught:
        kv_pressure(**call)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_unknown_policy_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="recompute"):
        kv_pressure(WORKLOAD, 90_000, concurrency=60, policy="recomput")


def test_a_pool_below_one_request_is_an_answer():
    for arguments in ({"concurrency": 4}, {"request_rate": 1.0, "step_time": STEP}):
        found = kv_pressure(WORKLOAD, 1000, **arguments)
        assert not found.stable
        assert found.batch == 0.0
        assert found.safe_cap(0.001) == 0
        assert "does not fit" in found.warnings[0]


EXTREMES = (
    WORKLOAD,
    Workload(input=0, output=1),
    Workload(input=1000, output=2000),
    Workload(input=100_000, output=LogNormal(50, 0.2)),
    Workload(input=0, output=LogNormal(4000, 4, max=131_072)),
    Workload(input=LogNormal(1269, 5, max=131_072), output=1),
)


@pytest.mark.parametrize("workload", EXTREMES)
@pytest.mark.parametrize("pool", [3000.0, 1e5, 1e8])
@pytest.mark.parametrize(
    "policy", [{}, {"policy": "swap"}, {"watermark": 0.9}, {"policy": "reserve", "reserve_tokens": 1e5}]
)
def test_extremes_stay_meaningful(workload, pool, policy):
    for arguments in ({"concurrency": 1}, {"concurrency": 1e6}, {"request_rate": 5.0, "step_time": STEP}):
        found = kv_pressure(workload, pool, **arguments, **policy)
        numbers = (
            found.batch, found.waiting, found.recompute_per_token, found.preemptions_per_request,
            found.readmission_wait_steps, found.first_wait_steps, found.gap_quantile(0.99), found.swapped_per_token,
        )  # fmt: skip
        assert all(number >= 0 for number in numbers)  # NaN fails too
        assert 0 <= found.hit_share <= 1
        assert 0 <= found.overflow_probability <= 1 + 1e-12
        assert found.batch <= arguments.get("concurrency", math.inf) * (1 + 1e-9)


def test_throughput_and_what_preemption_costs_of_it():
    found = pairs("closed")
    assert np.mean([abs(p.tokens_per_second / t["thr"] - 1) for p, t in found]) <= 0.006
    full = kv_pressure(WORKLOAD, 90_000, concurrency=200, step_time=STEP)
    assert full.recompute_time_share == pytest.approx(STEP[3] * full.recompute_per_token * full.tokens_per_second)
    assert 0.01 < full.recompute_time_share < 0.3
    open_loop = kv_pressure(WORKLOAD, 90_000, request_rate=2.0, step_time=STEP)
    assert open_loop.tokens_per_second == pytest.approx(2.0 * WORKLOAD.output.mean)
    assert kv_pressure(WORKLOAD, 90_000, concurrency=60).tokens_per_second is None


def test_wait_before_the_first_admission():
    """Where more than two wait that have not run yet."""
    queued = [(p, t) for p, t in pairs("closed") if t["Q"] - t["Qp"] > 2]
    assert len(queued) >= 35
    assert np.mean([abs(p.first_wait_steps / t["fadm"] - 1) for p, t in queued]) <= 0.1
    for level, index, limit in ((0.95, 1, 0.2), (0.99, 2, 0.3)):
        errors = [abs(p.first_wait_quantile(level) / p.step_seconds / t["fadm_q"][index] - 1) for p, t in queued]
        assert np.mean(errors) <= limit
    capped = [abs(p.first_wait_quantile(0.95) / p.step_seconds / t["fadm_q"][1] - 1) for p, t in pairs("cap")]
    assert np.mean(capped) <= 0.15


def test_first_wait_in_an_open_loop_is_an_order_of_magnitude():
    queued = [(p, t) for p, t in pairs("open") if t["Q"] > 0.5]
    ratio = [math.log(max(p.first_wait_quantile(0.99) / p.step_seconds, 1) / t["fadm_q"][2]) for p, t in queued]
    assert np.mean(np.abs(ratio)) < 0.6


def test_first_wait_rises_and_vanishes_in_an_ample_pool():
    busy = kv_pressure(WORKLOAD, 90_000, concurrency=90, step_time=STEP)
    levels = [busy.first_wait_quantile(p) for p in (0.01, 0.5, 0.9, 0.99)]
    assert levels == sorted(levels)
    assert kv_pressure(WORKLOAD, 900_000, concurrency=20).first_wait_quantile(0.99) == 0.0
    assert math.isinf(kv_pressure(WORKLOAD, 900, concurrency=20).first_wait_quantile(0.5))
    with pytest.raises(InputError):
        busy.first_wait_quantile(1.0)


@pytest.mark.parametrize(
    ("dispersion", "routing", "instances"),
    [(1, "random", 1), (16, "random", 1), (4, "least-loaded", 8), (4, "least-kv", 3)],
)
def test_overflow_of_bursty_and_balanced_ranks_is_that_of_the_stationary_batch(dispersion, routing, instances):
    """Two ways: the birth-death chain with peakedness, and the negative binomial batch of ``concurrency``."""
    step, rate = (0.012, 6e-5, 4e-8), 1.5
    workload = Workload(input=1000, output=LogNormal(1500, 1.2, max=32_768))
    state = concurrency(workload, rate, step, dispersion=dispersion, routing=routing, instances=instances)
    calm = concurrency(workload, rate, step)
    capacity = 1.7 * state.mean * workload.mean_context
    mean, variance, third = running_size_moments(workload)
    share = state.held_size_share
    demand = random_count_demand(state.mean, state.held_std**2, mean, variance * share, third * share**1.5)
    found = kv_pressure(
        workload, capacity, request_rate=rate, step_time=step, block_size=1,
        peakedness=(state.held_std / calm.std) ** 2, held_size_share=share,
    )  # fmt: skip
    assert found.overflow_probability == pytest.approx(overflow_probability(capacity, *demand), rel=0.5)
    assert found.batch == pytest.approx(state.mean, rel=0.08)


@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0])
def test_no_more_requests_are_hit_than_there_are_preemptions(rate):
    for capacity in (20_000, 60_000, 200_000):
        found = kv_pressure(WORKLOAD, capacity, request_rate=rate, step_time=STEP)
        assert found.preemptions_per_request >= found.hit_share >= 0.0


@pytest.mark.parametrize("given", [{"peakedness": 2.0}, {"held_size_share": 0.5}])
def test_a_closed_loop_has_no_arrivals_to_be_dispersed_or_balanced(given):
    with pytest.raises(InputError, match="concurrency: a closed loop takes no peakedness"):
        kv_pressure(WORKLOAD, 90_000, concurrency=60, **given)


def test_prompts_read_elsewhere_take_no_time_here():
    here = kv_pressure(WORKLOAD, 900_000, concurrency=60, step_time=STEP)
    elsewhere = kv_pressure(WORKLOAD, 900_000, concurrency=60, step_time=STEP, prompts_elsewhere=True)
    prompts = STEP[3] * here.batch * 507.5 / WORKLOAD.output.mean
    assert here.step_seconds - elsewhere.step_seconds == pytest.approx(prompts, rel=0.01)


def test_bytes_of_an_array_are_those_of_its_contexts():
    alone = kv_pressure(WORKLOAD, 60e6, concurrency=60, kv=lambda c: 1000.0 * min(float(c), 1024.0))
    at_once = kv_pressure(WORKLOAD, 60e6, concurrency=60, kv=lambda c: 1000.0 * np.minimum(c, 1024.0))
    assert at_once.batch == pytest.approx(alone.batch, rel=1e-6)
