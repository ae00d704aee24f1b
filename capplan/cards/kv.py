"""KV-cache bytes of a model: one sequence of a given context, one more token, one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from capplan.cards.model import Attention, Model
from capplan.cards.model_totals import check_context
from capplan.errors import InputError, UnknownNameError, shown
from capplan.formulas import kv_cache

if TYPE_CHECKING:
    from capplan.quantities.chain import Chain

KV_ELEMENT_BYTES: dict[str, float] = {
    "bf16": 2,
    "fp16": 2,
    "fp32": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
}
"""Element types: everything a layer caches is stored in that type; scales a tensor or a head are not counted."""

_LAYOUTS: dict[str, float] = {"fp8_ds_mla": 1, "bf16_fp8_index": 2}
"""Engine layouts of the latent and of the index key beside it -> bytes of an element of the latent.

``fp8_ds_mla`` is vLLM's name; ``bf16_fp8_index`` is its latent in 16 bits, beside which index keys stay in 8 bits."""


class KvStream(NamedTuple):
    """One thing an attention layer caches: ``bytes_per_entry`` for every full block of ``tokens_per_entry`` tokens.

    ``window`` is how many of the last tokens are kept, None for all.
    """

    bytes_per_entry: Any
    tokens_per_entry: int
    window: int | None

    def held_bytes(self, context: Any, *, unified_pages: bool = False) -> Any:
        """Bytes held of one sequence of ``context`` tokens [B]."""
        tokens = kv_cache.held_tokens(context, None if unified_pages else self.window)
        if self.tokens_per_entry > 1:
            tokens = kv_cache.compressed_entries(tokens, self.tokens_per_entry)
        return tokens * self.bytes_per_entry


def kv_streams(
    attention: Attention, kv_dtype: str, *, tensor_parallel: int = 1, expand_mla: bool = False
) -> tuple[KvStream, ...]:
    """What one attention layer caches: keys and values, and where it has them index keys and compressed entries.

    Parameters
    ----------
    attention : of one layer
    kv_dtype : an element type (``bf16``, ``fp8``, ...) or an engine layout (``fp8_ds_mla``, ``bf16_fp8_index``)
    tensor_parallel : ranks that split the KV heads; latents, index keys and compressed entries are replicated [GPUs]
    expand_mla : the engine stores latent attention expanded to full heads

    Returns
    -------
    streams : none for a layer that caches no token of the text

    Raises
    ------
    UnknownNameError : no such type or layout
    InputError : a layout of latent attention asked of a layer that has none
    """
    if kv_dtype in _LAYOUTS and (attention.kind != "mla" or expand_mla):
        raise InputError(f"{kv_dtype!r} is a layout of latent attention; use an element type here", key="kv_dtype")
    width = kv_width_bytes(kv_dtype)
    if attention.kind == "cross" or not attention.stores_kv:
        return ()
    token = _token_bytes(attention, kv_dtype, width, tensor_parallel, expand_mla)
    streams = [KvStream(token, 1, attention.window)]
    if attention.compress_ratio:
        streams.append(KvStream(attention.head_dim * width, attention.compress_ratio, None))
    if (indexer := attention.indexer) is not None:
        key = kv_cache.indexer_layout_bytes_per_token(indexer.head_dim) if kv_dtype in _LAYOUTS else None
        streams.append(KvStream(indexer.head_dim * width if key is None else key, attention.compress_ratio or 1, None))
    return tuple(streams)


def _token_bytes(attention: Attention, kv_dtype: str, width: float, tensor_parallel: int, expand_mla: bool) -> Any:
    """Keys and values (or the vector that is both) of one token."""
    if attention.kind == "compressed":
        return attention.head_dim * width
    if attention.kind == "mla" and kv_dtype == "fp8_ds_mla":
        return kv_cache.mla_fp8_layout_bytes_per_token(1, attention.kv_lora_rank, attention.qk_rope_head_dim)
    if attention.kind == "mla" and not expand_mla:
        return kv_cache.mla_kv_bytes_per_token(1, attention.kv_lora_rank, attention.qk_rope_head_dim, width)
    heads = kv_cache.kv_heads_per_rank(attention.n_kv_heads, tensor_parallel)
    return kv_cache.gqa_kv_bytes_per_token(1, heads, attention.head_dim, attention.value_head_dim, width)


