"""Measured end-to-end rows (closed loop, fixed concurrency): which are kept, and how they are split.

The rows are those of ``systems/silicon_sample.csv`` in the PyPI package aiconfigurator-core 0.12.0 (Apache-2.0), the
aggregated ones of all GPUs: public results of its authors and of InferenceX. ``tests/truth/end_to_end_rows.csv``
holds the columns used here; ``python benchmarks/end_to_end_rows.py SYSTEMS`` writes it anew from the package.

Rules, fixed before any prediction was compared with these rows:

1. dropped, each by a rule that looks at no prediction (:data:`RULES`): contradictory layouts, a tensor-parallel group
   larger than its node, DeepSeek on TensorRT-LLM with expert or data parallelism (draft tokens unrecorded), a 4-bit
   checkpoint labelled fp8, repeated results, and labels no GPU can reach with the rest of their file;
2. the format of the weights is the label's, that of the KV cache fp8 where TensorRT-LLM runs per-tensor fp8 or
   fp4 weights (their checkpoints declare it), else the checkpoint's;
3. a configuration is model, engine (in any version), GPU, formats and layout. Configurations of one model, engine, GPU
   and load generator are ordered by a hash and dealt alternately to the train and the test half, and in turn to five
   folds: no configuration is on both sides;
4. constants fitted on the train half: for each engine a layer overhead, a step gap, a time a sequence and a start-up
   of the all-reduce; for each engine and load generator three constants of the TTFT.

Changed after a first score, by what an earlier study of the same rows and the train half say:

* SGLang before 0.5.6, whose scheduler reads prompts first, has TTFT constants of its own; Qwen3-235B on vLLM 0.12,
  whose expert kernel was not tuned for its shape, is scored but not fitted to;
* the start-up of the all-reduce is that of the hardware card, and the three constants of a step are one set for all
  engines: constants of each engine predict new families worse and new configurations hardly better;
* models that TensorRT-LLM quantised itself find one scale of all activations in every step (``fp8_dynamic``);
* the loss is Cauchy's, which was best on folds of the train half;
* labels of experts that dense models carry no longer tell configurations apart: two of Hopper were on both sides.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from kernel_tables import ENGINES, SYSTEMS

from capplan.cards.hardware import Hardware
from capplan.cards.hardware_card import load_hardware
from capplan.cards.model import Model
from capplan.cards.model_card import load_model
from capplan.serving.layout import Layout

FILE = Path(__file__).resolve().parent.parent / "tests" / "truth" / "end_to_end_rows.csv"

GPUS = {folder: card for card, folder in SYSTEMS.items()}
HOPPER = ("h100-sxm", "h200")
CARDS = {
    "MiniMaxAI/MiniMax-M2.5": ("minimax-m2.5", "minimax"),
    "Qwen/Qwen3-235B-A22B-FP8": ("qwen3-235b-a22b-fp8", "qwen3-moe"),
    "Qwen/Qwen3-32B": ("qwen3-32b", "qwen3"),
    "nvidia/Qwen3-32B-NVFP4": ("qwen3-32b", "qwen3"),
    "Qwen/Qwen3.5-397B-A17B": ("qwen3.5-397b-a17b", "qwen3.5"),
    "deepseek-ai/DeepSeek-R1": ("deepseek-r1", "deepseek"),
    "nvidia/DeepSeek-R1-NVFP4": ("deepseek-r1", "deepseek"),
    "deepseek-ai/DeepSeek-V3": ("deepseek-v3", "deepseek"),
    "nvidia/DeepSeek-V3.1-NVFP4": ("deepseek-v3.1-nvfp4", "deepseek"),
    "meta-llama/Llama-3.1-70B": ("llama-3.1-70b", "llama"),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", "llama"),
    "nvidia/Llama-3.1-8B-Instruct-FP8": ("llama-3.1-8b", "llama"),
    "moonshotai/Kimi-K2.5": ("kimi-k2.5", "kimi"),
    "openai/gpt-oss-120b": ("gpt-oss-120b", "gpt-oss"),
    "zhipuai/GLM-5": ("glm-5-fp8", "glm"),
}
"""Model of a row to its card and its family."""

FOUR_BIT_CARDS = {"deepseek": "deepseek-v3.1-nvfp4", "kimi": "kimi-k2.6-nvfp4", "glm": "glm-5-nvfp4"}
"""Family to the card of a checkpoint that NVIDIA stored in nvfp4; attention stays in more bits there."""

AS_SERVED = ("minimax", "qwen3-moe", "deepseek", "kimi", "gpt-oss", "glm")
"""Families whose cards are stored as they are served; only a 4-bit label changes them."""

REACHABLE_SHARE = 0.6
"""Share of the dense peak above which the arithmetic of the prompts alone makes a label impossible; kernels reach
0.8 of it in one product, whole prompts 0.4 to 0.5."""


@dataclass(frozen=True)
class Row:
    """One measured run: ``concurrency`` requests of ``isl`` and ``osl`` tokens always in flight; milliseconds."""

    id: str
    engine: str
    version: str
    model: str
    gpu: str
    gemm: str
    moe: str
    isl: int
    osl: int
    concurrency: int
    tp: int
    dp: int
    moe_tp: int
    moe_ep: int
    source: str
    ttft_ms: float
    tpot_ms: float

    @property
    def family(self) -> str:
        """Models that are alike, left out together."""
        return CARDS[self.model][1]

    @property
    def generator(self) -> str:
        """Who put the load on: results of one benchmark harness share its habits."""
        return "aiconfigurator" if self.source.endswith(".csv") and "/" in self.source else "inferencex"

    @property
    def client(self) -> str:
        """Load generator and, where its order of work matters, scheduler: SGLang before 0.5.6 reads prompts first."""
        early = self.engine == "sglang" and self.version.startswith(("0.5.1", "0.5.5"))
        return f"{self.generator}, prompts first" if early else self.generator

    @property
    def slow_experts(self) -> bool:
        """Rows whose expert kernel is slower than any table of it by 1.7: scored, but not fitted to."""
        return self.family == "qwen3-moe" and self.engine == "vllm"

    @property
    def range_share(self) -> float:
        """Mean length over the nominal one: InferenceX draws lengths from 0.8 to 1 of it."""
        return 0.9 if self.generator == "inferencex" else 1.0

    @cached_property
    def card(self) -> Model:
        """The model with its weights in the formats of the label."""
        card, family = CARDS[self.model]
        if self.gemm == "nvfp4" and family != "gpt-oss":
            own = FOUR_BIT_CARDS.get(family)
            return load_model(own) if own else load_model(card).with_weight_dtype("nvfp4")
        if family in AS_SERVED or not self.gemm:
            return load_model(card)
        if "fp8_block" in (self.gemm, self.moe):
            return load_model(card).with_weight_dtype("fp8_block")
        # TensorRT-LLM finds the scale of a model that comes without one in every step; NVIDIA's checkpoints have it.
        found = self.engine == "tensorrt-llm" and self.generator == "aiconfigurator"
        return load_model(card).with_weight_dtype("fp8_dynamic" if found else "fp8")

    @cached_property
    def hardware(self) -> Hardware:
        """The GPU."""
        return load_hardware(self.gpu)

    @cached_property
    def layout(self) -> Layout:
        """The instance; experts spread only where the label says so."""
        ep = self.moe_ep if self.card.is_mixture and self.moe_ep > 1 else None
        return Layout(tp=self.tp, dp=self.dp, ep=ep)

    @property
    def kv_dtype(self) -> str | None:
        """Element type of the cache; None for the checkpoint's."""
        return "fp8" if self.engine == "tensorrt-llm" and self.gemm in ("fp8", "nvfp4") else None

    @property
    def stratum(self) -> tuple[str, ...]:
        """What both halves shall have something of."""
        return self.model, self.engine, self.gpu, self.generator

    @property
    def configuration(self) -> tuple[object, ...]:
        """What is never on both sides of a split; what a label says of the experts of a dense model is none of it."""
        experts = (self.moe, self.moe_tp, self.moe_ep) if self.card.is_mixture else ()
        return (*self.stratum, self.gemm, self.tp, self.dp, *experts)


