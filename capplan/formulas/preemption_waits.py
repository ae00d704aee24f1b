"""What preemption does to a single request: the chance to be hit, the wait until readmission, the largest gap.

All waits are in steps; times the step time they are seconds, plus the prefill of what was lost.
"""

from __future__ import annotations

import math

from capplan.formulas._ops import Value, exp, log, maximum
from capplan.formulas.preemption import PoolPressure, RequestSizes, jump_spread
from capplan.formulas.special import gamma_quantile, normal_cdf


def preempted_share(recompute_per_token: Value, net_flux: Value, preemptions_when_saturated: Value) -> Value:
    r"""Share of requests that are preempted at least once.

    .. math:: p_1 = 1 - (1 + N_s)^{-\rho/\mathrm{net}}

    Preemptions come in clusters: a geometric count in each of the spells in which the pool is full.

    Parameters
    ----------
    recompute_per_token : rho [-]
    net_flux : net [-]
    preemptions_when_saturated : N_s, preemptions per request while something always waits [-]

    Returns
    -------
    share : between 0 and 1 [-]

    Validity: within 0.03 in the mean, 0.18 at worst.

    References
    ----------
    Geometric clusters; checked against simulated runs of the vLLM v1 scheduler.
    """
    return 1 - (1 + preemptions_when_saturated) ** (-recompute_per_token / net_flux)


def readmission_wait_steps(batch: Value, victim_tokens: Value, sizes: RequestSizes) -> Value:
    r"""Mean wait of a preempted request until it runs again, with an unlimited queue behind it.

    .. math:: T = \frac{E[L]}{B}\sqrt{1 + (e/h)^2}

    Parameters
    ----------
    batch : mean running B [-]
    victim_tokens : h [tokens]
    sizes : moments of a request [tokens]

    Returns
    -------
    wait_steps : T [steps]

    Validity: a factor 1.2 in the mean; fixed outputs wait up to 30 times longer.

    References
    ----------
    First passage of the free space (jumps P + L at rate B/E[L], drift -B) above zero; Lundberg's exponent.
    """
    return sizes.output / batch * jump_spread(sizes.age, victim_tokens)


def bounded_preempted_waiting(
    preemptions_per_request: Value, wait_steps: Value, batch: Value, waiting: Value, output_mean: Value
) -> tuple[Value, Value]:
    r"""Mean number of preempted requests that wait, and the wait itself, kept below the whole queue.

    .. math:: Q_p = \text{preemptions}\cdot T B/E[L],\qquad T, Q_p \to T, Q_p \cdot (1 + (Q_p/Q)^3)^{-1/3}

    Parameters
    ----------
    preemptions_per_request : [-]
    wait_steps : T of :func:`readmission_wait_steps` [steps]
    batch : mean running B [-]
    waiting : all that wait for KV, Q = n - B [-]; infinity where a cap holds requests back
    output_mean : E[L] [tokens]

    Returns
    -------
    preempted_waiting, wait_steps : Q_p [-] and the bounded T [steps]

    References
    ----------
    Little's law; the exponent is a smooth minimum, chosen on simulated runs.
    """
    preempted = preemptions_per_request * wait_steps * batch / output_mean
    bound = (1 + (preempted / maximum(waiting, 1e-9)) ** 3) ** (-1 / 3)
    return preempted * bound, wait_steps * bound


def gap_exceedance(
    gap_steps: Value, wait_steps: Value, recompute_per_token: Value, net_flux: Value, saturated: Value
) -> Value:
    r"""Share of requests whose largest gap between two tokens exceeds ``gap_steps``.

    .. math:: P(gap > w) = 1 - (1 + N_s S(w))^{-\rho/\mathrm{net}},\quad
              S(w) = e^{-(w\Gamma(1+1/\beta)/T)^\beta},\ \beta = (1 + 3N_s)^{-0.36}

    Parameters
    ----------
    gap_steps : w, zero or more [steps]
    wait_steps : T [steps]
    recompute_per_token, net_flux, saturated : rho, net, N_s [-]

    Returns
    -------
    share : [-]; at w = 0 the share of requests preempted at all

    Validity: P95 and P99 over all requests within a factor 1.2-1.3 in the mean.

    References
    ----------
    Weibull law whose squared coefficient of variation is 1 + 2 N_s, the clustering of waits.
    """
    beta = (1 + 3 * saturated) ** -0.36
    tail = exp(-((gap_steps * _gamma(1 + 1 / beta) / wait_steps) ** beta))
    return 1 - (1 + saturated * tail) ** (-recompute_per_token / net_flux)


def gap_quantile_steps(
    probability: float, wait_steps: float, recompute_per_token: float, net_flux: float, saturated: float
) -> float:
    r"""Quantile over requests of the wait in the largest gap: the inverse of :func:`gap_exceedance`.

    .. math:: w = \frac{T}{\Gamma(1+1/\beta)}\left(-\ln\frac{p^{-\mathrm{net}/\rho} - 1}{N_s}\right)^{1/\beta}

    Parameters
    ----------
    probability : p, between 0 and 1 [-]
    wait_steps, recompute_per_token, net_flux, saturated : as in :func:`gap_exceedance` [steps, -, -, -]

    Returns
    -------
    gap_steps : zero where the request at that quantile is never preempted [steps]

    References
    ----------
    :func:`gap_exceedance`.
    """
    if min(recompute_per_token, net_flux, saturated) <= 0 or probability <= 0:
        return 0.0
    exponent = -net_flux / recompute_per_token * math.log(probability)
    tail = math.expm1(exponent) / saturated if exponent < 700 else math.inf
    if tail >= 1 or tail <= 0:
        return 0.0
    beta = (1 + 3 * saturated) ** -0.36
    return float(wait_steps / math.gamma(1 + 1 / beta) * (-math.log(tail)) ** (1 / beta))


