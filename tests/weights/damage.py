"""Damages of a file's bytes."""


def damage(content, rng):
    """One to four bytes changed in place; of every third copy, parts moved as well.

    Half of the places are near the beginning or the end, where formats keep tables.
    """
    content = bytearray(content)
    in_place = rng.randrange(3)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content))
        edge = rng.randrange(min(len(content), 4096))
        at = rng.choice((at, at, edge, len(content) - 1 - edge))
        size = rng.randint(1, 64)
        if in_place:
            flipped = content[at] ^ 1 << rng.randrange(8)
            content[at] = rng.choice((flipped, 0, 255, rng.randrange(256)))
            continue
        kind = rng.choice(("cut", "insert", "delete", "repeat"))
        if kind == "cut":
            del content[max(at, 1) :]
        elif kind == "insert":
            content[at:at] = rng.randbytes(size)
        elif kind == "delete":
            del content[at : at + min(size, len(content) - 1)]
        else:
            content[at:at] = content[at : at + size]
    return bytes(content)
