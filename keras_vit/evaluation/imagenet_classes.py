"""Subsets of ImageNet's 1,000 classes in the related test sets (4.1, D.9).

Plain data, standard library only. Numbers are indices in the order of the published
heads, which is that of the wnids.
"""

import functools
from importlib import resources


@functools.cache
def wnids() -> tuple[str, ...]:
    """Returns the 1,000 WordNet ids, in the published heads' order (TFDS)."""
    return tuple(_lines("imagenet2012_wnids.txt"))


@functools.cache
def names() -> tuple[str, ...]:
    """Returns the 1,000 names in the same order; bird and machine are both "crane"."""
    return tuple(_lines("imagenet2012.txt"))


def _lines(file: str) -> list[str]:
    folder = resources.files("keras_vit").joinpath("labels")
    return folder.joinpath(file).read_text(encoding="utf-8").split("\n")


# hendrycks/natural-adv-examples, eval.py; robustness_metrics/datasets/tfds.py.
IMAGENET_A = (
    *(6, 11, 13, 15, 17, 22, 23, 27, 30, 37, 39, 42, 47, 50, 57, 70, 71, 76, 79, 89),
    *(90, 94, 96, 97, 99, 105, 107, 108, 110, 113, 124, 125, 130, 132, 143, 144),
    *(150, 151, 207, 234, 235, 254, 277, 283, 287, 291, 295, 298, 301, 306, 307),
    *(308, 309, 310, 311, 313, 314, 315, 317, 319, 323, 324, 326, 327, 330, 334),
    *(335, 336, 347, 361, 363, 372, 378, 386, 397, 400, 401, 402, 404, 407, 411),
    *(416, 417, 420, 425, 428, 430, 437, 438, 445, 456, 457, 461, 462, 470, 472),
    *(483, 486, 488, 492, 496, 514, 516, 528, 530, 539, 542, 543, 549, 552, 557),
    *(561, 562, 569, 572, 573, 575, 579, 589, 606, 607, 609, 614, 626, 627, 640),
    *(641, 642, 643, 658, 668, 677, 682, 684, 687, 701, 704, 719, 736, 746, 749),
    *(752, 758, 763, 765, 768, 773, 774, 776, 779, 780, 786, 792, 797, 802, 803),
    *(804, 813, 815, 820, 823, 831, 833, 835, 839, 845, 847, 850, 859, 862, 870),
    *(879, 880, 888, 890, 897, 900, 907, 913, 924, 932, 933, 934, 937, 943, 945),
    *(947, 951, 954, 956, 957, 959, 971, 972, 980, 981, 984, 986, 987, 988),
)

# hendrycks/imagenet-r, eval.py; robustness_metrics/datasets/tfds.py.
IMAGENET_R = (
    *(1, 2, 4, 6, 8, 9, 11, 13, 22, 23, 26, 29, 31, 39, 47, 63, 71, 76, 79, 84, 90),
    *(94, 96, 97, 99, 100, 105, 107, 113, 122, 125, 130, 132, 144, 145, 147, 148),
    *(150, 151, 155, 160, 161, 162, 163, 171, 172, 178, 187, 195, 199, 203, 207),
    *(208, 219, 231, 232, 234, 235, 242, 245, 247, 250, 251, 254, 259, 260, 263),
    *(265, 267, 269, 276, 277, 281, 288, 289, 291, 292, 293, 296, 299, 301, 308),
    *(309, 310, 311, 314, 315, 319, 323, 327, 330, 334, 335, 337, 338, 340, 341),
    *(344, 347, 353, 355, 361, 362, 365, 366, 367, 368, 372, 388, 390, 393, 397),
    *(401, 407, 413, 414, 425, 428, 430, 435, 437, 441, 447, 448, 457, 462, 463),
    *(469, 470, 471, 472, 476, 483, 487, 515, 546, 555, 558, 570, 579, 583, 587),
    *(593, 594, 596, 609, 613, 617, 621, 629, 637, 657, 658, 701, 717, 724, 763),
    *(768, 774, 776, 779, 780, 787, 805, 812, 815, 820, 824, 833, 847, 852, 866),
    *(875, 883, 889, 895, 907, 928, 931, 932, 933, 934, 936, 937, 943, 945, 947),
    *(948, 949, 951, 953, 954, 957, 963, 965, 967, 980, 981, 983, 988),
)

