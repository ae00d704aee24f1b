r"""Stationary batch and step time of a decoding rank: exact means, second moments in closed form.

Counted in steps, a request stays exactly its D decode steps and requests arrive at rate :math:`\lambda T` a step, with
:math:`T = a + \sum_{running} w`, :math:`w(u) = e + c(P' + u)`. The arrival rate is linear in the state: a Hawkes
(branching) process, whose means and second moments are exact for any length law. The closed forms below interpolate
its variances between light and heavy load; :mod:`capplan.formulas.spectrum` integrates them numerically.

Averages: *step* (each step counts once), *time* (weight T), *token* (weight batch), *arrival* (seen by a request).
All functions take floats, arrays or symbols.

References
----------
A. G. Hawkes, Biometrika 58 (1971) 83 (linear self-exciting processes and their spectra). The exponents of H_X, of H_N
and of the third cumulant were chosen on event simulations; ``benchmarks/tails.py`` prints the errors.
"""

from __future__ import annotations

from capplan.formulas._ops import Value, exp


def marginal_step_seconds(e: Value, c: Value, mean_context: Value) -> Value:
    r"""Step seconds one more running request adds on average, :math:`b = e + c\,\theta`.

    Parameters
    ----------
    e : step seconds a sequence [s]
    c : step seconds a cached token [s/token]
    mean_context : theta, mean context of a running request [token]

    Returns
    -------
    marginal_step_seconds : b [s]
    """
    return e + c * mean_context


def decode_load(request_rate: Value, mean_decode_steps: Value, marginal_seconds: Value) -> Value:
    r"""Load of the decode loop, :math:`x = \lambda E[D]\,b`; stable below 1 where the batch is not capped.

    Parameters
    ----------
    request_rate : lambda, requests offered to one rank [1/s]
    mean_decode_steps : E[D] = E[L] - 1 [token]
    marginal_seconds : b [s]

    Returns
    -------
    load : x [1]
    """
    return request_rate * mean_decode_steps * marginal_seconds


def step_mean_seconds(a: Value, load: Value) -> Value:
    r"""Mean step time over steps, :math:`E_s T = a/(1-x)`. Exact for any lengths and any stationary arrivals.

    Parameters
    ----------
    a : step seconds of an empty batch [s]
    load : x, below 1 [1]

    Returns
    -------
    step_mean : [s]

    Examples
    --------
    >>> step_mean_seconds(0.012, 0.6)
    0.03
    """
    return a / (1 - load)


def batch_step_mean(request_rate: Value, mean_decode_steps: Value, step_mean: Value) -> Value:
    r"""Mean batch over steps, :math:`E_s N = \lambda E[D]\,E_s T` (flow balance, exact).

    Parameters
    ----------
    request_rate : [1/s]
    mean_decode_steps : E[D] [token]
    step_mean : E_s T [s]

    Returns
    -------
    batch_step_mean : E_s N [1]
    """
    return request_rate * mean_decode_steps * step_mean


def context_spread(c: Value, context_std: Value, marginal_seconds: Value) -> Value:
    r"""Share of a running request's step seconds that varies, squared: :math:`q = (c\,\nu/b)^2`.

    Parameters
    ----------
    c : step seconds a cached token [s/token]
    context_std : nu [token]
    marginal_seconds : b [s]

    Returns
    -------
    spread : q [1]
    """
    return (c * context_std / marginal_seconds) ** 2


def heavy_load_factor(work_square: Value, aged_work: Value, marginal_seconds: Value) -> Value:
    r"""Variance factor at full load, :math:`H_1 = E[W^2]/(2\,b\,E[\int u\,w\,du])`; 1 where c = 0.

    Parameters
    ----------
    work_square : E[W^2], see :func:`capplan.formulas.lengths.decode_work_square` [s^2]
    aged_work : E[int u w du] [s token]
    marginal_seconds : b [s]

    Returns
    -------
    factor : H_1 [1]
    """
    return work_square / (2 * marginal_seconds * aged_work)


def relaxation_steps(aged_work: Value, marginal_seconds: Value, mean_decode_steps: Value, load: Value) -> Value:
    r"""Relaxation time of the batch, :math:`\tau = m_1/(1-x)`, :math:`m_1 = E[\int u\,w\,du]/(b E[D])`.

    Parameters
    ----------
    aged_work : E[int u w du] [s token]
    marginal_seconds : b [s]
    mean_decode_steps : E[D] [token]
    load : x [1]

    Returns
    -------
    relaxation : tau [steps]
    """
    return aged_work / (marginal_seconds * mean_decode_steps * (1 - load))


