"""timm's architectures that our layers support, and facts that no tensor shows.

A fused query, key and value does not show the number of heads, and no tensor shows an
activation, an epsilon or rotary positions. timm's code has them for the architecture in
a config.json. The tables are from timm 1.0.31's registry, with deprecated names.
`make interop` compares every row (tests/interop/test_architectures.py).
"""

import re
from typing import Any

_NAMES = {  # Heads: architectures.
    2: """
        test_vit test_vit2
    """,
    3: """
        deit_tiny_distilled_patch16_224 deit_tiny_patch16_224
        eva02_tiny_patch14_224 eva02_tiny_patch14_336 test_vit3 test_vit4
        vit_pe_core_tiny_patch16_384 vit_pe_spatial_tiny_patch16_512
        vit_tiny_patch16_224 vit_tiny_patch16_224_in21k vit_tiny_patch16_384
        vit_tiny_patch16_dinov3_qkvb vit_tiny_r_s16_p8_224
        vit_tiny_r_s16_p8_224_in21k vit_tiny_r_s16_p8_384
    """,
    4: """
        vit_wee_patch16_reg1_gap_256 vit_xsmall_patch16_clip_224
    """,
    5: """
        vit_little_patch16_reg1_gap_256 vit_little_patch16_reg4_gap_256
    """,
    6: """
        deit3_small_patch16_224 deit3_small_patch16_224_in21ft1k
        deit3_small_patch16_384 deit3_small_patch16_384_in21ft1k
        deit_small_distilled_patch16_224 deit_small_patch16_224
        eva02_small_patch14_224 eva02_small_patch14_336 flexivit_small
        vit_pe_core_small_patch16_384 vit_pe_spatial_small_patch16_512
        vit_small_patch14_dinov2 vit_small_patch14_reg4_dinov2
        vit_small_patch16_224 vit_small_patch16_224_dino
        vit_small_patch16_224_in21k vit_small_patch16_36x1_224
        vit_small_patch16_384 vit_small_patch16_dinov3
        vit_small_patch16_dinov3_qkvb vit_small_patch16_lingbot
        vit_small_patch16_rope_224 vit_small_patch16_rope_ape_224
        vit_small_patch16_rope_mixed_224 vit_small_patch16_rope_mixed_ape_224
        vit_small_patch32_224 vit_small_patch32_224_in21k vit_small_patch32_384
        vit_small_patch8_224 vit_small_patch8_224_dino
        vit_small_plus_patch16_dinov3 vit_small_plus_patch16_dinov3_qkvb
        vit_small_r26_s32_224 vit_small_r26_s32_224_in21k vit_small_r26_s32_384
    """,
    8: """
        aimv2_large_patch14_224 aimv2_large_patch14_336 aimv2_large_patch14_448
        deit3_medium_patch16_224 deit3_medium_patch16_224_in21ft1k
        vit_medium_patch16_clip_224 vit_medium_patch16_gap_240
        vit_medium_patch16_gap_256 vit_medium_patch16_gap_384
        vit_medium_patch16_reg1_gap_256 vit_medium_patch16_reg4_gap_256
        vit_medium_patch16_rope_reg1_gap_256 vit_medium_patch32_clip_224
        vit_mediumd_patch16_reg4_gap_256 vit_mediumd_patch16_reg4_gap_384
        vit_mediumd_patch16_rope_reg1_gap_256
    """,
    10: """
        vit_betwixt_patch16_gap_256 vit_betwixt_patch16_reg1_gap_256
        vit_betwixt_patch16_reg4_gap_256 vit_betwixt_patch16_reg4_gap_384
        vit_betwixt_patch16_rope_reg4_gap_256 vit_betwixt_patch32_clip_224
    """,
    12: """
        aimv2_huge_patch14_224 aimv2_huge_patch14_336 aimv2_huge_patch14_448
        beit3_base_patch16_224 beit_base_patch16_224 beit_base_patch16_384
        beitv2_base_patch16_224 deit3_base_patch16_224
        deit3_base_patch16_224_in21ft1k deit3_base_patch16_384
        deit3_base_patch16_384_in21ft1k deit_base_distilled_patch16_224
        deit_base_distilled_patch16_384 deit_base_patch16_224
        deit_base_patch16_384 eva02_base_patch14_224 eva02_base_patch14_448
        eva02_base_patch16_clip_224 flexivit_base vit_base_patch14_dinov2
        vit_base_patch14_reg1_tipsv2 vit_base_patch14_reg4_dinov2
        vit_base_patch16_224 vit_base_patch16_224_dino
        vit_base_patch16_224_in21k vit_base_patch16_224_miil
        vit_base_patch16_224_miil_in21k vit_base_patch16_224_sam
        vit_base_patch16_384 vit_base_patch16_clip_224 vit_base_patch16_clip_384
        vit_base_patch16_clip_quickgelu_224 vit_base_patch16_dinov3
        vit_base_patch16_dinov3_qkvb vit_base_patch16_lingbot
        vit_base_patch16_radio_v3 vit_base_patch16_reg4_gap_256
        vit_base_patch16_rope_224 vit_base_patch16_rope_ape_224
        vit_base_patch16_rope_mixed_224 vit_base_patch16_rope_mixed_ape_224
        vit_base_patch16_rope_reg1_gap_256 vit_base_patch16_rpn_224
        vit_base_patch16_siglip_224 vit_base_patch16_siglip_256
        vit_base_patch16_siglip_384 vit_base_patch16_siglip_512
        vit_base_patch16_siglip_gap_224 vit_base_patch16_siglip_gap_256
        vit_base_patch16_siglip_gap_384 vit_base_patch16_siglip_gap_512
        vit_base_patch32_224 vit_base_patch32_224_in21k vit_base_patch32_224_sam
        vit_base_patch32_384 vit_base_patch32_clip_224 vit_base_patch32_clip_256
        vit_base_patch32_clip_384 vit_base_patch32_clip_448
        vit_base_patch32_clip_quickgelu_224 vit_base_patch32_siglip_256
        vit_base_patch32_siglip_gap_256 vit_base_patch8_224
        vit_base_patch8_224_dino vit_base_patch8_224_in21k vit_base_r26_s32_224
        vit_base_r50_s16_224 vit_base_r50_s16_224_in21k vit_base_r50_s16_384
        vit_base_resnet50_224_in21k vit_base_resnet50_384
        vit_pe_core_base_patch16_224 vit_pe_spatial_base_patch16_512
    """,
    13: """
        vit_so150m2_patch16_reg1_gap_256 vit_so150m2_patch16_reg1_gap_384
        vit_so150m2_patch16_reg1_gap_448
    """,
    14: """
        vit_base_patch16_plus_240 vit_base_patch16_plus_clip_240
        vit_base_patch32_plus_256 vit_so150m_patch16_reg4_gap_256
        vit_so150m_patch16_reg4_gap_384 vit_so150m_patch16_reg4_map_256
    """,
    16: """
        aimv2_1b_patch14_224 aimv2_1b_patch14_336 aimv2_1b_patch14_448
        beit3_giant_patch14_224 beit3_giant_patch14_336 beit3_large_patch16_224
        beit_large_patch16_224 beit_large_patch16_384 beit_large_patch16_512
        beitv2_large_patch16_224 deit3_huge_patch14_224
        deit3_huge_patch14_224_in21ft1k deit3_large_patch16_224
        deit3_large_patch16_224_in21ft1k deit3_large_patch16_384
        deit3_large_patch16_384_in21ft1k eva02_enormous_patch14_clip_224
        eva02_large_patch14_224 eva02_large_patch14_448
        eva02_large_patch14_clip_224 eva02_large_patch14_clip_336
        eva_giant_patch14_224 eva_giant_patch14_336 eva_giant_patch14_560
        eva_giant_patch14_clip_224 eva_large_patch14_196 eva_large_patch14_336
        flexivit_large vit_base_patch16_gap_224 vit_giant_patch14_224
        vit_giant_patch14_clip_224 vit_giant_patch16_gap_224
        vit_giantopt_patch16_siglip_256 vit_giantopt_patch16_siglip_384
        vit_giantopt_patch16_siglip_gap_256 vit_giantopt_patch16_siglip_gap_384
        vit_gigantic_patch14_224 vit_gigantic_patch14_clip_224
        vit_gigantic_patch14_clip_378 vit_gigantic_patch14_clip_quickgelu_224
        vit_huge_patch14_224 vit_huge_patch14_224_in21k
        vit_huge_patch14_clip_224 vit_huge_patch14_clip_336
        vit_huge_patch14_clip_378 vit_huge_patch14_clip_quickgelu_224
        vit_huge_patch14_clip_quickgelu_378 vit_huge_patch14_gap_224
        vit_huge_patch16_gap_448 vit_huge_patch16_radio_v3
        vit_huge_patch16_radio_v4 vit_intern300m_patch14_448
        vit_large_patch14_224 vit_large_patch14_clip_224
        vit_large_patch14_clip_336 vit_large_patch14_clip_quickgelu_224
        vit_large_patch14_clip_quickgelu_336 vit_large_patch14_dinov2
        vit_large_patch14_reg1_tipsv2 vit_large_patch14_reg4_dinov2
        vit_large_patch16_224 vit_large_patch16_224_in21k vit_large_patch16_384
        vit_large_patch16_dinov3 vit_large_patch16_dinov3_qkvb
        vit_large_patch16_lingbot vit_large_patch16_radio_v3
        vit_large_patch16_rope_224 vit_large_patch16_rope_ape_224
        vit_large_patch16_rope_mixed_224 vit_large_patch16_rope_mixed_ape_224
        vit_large_patch16_siglip_256 vit_large_patch16_siglip_384
        vit_large_patch16_siglip_512 vit_large_patch16_siglip_gap_256
        vit_large_patch16_siglip_gap_384 vit_large_patch16_siglip_gap_512
        vit_large_patch32_224 vit_large_patch32_224_in21k vit_large_patch32_384
        vit_large_r50_s32_224 vit_large_r50_s32_224_in21k vit_large_r50_s32_384
        vit_pe_core_gigantic_patch14_448 vit_pe_core_large_patch14_336
        vit_pe_lang_gigantic_patch14_448 vit_pe_lang_large_patch14_448
        vit_pe_spatial_gigantic_patch14_448 vit_pe_spatial_large_patch14_448
        vit_so400m_patch14_reg1_tipsv2 vit_so400m_patch14_siglip_224
        vit_so400m_patch14_siglip_378 vit_so400m_patch14_siglip_384
        vit_so400m_patch14_siglip_gap_224 vit_so400m_patch14_siglip_gap_378
        vit_so400m_patch14_siglip_gap_384 vit_so400m_patch14_siglip_gap_448
        vit_so400m_patch14_siglip_gap_896 vit_so400m_patch16_radio_v4
        vit_so400m_patch16_siglip_256 vit_so400m_patch16_siglip_384
        vit_so400m_patch16_siglip_512 vit_so400m_patch16_siglip_gap_256
        vit_so400m_patch16_siglip_gap_384 vit_so400m_patch16_siglip_gap_512
    """,
    20: """
        vit_huge_plus_patch16_dinov3 vit_huge_plus_patch16_dinov3_qkvb
    """,
    24: """
        aimv2_3b_patch14_224 aimv2_3b_patch14_336 aimv2_3b_patch14_448
        vit_giant_patch14_dinov2 vit_giant_patch14_reg1_tipsv2
        vit_giant_patch14_reg4_dinov2 vit_giant_patch16_lingbot
        vit_giant_patch16_radio_v3
    """,
    32: """
        vit_7b_patch16_dinov3
    """,
}
HEADS = {name: heads for heads, names in _NAMES.items() for name in names.split()}
"""Heads of each timm architecture, unless its model_args contain them."""

