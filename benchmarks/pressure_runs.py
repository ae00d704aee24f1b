"""KV pressure against simulated runs of the vLLM v1 scheduler rules: errors by kind of run and split.

python benchmarks/preemption.py [GRID.json]; without a file the held-out runs of the tests are used.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import capplan

HELD_OUT = Path(__file__).resolve().parents[1] / "tests" / "truth" / "preemption_runs.json"
# production lengths of a reasoning model as two lognormal laws: weights, means of the logarithm, its deviations
REASONING = ((0.827, 6.481, 0.722), (0.173, 8.156, 0.808))


def law(spec: list[Any], limit: float) -> Any:
    """Length law of a configuration: ln (mean, cv), exp, fixed, bi (share, mean, cv, mean, cv), r1."""
    kind, *numbers = spec
    if kind == "fixed":
        return capplan.Fixed(numbers[0])
    if kind == "ln":
        return capplan.LogNormal(*numbers, max=limit)
    if kind == "exp":
        return capplan.Exponential(numbers[0], max=limit)
    if kind == "bi":
        share, short, short_cv, long, long_cv = numbers
        parts = ((share, short, short_cv), (1 - share, long, long_cv))
    else:
        parts = tuple((w, math.exp(m + s * s / 2), math.sqrt(math.exp(s * s) - 1)) for w, m, s in REASONING)
    return capplan.Mixture([(w, capplan.LogNormal(mean, cv, max=limit)) for w, mean, cv in parts])


def predicted(case: dict[str, Any]) -> Any:
    """The law's answer for one configuration."""
    step = case["step"]
    workload = capplan.Workload(input=law(case["prompt"], case["pcap"]), output=law(case["out"], case["lcap"]))
    policy = "reserve" if case["reserve_tokens"] else "swap" if case["swap"] else "recompute"
    return capplan.kv_pressure(
        workload, case["pool"], concurrency=case["N"], request_rate=case["rate"],
        step_time=(step["ta"], step["tb"], step["tc"], step["td"]), max_num_seqs=case["max_num_seqs"],
        watermark=case["watermark_tokens"] / case["pool"], policy=policy, reserve_tokens=case["reserve_tokens"],
        prefix_caching=bool(case["apc"]), block_size=case["block"], token_budget=case["budget"],
    )  # fmt: skip


def rows(cases: list[dict[str, Any]]) -> Iterator[tuple[str, str, list[tuple[float, float]]]]:
    """(kind, split, [(error of rho, relative error of B)]) without fixed lengths and metastable loads."""
    for kind in ("closed", "cap", "open", "wm", "apc", "res", "swap"):
        for split in ("train", "test"):
            errors = []
            for case in cases:
                if case["kind"] != kind or case.get("split", "test") != split or case["dist"] == "fixed":
                    continue
                truth, answer = case["truth"], predicted(case)
                if answer.metastable:
                    continue
                rho = (answer.swapped_per_token - truth["swtok"]) / 2 if case["swap"] else (
                    answer.recompute_per_token - truth["rho"])  # fmt: skip
                errors.append((abs(rho), abs(answer.batch / truth["Bt" if kind == "open" else "B"] - 1)))
            if errors:
                yield kind, split, errors


def main() -> None:
    """Print the table."""
    data = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else HELD_OUT).read_text(encoding="utf-8"))
    cases = data["configs"] if "configs" in data else data["runs"]
    begin = time.perf_counter()
    print(f"{'kind':8}{'split':8}{'runs':>5}  {'rho mean':>9}{'max':>8}  {'B mean':>8}{'max':>8}")
    for kind, split, errors in rows(cases):
        rho, batch = ([pair[i] for pair in errors] for i in (0, 1))
        print(
            f"{kind:8}{split:8}{len(errors):5}  {sum(rho) / len(rho):9.4f}{max(rho):8.3f}"
            f"  {sum(batch) / len(batch):8.2%}{max(batch):8.2%}"
        )
    print(f"{len(cases)} configurations in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
