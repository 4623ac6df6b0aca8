"""Remove wrappers' prefixes from tensor names, and apply a user's rules."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from keras_vit.callers import warn

Renaming: TypeAlias = Mapping[str, str | None] | Sequence[tuple[str, str | None]]
Names: TypeAlias = dict[str, str]  # The name in the file by the new name.

# Prefixes of all names from torch's DataParallel and compile, and timm's wrappers.
WRAPPERS = ("module.", "_orig_mod.", "timm_model.")
# Attributes that contain the ViT in larger models.
ATTRIBUTES = (*WRAPPERS, "model.", "vision_model.", "visual.", "encoder.")
# CLIP's other half, next to "visual.".
_TEXT_TOWER = re.compile(
    r"(token_embedding|transformer|ln_final|text)\.|(positional_embedding|"
    r"text_projection|logit_scale|logit_bias)$"
)


def unwrap(
    names: Names, is_known: Callable[[Names], bool], where: str
) -> tuple[Names, tuple[str, ...]]:
    """Names without the prefixes of a wrapped model.

    Tensors without the prefix belong to other parts of the model. They are ignored with
    a warning, or with a note if they are CLIP's text tower.

    Args:
        names: names of the tensors.
        is_known: function that tests whether names belong to a dialect.
        where: the file, for messages.

    Returns:
        The names, and notes about the prefix.
    """
    found, prefix = names, ""
    while wrapper := next((at for at in WRAPPERS if _all_begin(found, at)), None):
        found, prefix = _inside(found, wrapper), prefix + wrapper
    found, attributes = _known_inside(found, is_known)
    prefix += attributes
    if not prefix:
        return names, ()
    outside = sorted(name for name in names if not name.startswith(prefix))
    text = [name for name in outside if _TEXT_TOWER.match(name)]
    if others := [name for name in outside if name not in text]:
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        warn(
            f"{where}: the model's names begin with {prefix!r}. Ignored tensors: "
            f"{', '.join(others[:4])}{more}. If they belong to the model, rename them "
            "with from_checkpoint(names=)",
        )
    notes = (f"prefix {prefix!r} removed from {len(found)} names",)
    return found, (*notes, "the text tower is ignored") if text else notes


def _all_begin(names: Names, prefix: str) -> bool:
    return bool(names) and all(name.startswith(prefix) for name in names)


def _inside(names: Names, prefix: str) -> Names:
    return {
        name.removeprefix(prefix): original
        for name, original in names.items()
        if name.startswith(prefix)
    }


def _known_inside(
    names: Names, is_known: Callable[[Names], bool], depth: int = 3
) -> tuple[Names, str]:
    """Names without the attributes before them, up to `depth` levels."""
    if names and depth and not is_known(names):
        for prefix in ATTRIBUTES:
            inside, more = _known_inside(_inside(names, prefix), is_known, depth - 1)
            if is_known(inside):
                return inside, prefix + more
    return names, ""


def rename(
    names: Names, renaming: Renaming | None, where: str
) -> tuple[Names, tuple[str, ...]]:
    """Renames tensors by a user's rules.

    Args:
        names: names of the tensors.
        renaming: new names by the names in the file, or pairs of a regular expression
            and its replacement, applied in turn with `re.sub`; None instead of a new
            name drops the tensor.
        where: the file, for messages.

    Returns:
        The names, and a note about the tensors that no rule matched, which keep their
        names.

    Raises:
        ValueError: if a rule is not a regular expression, matches nothing, or gives two
            tensors the same name.
    """
    if renaming is None:
        return names, ()
    rules = _rules(renaming)
    found: Names = {}
    used: set[str] = set()
    unmatched = []
    for name, original in names.items():
        new, matching = _renamed(name, rules, once=isinstance(renaming, Mapping))
        used |= matching
        if not matching:
            unmatched.append(name)
        if new in found:
            raise ValueError(
                "Expected names= to give each tensor a unique name. Received: "
                f"{new!r} for {found[new]!r} and for {original!r} of {where}"
            )
        if new is not None:
            found[new] = original
    if unused := [text for text, _, _ in rules if text not in used]:
        raise ValueError(
            "Expected each rule of names= to match a tensor. Received: "
            f"{', '.join(unused[:4])}, which matches none of {where}, with "
            f"{', '.join(sorted(names)[:8])}, ..."
        )
    without = f"; without a rule: {', '.join(sorted(unmatched))}" if unmatched else ""
    matched = len(names) - len(unmatched)
    return found, (f"names= matched {matched} of {len(names)} tensors{without}",)


_Rule: TypeAlias = tuple[str, re.Pattern[str], str | None]


def _rules(renaming: Renaming) -> list[_Rule]:
    """Each original rule, its pattern, and its replacement."""
    if isinstance(renaming, Mapping):
        return [
            (old, re.compile(re.escape(old) + r"\Z"), new and new.replace("\\", r"\\"))
            for old, new in renaming.items()
        ]
    try:
        rules = [(old, re.compile(old), new) for old, new in renaming]
        for _, pattern, new in rules:
            pattern.sub(new or "", "")  # Raises for a missing group.
        return rules
    except (re.error, TypeError, ValueError) as error:
        raise ValueError(
            "Expected names= to be a dictionary of names, or a list of (regular "
            f"expression, replacement). Received: names={renaming!r:.200} ({error})"
        ) from error


def _renamed(
    name: str, rules: Sequence[_Rule], once: bool
) -> tuple[str | None, set[str]]:
    """The new name, and the rules that matched; with `once`, only the first."""
    matching: set[str] = set()
    new: str | None = name
    for text, pattern, replacement in rules:
        found = pattern.match(name) if once else pattern.search(new or "")
        if new is None or found is None or (once and matching):
            continue
        matching.add(text)
        new = None if replacement is None else pattern.sub(replacement, new)
    return new, matching
