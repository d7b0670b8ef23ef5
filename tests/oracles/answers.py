"""Relevance that falls on generated tokens, handed on one hop after the other."""


def hop_by_hop(values, lines, outputs, start, keeps):
    """What tokens and lines have after 0, 1, 2, … hops, from the sum of all rows.

    values[j][u]: what unit u gave the answer token j; unit start + i is the answer token i.
    """
    count = len(outputs)
    amounts = sum(values)
    rest = {}
    for row in lines:
        for key, value in row.items():
            rest[key] = rest.get(key, 0.0) + value
    steps = [(amounts.copy(), dict(rest))]
    for _ in range(count):
        after, moved = amounts.copy(), dict(rest)
        for token in range(count):
            if token in keeps:
                continue
            given = amounts[start + token]
            after[start + token] -= given
            for unit in range(len(amounts)):
                after[unit] += given * values[token][unit] / outputs[token]
            for key, value in lines[token].items():
                moved[key] = moved.get(key, 0.0) + given * value / outputs[token]
        amounts, rest = after, moved
        steps.append((amounts.copy(), dict(rest)))
    return steps