def step_variance_factor(spread: Value, factor_full: Value, load: Value) -> Value:
    r""":math:`H_T = (1 + q)(1 - x) + H_1 x`: variance of the step time over that of the insensitive law [1]."""
    return (1 + spread) * (1 - load) + factor_full * load


def cross_factor(factor_full: Value, load: Value) -> Value:
    r""":math:`H_X = 1 + (H_1 - 1) x^{3/2}`: covariance of batch and step time over that of the insensitive law [1]."""
    return 1 + (factor_full - 1) * load**1.5


def batch_variance_factor(factor_full: Value, load: Value) -> Value:
    r""":math:`H_N = 1 + (H_1 - 1) x^2`: variance of the batch over that of the negative binomial [1]."""
    return 1 + (factor_full - 1) * load**2


def step_variance(batch_mean: Value, marginal_seconds: Value, load: Value, factor: Value) -> Value:
    r"""Variance of the step time over steps, :math:`V_T = E_sN\,b^2/(1-x)\;H`.

    Parameters
    ----------
    batch_mean : E_s N [1]
    marginal_seconds : b [s]
    load : x [1]
    factor : H_T, plus excess dispersion times eta_b [1]

    Returns
    -------
    variance : V_T [s^2]
    """
    return batch_mean * marginal_seconds**2 / (1 - load) * factor


def batch_step_covariance(batch_mean: Value, marginal_seconds: Value, load: Value, factor: Value) -> Value:
    r"""Covariance of batch and step time over steps, :math:`C = E_sN\,b/(1-x)\;H` [s]."""
    return batch_mean * marginal_seconds / (1 - load) * factor


def batch_variance(batch_mean: Value, load: Value, factor: Value) -> Value:
    r"""Variance of the batch over steps, :math:`V_N = E_sN/(1-x)\;H` [1]."""
    return batch_mean / (1 - load) * factor


def step_third_cumulant(
    step_variance_value: Value,
    excess_step: Value,
    load: Value,
    weight_cube: Value,
    marginal_seconds: Value,
    spread: Value,
) -> Value:
    r"""Third cumulant of the step time over steps.

    .. math:: \kappa_3 = R\,V_T^2/(E_sT - a),\quad R = (1+x) + (g_3-1)(1-x^{7/4}),\quad
              g_3 = b\,E_{run}[w^3]/(b^2 + c^2\nu^2)^2

    Parameters
    ----------
    step_variance_value : V_T [s^2]
    excess_step : E_s T - a [s]
    load : x [1]
    weight_cube : E_run[w^3] [s^3]
    marginal_seconds : b [s]
    spread : q = (c nu / b)^2 [1]

    Returns
    -------
    third_cumulant : kappa_3 [s^3]
    """
    g3 = weight_cube / (marginal_seconds**3 * (1 + spread) ** 2)
    ratio = (1 + load) + (g3 - 1) * (1 - load**1.75)
    return ratio * step_variance_value**2 / excess_step


def shape_index(excess_step: Value, step_variance_value: Value) -> Value:
    r"""Validity of the laws, :math:`k = (E_sT - a)^2/V_T`: 10 and more is normal, below 2 a few requests rule [1]."""
    return excess_step**2 / step_variance_value


def burst_damping(overlap: Value, aged_work: Value, marginal_seconds: Value, mean_steps: Value, load: Value) -> Value:
    r"""Share of the excess dispersion of arrivals that reaches the step time.

    .. math:: \eta_b = (1-x)\,\eta_0 + x\,\eta_1,\quad \eta_0 = \frac{\int E[w(u);D>u]^2 du}{b^2 E[D]},\quad
              \eta_1 = \frac{b E[D]^2}{2 E[\int u\,w\,du]}

    Parameters
    ----------
    overlap : int E[w(u); D > u]^2 du [s^2 token]
    aged_work : E[int u w du] [s token]
    marginal_seconds : b [s]
    mean_steps : E[D] [token]
    load : x [1]

    Returns
    -------
    damping : eta_b; for the batch, put w = b (overlap of P(D > u), aged work b E[D^2]/2) [1]
    """
    light = overlap / (marginal_seconds**2 * mean_steps)
    heavy = marginal_seconds * mean_steps**2 / (2 * aged_work)
    return (1 - load) * light + load * heavy


def autocorrelation_shrink(steps: Value, relaxation: Value) -> Value:
    r"""Variance of the step time averaged over D steps, over V_T.

    .. math:: \phi = 2(y - 1 + e^{-y})/y^2,\quad y = D/\tau

    Parameters
    ----------
    steps : D, above 0 [token]
    relaxation : tau [steps]

    Returns
    -------
    shrink : phi, 1 for short requests [1]
    """
    y = steps / relaxation
    return 2 * (y - 1 + exp(-y)) / y**2