_EPSILON = {"norm_eps": 1e-5}
_DINOV3 = {
    **_EPSILON,
    "use_rot_pos_emb": True,
    "rope_type": "dinov3",
    "rope_temperature": 100.0,
    "rope_rotate_half": True,
}
_PE = {**_EPSILON, "use_rot_pos_emb": True, "rope_grid_indexing": "xy"}
_PE_OFFSET = {**_PE, "rope_grid_offset": 1.0}
_PE_FLAT = {"final_norm": False, "global_pool": "avg", "ref_feat_shape": [32, 32]}
_ROPE = {"use_rot_pos_emb": True, "rope_grid_indexing": "xy"}
_OPTIONS: dict[str, dict[str, Any]] = {  # Patterns of names: timm's arguments.
    r"(aimv2|beit3)_.*|vit_.*_clip_.*": _EPSILON,
    r"vit_.*_clip_quickgelu_.*": {"act_layer": "quick_gelu"},
    # SigLIP 2.
    r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_.*"
    r"|vit_large_patch16_siglip_(gap_)?512": {"act_layer": "gelu_tanh"},
    r"eva02_(?!enormous).*": {"use_rot_pos_emb": True, "ref_feat_shape": [16, 16]},
    r"eva02_enormous_.*|vit_base_patch16_rpn_224": {"use_post_norm": True},
    r"vit_.*_dinov3(_qkvb)?": {**_DINOV3, "global_pool": "avg"},
    r"vit_.*_lingbot": _DINOV3,
    r"vit_.*_rope_(ape_)?224": {**_ROPE, "rope_temperature": 100.0},
    r"vit_.*_rope_mixed_(ape_)?224": {
        **_ROPE,
        "rope_type": "mixed",
        "rope_temperature": 10.0,
    },
    r"vit_.*_rope_reg[0-9]_gap_256": {
        "use_rot_pos_emb": True,
        "ref_feat_shape": [16, 16],
    },
    r"vit_pe_core_.*": {"attn_pool_num_heads": 8, "pool_include_prefix": True},
    r"vit_pe_core_base_patch16_224": {**_PE_OFFSET, "ref_feat_shape": [14, 14]},
    r"vit_pe_core_(tiny|small|large)_.*": {**_PE_OFFSET, "ref_feat_shape": [24, 24]},
    r"vit_pe_core_gigantic_.*": {**_PE, "ref_feat_shape": [32, 32]},
    r"vit_pe_(lang|spatial)_(tiny|small|base|large)_.*": {**_PE_OFFSET, **_PE_FLAT},
    r"vit_pe_(lang|spatial)_gigantic_.*": {**_PE, **_PE_FLAT},
    r"vit_.*_radio_v[0-9]|vit_intern300m_.*": {"final_norm": False},
    r"test_vit3": {"pool_include_prefix": True},
}
REFUSED = {
    "a convolutional stem with BatchNorm": r"vit_base_mci_224|vit_.*_resnet(26|50)d_.*",
    "BatchNorm or another norm that BiT does not have": r"resnetv2_(?!.*_bit).*",
    "differential attention": r"vit_d(p|little|wee).*",
    "attention and MLP in parallel": r"vit_pwee_.*|vit_.*_xp_224|vit_.*_18x2_224",
    "heads that share keys and values (Sapiens2)": r"vit_.*_sapiens2",
    "patches of several sizes (NaFlex)": r"naflexvit_.*",
    "windows and different relative positions (SAM)": r"samvit_.*",
    "different relative positions": r"vit_relpos_.*|vit_srelpos_.*",
}
"""Families that no layer here supports: patterns of their names, by the reason."""


def family_refused(architecture: str) -> str | None:
    """The reason why an architecture is not supported; None if supported or unknown.

    Args:
        architecture: a name without a tag.
    """
    for reason, pattern in REFUSED.items():
        if re.fullmatch(pattern, architecture):
            return reason
    return None


def options_of(architecture: str) -> dict[str, Any]:
    """Timm's arguments for an architecture that no tensor shows, except the heads.

    Args:
        architecture: a name without a tag.
    """
    found: dict[str, Any] = {}
    for pattern, options in _OPTIONS.items():
        if re.fullmatch(pattern, architecture):
            found |= options
    return found


WIDTHS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1664: 16}
"""Heads by hidden size, if all well-known plain ViTs of that size have the same number.

These are Ti, S, B, L and H (Table 1 and DeiT), So400m, g and G (arXiv:2106.04560).
Smaller sizes between them occur in custom models, with any number of heads.
"""