def layer_kv_bytes_per_token(
    attention: Attention,
    kv_dtype: str,
    *,
    tensor_parallel: int = 1,
    expand_mla: bool = False,
) -> Any:
    """KV-cache bytes one token takes in one attention layer while its window is open, compressed entries on average.

    Parameters
    ----------
    attention, kv_dtype, tensor_parallel, expand_mla : as in :func:`kv_streams`

    Returns
    -------
    kv_bytes : of one rank [B/token]

    Raises
    ------
    UnknownNameError : no such type or layout
    InputError : a layout of latent attention asked of a layer that has none
    """
    streams = kv_streams(attention, kv_dtype, tensor_parallel=tensor_parallel, expand_mla=expand_mla)
    return sum(stream.bytes_per_entry / stream.tokens_per_entry for stream in streams)


def kv_element_bytes(kv_dtype: str) -> float:
    """Bytes of one cached element [B].

    Raises
    ------
    UnknownNameError : no such element type
    """
    try:
        return KV_ELEMENT_BYTES[kv_dtype]
    except (KeyError, TypeError):
        known = [*KV_ELEMENT_BYTES, *_LAYOUTS]
        raise UnknownNameError.among(str(kv_dtype), known, "KV cache type or layout", key="kv_dtype") from None


def kv_width_bytes(kv_dtype: str) -> float:
    """Bytes of one cached element of an element type, or of the latent of an engine layout [B].

    Raises
    ------
    UnknownNameError : no such type or layout
    """
    return _LAYOUTS.get(kv_dtype) or kv_element_bytes(kv_dtype)


def kv_bytes(
    model: Model,
    context: Any,
    kv_dtype: str | None = "bf16",
    *,
    unified_pages: bool = False,
    expand_mla: bool = False,
    mtp: bool = False,
) -> Any:
    r"""KV-cache bytes of one sequence, whole model, unsharded, recurrent state included.

    .. math:: \kappa(S) = \sum_l \min(S, W_l)\,\kappa_l + \sum_l \lfloor S/r_l \rfloor\,\epsilon_l + \mathrm{state}

    The second sum runs over layers that keep an entry for every r tokens. What a compressor holds of tokens that do not
    yet fill an entry is not counted.

    Parameters
    ----------
    model : from :func:`~capplan.cards.model_card.load_model`
    context : tokens of the sequence; a number, an array or a symbol [tokens]
    kv_dtype : an element type (``bf16``, ``fp16``, ``fp32``, ``fp8``, ``int8``) means everything in that type, an
        engine layout goes by its name (``fp8_ds_mla``, ``bf16_fp8_index``); None is what the checkpoint declares
    unified_pages : the engine gives sliding-window layers as many pages as full ones
    expand_mla : the engine stores latent attention expanded to full heads
    mtp : the multi-token-prediction layers run and hold a cache too

    Returns
    -------
    kv_bytes : of one sequence, with the shape of ``context`` [B]

    Raises
    ------
    InputError : a context that is negative, NaN or infinite, an unknown type

    Examples
    --------
    >>> from capplan.cards.model_card import load_model
    >>> kv_bytes(load_model("deepseek-r1"), 8192)  # 575.7 MB
    575668224.0

    References
    ----------
    :mod:`capplan.formulas.kv_cache`.
    """
    check_context(context)
    storage = _storage(model, kv_dtype, unified_pages=unified_pages, expand_mla=expand_mla, mtp=mtp)
    return _held_bytes(model, context, storage) + model.state_bytes_per_sequence


def kv_bytes_per_token(
    model: Model, kv_dtype: str | None = "bf16", *, expand_mla: bool = False, mtp: bool = False
) -> float:
    """KV-cache bytes one more token adds at short context, where all windows are still open.

    Parameters
    ----------
    model, kv_dtype, expand_mla, mtp : as in :func:`kv_bytes`

    Returns
    -------
    kv_bytes_per_token : whole model, unsharded [B/token]

    Raises
    ------
    UnknownNameError : an unknown type

    Examples
    --------
    >>> from capplan.cards.model_card import load_model
    >>> kv_bytes_per_token(load_model("llama-3.1-8b"))
    131072.0
    """
    dtype = _checked_dtype(model, kv_dtype)
    _check_switches(expand_mla=expand_mla, mtp=mtp)
    groups = model.layers + (model.mtp_layers if mtp else ())
    return float(
        sum(
            group.count * layer_kv_bytes_per_token(group.attention, dtype, expand_mla=expand_mla)
            for group in groups
            if group.attention is not None
        )
    )


