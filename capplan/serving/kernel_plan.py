"""What one forward pass launches on the busiest GPU: equal kernels of equal layers gathered into one term each.

A plan depends on model, hardware, layout and element types only, so it is built once and every batch and context is
evaluated on it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from capplan.cards.engine import Engine
from capplan.cards.hardware import Hardware
from capplan.cards.kv import kv_width_bytes, layer_kv_bytes_per_token
from capplan.cards.model import Attention, FeedForward, LayerGroup, Matmul, Model, Recurrence
from capplan.errors import InputError
from capplan.formulas.attention_time import attention_flops_per_pair
from capplan.formulas.experts import ExpertTerm, expert_term, handling_term
from capplan.formulas.gemm import ACTIVATION_BYTES, GemmTerm, gemm_term
from capplan.formulas.kv_cache import busiest_stage_share, kv_heads_per_rank
from capplan.serving.layout import Layout
from capplan.serving.recurrent_plan import RecurrentLayers, projected_width, recurrent_layers
from capplan.serving.sparse_plan import SparseLayers, is_sparse, moved_elements, sparse_layers
from capplan.serving.step_plan import AttentionLayers, ExpertLayers, StepPlan, Traffic, group_of
from capplan.serving.weights import expert_shards

_Term = TypeVar("_Term")

MIXER_KERNELS = 3
"""Small kernels around attention or a recurrence: a norm with its residual, rotary embedding, cache write."""

FEED_FORWARD_KERNELS = 2
"""Small kernels around a feed-forward: a norm with its residual, activation."""

ELEMENTWISE_KERNELS = MIXER_KERNELS + FEED_FORWARD_KERNELS
"""Small kernels of a layer with both."""

SAMPLING_KERNELS = 4
"""Last norm, temperature, softmax, draw."""


def build_plan(
    model: Model,
    groups: tuple[LayerGroup, ...],
    hardware: Hardware,
    layout: Layout,
    kv_dtype: str | None,
    engine: Engine | None,
) -> StepPlan:
    """The plan of a pass of text through ``groups`` and lm_head: layers of cross attention are skipped.

    Parameters
    ----------
    model : with the weight formats to be used
    groups : its layers, or its multi-token-prediction layers
    hardware, layout, engine : where and how it runs; no engine means bare kernels
    kv_dtype : of the cache; None is what the checkpoint declares

    Raises
    ------
    InputError : expert parallelism for a model without experts, an unknown cache type
    """
    groups = tuple(group for group in groups if not _skipped(group))
    if layout.ep is not None and layout.ep > 1 and not model.is_mixture:
        raise InputError(f"{model.name} has no experts; leave ep out", key="layout.ep")
    stretch = busiest_stage_share(sum(group.count for group in groups), layout.pp) * layout.pp
    return _Builder(model, hardware, layout, kv_dtype or model.kv_dtype, engine, stretch).plan(groups)


def _skipped(group: LayerGroup) -> bool:
    """Layers of cross attention: without images engines leave them out whole, feed-forward and all."""
    return group.attention is not None and group.attention.kind == "cross"


class _Builder:
    """Walks the layers of a model once and gathers equal kernels."""

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        layout: Layout,
        kv_dtype: str,
        engine: Engine | None,
        stretch: float,
    ) -> None:
        self.model, self.hardware, self.layout, self.engine = model, hardware, layout, engine
        self.kv_dtype, self.stretch = kv_dtype, stretch
        self.kernels = hardware.kernels if engine is None else hardware.kernels.slowed(engine.kernel_time_factor)
        self.gemms: dict[GemmTerm, float] = {}
        self.latent: dict[GemmTerm, float] = {}
        self.latent_split: dict[GemmTerm, float] = {}
        self.sparse: dict[SparseLayers, float] = {}
        self.recurrences: dict[RecurrentLayers, float] = {}
        self.attentions: dict[AttentionLayers, float] = {}
        self.mixtures: dict[ExpertLayers, float] = {}
        self.weight_bytes = self.row_bytes = self.small_row_bytes = self.small_kernels = self.all_reduces = 0.0
        self.layers = 0.0

    def plan(self, groups: tuple[LayerGroup, ...]) -> StepPlan:
        """The finished plan."""
        for group in groups:
            self._add_group(group, group.count * self.stretch)
        layout, hardware = self.layout, self.hardware
        return StepPlan(
            layout=layout,
            hardware=hardware,
            hidden_size=self.model.hidden_size,
            layers=self.layers,
            all_reduces=self.all_reduces,
            logits_bytes_per_row=float(ACTIVATION_BYTES * self.model.vocab_size),
            traffic=self._traffic(),
            tensor_group=group_of(layout.tp, hardware),
            expert_group=group_of(layout.tp * layout.dp, hardware),
            stages_share_a_node=layout.gpus <= hardware.scale_up.gpus,
            **self._kernels(),
            **self._floors(),
        )

    def _kernels(self) -> dict[str, Any]:
        """The kernels gathered so far."""
        head, sampling = self._head()
        floor = self.kernels.elementwise_floor_seconds * self.small_kernels
        streamed = self.small_row_bytes / self.kernels.gemm_stream_bandwidth
        return {
            "gemms": _counted(self.gemms),
            "latent_gemms": _counted(self.latent),
            "latent_split_gemms": _counted(self.latent_split),
            "attentions": tuple(replace(term, count=count) for term, count in self.attentions.items()),
            "sparse": tuple(replace(term, count=count) for term, count in self.sparse.items()),
            "recurrences": tuple(replace(term, count=count) for term, count in self.recurrences.items()),
            "mixtures": tuple(replace(term, count=count) for term, count in self.mixtures.items()),
            "elementwise": (1, floor, 0.0, streamed, 0.0),
            "head": (head,),
            "sampling": sampling,
        }

    def _floors(self) -> dict[str, Any]:
        """Start-up of collectives and gaps, those of the engine if there is one."""
        gap, sequence_gap = self._engine_gaps()
        return {
            "all_reduce_floor_seconds": self.kernels.all_reduce_floor_seconds,
            "all_reduce_floor_per_gpu_seconds": self.kernels.all_reduce_floor_per_gpu_seconds,
            "engine_gap_seconds": gap,
            "engine_gap_per_sequence_seconds": sequence_gap,
        }

    def _add_group(self, group: LayerGroup, count: float) -> None:
        mixes = group.attention is not None or group.recurrence is not None
        kernels = float(MIXER_KERNELS * mixes + FEED_FORWARD_KERNELS * (group.feed_forward is not None))
        self.layers += count * kernels / ELEMENTWISE_KERNELS
        norms = mixes + (group.feed_forward is not None)
        self.small_row_bytes += count * norms * 4 * ACTIVATION_BYTES * self.model.hidden_size
        for matmul in group.matmuls:
            kernels += self._add_gemm(matmul, count)
        if group.attention is not None:
            kernels += self._add_attention(group.attention, count)
        if group.recurrence is not None:
            kernels += self._add_recurrence(group.recurrence, count)
        if group.feed_forward is not None:
            kernels += self._add_feed_forward(group.feed_forward, count)
        self.small_kernels += kernels * count

    def _add_gemm(self, matmul: Matmul, count: float, attention: Attention | None = None) -> float:
        """Add a product of every token; returns the kernels that quantise its activations first."""
        inputs, outputs = sharded(matmul, self.layout.tp, attention)
        times = count * matmul.count
        term = self._gemm(inputs, outputs, matmul)
        if matmul.name == "kv_b" and attention is not None:
            self._add_latent(term, inputs, outputs, matmul, attention, times)
        else:
            _add(self.gemms, term, times)
        self.weight_bytes += times * inputs * outputs * matmul.format.bytes_per_element
        self.row_bytes += times * ACTIVATION_BYTES * (inputs + outputs)
        if matmul.format.compute == "bf16":
            return 0.0
        self.small_row_bytes += times * matmul.format.quantise_bytes * inputs
        return matmul.count

    def _add_latent(
        self, term: GemmTerm, inputs: float, outputs: float, matmul: Matmul, attention: Attention, times: float
    ) -> None:
        """Latents are expanded in a prefill and absorbed in decode; sparse layers absorb them in both."""
        absorbed = self.gemms if is_sparse(attention) else self.latent_split
        if absorbed is self.latent_split:
            _add(self.latent, term, times)
        value_share = attention.value_head_dim / (attention.value_head_dim + attention.qk_nope_head_dim)
        for share in (value_share, 1 - value_share):
            _add(absorbed, self._gemm(inputs, outputs * share, matmul), times)

    def _gemm(self, inputs: float, outputs: float, matmul: Matmul) -> GemmTerm:
        kernels, form = self.kernels, matmul.format
        rate = getattr(kernels, "gemm_flops_fp8_block" if form.scaled_in_blocks else f"gemm_flops_{form.compute}")
        return gemm_term(
            inputs,
            outputs,
            form.bytes_per_element,
            kernels.gemm_floor_seconds,
            kernels.gemm_stream_bandwidth,
            kernels.gemm_narrow_outputs,
            rate * kernels.sustained_share,
        )

    def _add_attention(self, attention: Attention, count: float) -> float:
        quantisers = sum(self._add_gemm(matmul, count, attention) for matmul in attention.matmuls)
        if self.layout.tp > 1:
            self.all_reduces += count
        if is_sparse(attention):
            _add(self.sparse, sparse_layers(attention, self.hardware, self.layout, self.kv_dtype), count)
            indexer = attention.indexer.matmuls if attention.indexer is not None else ()
            quantisers += sum(self._add_gemm(matmul, count) for matmul in indexer)
        else:
            _add(self.attentions, self._attention_layers(attention), count)
        moved = 2.0 * _heads(attention, self.layout.tp) * (attention.head_dim + attention.value_head_dim)
        if is_sparse(attention):
            moved = moved_elements(attention, self.layout.tp)
        self.small_row_bytes += count * ACTIVATION_BYTES * moved
        return quantisers

    def _attention_layers(self, attention: Attention) -> AttentionLayers:
        layout = self.layout
        return AttentionLayers(
            count=1.0,
            window=attention.window,
            context_parallel=layout.dcp,
            # A layer without a cache of its own reads as much of an earlier one.
            kv_bytes_per_token=layer_kv_bytes_per_token(
                replace(attention, stores_kv=True), self.kv_dtype, tensor_parallel=layout.tp
            ),
            stores_kv=attention.stores_kv,
            ramp_tokens=self.kernels.attention_ramp_tokens,
            **self._decode_attention(attention),
            **self._context_attention(attention),
        )

    def _decode_attention(self, attention: Attention) -> dict[str, float]:
        """Constants of the decode kernel; with decode context parallelism it sees the heads of all its ranks."""
        kernels, ways, latent = self.kernels, self.layout.dcp, attention.kind == "mla"
        heads = _heads(attention, self.layout.tp) * ways
        key = attention.kv_lora_rank + attention.qk_rope_head_dim if latent else attention.head_dim
        value = attention.kv_lora_rank if latent else attention.value_head_dim
        context_flops = kernels.context_attention_flops * kernels.sustained_share
        return {
            "flops_per_pair": attention_flops_per_pair(heads, key, value),
            "exchange_bytes_per_row": ACTIVATION_BYTES * heads * (key + value) * (ways - 1) / ways,
            "floor_seconds": kernels.mla_floor_seconds if latent else kernels.attention_floor_seconds,
            "token_seconds": kernels.mla_token_seconds if latent else kernels.attention_token_seconds,
            "stream_bandwidth": self._stream_bandwidth(latent),
            "flops_per_second": kernels.mla_decode_flops if latent else context_flops,
        }

    def _stream_bandwidth(self, latent: bool) -> float:
        """Rate at which decode attention reads the cache; each engine converts 8-bit caches in its own way."""
        kernels = self.kernels
        wide = kernels.mla_stream_bandwidth if latent else kernels.attention_stream_bandwidth
        if kv_width_bytes(self.kv_dtype) >= 2:
            return wide
        share = 1.0 if self.engine is None else self.engine.fp8_kv_share
        return min(share * kernels.attention_stream_bandwidth_fp8, wide)

    def _context_attention(self, attention: Attention) -> dict[str, float]:
        """Constants of the prefill kernel, which sees latents expanded to heads."""
        kernels, ways, factor = self.kernels, self.layout.tp, self._context_factor
        key, value = attention.head_dim, attention.value_head_dim
        return {
            "context_kv_bytes_per_token": ACTIVATION_BYTES
            * kv_heads_per_rank(attention.n_kv_heads, ways)
            * (key + value),
            "context_query_bytes_per_token": ACTIVATION_BYTES * _heads(attention, ways) * (key + value),
            "context_flops_per_pair": attention_flops_per_pair(_heads(attention, ways), key, value),
            "context_floor_seconds": factor * kernels.context_attention_floor_seconds,
            "context_stream_bandwidth": self._context_stream_bandwidth(attention) / factor,
            "context_flops_per_second": kernels.context_attention_flops * kernels.sustained_share / factor,
            "context_token_seconds": factor * kernels.context_attention_token_seconds * (key + value) / 256,
        }

    @property
    def _context_factor(self) -> float:
        return 1.0 if self.engine is None else self.engine.context_attention_factor

    def _context_stream_bandwidth(self, attention: Attention) -> float:
        """A bare kernel loads and stores at the rate of the memory, that of an engine more slowly."""
        if self.engine is None:
            return self.kernels.attention_stream_bandwidth
        latent = attention.kind == "mla"
        return self.kernels.context_mla_stream_bandwidth if latent else self.kernels.context_attention_stream_bandwidth

    def _add_recurrence(self, recurrence: Recurrence, count: float) -> float:
        """Projections and the recurrence itself; every product split by rows ends in an all-reduce."""
        quantisers = sum(self._add_gemm(matmul, count) for matmul in recurrence.matmuls)
        ways = self.layout.tp
        if ways > 1:
            self.all_reduces += count * sum(matmul.shard == "row" for matmul in recurrence.matmuls)
        _add(self.recurrences, recurrent_layers(recurrence, self.hardware, ways), count)
        self.small_row_bytes += count * 2 * ACTIVATION_BYTES * projected_width(recurrence) / ways
        return quantisers

    def _add_feed_forward(self, feed_forward: FeedForward, count: float) -> float:
        quantisers = sum(self._add_gemm(matmul, count) for matmul in feed_forward.matmuls)
        inner = sum(sharded(m, self.layout.tp)[1] for m in feed_forward.matmuls if m.shard == "column")
        self.small_row_bytes += count * 1.5 * ACTIVATION_BYTES * inner
        if feed_forward.n_experts:
            self._add_mixture(feed_forward, count)
        if self.layout.tp > 1 and not (feed_forward.n_experts and self.layout.dp > 1):
            self.all_reduces += count
        return quantisers

    def _add_mixture(self, feed_forward: FeedForward, count: float) -> None:
        layout = self.layout
        ranks, shards = layout.expert_parallel(mixture=True), expert_shards(layout)
        copies = feed_forward.n_experts + layout.redundant_experts
        if ranks > copies:
            raise InputError(f"{ranks} exceeds the {copies} experts of a layer, copies included", key="layout.ep")
        matrices = [(m, *sharded(m, shards)) for m in feed_forward.expert_matmuls]
        terms = [self._expert(m, inputs, outputs, len(matrices)) for m, inputs, outputs in matrices]
        row_bytes = sum(ACTIVATION_BYTES * (inputs + outputs) for _, inputs, outputs in matrices)
        handled = self._handled_bytes(matrices, row_bytes)
        layers = ExpertLayers(
            count=1.0,
            experts=copies,
            top_k=feed_forward.top_k,
            ranks=ranks,
            shards=shards,
            terms=(*terms, handling_term(handled, self.kernels.moe_stream_bandwidth)),
            expert_bytes=sum(inputs * outputs * m.format.bytes_per_element for m, inputs, outputs in matrices),
            row_bytes=row_bytes + handled,
            dispatch_width=max(ACTIVATION_BYTES if m.format.compute == "bf16" else 1 for m, _, _ in matrices),
        )
        _add(self.mixtures, layers, count)

    def _handled_bytes(self, matrices: list[tuple[Matmul, float, float]], row_bytes: float) -> float:
        """Bytes moved for a token-expert pair around its products.

        An exchange between data-parallel ranks brings pairs to their experts and adds them up itself; what is left is
        to activate what the first product gives, and to quantise it where the format wants that.
        """
        if self.layout.dp == 1:
            blocks = any(m.format.scaled_in_blocks for m, _, _ in matrices)
            return (self.kernels.moe_row_passes + blocks * self.kernels.moe_quantise_passes) * row_bytes
        (_, _, opened), (last, inner, _) = matrices[0], matrices[-1]
        quantised = last.format.quantise_bytes if last.format.compute != "bf16" else 0.0
        return ACTIVATION_BYTES * (opened + inner) + quantised * inner

    def _expert(self, matmul: Matmul, inputs: float, outputs: float, kinds: int) -> ExpertTerm:
        kernels = self.kernels
        return expert_term(
            inputs,
            outputs,
            matmul.format.bytes_per_element,
            kernels.moe_floor_seconds / kinds,
            kernels.moe_stream_bandwidth,
            kernels.moe_narrow_outputs,
            getattr(kernels, f"moe_flops_{matmul.format.compute}") * kernels.sustained_share,
            kernels.moe_padding_rows_bf16 if matmul.format.compute == "bf16" else kernels.moe_padding_rows,
        )

    def _head(self) -> tuple[GemmTerm, GemmTerm]:
        head, kernels = self.model.lm_head, self.kernels
        term = self._gemm(head.inputs, head.outputs / self.layout.tp, head)
        # Logits are read twice in 32 bits: once for the softmax, once for the draw.
        streamed = 8 * self.model.vocab_size / kernels.gemm_stream_bandwidth
        return term, (1, SAMPLING_KERNELS * kernels.elementwise_floor_seconds, 0.0, streamed, 0.0)

    def _engine_gaps(self) -> tuple[float, float]:
        """Seconds a step and a sequence. An engine's overhead of a layer replaces the floors of its small kernels."""
        if self.engine is None:
            return 0.0, 0.0
        own = ELEMENTWISE_KERNELS * self.kernels.elementwise_floor_seconds
        beyond = self.engine.layer_overhead_seconds - own
        return self.engine.step_gap_seconds + self.layers * beyond, self.engine.sequence_overhead_seconds

    def _traffic(self) -> Traffic:
        head, vocabulary = self.model.lm_head, self.model.vocab_size
        outputs = head.outputs / self.layout.tp
        return Traffic(
            weight_bytes=self.weight_bytes,
            bytes_per_row=self.row_bytes + self.small_row_bytes,
            head_weight_bytes=head.inputs * outputs * head.format.bytes_per_element,
            head_bytes_per_row=ACTIVATION_BYTES * (head.inputs + outputs) + 8 * vocabulary,
        )


def sharded(matmul: Matmul, ways: int, attention: Attention | None = None) -> tuple[float, float]:
    """Inputs and outputs of a matrix on one of ``ways`` tensor-parallel GPUs.

    A ``qkv`` matrix splits query heads, and KV heads until each GPU holds one.
    """
    if matmul.shard == "column":
        return matmul.inputs, matmul.outputs / ways
    if matmul.shard == "row":
        return matmul.inputs / ways, matmul.outputs
    if matmul.shard == "qkv" and attention is not None:
        width = attention.projected_kv_width
        queries = matmul.outputs - attention.n_kv_heads * width
        return matmul.inputs, queries / ways + kv_heads_per_rank(attention.n_kv_heads, ways) * width
    return matmul.inputs, matmul.outputs


def _heads(attention: Attention, ways: int) -> int:
    return -(-attention.n_heads // ways)


def _add(terms: dict[_Term, float], term: _Term, count: float) -> None:
    terms[term] = terms.get(term, 0.0) + count


def _counted(terms: dict[GemmTerm, float]) -> tuple[GemmTerm, ...]:
    return tuple((count, *term[1:]) for term, count in terms.items())