# The 113 folders of ObjectNet that overlap with ImageNet, and their 125 classes, from
# ObjectNet's objectnet_to_imagenet_1k.json and folder_to_objectnet_label.json
# (mlfoundations/wise-ft has both). Two more sources agree: penfever/vlhub,
# src/training/imagenet_zeroshot_data.py (all), and chriszh4/objectnet-superloader,
# mappings/objectnet_overlap_imagenet1k_idn.json (the 104 with one class, as wnids).
OBJECTNET = {
    "alarm_clock": (409, 530),
    "backpack": (414,),
    "banana": (954,),
    "band_aid": (419,),
    "basket": (790,),
    "beer_bottle": (440,),
    "bench": (703,),
    "bicycle": (671, 444),
    "binder_closed": (446,),
    "bottle_cap": (455,),
    "bread_loaf": (930,),
    "broom": (462,),
    "bucket": (463,),
    "butchers_knife": (499,),
    "can_opener": (473,),
    "candle": (470,),
    "cellphone": (487,),
    "chair": (423, 559, 765),
    "clothes_hamper": (588,),
    "coffee_french_press": (550,),
    "combination_lock": (507,),
    "computer_mouse": (673,),
    "desk_lamp": (846,),
    "doormat": (539,),
    "dress": (578,),
    "dress_shoe_men": (630,),
    "drill": (740,),
    "drinking_cup": (968,),
    "drying_rack_for_dishes": (729,),
    "envelope": (549,),
    "fan": (545,),
    "frying_pan": (567,),
    "full_sized_towel": (434,),
    "hair_dryer": (589,),
    "hammer": (587,),
    "hand_towel_or_rag": (533,),
    "helmet": (560, 518),
    "iron_for_clothes": (606,),
    "jeans": (608,),
    "keyboard": (508,),
    "ladle": (618,),
    "lampshade": (619,),
    "laptop_open": (620,),
    "lemon": (951,),
    "letter_opener": (623,),
    "lighter": (626,),
    "lipstick": (629,),
    "match": (644,),
    "measuring_cup": (647,),
    "microwave": (651,),
    "mixing_salad_bowl": (659,),
    "monitor": (664,),
    "mug": (504,),
    "nail_fastener": (677,),
    "necklace": (679,),
    "orange": (950,),
    "padlock": (695,),
    "paintbrush": (696,),
    "paper_towel": (700,),
    "pen": (418, 749, 563),
    "pill_bottle": (720,),
    "pillow": (721,),
    "pitcher": (725,),
    "plastic_bag": (728,),
    "plate": (923,),
    "plunger": (731,),
    "pop_can": (737,),
    "portable_heater": (811,),
    "printer": (742,),
    "remote_control": (761,),
    "ruler": (769,),
    "running_shoe": (770,),
    "safety_pin": (772,),
    "salt_shaker": (773,),
    "sandal": (774,),
    "screw": (783,),
    "shovel": (792,),
    "skirt": (601, 655, 689),
    "sleeping_bag": (797,),
    "soap_dispenser": (804,),
    "sock": (806,),
    "soup_bowl": (809,),
    "spatula": (813,),
    "speaker": (632,),
    "still_camera": (732, 759),
    "strainer": (828,),
    "stuffed_animal": (850,),
    "suit_jacket": (834,),
    "sunglasses": (837,),
    "sweater": (841,),
    "swimming_trunks": (842,),
    "t-shirt": (610,),
    "teapot": (849,),
    "tennis_racket": (752,),
    "tie": (457, 906),
    "toaster": (859,),
    "toilet_paper_roll": (999,),
    "trash_bin": (412,),
    "tray": (868,),
    "tv": (851,),
    "umbrella": (879,),
    "vacuum_cleaner": (882,),
    "vase": (883,),
    "wallet": (893,),
    "watch": (531,),
    "water_bottle": (898,),
    "weight_exercise": (543,),
    "weight_scale": (778,),
    "wheel": (479, 694),
    "whistle": (902,),
    "wine_bottle": (907,),
    "winter_glove": (658,),
    "wok": (909,),
}
