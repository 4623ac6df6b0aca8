"""What a terminal shows after a program has written to it."""


def screen(text):
    """The lines that a terminal shows at the end."""
    lines = [[]]
    column = 0
    for character in text:
        if character == "\n":
            lines.append([])
            column = 0
        elif character == "\r":
            column = 0
        else:
            lines[-1][column : column + 1] = [character]
            column += 1
    return ["".join(line).rstrip() for line in lines]