def read_rows() -> list[Row]:
    """All rows of the file, in its order."""
    kinds = {field.name: {"int": int, "float": float}.get(str(field.type), str) for field in fields(Row)}
    with FILE.open(newline="", encoding="utf-8") as text:
        lines = csv.DictReader(line for line in text if not line.startswith("#"))
        return [Row(**{name: kinds[name](value) for name, value in line.items()}) for line in lines]


def _contradictory(row: Row) -> bool:
    return row.card.is_mixture and row.tp * row.dp != row.moe_tp * row.moe_ep


def _wider_than_node(row: Row) -> bool:
    return row.tp * row.dp > row.hardware.scale_up.gpus


def _drafts_unrecorded(row: Row) -> bool:
    return row.family == "deepseek" and row.engine == "tensorrt-llm" and (row.moe_ep > 1 or row.dp > 1)


def _wrong_format(row: Row) -> bool:
    return row.family == "gpt-oss" and row.gemm == "fp8"


def _too_fast(row: Row) -> bool:
    arithmetic = row.card.layers[-1].feed_forward
    matmuls = arithmetic.expert_matmuls or arithmetic.matmuls if arithmetic is not None else ()
    compute = matmuls[0].format.compute if matmuls else "bf16"
    peak = row.hardware.peak_flops.get(compute, row.hardware.peak_flops["bf16"])
    seconds = (row.ttft_ms + (row.range_share * row.osl - 1) * row.tpot_ms) / 1e3
    flops = 2.0 * row.card.matmul_parameters_active * row.range_share * row.isl
    return row.concurrency * flops / seconds > REACHABLE_SHARE * peak * row.layout.gpus


RULES: dict[str, Callable[[Row], bool]] = {
    "tp * dp is not moe_tp * moe_ep": _contradictory,
    "tensor-parallel group wider than a node": _wider_than_node,
    "DeepSeek on TensorRT-LLM with EP or DP, draft tokens unrecorded": _drafts_unrecorded,
    "gpt-oss labelled fp8": _wrong_format,
    f"prompts alone need more than {REACHABLE_SHARE:.0%} of the peak": _too_fast,
}


