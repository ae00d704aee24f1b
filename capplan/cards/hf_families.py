"""The model families of Hugging Face configs: one table over all kinds, by ``model_type``."""

from __future__ import annotations

from capplan.cards.hf_dense import DENSE_FAMILIES
from capplan.cards.hf_family import CardPart, Family, ModuleNames
from capplan.cards.hf_gemma import GEMMA_FAMILIES
from capplan.cards.hf_hybrid import HYBRID_FAMILIES
from capplan.cards.hf_latent import LATENT_FAMILIES
from capplan.cards.hf_legacy import LEGACY_FAMILIES
from capplan.cards.hf_moe import MOE_FAMILIES
from capplan.cards.hf_recent import RECENT_FAMILIES
from capplan.cards.hf_sparse import SPARSE_FAMILIES
from capplan.cards.hf_state_space import STATE_SPACE_FAMILIES
from capplan.cards.hf_uneven import UNEVEN_FAMILIES

__all__ = ["FAMILIES", "GENERATORS", "OVERRULED", "RENAMED", "WRAPPED", "WRAPPERS", "CardPart", "Family", "ModuleNames"]

FAMILIES: dict[str, Family] = {
    **DENSE_FAMILIES,
    **GEMMA_FAMILIES,
    **MOE_FAMILIES,
    **SPARSE_FAMILIES,
    **LATENT_FAMILIES,
    **HYBRID_FAMILIES,
    **STATE_SPACE_FAMILIES,
    **UNEVEN_FAMILIES,
    **RECENT_FAMILIES,
    **LEGACY_FAMILIES,
}
"""By ``model_type``. A family is added by its row in the table of its kind and, where its layers are new, a builder."""

RENAMED = {"Grok1ModelForCausalLM": "grok-1"}
"""Architectures whose configs carry the ``model_type`` of another family."""

WRAPPED = {"llava": "llama", "mistral3": "mistral", "minimax_m3_vl": "minimax_m3", "step3p7": "step3p7"}
"""What the text part of a wrapper is where it does not say so itself."""

OVERRULED = {"minimax_m3_vl": "minimax_m3"}
"""Wrappers whose text part carries the ``model_type`` of another family."""

_WRAPPER_NAMES = """
    aria aya_vision chameleon cohere2_vision deepseek_vl deepseek_vl_hybrid deepseek_vl_v2 emu3 fuyu gemma3 gemma3n
    gemma4 glm4v glm4v_moe glm46v got_ocr2 idefics2 idefics3 instructblip internvl internvl_chat janus kimi_k25 kimi_k3
    kimi_vl lfm2_vl llama4 llava llava_next llava_next_video llava_onevision minimax_m3_vl mistral3 mllama ovis2
    paligemma phi4_multimodal pixtral qwen2_audio qwen2_vl qwen2_5_vl qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe smolvlm
    step3p7 video_llava vipllava voxtral
"""
WRAPPERS = frozenset(_WRAPPER_NAMES.split())
"""Multimodal configs whose text part is a whole model of its own family."""

GENERATORS = (
    "ForConditionalGeneration", "ForCausalLM", "ForMultimodalLM", "InternVLChatModel", "MultiModalityCausalLM",
)  # fmt: skip
"""Ends of the names of classes that generate text with that part."""
