"""Reading a Hugging Face ``config.json`` so that no field that matters is skipped in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from capplan.errors import InputError, UnsupportedModelError

_T = TypeVar("_T")

_HARMLESS_NAMES = """
    _attn_implementation _attn_implementation_autoset _commit_hash _diffusers_version _from_model_config
    _name_or_path activation_fn_name activation_function apply_query_key_layer_scaling architectures
    attention_dropout attention_multiplier attention_softmax_in_fp32 attn_implementation attn_logit_softcapping
    attn_scale attn_temperature_tuning author auto_map aux_loss_alpha bad_words_ids base_model
    base_model_name_or_path begin_suppress_tokens beta_fast beta_slow bias_dropout_fusion bos_token bos_token_id
    cache_implementation calculate_per_token_loss chat_template classifier_dropout clip_qkv created_at
    decoder_start_token_id description dim_model_base diversity_penalty do_sample early_stopping emb_dropout_prob
    embd_pdrop embedding_multiplier encoder_no_repeat_ngram_size eod_token_id eos_token eos_token_id ep_size
    exponential_decay_length_penalty final_logit_softcapping finetuning_task floor_scale for_llm_compressor
    forced_bos_token_id forced_eos_token_id fp32_residual_connection gegelu_limit gradient_checkpointing hidden_act
    hidden_activation hidden_dropout id2label im_end_id im_start_id init_std initial_context_length
    input_jitter_noise interpolate_factor is_causal is_decoder is_training label2id language_model_only
    layer_norm_eps layer_norm_epsilon layerdrop layernorm_epsilon length_penalty license license_link license_name
    logit_scale logits_scaling logits_soft_cap loss_type mamba_chunk_size mamba_hidden_act max_length max_new_tokens
    max_time min_length mlp_hidden_act model_type moe_renormalize moe_router_activation_func moe_router_dtype
    mup_attn_multiplier mup_base_width mup_embedding_multiplier mup_use_scaling mup_width_multiplier n_group name
    no_repeat_ngram_size norm_before_gate norm_eps norm_epsilon norm_topk_prob num_beam_groups num_beams
    num_expert_group num_logits_to_keep num_return_sequences original_max_position_embeddings original_rope
    output_attentions output_gate_type output_hidden_states output_router_logits output_scores pad_token
    pad_token_id padding_side partial_rotary_factor prefix pretraining_tp problem_type processor_class
    query_pre_attn_scalar remove_invalid_values renormalize_logits reorder_and_upcast_attn repetition_penalty
    rescale_prenorm_residual resid_pdrop residual_in_fp32 residual_multiplier return_dict return_dict_in_generate
    return_token_timestamps rms_norm_eps rope_ext_factor rope_freq_constant rope_interleave rope_local_base_freq
    rope_max_length rope_parameters rope_percent rope_scaling rope_theta rope_type rotary_base rotary_dim
    rotary_emb_base rotary_pct routed_scaling_factor router_aux_loss_coef router_jitter_noise router_scaling_factor
    router_z_loss_coef scale_attention_softmax_in_fp32 scale_attn_by_inverse_layer_idx scale_attn_weights
    scale_depth scale_emb scoring_func seed sep_token_id seq_aux summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj suppress_tokens swiglu_alpha swiglu_limit
    task_specific_params task_type temperature tf_legacy_loss time_step_floor time_step_init_scheme time_step_limit
    time_step_max time_step_min time_step_scale top_k top_p topk_group topk_method torch_compile torchscript
    training_args transformers.js_config transformers_version trust_remote_code typical_p unk_token unk_token_id
    use_associative_scan use_bfloat16 use_cache use_flash_attn use_grouped_topk use_mamba_kernels use_mrope
    use_reentrant use_return_dict use_unified_vision_chunk version yarn z_loss_weight