def kept_rows(rows: Sequence[Row]) -> tuple[list[Row], Counter[str]]:
    """The rows no rule drops, and how many each rule drops."""
    kept: list[Row] = []
    dropped: Counter[str] = Counter()
    seen: set[tuple[float, float]] = set()
    untrusted = {row.source for row in rows if "/" in row.source and _too_fast(row)}
    for row in rows:
        reason = next((name for name, holds in RULES.items() if holds(row)), None)
        if reason is None and row.source in untrusted:
            reason = "from a file of one model and engine that holds such a row"
        if reason is None and (row.ttft_ms, row.tpot_ms) in seen:
            reason = "a repeated result"
        seen.add((row.ttft_ms, row.tpot_ms))
        if reason is None:
            kept.append(row)
        else:
            dropped[reason] += 1
    return kept, dropped


def dealt(rows: Iterable[Row], hands: int) -> dict[str, int]:
    """Row id to one of ``hands`` parts: configurations of a stratum in the order of a hash, dealt in turn."""
    strata: dict[tuple[str, ...], dict[tuple[object, ...], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        strata[row.stratum][row.configuration].append(row)
    part: dict[str, int] = {}
    for stratum, configurations in strata.items():
        first = _hash(stratum) % hands
        for turn, configuration in enumerate(sorted(configurations, key=_hash)):
            part.update({row.id: (first + turn) % hands for row in configurations[configuration]})
    return part


def _hash(key: tuple[object, ...]) -> int:
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")


def noise_floor(rows: Iterable[Row]) -> list[float]:
    """Ratio of larger to smaller TPOT where two kept rows have the same labels: no prediction can be nearer."""
    same: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for row in rows:
        same[(*row.configuration, row.isl, row.osl, row.concurrency)].append(row.tpot_ms)
    return [max(values) / min(values) for values in same.values() if len(values) > 1]


def _write(systems: Path) -> None:
    names = [field.name for field in fields(Row)]
    with (systems / "silicon_sample.csv").open(newline="", encoding="utf-8") as text:
        found = [_converted(line) for line in csv.DictReader(text) if line["mode"] == "agg"]
    with FILE.open("w", newline="", encoding="utf-8") as text:
        text.write("# aggregated rows of systems/silicon_sample.csv, aiconfigurator-core 0.12.0 (PyPI, Apache-2.0)\n")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in found)


def _converted(line: dict[str, str]) -> Row:
    source = line["silicon_data_source"]
    _, _, after = source.partition("silicon_concurrency=")
    concurrency = after.split(";")[0] or float(line["batch_size"]) * float(line["attention_dp_size"] or 1)
    place = source.split(";")[0].removeprefix("source_file=")
    whole = {name: int(float(line[name] or 1)) for name in ("tp_size", "moe_tp_size", "moe_ep_size")}
    own = "/".join(place.split("/")[-4:]) if place.startswith("/") else place.replace("/", " ")
    return Row(
        id=line["id"], engine=ENGINES[line["backend"]], version=line["backend_version"], model=line["model_path"],
        gpu=GPUS[line["system"]], gemm=line["gemm_quant_mode"], moe=line["moe_quant_mode"], isl=int(line["isl"]),
        osl=int(line["osl"]), concurrency=int(concurrency), tp=whole["tp_size"],
        dp=int(float(line["attention_dp_size"] or 1)) or 1, moe_tp=whole["moe_tp_size"], moe_ep=whole["moe_ep_size"],
        source=own, ttft_ms=round(float(line["silicon_ttft_ms"]), 4), tpot_ms=round(float(line["silicon_tpot_ms"]), 5),
    )  # fmt: skip


def main(arguments: list[str]) -> None:
    """Write the file from the package, or tell what is kept and how it is split; with ``--ids`` every kept id."""
    listed = "--ids" in arguments
    for systems in (argument for argument in arguments if argument != "--ids"):
        _write(Path(systems))
    rows = read_rows()
    for name, gpus in (("Hopper", HOPPER), ("Blackwell", tuple(set(GPUS.values()) - set(HOPPER)))):
        kept, dropped = kept_rows([row for row in rows if row.gpu in gpus])
        halves, ratios = dealt(kept, 2), sorted(noise_floor(kept))
        print(f"{name}: {len(kept)} kept of {len(kept) + dropped.total()}, {sum(halves.values())} in the test half")
        for reason, count in dropped.items():
            print(f"  {count:4} dropped: {reason}")
        if ratios:
            print(f"  same labels twice: {len(ratios)}, TPOT apart by {ratios[len(ratios) // 2] - 1:.1%} in the median")
        ids = "\n".join(sorted(row.id for row in kept))
        print(f"  sha256 of the kept ids: {hashlib.sha256(ids.encode()).hexdigest()[:16]}")
        print(ids if listed else "", end="\n" if listed else "")


if __name__ == "__main__":
    main(sys.argv[1:])