def first_admission_wait_steps(waiting: Value, preempted_waiting: Value, batch: Value, output_mean: Value) -> Value:
    r"""Mean wait of a new request until it is admitted for the first time.

    .. math:: (Q - Q_p)\,E[L]/B

    Parameters
    ----------
    waiting, preempted_waiting : all that wait, and those of them that ran before, Q, Q_p [-]
    batch : mean running B [-]
    output_mean : E[L] [tokens]

    Returns
    -------
    wait_steps : [steps]

    References
    ----------
    Little's law: B/E[L] requests end per step.
    """
    return (waiting - preempted_waiting) * output_mean / batch


def first_wait_probability(
    excess: Value, stiffness: Value, above_std: Value, queue_probability: Value, outputs: Value, weights: Value
) -> float:
    r"""Share of requests of a closed loop that find the pool full when they arrive.

    .. math:: P(W>0) = P_W\,\frac{E_L\Phi((\mu - L)/s_a)}{\Phi(\mu/s_a)},\quad \mu = d/\kappa

    A new request follows a completion, which has just freed its L tokens.

    Parameters
    ----------
    excess : d = n m - C [tokens]
    stiffness : kappa [-]
    above_std : s_a [tokens]
    queue_probability : P_W [-]
    outputs, weights : nodes of L and their shares, arrays [tokens, -]

    Returns
    -------
    share : [-]; 0.045 too high in the mean

    References
    ----------
    The upper half of :func:`capplan.formulas.preemption.closed_loop_pressure`, seen after a completion.
    """
    from capplan.formulas.special_arrays import normal_cdf_array

    mean = excess / stiffness
    before = normal_cdf(mean / above_std)
    if before <= 0.0:
        return 0.0
    after = float(weights @ normal_cdf_array((mean - outputs) / above_std))
    return float(min(1.0, queue_probability * after / before))


def first_wait_variance_steps(
    wait_probability: Value, waiting: Value, batch: Value, rank_std: Value, sizes: RequestSizes
) -> Value:
    r"""Variance of the wait before the first admission, over those that wait.

    .. math:: \left(\frac{E[L]}{B}\right)^2\left[2\sigma_q^2
              + \left(\frac{E[L^2]}{E[L]^2} - 1\right)\frac{Q - Q_p}{P(W>0)}\right]

    Parameters
    ----------
    wait_probability : P(W > 0) [-]
    waiting : Q - Q_p, those that have not run yet [-]
    batch : mean running B [-]
    rank_std : sigma_q, spread of the boundary between running and waiting [-]
    sizes : moments of a request [tokens]

    Returns
    -------
    variance : [step^2]

    References
    ----------
    Spread of the queue met, and of the completions that empty it.
    """
    spread = 2 * sizes.age / sizes.output - 1
    queue = maximum(waiting, 0.0) / maximum(wait_probability, 1e-9)
    return (sizes.output / batch) ** 2 * (2 * rank_std**2 + spread * queue)


def first_wait_quantile_steps(probability: float, wait_probability: float, mean: float, variance: float) -> float:
    """Quantile over requests of the wait before the first admission: nothing, or a gamma law.

    Parameters
    ----------
    probability : p, between 0 and 1 [-]
    wait_probability : P(W > 0) [-]
    mean : over all requests [step]
    variance : over those that wait [step^2]

    Returns
    -------
    wait : [step]; P95 within 20 % and P99 within 30 % in the mean where more than two wait

    References
    ----------
    Two moments of :func:`first_admission_wait_steps` and :func:`first_wait_variance_steps`.
    """
    if wait_probability <= 1 - probability or mean <= 0.0:
        return 0.0
    inner, waits = 1 - (1 - probability) / wait_probability, mean / wait_probability
    shape = waits**2 / max(variance, 1e-12 * waits**2)
    return float(gamma_quantile(shape, inner) * waits / shape)


def _gamma(x: Value) -> Value:
    if hasattr(x, "free_symbols"):
        import sympy

        return sympy.gamma(x)
    return math.gamma(x) if not hasattr(x, "shape") else exp(_log_gamma(x))


def _log_gamma(x: Value) -> Value:
    """Stirling's series after five steps of the recurrence; relative error below 1e-9 for x of one or more."""
    shifted, product = x + 5, x * (x + 1) * (x + 2) * (x + 3) * (x + 4)
    series = 1 / (12 * shifted) - 1 / (360 * shifted**3) + 1 / (1260 * shifted**5)
    return (shifted - 0.5) * log(shifted) - shifted + 0.5 * math.log(2 * math.pi) + series - log(product)


def bounded_waits(pressure: PoolPressure, sizes: RequestSizes, waiting: Value) -> tuple[Value, Value]:
    """(Q_p, T) of a state: :func:`readmission_wait_steps` and :func:`bounded_preempted_waiting` together."""
    wait = readmission_wait_steps(pressure.batch, pressure.victim_tokens, sizes)
    return bounded_preempted_waiting(pressure.preemptions_per_request, wait, pressure.batch, waiting, sizes.output)