"""
HARMLESS = frozenset(_HARMLESS_NAMES.split())
"""Fields known to change neither what is stored, nor what is cached, nor what is computed by more than a hair."""

HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "mlp_bias": (False,),
    "qkv_bias": (False,),
    "shared_expert_intermediate_size": (0,),
    "tie_encoder_decoder": (False,),
}
"""Fields that are harmless at these values, which full dumps of a config write out."""

HARMLESS_ENDS = ("_token_id", "_token_index", "_token_ids", "dropout", "dropout_prob", "_pdrop", "softcapping", "_std")
"""Ends of the names of such fields."""

HARMLESS_STARTS = ("initializer_", "tokenizer_", "unsloth_")
"""Beginnings of the names of such fields."""

WRAPPER_HARMLESS = (
    "audio", "boi_", "candidate_resolutions", "eoi_", "global_view", "ignore_index", "image", "mm_", "multimodal_",
    "patch_", "projector", "spatial_merge", "tile_", "understand_", "video", "vision",
)  # fmt: skip
"""Beginnings of the fields of a multimodal wrapper that concern other parts than the text model."""

_EFFECTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("quant", "bits", "dtype"), "how weights or the cache are stored"),
    (("window", "sliding", "chunk", "local"), "how many tokens a layer keeps"),
    (("expert", "moe", "router", "route"), "which experts a layer has and a token passes"),
    (("attn", "attention", "head", "kv", "key", "value", "query", "cache", "latent", "lora", "mla", "index", "sparse",
      "compress", "linear", "sink", "softmax", "cross"), "what attention caches and computes"),
    (("state", "conv", "ssm", "mamba", "recurr", "gdn", "delta"), "what state a sequence keeps"),
    (("layer", "block", "depth", "pattern", "interval", "mtp", "predict", "draft", "share", "skip", "loop"),
     "which layers the model has"),
    (("size", "dim", "width", "mlp", "ffn", "ff_", "inner", "embed", "vocab", "tie", "norm", "bias", "rank", "ratio",
      "multiplier", "group", "num_", "n_", "scale", "gate", "proj", "factor", "adapter"),
     "how large the model is"),
)  # fmt: skip


_UNKNOWN_EFFECT = "what it would change is not known; --assume FIELD=VALUE answers for it"


def effect_of(field: str) -> str | None:
    """What a field of that name may change, or None if nothing in the name speaks of it."""
    name = field.lower()
    return next((effect for words, effect in _EFFECTS if any(word in name for word in words)), None)


def beside_text(name: str) -> bool:
    """Whether a field of a multimodal config concerns other parts than the text model."""
    return name.startswith(WRAPPER_HARMLESS) and "cross_att" not in name


class ConfigFields:
    """The fields of one config (or of its ``text_config``), and a note of which were read and which assumed.

    Parameters
    ----------
    data : parsed JSON object
    file : named in errors
    prefix : dotted path of ``data`` inside the file, with a final dot, or empty
    """

    def __init__(self, data: dict[str, Any], file: str, prefix: str = "") -> None:
        self.data, self.file, self.prefix = data, file, prefix
        self.read: set[str] = set()
        self.asked: set[str] = set()
        self.ignored: set[str] = set()
        self.assumed: dict[str, str] = {}
        self.synonyms: Mapping[str, tuple[str, ...]] = {}
        self.defaults: Mapping[str, Any] = {}
        self.beside = False

    def called(self, name: str) -> str:
        """What the config calls a field: its usual name, or the synonym of the family that is there."""
        if self.data.get(name) is not None:
            return name
        return next((other for other in self.synonyms.get(name, ()) if self.data.get(other) is not None), name)

    def value(self, name: str) -> Any:
        """The raw value, or None; the field counts as read."""
        name = self.called(name)
        self.asked.add(name)
        if name in self.data:
            self.read.add(name)
            self.ignored.discard(name)
        return self.data.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        self.asked.add(self.called(name))
        return self.data.get(self.called(name)) is not None

    def whole(self, *names: str, least: int = 1, most: int = 10**7) -> int:
        """A whole number under the first of ``names`` that is there; several must agree.

        Raises
        ------
        InputError : missing, not a whole number, out of range, or two names with different values
        """
        if (default := self._default(names)) is not None:
            return int(default)
        first, *others = self._present(names)
        for name in (first, *others):
            value = self.value(name)
            if type(value) is not int or not least <= value <= most:
                raise self.error(name, f"{_shown(value)} must be a whole number from {least} to {most:,}")
            if value != self.data[first]:
                raise self.error(first, f"{self.data[first]} differs from {name} {value}")
        return int(self.data[first])

    def _present(self, names: tuple[str, ...]) -> list[str]:
        every = dict.fromkeys(other for name in names for other in (name, *self.synonyms.get(name, ())))
        present = [name for name in every if self.data.get(name) is not None]
        if not present:
            raise self.error(names[0], "is missing, and a default would be a guess")
        return present

    def _default(self, names: tuple[str, ...]) -> Any:
        """What the class of the family takes where a field is absent, noted as assumed."""
        if names[0] not in self.defaults or any(self.has(name) for name in names):
            return None
        return self.assume(names[0], self.defaults[names[0]])

    def count(self, *names: str, unit: str, most: int = 10**7) -> dict[str, Any]:
        """The number of a card from a whole number above zero; see :meth:`whole`."""
        value = self.whole(*names, most=most)
        if not any(self.has(name) for name in names):
            return self.number(value, unit, note=f"{names[0]}: default of the class")
        return self.number(value, unit, self._present(names)[0])

    def zero_or_count(self, name: str, *, unit: str) -> dict[str, Any] | None:
        """As :meth:`count`; None where the field is absent, null or 0."""
        if not self.has(name) and name not in self.defaults:
            self.ignore(name)
            return None
        if self.has(name) and type(self.value(name)) is int and self.value(name) == 0:
            return None
        return self.count(name, unit=unit)

    def whole_list(self, name: str, length: int, *, least: int = 1, most: int = 10**7) -> list[int]:
        """Whole numbers, one a layer.

        Raises
        ------
        InputError : no list of that length, or an entry that is no whole number in range
        """
        value = self.value(name)
        if not isinstance(value, list) or len(value) != length:
            raise self.error(name, f"must be a list of {length} whole numbers, one a layer")
        for item in value:
            if type(item) is not int or not least <= item <= most:
                raise self.error(name, f"{_shown(item)} must be a whole number from {least} to {most:,}")
        return value

    def words(self, name: str, length: int, known: tuple[str, ...]) -> list[str]:
        """One word of ``known`` a layer.

        Raises
        ------
        InputError : no list of that length
        UnsupportedModelError : another word
        """
        value = self.value(name)
        if not isinstance(value, list) or len(value) != length:
            raise self.error(name, f"must name {length} layers, one each")
        for word in value:
            if word not in known:
                raise self.unsupported(name, f"layer type {str(word)[:40]!r} is not modelled")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean; where the field is absent or null, the ``default`` of the class, noted as assumed."""
        value = self.value(name)
        if value is None:
            return self.assume(name, bool(self.defaults.get(name, default)))
        if not isinstance(value, bool):
            raise self.error(name, f"{_shown(value)} must be true or false")
        return value

    def assume(self, name: str, default: _T) -> _T:
        """Take what the class of the family takes where the field is absent, and note it."""
        self.ignore(name)
        self.assumed[self.prefix + name] = str(default).lower()
        return default

    def must_be(self, name: str, *allowed: Any) -> None:
        """Refuse a field that is there with another value than the ones that are modelled.

        Raises
        ------
        UnsupportedModelError : another value
        """
        value = self.value(name)
        if value is not None and not any(value == good and type(value) is type(good) for good in allowed):
            raise self.unsupported(name, f"only {', '.join(map(repr, allowed))} is modelled")

    def ignore(self, *names: str) -> None:
        """Fields this family is known not to use: understood, but not read."""
        every = [other for name in names for other in (name, *self.synonyms.get(name, ()))]
        present = {name for name in every if name in self.data} - self.read
        self.ignored |= present
        self.read |= present

    def number(self, value: int, unit: str, *names: str, note: str = "") -> dict[str, Any]:
        """The sourced number of a card, from fields or from what the model class fixes (then ``note`` says it)."""
        fields = f"config.json: {', '.join(self.prefix + self.called(name) for name in names)}" if names else ""
        source = "; ".join(part for part in (fields, note) if part)
        return {"value": value, "unit": unit, "source": source, "kind": "spec"}

    def error(self, name: str, problem: str) -> InputError:
        """An input error that names file and field."""
        return InputError(problem, key=self.prefix + self.called(name), file=self.file)

    def unsupported(self, name: str, problem: str, effect: str = "") -> UnsupportedModelError:
        """A refusal that names file, field, value and effect."""
        name = self.called(name)
        shown = _shown(self.data.get(name))
        effect = effect or f"it may change {effect_of(name) or 'the result'}"
        return UnsupportedModelError(f"{shown}: {problem}; {effect}", key=self.prefix + name, file=self.file)

    def refuse_unknown(self) -> list[str]:
        """The fields that were not read, all known to be harmless or off.

        Raises
        ------
        UnsupportedModelError : an unread field that is not known to be harmless
        """
        unread = [name for name in self.data if name not in self.read]
        for name in unread:
            if not self._beside(name) and self._could_matter(name):
                effect = "" if effect_of(name) or name in HARMLESS_VALUES else _UNKNOWN_EFFECT
                raise self.unsupported(name[:80], "this field is not understood", effect)
        return [self.prefix + name for name in unread]

    def _beside(self, name: str) -> bool:
        return bool(self.beside) and beside_text(name)

    def _could_matter(self, name: str) -> bool:
        """Unknown fields matter, unless they are null, or off and nothing in their name speaks of an effect."""
        value = self.data[name]
        if value is None or name in HARMLESS or name.startswith(HARMLESS_STARTS) or name.endswith(HARMLESS_ENDS):
            return False
        if name in HARMLESS_VALUES:
            return value not in HARMLESS_VALUES[name]
        return bool(effect_of(name) or value)


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
