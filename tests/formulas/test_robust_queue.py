"""The dispersion that counts for a queue: limits, monotony, and a simulated production hour."""

import csv
import gzip
import heapq
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.formulas.queueing_numeric import mgk_queue
from capplan.formulas.robust_queue import queue_dispersion

HOUR = Path(__file__).parents[1] / "truth" / "traces" / "servegen_deepseek-r1_synth_1h.csv.gz"
WINDOWS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 200.0, 300.0, 442.0)


@given(index=st.floats(1, 500), service=st.floats(10, 100), scv=st.floats(0, 20), load=st.floats(0.3, 0.9))
def test_one_index_at_all_scales_is_that_index(index, service, scv, load):
    """Pollaczek and Khinchine, as long as the queue drains within the windows."""
    reach = 2 * load * service * (index + scv) / (1 - load) ** 2
    found = queue_dispersion((1e-3 * service, reach), (index, index), service, scv, load)
    assert found == pytest.approx(index, rel=0.01)


@given(
    curve=st.lists(st.floats(1, 300), min_size=4, max_size=4), service=st.floats(0.01, 10), scv=st.floats(0, 20),
    load=st.floats(0.05, 0.9), place=st.integers(0, 3),
)  # fmt: skip
def test_it_lies_on_the_curve_and_grows_with_it(curve, service, scv, load, place):
    windows = (1.0, 10.0, 60.0, 300.0)
    found = queue_dispersion(windows, curve, service, scv, load)
    more = [value + 10 * (at == place) for at, value in enumerate(curve)]
    assert 1 <= found <= max(curve)
    assert queue_dispersion(windows, more, service, scv, load) >= found - 1e-9


def simulated_waits(times, services, servers):
    """First come, first served, one server after the other."""
    free, waits = [0.0] * servers, []
    for time, service in zip(times, services, strict=True):
        start = max(time, heapq.heappop(free))
        waits.append(start - time)
        heapq.heappush(free, start + service)
    return np.array(waits)


@pytest.mark.parametrize(("queues", "servers"), [(1, 1), (1, 8), (4, 1)])
def test_a_production_hour(queues, servers):
    with gzip.open(HOUR, "rt", encoding="utf-8") as text:
        rows = [(float(row["arrival_s"]), float(row["input_tokens"])) for row in csv.DictReader(text)]
    times, prompts = np.array(rows)[np.random.default_rng(1).integers(0, queues, len(rows)) == 0].T
    rate = len(times) / (times[-1] - times[0])
    counts = [np.histogram(times, np.arange(times[0], times[-1], window))[0] for window in WINDOWS]
    curve = [count.var(ddof=1) / count.mean() for count in counts]
    for load in (0.2, 0.4, 0.6):
        services = 0.02 + 3e-5 * prompts
        services *= load * servers / rate / services.mean()
        waits = simulated_waits(times, services, servers)
        scv = services.var() / services.mean() ** 2
        index = queue_dispersion(WINDOWS, curve, services.mean() / servers, scv, load)
        nodes = np.quantile(services, np.linspace(0.0025, 0.9975, 200))
        queue = mgk_queue(rate, nodes, np.full(200, 1 / 200), servers, index)
        seconds, shares = queue.wait_atoms()
        order = np.argsort(seconds)
        p99 = seconds[order][np.searchsorted(np.cumsum(shares[order]) / shares.sum(), 0.99)]
        assert p99 == pytest.approx(np.quantile(waits, 0.99), rel=0.4, abs=0.5 * services.mean())
        assert index < 0.05 * curve[-1]
