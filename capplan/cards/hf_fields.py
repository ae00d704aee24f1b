"""Reading a Hugging Face ``config.json`` so that no field that matters is skipped in silence."""

from __future__ import annotations

from typing import Any

from capplan.cards.number import Kind, Number
from capplan.errors import InputError, UnsupportedModelError

HARMLESS = frozenset(
    """
    _name_or_path activation_function add_cross_attention architectures attention_dropout attn_implementation
    auto_map aux_loss_alpha bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward classifier_dropout
    decoder_start_token_id diversity_penalty do_sample early_stopping embd_pdrop eos_token_id ep_size finetuning_task
    forced_bos_token_id forced_eos_token_id hidden_act hidden_activation hidden_dropout id2label initializer_range
    initial_context_length is_decoder is_encoder_decoder label2id layer_norm_eps length_penalty max_length min_length
    model_type n_group no_repeat_ngram_size norm_eps norm_topk_prob num_beam_groups num_beams num_return_sequences
    original_max_position_embeddings output_attentions output_hidden_states output_router_logits output_scores
    pad_token_id partial_rotary_factor prefix pretraining_tp problem_type pruned_heads remove_invalid_values
    repetition_penalty resid_pdrop return_dict return_dict_in_generate rms_norm_eps rope_interleave rope_local_base_freq
    rope_parameters rope_scaling rope_theta rope_type rotary_base routed_scaling_factor router_aux_loss_coef
    router_jitter_noise scoring_func sep_token_id seq_aux suppress_tokens swiglu_limit task_specific_params temperature
    tf_legacy_loss tokenizer_class top_k top_p topk_group topk_method torchscript transformers_version
    typical_p use_bfloat16 use_cache use_mrope
    """.split()
)
"""Fields known to change neither what is stored, nor what is cached, nor what is computed by more than a hair."""

WRAPPER_HARMLESS = ("audio", "boi_", "eoi_", "ignore_index", "image", "mm_", "multimodal_", "projector", "spatial_merge",
                    "video", "vision")  # fmt: skip
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


def effect_of(field: str) -> str | None:
    """What a field of that name may change, or None if nothing in the name speaks of it."""
    name = field.lower()
    return next((effect for words, effect in _EFFECTS if any(word in name for word in words)), None)


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
        self.assumed: dict[str, str] = {}

    def value(self, name: str) -> Any:
        """The raw value, or None; the field counts as read."""
        if name in self.data:
            self.read.add(name)
        return self.data.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(name) is not None

    def count(self, *names: str, unit: str, least: int = 1, most: int = 10**7) -> Number:
        """A whole number under the first of ``names`` that is there; several must agree.

        Raises
        ------
        InputError : missing, not a whole number, out of range, or two names with different values
        """
        present = [name for name in names if self.has(name)]
        if not present:
            raise self.error(names[0], "is missing, and a default would be a guess")
        for name in present:
            self._check_count(name, least, most)
        if len({self.value(name) for name in present}) > 1:
            raise self.error(present[0], f"{self.value(present[0])} differs from {present[1]}")
        return self.number(self.value(present[0]), unit, present[0])

    def _check_count(self, name: str, least: int, most: int) -> None:
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(name, f"{_shown(value)} must be a whole number from {least} to {most:,}")

    def optional_count(self, name: str, *, unit: str) -> Number | None:
        """A whole number above zero; None where the field is null or 0."""
        if not self.value(name) and not isinstance(self.value(name), (bool, str)):
            return None
        return self.count(name, unit=unit)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean; where the field is absent or null, the ``default`` of the class, noted as assumed."""
        value = self.value(name)
        if value is None:
            self.assumed[self.prefix + name] = str(default).lower()
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"{_shown(value)} must be true or false")
        return value

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
        """Fields this family is known not to use."""
        self.read.update(name for name in names if name in self.data)

    def number(self, value: int, unit: str, *names: str, kind: Kind = "spec", note: str = "") -> Number:
        """A sourced number computed from fields."""
        source = f"config.json: {', '.join(self.prefix + name for name in names)}" if names else note
        return Number(value=value, unit=unit, source=f"{source}; {note}" if names and note else source, kind=kind)

    def error(self, name: str, problem: str) -> InputError:
        """An input error that names file and field."""
        return InputError(problem, key=self.prefix + name, file=self.file)

    def unsupported(self, name: str, problem: str) -> UnsupportedModelError:
        """A refusal that names file, field, value and effect."""
        effect = effect_of(name) or "the result"
        shown = _shown(self.data.get(name))
        return UnsupportedModelError(
            f"{shown}: {problem}; it may change {effect}", key=self.prefix + name, file=self.file
        )

    def refuse_unknown(self) -> list[str]:
        """The fields that were not read, all known or seen to be harmless.

        Raises
        ------
        UnsupportedModelError : an unread field whose name or shape says that it could matter
        """
        unread = [name for name in self.data if name not in self.read]
        for name in unread:
            value = self.data[name]
            if name in HARMLESS or value is None or (self.prefix == "" and name == "text_config"):
                continue
            if effect_of(name) or (isinstance(value, (dict, list)) and value):
                raise self.unsupported(name[:80], "this field is not understood")
        return [self.prefix + name for name in unread]


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
