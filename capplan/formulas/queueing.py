"""Waiting in a prefill pool: one queue, first come first served, before one or several equal servers.

A server is one prefill instance working on one prompt at a time; its service time is the prompt's prefill time.
"""

from __future__ import annotations

import math

from capplan.formulas._ops import Value, exp, minimum, sqrt


def utilization(request_rate: Value, service_mean: Value, servers: Value = 1) -> Value:
    r"""Share of time a server works.

    .. math:: \rho = \lambda E[S]/k

    Parameters
    ----------
    request_rate : lambda [1/s]
    service_mean : E[S] [s]
    servers : k [-]

    Returns
    -------
    utilization : rho; the queue is stable below 1 [-]

    References
    ----------
    Little's law.
    """
    return request_rate * service_mean / servers


def mg1_wait_mean_seconds(request_rate: Value, service_mean: Value, service_second: Value) -> Value:
    r"""Mean wait before one server, Poisson arrivals (Pollaczek-Khinchine).

    .. math:: E[W] = \frac{\lambda E[S^2]}{2(1-\rho)}

    Parameters
    ----------
    request_rate : lambda [1/s]
    service_mean, service_second : E[S], E[S^2] of the service time [s, s^2]

    Returns
    -------
    wait_mean : [s]; valid for rho below 1

    Examples
    --------
    >>> 1.0 + round(mg1_wait_mean_seconds(0.9, 1.0, 1.0), 6)  # DistServe's D = 1, R = 0.9
    5.5

    References
    ----------
    L. Kleinrock, Queueing Systems 1 (1975), section 5.6; Zhong et al., DistServe, arXiv:2401.09670, equation 1.
    """
    return request_rate * service_second / (2 * (1 - request_rate * service_mean))


def mg1_wait_second_moment(
    request_rate: Value, service_mean: Value, service_second: Value, service_third: Value
) -> Value:
    r"""Second moment of the wait before one server, Poisson arrivals.

    .. math:: E[W^2] = 2E[W]^2 + \frac{\lambda E[S^3]}{3(1-\rho)}

    Parameters
    ----------
    request_rate : lambda [1/s]
    service_mean, service_second, service_third : E[S^k], k = 1..3 [s, s^2, s^3]

    Returns
    -------
    wait_second : [s^2]

    References
    ----------
    Takacs' recursion; L. Kleinrock, Queueing Systems 1 (1975), section 5.7.
    """
    mean = mg1_wait_mean_seconds(request_rate, service_mean, service_second)
    return 2 * mean * mean + request_rate * service_third / (3 * (1 - request_rate * service_mean))


def pipelined_prefill_ttft_seconds(request_rate: Value, prefill_seconds: Value, stages: Value = 2) -> Value:
    r"""Mean TTFT of equal prompts on an instance split into pipeline stages (inter-operator parallelism).

    .. math:: TTFT = D + \frac{R D_m^2}{2(1 - R D_m)},\quad D_m = D/\text{stages}

    Parameters
    ----------
    request_rate : R [1/s]
    prefill_seconds : time of one prompt through all stages D [s]
    stages : pipeline stages [-]

    Returns
    -------
    ttft : [s]

    Examples
    --------
    >>> round(pipelined_prefill_ttft_seconds(0.9, 1.0), 4)
    1.2045

    References
    ----------
    Zhong et al., DistServe, arXiv:2401.09670, equation 2.
    """
    slowest = prefill_seconds / stages
    return prefill_seconds + mg1_wait_mean_seconds(request_rate, slowest, slowest * slowest)


def tensor_parallel_prefill_ttft_seconds(request_rate: Value, prefill_seconds: Value, speedup: Value) -> Value:
    r"""Mean TTFT of equal prompts on an instance that tensor parallelism speeds up (intra-operator parallelism).

    .. math:: TTFT = \frac DK + \frac{R D^2}{2K(K - R D)}

    Parameters
    ----------
    request_rate : R [1/s]
    prefill_seconds : time of one prompt without it D [s]
    speedup : K, between 1 and the number of GPUs [-]

    Returns
    -------
    ttft : [s]

    Examples
    --------
    >>> round(tensor_parallel_prefill_ttft_seconds(0.9, 1.0, 1.5), 4)
    1.1667

    References
    ----------
    Zhong et al., DistServe, arXiv:2401.09670, equation 3.
    """
    service = prefill_seconds / speedup
    return service + mg1_wait_mean_seconds(request_rate, service, service * service)


def erlang_b(servers: int, offered_load: Value) -> Value:
    r"""Share of arrivals lost by ``k`` servers without a queue.

    .. math:: B_0 = 1,\quad B_j = \frac{a B_{j-1}}{j + a B_{j-1}}

    Parameters
    ----------
    servers : k, a whole number [-]
    offered_load : a = lambda E[S] [-]

    Returns
    -------
    loss : [-]

    Examples
    --------
    >>> round(erlang_b(2, 1.0), 6)
    0.2

    References
    ----------
    A. K. Erlang (1917); L. Kleinrock, Queueing Systems 1 (1975), section 3.6.
    """
    loss: Value = 1.0 + 0 * offered_load
    for server in range(1, servers + 1):
        loss = offered_load * loss / (server + offered_load * loss)
    return loss


