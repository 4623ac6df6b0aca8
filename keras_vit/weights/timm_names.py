"""timm's architectures that the layers here compute, and their heads.

A fused query, key and value does not show how many heads it is of; timm's code does, by
the architecture that its config.json names. From timm 1.0.31's registry, deprecated
names included: `make interop` compares every row (tests/interop/test_reading.py).
"""

_NAMES = {  # Heads: architectures.
    2: """
        test_vit
    """,
    3: """
        deit_tiny_distilled_patch16_224 deit_tiny_patch16_224 vit_tiny_patch16_224
        vit_tiny_patch16_224_in21k vit_tiny_patch16_384 vit_tiny_r_s16_p8_224
        vit_tiny_r_s16_p8_224_in21k vit_tiny_r_s16_p8_384
    """,
    6: """
        deit3_small_patch16_224 deit3_small_patch16_224_in21ft1k
        deit3_small_patch16_384 deit3_small_patch16_384_in21ft1k
        deit_small_distilled_patch16_224 deit_small_patch16_224 flexivit_small
        vit_small_patch14_dinov2 vit_small_patch14_reg4_dinov2 vit_small_patch16_224
        vit_small_patch16_224_dino vit_small_patch16_224_in21k
        vit_small_patch16_36x1_224 vit_small_patch16_384 vit_small_patch32_224
        vit_small_patch32_224_in21k vit_small_patch32_384 vit_small_patch8_224
        vit_small_patch8_224_dino vit_small_r26_s32_224 vit_small_r26_s32_224_in21k
        vit_small_r26_s32_384
    """,
    8: """
        deit3_medium_patch16_224 deit3_medium_patch16_224_in21ft1k
        vit_medium_patch16_gap_240 vit_medium_patch16_gap_256
        vit_medium_patch16_gap_384
    """,
    10: """
        vit_betwixt_patch16_gap_256
    """,
    12: """
        deit3_base_patch16_224 deit3_base_patch16_224_in21ft1k
        deit3_base_patch16_384 deit3_base_patch16_384_in21ft1k
        deit_base_distilled_patch16_224 deit_base_distilled_patch16_384
        deit_base_patch16_224 deit_base_patch16_384 flexivit_base
        vit_base_patch14_dinov2 vit_base_patch14_reg1_tipsv2
        vit_base_patch14_reg4_dinov2 vit_base_patch16_224 vit_base_patch16_224_dino
        vit_base_patch16_224_in21k vit_base_patch16_224_miil
        vit_base_patch16_224_miil_in21k vit_base_patch16_224_sam
        vit_base_patch16_384 vit_base_patch16_siglip_224 vit_base_patch16_siglip_256
        vit_base_patch16_siglip_384 vit_base_patch16_siglip_512
        vit_base_patch16_siglip_gap_224 vit_base_patch16_siglip_gap_256
        vit_base_patch16_siglip_gap_384 vit_base_patch16_siglip_gap_512
        vit_base_patch32_224 vit_base_patch32_224_in21k vit_base_patch32_224_sam
        vit_base_patch32_384 vit_base_patch32_siglip_256
        vit_base_patch32_siglip_gap_256 vit_base_patch8_224 vit_base_patch8_224_dino
        vit_base_patch8_224_in21k vit_base_r26_s32_224 vit_base_r50_s16_224
        vit_base_r50_s16_224_in21k vit_base_r50_s16_384 vit_base_resnet50_224_in21k
        vit_base_resnet50_384
    """,
    14: """
        vit_base_patch16_plus_240 vit_base_patch32_plus_256
        vit_so150m_patch16_reg4_gap_256 vit_so150m_patch16_reg4_gap_384
        vit_so150m_patch16_reg4_map_256
    """,
    16: """
        deit3_huge_patch14_224 deit3_huge_patch14_224_in21ft1k
        deit3_large_patch16_224 deit3_large_patch16_224_in21ft1k
        deit3_large_patch16_384 deit3_large_patch16_384_in21ft1k flexivit_large
        vit_base_patch16_gap_224 vit_giant_patch14_224 vit_giant_patch16_gap_224
        vit_giantopt_patch16_siglip_256 vit_giantopt_patch16_siglip_384
        vit_giantopt_patch16_siglip_gap_256 vit_giantopt_patch16_siglip_gap_384
        vit_gigantic_patch14_224 vit_huge_patch14_224 vit_huge_patch14_224_in21k
        vit_huge_patch14_gap_224 vit_huge_patch16_gap_448 vit_large_patch14_224
        vit_large_patch14_dinov2 vit_large_patch14_reg1_tipsv2
        vit_large_patch14_reg4_dinov2 vit_large_patch16_224
        vit_large_patch16_224_in21k vit_large_patch16_384
        vit_large_patch16_siglip_256 vit_large_patch16_siglip_384
        vit_large_patch16_siglip_512 vit_large_patch16_siglip_gap_256
        vit_large_patch16_siglip_gap_384 vit_large_patch16_siglip_gap_512
        vit_large_patch32_224 vit_large_patch32_224_in21k vit_large_patch32_384
        vit_large_r50_s32_224 vit_large_r50_s32_224_in21k vit_large_r50_s32_384
        vit_so400m_patch14_reg1_tipsv2 vit_so400m_patch14_siglip_224
        vit_so400m_patch14_siglip_378 vit_so400m_patch14_siglip_384
        vit_so400m_patch14_siglip_gap_224 vit_so400m_patch14_siglip_gap_378
        vit_so400m_patch14_siglip_gap_384 vit_so400m_patch14_siglip_gap_448
        vit_so400m_patch14_siglip_gap_896 vit_so400m_patch16_siglip_256
        vit_so400m_patch16_siglip_384 vit_so400m_patch16_siglip_512
        vit_so400m_patch16_siglip_gap_256 vit_so400m_patch16_siglip_gap_384
        vit_so400m_patch16_siglip_gap_512
    """,
}
REFUSED = {
    "a gated MLP (SwiGLU)": r"vit_giant_patch14_(reg[0-9]_)?(dinov2|tipsv2)",
    "no LayerNorm after the last block": r"vit_(intern300m_.*|.*_radio_v[0-9])",
    "a pooling that reads register tokens, too": r"test_vit3",
}
"""Architectures that no tensor's name shows not to be of layers here, by the reason."""

HEADS = {name: heads for heads, names in _NAMES.items() for name in names.split()}
"""How many heads each of timm's architectures has, unless its model_args say."""

WIDTHS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1664: 16}
"""Heads by hidden size, where every well-known plain ViT of that size has as many.

Ti, S, B, L and H (Table 1 and DeiT), So400m, g and G (arXiv:2106.04560). The smaller
sizes between are those of models that people train themselves, with any heads.
"""
