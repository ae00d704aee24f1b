"""KV pressure of one rank: how often requests are preempted, what is recomputed, how many run.

Running and waiting requests form one first-come-first-served list; what runs is the longest prefix of it whose
cached tokens fit into the pool. The total size of all requests in flight is then two Gaussian halves joined at the
capacity, the upper one stiffer because waiting requests stand still. Nothing here is fitted.

Symbols as in the arguments of :class:`RequestSizes`: E[L], P, e, m, v; C pool, n requests in flight (at most the
concurrency cap), M token budget of a step. Waits are in steps.

References
----------
The engine's rules: vLLM v1 scheduler (docs.vllm.ai, ``vllm/v1/core/sched/scheduler.py``). The form of the queue:
O. Garnett, A. Mandelbaum, M. Reiman, Manufacturing & Service Operations Management 4 (2002) 208-227.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from capplan.formulas._ops import Value, exp, maximum, minimum, sqrt
from capplan.formulas.erfcx import inverse_mills_ratio


class RequestSizes(NamedTuple):
    """Moments of what one request holds, all in tokens.

    ``output`` mean output E[L]; ``age`` mean tokens a running request has generated, e = E[L^2]/(2 E[L]); ``prompt``
    mean prompt P of a request, half a page included; ``prompt_variance``; ``held`` mean tokens a running request
    holds, m; ``held_variance`` v; ``held_third`` third central moment of the same (0: not used).
    """

    output: Value
    age: Value
    prompt: Value
    prompt_variance: Value
    held: Value
    held_variance: Value
    held_third: Value = 0.0


class PoolPressure(NamedTuple):
    """State of one rank under the law of KV pressure; see :func:`closed_loop_pressure` for each field."""

    queue_probability: Value
    batch: Value
    waiting: Value
    victim_tokens: Value
    net_flux: Value
    recompute_per_token: Value
    preemptions_per_request: Value
    preemptions_when_saturated: Value


def request_sizes(
    output_mean: Value,
    output_second: Value,
    output_third: Value,
    prompt_mean: Value,
    prompt_variance: Value,
    block_tokens: Value = 16,
) -> RequestSizes:
    r"""Sizes of a request whose prompt does not depend on its output.

    .. math:: e = \frac{E[L^2]}{2E[L]},\quad P = E[P] + \frac{block-1}{2},\quad m = P + e,\quad
              v = \frac{E[L^3]}{3E[L]} - e^2 + V_P

    Parameters
    ----------
    output_mean, output_second, output_third : E[L], E[L^2], E[L^3] of the output [tokens, tokens^2, tokens^3]
    prompt_mean, prompt_variance : of the prompt [tokens, tokens^2]
    block_tokens : page size of the KV cache [tokens]

    Returns
    -------
    sizes : :class:`RequestSizes` without a third moment

    Examples
    --------
    >>> request_sizes(1000.0, 2e6, 6e9, 500.0, 0.0, 16).held
    1507.5

    References
    ----------
    Length-biased sampling of a stationary batch: D. R. Cox, Renewal Theory (1962), section 5.
    """
    age = output_second / (2 * output_mean)
    prompt = prompt_mean + (block_tokens - 1) / 2
    variance = output_third / (3 * output_mean) - age * age + prompt_variance
    return RequestSizes(output_mean, age, prompt, prompt_variance, prompt + age, variance)


def refill_exit_probability(room: Value, spread: Value) -> Value:
    r"""Chance that the pool fills up again before the next completion, room given in units of the mean output.

    .. math:: G(w) = \frac{1}{\gamma e^{w/\gamma} - \gamma + 1} \approx e^{-w}\ \text{for small } w

    Parameters
    ----------
    room : free tokens over E[L], zero or more [-]
    spread : gamma, from :func:`jump_spread` [-]

    Returns
    -------
    probability : 1 at no room [-]

    Examples
    --------
    >>> refill_exit_probability(0.0, 1.3)
    1.0

    References
    ----------
    Exit of a random walk with exponential jumps: W. Feller, An Introduction to Probability Theory II, XII.
    """
    # beyond 600 the probability is zero for every purpose, and exp must not overflow
    return 1 / (spread * exp(minimum(room / spread, 600.0)) - spread + 1)


def jump_spread(age_tokens: Value, size_tokens: Value) -> Value:
    r"""Spread of what one completion frees against a victim's size.

    .. math:: \gamma = \sqrt{1 + (e/h)^2}

    Parameters
    ----------
    age_tokens : mean age e of a running request [tokens]
    size_tokens : size h of what waits [tokens]

    Returns
    -------
    spread : one or more [-]

    References
    ----------
    Lundberg exponent R of the refill walk, 1/R = E[L] gamma for exponential outputs (within 1-3 %).
    """
    return sqrt(1 + (age_tokens / size_tokens) ** 2)


def _stiffness(sizes: RequestSizes, victim_tokens: Value) -> Value:
    return maximum(sizes.held / victim_tokens, 1.0)


def _victim_update(sizes: RequestSizes, batch: Value, victim_tokens: Value) -> Value:
    """One turn of the fixed point: age a victim gained before the boundary came back to it, plus its prompt."""
    kappa = _stiffness(sizes, victim_tokens)
    boundary = sqrt(batch * sizes.held_variance / kappa) / victim_tokens
    rank_speed = batch / sizes.output
    u = kappa * (sizes.age / sizes.held_variance) * boundary / rank_speed
    # exponent 1.6 approximates the first-passage integral between its limits u (small) and 1/sqrt(pi) (large)
    gained = u / (1 + (u * math.sqrt(math.pi)) ** 1.6) ** (1 / 1.6)
    return sizes.prompt + boundary / rank_speed * gained


def victim_size_tokens(in_flight: Value, capacity_tokens: Value, sizes: RequestSizes) -> Value:
    r"""Mean tokens a preempted request loses: its prompt and what it generated since its last admission rank.

    .. math:: h = P + \frac{\sigma_q}{\nu}\,\frac{u}{(1 + (u\sqrt\pi)^{1.6})^{1/1.6}},\quad
              u = \kappa\,\frac{e}{v}\,\frac{\sigma_q}{\nu},\ \kappa = \max(m/h, 1),\
              \sigma_q = \sqrt{B_0 v/\kappa}/h,\ \nu = B_0/E[L]

    Two turns from h = P + 0.1 E[L], the second averaged with the first: more turns change nothing measurable.

    Parameters
    ----------
    in_flight : requests in flight n, at most the concurrency cap [-]
    capacity_tokens : KV pool C [tokens]
    sizes : moments of a request [tokens]

    Returns
    -------
    victim_tokens : h [tokens]

    References
    ----------
    First-passage time of the boundary between running and waiting requests; the vLLM rule that the request admitted
    last is preempted first.
    """
    batch = minimum(in_flight, capacity_tokens / sizes.held)
    first = _victim_update(sizes, batch, sizes.prompt + 0.1 * sizes.output)
    return (first + _victim_update(sizes, batch, first)) / 2


def closed_loop_pressure(
    in_flight: Value,
    capacity_tokens: Value,
    sizes: RequestSizes,
    token_budget: Value = 8192,
    *,
    room_tokens: Value = 0.0,
    edge_share: Value = 1.0,
    tail: tuple[Value, Value] = (1.0, 1.0),
    victim: tuple[Value, Value] | None = None,
) -> PoolPressure:
    r"""Preemption and recompute with a constant number of requests in flight (closed loop, or a backlog with a cap).

    .. math:: d = nm - C,\ s = \sqrt{nv},\ z = d/s,\ s_a = \sqrt{B_0 v/\kappa},\ y = d/(\kappa s_a),\
              \Lambda(y) = \Phi(y)/\varphi(y)

    .. math:: P_W = \frac{a}{a+b},\ a = s_a\Lambda(y),\ b = s\Lambda(-z),\quad
              q = P_W\left(\tfrac d\kappa + \tfrac{s_a}{\Lambda(y)}\right)/h,\quad h_b = \frac{h^2+V_P}{2h}

    .. math:: B m = C - (1-P_W)\left(\tfrac{s}{\Lambda(-z)} - zs\right) - P_W h_b,\quad
              \mathrm{net} = G\left(\tfrac{B}{E[L]}\left(1 + \tfrac{P+E[L]}{2M}\right)\right)

    .. math:: \rho = \mathrm{net}\,\frac{nP_W - q}{n-q} + \frac{h_b\,n}{(a+b)B},\qquad
              \text{preemptions} = \mathrm{net}\,\frac{E[L]}{h}\,\frac{nP_W - q}{n-q}

    Parameters
    ----------
    in_flight : requests in flight n, at most the concurrency cap, one or more [-]
    capacity_tokens : KV pool C of the rank [tokens]
    sizes : moments of a request [tokens]
    token_budget : tokens one step may process, M [tokens]
    room_tokens : free tokens an admission must leave (watermark, unused reservation) [tokens]
    edge_share : weight of the edge term, the half victim of each busy period [-]
    tail : factors on a and b that replace the Gaussian by a skewed law far below capacity [-]
    victim : (victim's tokens, age e) where they belong to another law than ``sizes`` (reservation) [tokens]

    Returns
    -------
    pressure : queue_probability P_W [-]; batch B, mean running [-]; waiting q, mean waiting for KV [-];
        victim_tokens h [tokens]; net_flux [-]; recompute_per_token rho, recomputed over generated tokens [-];
        preemptions_per_request [-]; preemptions_when_saturated N_s [-].

    Validity: outputs with a coefficient of variation above 0.35 inside the mode that holds the KV, pools above 15 mean
    requests, B (1 + P/E[L] + rho) well below M, stationary arrivals, prompts below half the pool. rho within 0.02 in
    the mean, 0.15 at worst; B within 0.5 % and 2.5 %.

    Examples
    --------
    >>> sizes = request_sizes(1000.0, 2e6, 6e9, 500.0, 0.0)
    >>> round(closed_loop_pressure(60.0, 90450.0, sizes).recompute_per_token, 2)
    0.35

    References
    ----------
    Garnett, Mandelbaum, Reiman (2002) for the two halves; Little's law for B m; checked against 399 simulated
    configurations of the vLLM v1 scheduler.
    """
    h = victim_size_tokens(in_flight, capacity_tokens, sizes)
    halves = _halves(in_flight, capacity_tokens, sizes, h)
    # the bounds hold by themselves in pools of some requests; they keep tiny pools meaningful
    held_at_most = minimum(in_flight * sizes.held, capacity_tokens)
    hole = minimum((h * h + sizes.prompt_variance) / (2 * h), capacity_tokens / 2)
    plain = halves.share(1.0, 1.0)
    used = capacity_tokens - (1 - plain) * halves.slack - plain * hole
    batch = minimum(maximum(used, held_at_most / 2) / sizes.held, in_flight)
    share = halves.share(*tail)
    waiting = share * minimum(halves.overshoot * tail[0] / h, in_flight * (1 - 1e-9))
    size, age = victim if victim is not None else (h, sizes.age)
    growth = batch * (1 + (sizes.prompt + sizes.output) / (2 * token_budget))
    net = refill_exit_probability((room_tokens + growth) / sizes.output, jump_spread(age, size))
    flux = (in_flight * share - waiting) / (in_flight - waiting)
    edge = edge_share * hole * share / (halves.above_mass * tail[0]) * in_flight / batch
    saturated = net * sizes.output / size
    return PoolPressure(share, batch, waiting, size, net, net * flux + edge, saturated * flux, saturated)


class Boundary(NamedTuple):
    """Where running requests end and waiting ones begin, above capacity.

    ``stiffness`` kappa [-]; ``std`` s_a of the total size [tokens]; ``rank_std`` sigma_q of the rank in the list [-].
    """

    stiffness: Value
    std: Value
    rank_std: Value


def boundary(in_flight: Value, capacity_tokens: Value, sizes: RequestSizes, victim_tokens: Value) -> Boundary:
    r"""Fluctuation of the boundary, :math:`s_a = \sqrt{B_0 v/\kappa}`, :math:`\sigma_q = s_a/h`.

    Parameters
    ----------
    in_flight, capacity_tokens, sizes : as in :func:`closed_loop_pressure`
    victim_tokens : h [tokens]

    Returns
    -------
    boundary : :class:`Boundary`
    """
    kappa = _stiffness(sizes, victim_tokens)
    std = sqrt(minimum(in_flight, capacity_tokens / sizes.held) * sizes.held_variance / kappa)
    return Boundary(kappa, std, std / victim_tokens)


class _Halves(NamedTuple):
    """Total size of all requests around the capacity: the half above (requests wait) and the half below."""

    above_std: Value
    above_hazard: Value
    below_std: Value
    below_hazard: Value
    overshoot: Value
    slack: Value

    @property
    def above_mass(self) -> Value:
        """Mass over density at the capacity, upper half; the hazard underflows only in deep saturation."""
        return self.above_std / maximum(self.above_hazard, 1e-290)

    def share(self, above_factor: Value, below_factor: Value) -> Value:
        """Mass above over the whole, finite where a hazard underflows."""
        above = above_factor * self.above_std * self.below_hazard
        return above / (above + below_factor * self.below_std * self.above_hazard)


def _halves(in_flight: Value, capacity_tokens: Value, sizes: RequestSizes, victim_tokens: Value) -> _Halves:
    kappa, above_std, _ = boundary(in_flight, capacity_tokens, sizes, victim_tokens)
    below_std = sqrt(in_flight * sizes.held_variance)
    excess = in_flight * sizes.held - capacity_tokens
    above_hazard = inverse_mills_ratio(excess / kappa / above_std)
    below_hazard = inverse_mills_ratio(-excess / below_std)
    overshoot, slack = excess / kappa + above_std * above_hazard, below_std * below_hazard - excess
    return _Halves(above_std, above_hazard, below_std, below_hazard, overshoot, slack)


def work_variation(work_mean: Value, work_second: Value) -> Value:
    r"""Squared coefficient of variation of the token-time a request costs the pool.

    .. math:: g = PL + L^2/2,\quad c_g^2 = E[g^2]/E[g]^2 - 1

    Parameters
    ----------
    work_mean : E[g] = E[PL] + E[L^2]/2 [tokens^2]
    work_second : E[g^2] = E[P^2 L^2] + E[P L^3] + E[L^4]/4 [tokens^4]

    Returns
    -------
    variation : c_g^2 [-]

    Examples
    --------
    >>> work_variation(1.0, 24.0 / 4)  # exponential outputs of mean 1 without prompts
    5.0

    References
    ----------
    A request occupies P + u tokens for each of its L steps.
    """
    return work_second / work_mean**2 - 1


def pool_utilization(batch: Value, held: Value, capacity: Value) -> Value:
    r"""Mean share of the KV pool in use.

    .. math:: B m / C

    Parameters
    ----------
    batch : mean running requests B [-]
    held : mean size of a running request m [tokens]
    capacity : pool C [tokens]

    Returns
    -------
    utilization : [-]

    References
    ----------
    Little's law; exact.
    """
    return batch * held / capacity