def erlang_c(servers: int, offered_load: Value) -> Value:
    r"""Share of arrivals that wait, exponential service; nearly right for any service law.

    .. math:: C = \frac{B}{1 - \rho(1 - B)},\quad \rho = a/k

    Parameters
    ----------
    servers : k, a whole number [-]
    offered_load : a = lambda E[S], below k [-]

    Returns
    -------
    wait_probability : [-]; for general service within 4 % in the median, 20 % at P95

    Examples
    --------
    >>> round(erlang_c(1, 0.7), 6), round(erlang_c(2, 1.0), 6)
    (0.7, 0.333333)

    References
    ----------
    A. K. Erlang (1917); L. Kleinrock, Queueing Systems 1 (1975), section 3.5.
    """
    loss = erlang_b(servers, offered_load)
    return loss / (1 - offered_load / servers * (1 - loss))


def several_servers_factor(servers: Value, utilization: Value, service_variation: Value) -> Value:
    r"""Mean wait of those who wait, against exponential service: Kimura's form with Cosmetatos' correction.

    .. math:: \frac{1 + c_s^2}{2c_s^2 + (1 - c_s^2)/w},\quad
              w = \min\left(1, \tfrac12\left(1 + \frac{(1-\rho)(k-1)(\sqrt{4+5k} - 2)}{16\rho k}\right)\right)

    Parameters
    ----------
    servers : k [-]
    utilization : rho, above 0 and below 1 [-]
    service_variation : squared coefficient of variation c_s^2 of the service time [-]

    Returns
    -------
    factor : (1 + c_s^2)/2 for one server [-]

    Examples
    --------
    >>> several_servers_factor(1, 0.5, 3.0), several_servers_factor(8, 0.5, 1.0)
    (2.0, 1.0)

    References
    ----------
    T. Kimura, Management Science 32 (1986) 751-763; G. P. Cosmetatos, INFOR 13 (1975) 328-331.
    """
    spread = (1 - utilization) * (servers - 1) * (sqrt(4 + 5 * servers) - 2) / (16 * utilization * servers)
    weight = minimum((1 + spread) / 2, 1.0)
    return (1 + service_variation) / (2 * service_variation + (1 - service_variation) / weight)


def burst_wait_term(arrival_variation: Value, service_variation: Value, utilization: Value) -> Value:
    r"""What bursty arrivals add to the factor of the mean wait.

    .. math:: \frac{c_a^2 - 1}{2}\exp\left(-\frac{(1-\rho)(c_a^2-1)}{c_a^2 + 4c_s^2}\right)

    Parameters
    ----------
    arrival_variation, service_variation : squared coefficients of variation c_a^2 (1 is Poisson), c_s^2 [-]
    utilization : rho [-]

    Returns
    -------
    term : 0 for Poisson arrivals; conservative above it [-]

    References
    ----------
    W. Kraemer, M. Langenbach-Belz, 8th International Teletraffic Congress (1976).
    """
    excess = arrival_variation - 1
    return excess / 2 * exp(-(1 - utilization) * excess / (arrival_variation + 4 * service_variation))


def bursty_wait_probability(arrival_variation: Value, service_variation: Value, utilization: Value) -> Value:
    r"""Share of arrivals that wait before one server when arrivals come in bursts.

    .. math:: \rho + (c_a^2 - 1)\rho(1-\rho)\frac{4\rho}{c_a^2 + \rho^2(4c_a^2 + c_s^2)}

    Parameters
    ----------
    arrival_variation : c_a^2, one or more [-]
    service_variation : c_s^2 [-]
    utilization : rho [-]

    Returns
    -------
    wait_probability : rho for Poisson arrivals, where it is exact [-]

    References
    ----------
    W. Kraemer, M. Langenbach-Belz, 8th International Teletraffic Congress (1976).
    """
    denominator = arrival_variation + utilization**2 * (4 * arrival_variation + service_variation)
    excess = (arrival_variation - 1) * utilization * (1 - utilization)
    return utilization + excess * 4 * utilization / denominator


def burst_ttft_mean_seconds(prompts: Value, prefill_seconds: Value) -> Value:
    r"""Mean TTFT when ``b`` equal prompts arrive at once at one idle instance.

    .. math:: \frac{b+1}{2}\,D

    Parameters
    ----------
    prompts : b [-]
    prefill_seconds : prefill time of one prompt D [s]

    Returns
    -------
    ttft_mean : [s]

    Examples
    --------
    >>> burst_ttft_mean_seconds(8, 0.5)
    2.25

    References
    ----------
    Arithmetic; measured 5-11 % above it for b up to 8: github.com/ai-dynamo/aiconfigurator, issue 1165.
    """
    return (prompts + 1) / 2 * prefill_seconds


def capped_lognormal_tokens_moment(log_mean: float, log_std: float, cap: int, order: int) -> float:
    r"""Moment of a lognormal output length, rounded up to whole tokens and cut at a token cap.

    .. math:: E[\min(\lceil X\rceil, m)^k] = \sum_{n=0}^{m-1} \left((n+1)^k - n^k\right) P(X > n)

    Parameters
    ----------
    log_mean, log_std : of the logarithm of the length, mu, sigma [-]
    cap : m, a whole number [tokens]
    order : k [-]

    Returns
    -------
    moment : [tokens to the k]

    Examples
    --------
    >>> seconds, rate = 0.0225, 1 / 40
    >>> first, second = (seconds**k * capped_lognormal_tokens_moment(7.0, 0.7, 1600, k) for k in (1, 2))
    >>> round(mg1_wait_mean_seconds(rate, first, second), 2)
    22.34

    References
    ----------
    Summation by parts; token caps in an M/G/1 queue: Y. Yang et al., arXiv:2407.05347.
    """

    def exceeds(tokens: int) -> float:
        return 0.5 * math.erfc((math.log(tokens) - log_mean) / (log_std * math.sqrt(2))) if tokens else 1.0

    return math.fsum(((n + 1) ** order - n**order) * exceeds(n) for n in range(cap))