def memory_of_arrival(steps: Value, relaxation: Value) -> Value:
    r"""How much of the state met at arrival lasts on average over D steps, :math:`g = (1 - e^{-y})/y` [1]."""
    y = steps / relaxation
    return (1 - exp(-y)) / y


def tpot_mean_of_length(step_mean: Value, met_shift: Value, own: Value, feedback: Value, memory: Value) -> Value:
    r"""Mean TPOT of requests of one length.

    .. math:: E_sT + (E_{arr}T - E_sT)\,g + w_{own}\,(1 + f(1-g)),\quad f = x/(1-x)

    Parameters
    ----------
    step_mean : E_s T [s]
    met_shift : step time met at arrival less the mean over steps, E_arr T - E_s T [s]
    own : the request's own step seconds, e + c(P + D/2) [s]
    feedback : f, 0 where the cap holds the batch [1]
    memory : g of :func:`memory_of_arrival` [1]

    Returns
    -------
    tpot_mean : [s]
    """
    return step_mean + met_shift * memory + own * (1 + feedback * (1 - memory))


def reweighted_variance(variance: Value, third_cumulant: Value, shift: Value) -> Value:
    r"""Variance of the step law after re-weighting that moves its mean, :math:`V' = V + s\,\kappa_3/V - s^2`.

    Parameters
    ----------
    variance : V over steps [s^2]
    third_cumulant : kappa_3 over steps [s^3]
    shift : s, new mean less the mean over steps [s]

    Returns
    -------
    variance : V' [s^2]
    """
    return variance + shift * third_cumulant / variance - shift**2


def least_loaded_variance(factor: Value, instances: Value, within: Value) -> Value:
    r"""Variance factor behind a balancer: the pooled part over G, plus what stays within an instance.

    .. math:: H/G + (1 - 1/G)\,H_{within}

    Parameters
    ----------
    factor : H of the undivided stream, excess dispersion included [1]
    instances : G [1]
    within : part that balancing by batch cannot remove, q(1 - x) for the step time and 0 for the batch [1]

    Returns
    -------
    factor : [1]
    """
    return factor / instances + (1 - 1 / instances) * within


def least_kv_batch_variance(
    pooled: Value, instances: Value, batch_mean: Value, spread: Value, mean_steps: Value, steps_square: Value
) -> Value:
    r"""Variance of the batch behind a balancer that looks at KV: the pooled part over G, plus what contexts leave.

    .. math:: V_N/G + (1 - 1/G)\,0.8\,E_sN\,q\,E[D^2]/E[D]^2

    Equal step times hold unequal batches where contexts differ; with c = 0 (q = 0) nothing is left.

    Parameters
    ----------
    pooled : V_N of the undivided stream, excess dispersion included [1]
    instances : G [1]
    batch_mean : E_s N [1]
    spread : q = (c nu / b)^2 [1]
    mean_steps, steps_square : E[D], E[D^2] [token, token^2]

    Returns
    -------
    variance : [1]

    References
    ----------
    Renewal count of sizes with squared coefficient of variation q; the factor 0.8 E[D^2]/E[D]^2 was chosen on event
    simulations, whose standard deviation of the batch it meets within 17 %.
    """
    left = 0.8 * batch_mean * spread * steps_square / mean_steps**2
    return pooled / instances + (1 - 1 / instances) * left


def least_kv_size_share(instances: Value, kv_share: Value) -> Value:
    r"""Variance that a balancer looking at KV leaves of what the running requests of an instance hold.

    .. math:: 1/G + (1 - 1/G)\,(1 - w)^2

    A sum of e + c s kept equal over the instances leaves of each size s what does not move it, (1 - w)(s - E s).

    Parameters
    ----------
    instances : G [1]
    kv_share : w = c E[s]/b, part of KV in what the average request adds to a step [1]

    Returns
    -------
    share : of N Var(s) [1]

    References
    ----------
    Renewal reward: the reward s at a fixed sum of e + c s varies like s - (E[s]/b)(e + c s). KV overflow in event
    simulations with 2 to 15 instances is met within 0.01 below 1 %.
    """
    return 1 / instances + (1 - 1 / instances) * (1 - kv_share) ** 2


def thinned_dispersion(dispersion: Value, instances: Value) -> Value:
    r"""Index of dispersion of one instance's arrivals after a random split, :math:`1 + (I-1)/G` [1]."""
    return 1 + (dispersion - 1) / instances


def dealt_dispersion(dispersion: Value, instances: Value) -> Value:
    r"""Index of dispersion of one instance's arrivals after round-robin, :math:`I/G` [1]."""
    return dispersion / instances
