"""What ``capplan models show`` says of a model: sizes, cache and operations, each with the formula behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capplan.cards.model import Model

CONTEXTS = (8_192, 32_768, 131_072)

CONVENTION = "input embedding counted in total, not in active; lm_head in both; vision parts and MTP layers in neither"
FORMULAS = {
    "parameters_total": "every stored matrix, bias and norm of the text part once",
    "parameters_active": "total - input embedding look-up - (n_experts - top_k) experts a layer",
    "parameters_by_part": "inputs x outputs of the matrices of the part, times layers, times experts, + biases",
    "weight_bytes": "elements x bytes of an element + scales; biases and norms in 16 bits",
    "kv_bytes_per_token": "sum over attention layers of the bytes one token takes while all windows are open",
    "kv_bytes": "sum over attention layers of min(context, window) x bytes a token, + state",
    "state_bytes_per_sequence": "recurrent state of all layers, whatever the context",
    "flops_per_token": "2 x active matrix elements + attention of one token over the context",
}
"""What each number of the report is, in words."""


def model_record(model: Model) -> dict[str, Any]:
    """The numbers of a model as JSON carries them."""
    from capplan.cards.kv_summary import attention_summary

    contexts = [context for context in CONTEXTS if context <= model.max_context] or [model.max_context]
    dtypes = _cache_types(model)
    return {
        "name": model.name,
        "parameters_total": model.parameters_total,
        "parameters_active": model.parameters_active,
        "parameters_convention": CONVENTION,
        "parameters_by_part": dict(model.parameters_by_part),
        "mtp_parameters": model.mtp_parameters,
        "weight_bytes": model.weight_bytes(),
        "weight_bytes_by_format": weight_bytes_by_format(model),
        "attention": attention_summary(model),
        "kv_dtype": model.kv_dtype,
        "kv_bytes_per_token": {dtype: _per_token(model, dtype) for dtype in dtypes},
        "kv_bytes": {dtype: {str(context): _held(model, context, dtype) for context in contexts} for dtype in dtypes},
        "state_bytes_per_sequence": model.state_bytes_per_sequence,
        "flops_per_token": {str(context): model.flops_per_token(context) for context in (0, *contexts)},
        "fields_read": list(model.fields_read),
        "fields_unread": list(model.fields_unread),
        "fields_assumed": {**_part(model, "fields_assumed"), **_part(model, "assumed")},
        "provenance": {key: value for key, value in model.provenance.items() if value and "assumed" not in key},
        "formulas": FORMULAS,
    }


def _part(model: Model, key: str) -> dict[str, str]:
    return dict(model.provenance.get(key) or {})


def weight_bytes_by_format(model: Model) -> dict[str, float]:
    """Bytes of the checkpoint by storage format, scales included; biases and norms under ``other``."""
    sizes: dict[str, float] = {}
    for times, matmul in model.matmuls():
        sizes[matmul.format.name] = sizes.get(matmul.format.name, 0.0) + times * matmul.weight_bytes
    other = model.weight_bytes() - sum(sizes.values())
    return sizes | ({"other": other} if other else {})


def model_rows(record: Mapping[str, Any]) -> list[list[str]]:
    """The record as a table: key, value, unit, kind, formula or source."""
    rows = [["name", record["name"], "", "", ""]]
    rows += _parameter_rows(record)
    rows += _weight_rows(record)
    rows += _cache_rows(record)
    rows += [
        [f"flops_per_token at {int(context):,}", f"{flops:.6g}", "FLOP", "computed", FORMULAS["flops_per_token"]]
        for context, flops in record["flops_per_token"].items()
    ]
    return rows + _origin_rows(record)


def _parameter_rows(record: Mapping[str, Any]) -> list[list[str]]:
    rows = [
        [key, f"{record[key]:,}", "parameter", "computed", f"{FORMULAS[key]}; {CONVENTION}"]
        for key in ("parameters_total", "parameters_active")
    ]
    parts = {**record["parameters_by_part"], **({"mtp": record["mtp_parameters"]} if record["mtp_parameters"] else {})}
    formula = FORMULAS["parameters_by_part"]
    return rows + [[f"parameters: {part}", f"{n:,}", "parameter", "computed", formula] for part, n in parts.items()]


def _weight_rows(record: Mapping[str, Any]) -> list[list[str]]:
    sizes = {"weight_bytes": record["weight_bytes"]}
    sizes |= {f"weight_bytes: {name}": size for name, size in record["weight_bytes_by_format"].items()}
    return [[key, f"{size:,.0f}", "B", "computed", FORMULAS["weight_bytes"]] for key, size in sizes.items()]


def _cache_rows(record: Mapping[str, Any]) -> list[list[str]]:
    rows = [["attention", "", "", "", record["attention"]]]
    for dtype, size in record["kv_bytes_per_token"].items():
        declared = " (declared)" if dtype == record["kv_dtype"] else ""
        key = f"kv_bytes_per_token {dtype}{declared}"
        rows.append([key, f"{size:,.10g}", "B/token", "computed", FORMULAS["kv_bytes_per_token"]])
    for dtype, sizes in record["kv_bytes"].items():
        for context, size in sizes.items():
            rows.append(
                [f"kv_bytes {dtype} at {int(context):,}", f"{size:,.0f}", "B", "computed", FORMULAS["kv_bytes"]]
            )
    state = record["state_bytes_per_sequence"]
    return [*rows, ["state_bytes_per_sequence", f"{state:,.0f}", "B", "computed", FORMULAS["state_bytes_per_sequence"]]]


def _origin_rows(record: Mapping[str, Any]) -> list[list[str]]:
    rows = [[f"from: {key}", "", "", "", _text(value)] for key, value in record["provenance"].items()]
    rows += [[f"assumed: {key}", value, "", "assumed", "not in the config"] for key, value in _assumed(record)]
    for key, name in (("fields_read", "fields read"), ("fields_unread", "fields not read")):
        rows.append([name, str(len(record[key])), "", "", ", ".join(record[key])])
    return rows


def _assumed(record: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    assumed: Mapping[str, str] = record["fields_assumed"]
    return assumed.items()


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _cache_types(model: Model) -> list[str]:
    """The declared type, the usual ones, and the layout of latents where the model has nothing but latents."""
    kinds = {group.attention.kind for group in model.layers if group.attention is not None}
    latent = ["fp8_ds_mla"] if kinds == {"mla"} else []
    return list(dict.fromkeys([model.kv_dtype, "bf16", "fp8", *latent]))


def _per_token(model: Model, dtype: str) -> float:
    from capplan.cards.kv import kv_bytes_per_token

    return kv_bytes_per_token(model, dtype)


def _held(model: Model, context: int, dtype: str) -> float:
    from capplan.cards.kv import kv_bytes

    return float(kv_bytes(model, context, dtype))
