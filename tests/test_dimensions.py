"""Units are consistent: measured in another unit of time, bytes or tokens, every answer is the same quantity."""

from dataclasses import fields, replace

import pytest

from capplan import Exponential, Layout, Workload, concurrency, decode_step, load_hardware, load_model, prefill
from capplan.cards.hardware import Kernels
from capplan.formulas.queueing_numeric import mgk_queue

K = 8.0


def _in_other_seconds(hardware):
    """The GPU in a unit of time K times shorter: seconds count K times more, rates K times less."""

    def converted(name, value):
        if name.endswith("_seconds"):
            return value * K
        return value / K if "_bandwidth" in name or "_flops" in name else value

    kernels = {f.name: getattr(hardware.kernels, f.name) for f in fields(Kernels)}
    kernels = {name: value if value is None else converted(name, value) for name, value in kernels.items()}
    return replace(
        hardware,
        kernels=replace(hardware.kernels, **kernels),
        hbm_bandwidth=hardware.hbm_bandwidth / K,
        pcie_bandwidth=hardware.pcie_bandwidth / K,
        peak_flops={name: value / K for name, value in hardware.peak_flops.items()},
        scale_up=replace(hardware.scale_up, bandwidth=hardware.scale_up.bandwidth / K),
        nic=replace(hardware.nic, bandwidth=hardware.nic.bandwidth / K),
    )


LAYOUTS = [
    ("llama-3.1-8b", Layout()),
    ("llama-3.1-70b", Layout(tp=4, pp=2)),
    ("gpt-oss-120b", Layout(tp=2)),
    ("deepseek-r1", Layout(tp=2, dp=16)),
    ("deepseek-r1", Layout(tp=16)),
]


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_step_and_prefill_scale_with_the_unit_of_time(name, layout):
    model, hardware = load_model(name), load_hardware("h800")
    other = _in_other_seconds(hardware)
    for batch, context in ((layout.dp, 100), (64 * layout.dp, 8192)):
        here, there = (decode_step(model, h, layout, batch, context) for h in (hardware, other))
        assert there.seconds == pytest.approx(K * here.seconds, rel=1e-12)
        assert there.links == pytest.approx(here.links)
    here, there = (prefill(model, h, layout, 4096) for h in (hardware, other))
    assert there.seconds == pytest.approx(K * here.seconds, rel=1e-12)


def test_stationary_batch_scales_with_the_unit_of_time():
    workload = Workload(Exponential(1000), Exponential(1000))
    here = concurrency(workload, 4.0, (0.012, 1e-4, 3e-8), dispersion=5.0, instances=4)
    there = concurrency(workload, 4.0 / K, (0.012 * K, 1e-4 * K, 3e-8 * K), dispersion=5.0, instances=4)
    assert there.mean == pytest.approx(here.mean)
    assert there.std == pytest.approx(here.std)
    for name in ("step_quantile", "itl_quantile", "tpot_quantile", "e2e_quantile"):
        assert getattr(there, name)(0.99) == pytest.approx(K * getattr(here, name)(0.99), rel=1e-6)


def test_queue_scales_with_the_unit_of_time():
    here, there = mgk_queue(0.8, [0.5, 1.0, 3.0], servers=2), mgk_queue(0.8 / K, [0.5 * K, K, 3.0 * K], servers=2)
    assert there.wait_probability == pytest.approx(here.wait_probability)
    assert there.sojourn_quantile(0.99) == pytest.approx(K * here.sojourn_quantile(0.99), rel=1e-6)


def test_more_bandwidth_or_arithmetic_never_slows_a_step():
    model, hardware = load_model("deepseek-r1"), load_hardware("h800")
    layout = Layout(tp=2, dp=16)
    base = decode_step(model, hardware, layout, 512, 4096).seconds
    for constant in fields(Kernels):
        value = getattr(hardware.kernels, constant.name)
        if value and ("_bandwidth" in constant.name or "_flops" in constant.name):
            faster = replace(hardware, kernels=replace(hardware.kernels, **{constant.name: 2 * value}))
            assert decode_step(model, faster, layout, 512, 4096).seconds <= base * (1 + 1e-12), constant.name
