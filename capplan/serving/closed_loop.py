"""What a benchmark with fixed concurrency measures: mean TTFT and TPOT of an instance that prefills and decodes."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.cards.engine import Engine
from capplan.cards.hardware import Hardware
from capplan.cards.model import Model
from capplan.errors import InputError
from capplan.formulas import _ops
from capplan.formulas import closed_loop as formulas
from capplan.formulas._ops import Value
from capplan.serving.evaluation import Batch, evaluate_step
from capplan.serving.layout import Layout
from capplan.serving.mixed import mixed_seconds
from capplan.serving.prefill import prefill
from capplan.serving.prepared import Prepared, prepare
from capplan.serving.step_time import one_number
from capplan.serving.work import Work


@dataclass(frozen=True)
class ClosedLoop:
    """An instance with a fixed number of requests in flight.

    Parameters
    ----------
    running : requests that hold a slot, the others wait for one [1]
    decode_seconds : a step with all of them and no prompt [s]
    prompt_seconds : one prompt in a step of its own [s]
    joined_seconds : what one prompt on every rank adds to a decode step [s]
    ttft_seconds, tpot_seconds : means over requests [s]
    slot_wait_seconds : part of the TTFT that is spent waiting for a slot [s]
    tokens_per_second : output tokens of the instance [token/s]
    """

    running: float
    decode_seconds: float
    prompt_seconds: float
    joined_seconds: float
    ttft_seconds: float
    tpot_seconds: float
    slot_wait_seconds: float
    tokens_per_second: float


@dataclass(frozen=True, eq=False)
class Load:
    """Requests of a closed loop; numbers, or arrays with an element for each benchmark.

    Parameters
    ----------
    in_flight : in the whole instance [1]
    running : those that hold a slot [1]
    ranks : data-parallel ranks they are spread over [1]
    decode_steps : of each, output tokens less one [1]
    """

    in_flight: Value
    running: Value
    ranks: Value
    decode_steps: Value

    @property
    def of_rank(self) -> Value:
        """Requests of one rank, at least one [1]."""
        return _ops.maximum(self.running / self.ranks, 1.0)


def client_seconds(
    alone: Value,
    decode: Value,
    joined: Value,
    load: Load,
    *,
    ttft_base_seconds: Value,
    ttft_sqrt_factor: Value,
    ttft_linear_factor: Value,
) -> tuple[Value, Value, Value]:
    """What a client measures, from the times of the instance.

    Parameters
    ----------
    alone, decode, joined : a prompt in a step of its own, a decode step, what a prompt adds to it [s]
    load : requests
    ttft_base_seconds, ttft_sqrt_factor, ttft_linear_factor : of the engine [s, 1, 1]

    Returns
    -------
    ttft, tpot, slot_wait : means over requests, the TTFT from the moment a request has a slot [s]

    Examples
    --------
    >>> client_seconds(0.2, 0.02, 0.1, Load(20, 10, 2, 100), ttft_base_seconds=0.1, ttft_sqrt_factor=0.5,
    ...                ttft_linear_factor=0.25)
    (0.7000000000000001, 0.022, 2.9)
    """
    wait = formulas.prompt_wait(load.of_rank, ttft_sqrt_factor, ttft_linear_factor)
    ttft = formulas.closed_loop_ttft_seconds(alone, wait, ttft_base_seconds)
    tpot = formulas.closed_loop_tpot_seconds(decode, joined, load.of_rank, wait, load.decode_steps)
    in_slot = ttft + load.decode_steps * tpot
    return ttft, tpot, formulas.slot_wait_seconds(load.in_flight, load.running, in_slot)


def closed_loop(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    prompt: float,
    output: float,
    concurrency: float,
    *,
    engine: Engine | str = "vllm",
    slots: float | None = None,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    skew: float = 1.0,
) -> ClosedLoop:
    r"""Mean TTFT and TPOT of a benchmark with fixed lengths and fixed concurrency.

    .. math:: \mathrm{TTFT} = t_0 + P (1 + g) + W, \qquad \mathrm{TPOT} = T + \frac{(b - 1 - g)^+}{o}\,\Delta P

    T is a decode step at half of the output, P a prompt alone, Delta P what it adds to a decode step whose weight
    reads it shares, b the requests of one data-parallel rank: the ranks read prompts at the same time; see
    :mod:`capplan.formulas.closed_loop`.

    Parameters
    ----------
    model, hardware, layout : what runs where
    prompt, output : tokens of every request [tokens]
    concurrency : requests in flight in the whole instance [1]
    engine : engine card or name; its constants of the TTFT are calibrated to published runs, not derived
    slots : requests that run at once, where fewer fit than are in flight; None for all [1]
    weight_dtype, kv_dtype, skew : as in :func:`capplan.decode_step`

    Returns
    -------
    closed_loop : :class:`ClosedLoop`

    Raises
    ------
    InputError : lengths or a concurrency below 1, an output of one token, the engine ``none``

    Examples
    --------
    >>> from capplan.cards.hardware_card import load_hardware
    >>> from capplan.cards.model_card import load_model
    >>> run = closed_loop(load_model("llama-3.1-8b"), load_hardware("h100"), Layout(), 1024, 1024, 16)
    >>> run.tpot_seconds > run.decode_seconds > 0.005
    True

    References
    ----------
    Public runs of InferenceX and others, predicted beside measured: benchmarks/fidelity.py.
    """
    tokens, made = one_number(prompt, "prompt", least=1.0), one_number(output, "output", least=2.0)
    in_flight = one_number(concurrency, "concurrency", least=1.0)
    running = in_flight if slots is None else min(in_flight, one_number(slots, "slots", least=1.0))
    prepared = prepare(model, hardware, layout, weight_dtype, kv_dtype, engine, None)
    if prepared.engine is None:
        raise InputError("needs an engine: bare kernels have no client", key="engine")
    alone = prefill(model, hardware, layout, tokens, weight_dtype=weight_dtype, kv_dtype=kv_dtype, engine=engine,
                    skew=skew)  # fmt: skip
    decode, joined = _steps(prepared, running, tokens, made, skew)
    times = (float(alone.seconds), decode, joined)
    return _answer(prepared.engine, times, Load(in_flight, running, float(layout.dp), made - 1))


def _steps(prepared: Prepared, running: float, prompt: float, output: float, skew: float) -> tuple[float, float]:
    """A decode step, and what a prompt on every data-parallel rank adds to it [s]."""
    ranks = prepared.plan.layout.dp
    rank = -(-running // ranks)
    batch = Batch(rank, running, prompt + output / 2, 0, None, skew, False)
    decode = float(evaluate_step(prepared, batch, None).seconds)
    joining = Work(1.0, prompt, 0.0, prompt * min(ranks, running), 1.0, skew, prefill=True)
    both = float(mixed_seconds(prepared.plan, batch, joining))
    return decode, max(both - decode, 0.0)


def _answer(engine: Engine, times: tuple[float, float, float], load: Load) -> ClosedLoop:
    alone, decode, joined = times
    ttft, tpot, slot_wait = client_seconds(
        *(alone, decode, joined, load),
        ttft_base_seconds=engine.ttft_base_seconds,
        ttft_sqrt_factor=engine.ttft_sqrt_factor,
        ttft_linear_factor=engine.ttft_linear_factor,
    )
    return ClosedLoop(
        running=load.running,
        decode_seconds=decode,
        prompt_seconds=alone,
        joined_seconds=joined,
        ttft_seconds=ttft + slot_wait,
        tpot_seconds=tpot,
        slot_wait_seconds=slot_wait,
        tokens_per_second=load.running * (load.decode_steps + 1) / (ttft + load.decode_steps * tpot),
    )