def kv_bytes_per_rank(
    model: Model,
    context: Any,
    kv_dtype: str | None = "bf16",
    tp: int = 1,
    pp: int = 1,
    dcp: int = 1,
    *,
    unified_pages: bool = False,
    expand_mla: bool = False,
    mtp: bool = False,
) -> Any:
    """KV-cache bytes of one sequence on the GPU that holds most of it.

    KV heads are split over tensor parallelism and replicated once there are more ranks than heads; a latent is
    replicated; decode context parallelism splits the tokens; pipeline stages split the layers.

    Parameters
    ----------
    model, context, kv_dtype, unified_pages, expand_mla, mtp : as in :func:`kv_bytes`
    tp : tensor-parallel ranks [GPUs]
    pp : pipeline stages; the fullest counts, kinds of layers taken as evenly spread [GPUs]
    dcp : ranks of a tensor-parallel group that share one sequence [GPUs]

    Returns
    -------
    kv_bytes : of one sequence on one GPU, state included [B]

    Raises
    ------
    InputError : a size below 1, ``dcp`` above the number of copies tensor parallelism makes, a context that is none

    Examples
    --------
    >>> from capplan.cards.model_card import load_model
    >>> kv_bytes_per_rank(load_model("llama-3.1-70b"), 1, tp=32) / kv_bytes(load_model("llama-3.1-70b"), 1)
    0.125

    References
    ----------
    vLLM, ``ModelConfig.get_num_kv_heads`` and decode context parallelism.
    """
    check_context(context)
    for name, size in (("tp", tp), ("pp", pp), ("dcp", dcp)):
        if type(size) is not int or size < 1:
            raise InputError(f"{size!r} must be a whole number, 1 or more", key=f"layout.{name}")
    _check_dcp(model, tp, dcp, expand_mla)
    storage = _storage(model, kv_dtype, tp, unified_pages=unified_pages, expand_mla=expand_mla, mtp=mtp)
    held = _held_bytes(model, context, storage) / dcp
    # The heads of recurrent layers are split like query heads.
    return (held + model.state_bytes_per_sequence / tp) * kv_cache.busiest_stage_share(model.n_layers, pp)


class _Storage(NamedTuple):
    """How an engine stores the cache; see the parameters of :func:`kv_bytes_per_rank`."""

    kv_dtype: str
    tensor_parallel: int
    unified_pages: bool
    expand_mla: bool
    mtp: bool


def _storage(
    model: Model, kv_dtype: str | None, tp: int = 1, *, unified_pages: bool, expand_mla: bool, mtp: bool
) -> _Storage:
    dtype = _checked_dtype(model, kv_dtype)
    _check_switches(unified_pages=unified_pages, expand_mla=expand_mla, mtp=mtp)
    return _Storage(dtype, tp, unified_pages, expand_mla, mtp)


def _check_switches(**switches: object) -> None:
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise InputError(f"{shown(value)} must be True or False", key=name)


def _checked_dtype(model: object, kv_dtype: object) -> str:
    """The cache type, the checkpoint's where it is None."""
    if not isinstance(model, Model):
        hint = "; load_model(name) reads one" if isinstance(model, str) else ""
        raise InputError(f"must be a Model, not {type(model).__name__}{hint}", key="model")
    if kv_dtype is not None and not isinstance(kv_dtype, str):
        raise InputError(f"{shown(kv_dtype)} must be the name of a type, or None for the checkpoint's", key="kv_dtype")
    return model.kv_dtype if kv_dtype is None else kv_dtype


def _held_bytes(model: Model, context: Any, storage: _Storage) -> Any:
    held: Any = 0.0
    for group in model.layers + (model.mtp_layers if storage.mtp else ()):
        if (attention := group.attention) is None:
            continue
        ways, expand = storage.tensor_parallel, storage.expand_mla
        for stream in kv_streams(attention, storage.kv_dtype, tensor_parallel=ways, expand_mla=expand):
            held = held + group.count * stream.held_bytes(context, unified_pages=storage.unified_pages)
    return held


def _check_dcp(model: Model, tp: int, dcp: int, expand_mla: bool) -> None:
    """Tokens can be split only over ranks that would otherwise hold copies of the same heads."""
    for group in model.layers:
        attention = group.attention
        if attention is None or dcp == 1:
            continue
        heads = 1 if attention.kind in ("mla", "compressed") and not expand_mla else attention.n_kv_heads
        if dcp * min(heads, tp) > tp:
            problem = f"{dcp} exceeds the copies of the KV heads: {tp} tensor-parallel ranks hold {heads} heads"
            raise InputError(problem, key="layout.dcp")


def kv_chain(
    model: Model, context: Any, kv_dtype: str | None = "bf16", overrides: Mapping[str, Any] | None = None
) -> Chain:
    """The chain of named quantities behind :func:`kv_bytes`; its last link is ``kv_bytes_per_sequence``.

    Parameters
    ----------
    model, context, kv_dtype : as in :func:`kv_bytes`
    overrides : values that replace computed ones, by quantity name

    Raises
    ------
    InputError : a context that is none, an unknown type, an override of no registered quantity
    """
    from capplan.cards.kv_chain import build_kv_chain

    return build_kv_chain(model, context, kv_dtype, overrides)
