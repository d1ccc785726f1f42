"""Zebra puzzles, compiled: clues, deduction without guessing, and puzzles in which deduction uses every clue.

n houses stand in a row; each of m attributes assigns a different one of n values to every house. An entity is a
(row, value): row 0 holds the house numbers, row a + 1 attribute a. What is known about an entity is the set of houses
where it may still be, as bits of masks[row, value].

A clue is seven numbers: its kind and up to three entities (row, value), -1 for those it does not have.
"""

import numpy as np

from data.compiled import compiled, draw, shuffle

# In vocabulary order. BETWEEN means that the first, second and third entity stand in this order.
EQUAL, NOT_EQUAL, NEXT_TO, ENDS, IMMEDIATELY_LEFT, LEFT_OF, BETWEEN = range(7)
KINDS = ("=", "!=", "nbr", "ends", "immediate-left", "left-of", "inbetween")
ENTITIES = np.array([2, 2, 2, 1, 2, 2, 3])  # per clue of each kind
WEIGHTS = np.array([4, 1, 2, 2, 2, 2, 1])  # how often each kind is drawn
LARGEST = 6  # maximum number of houses, and of attributes
MOST_CLUES = 160  # a puzzle that this many clues do not solve is started over


# --- the meaning of a clue -------------------------------------------------------------------------------------------


@compiled
def holds(kind: int, a: int, b: int, c: int, n: int) -> bool:
    """True if a clue holds for entities in the houses a, b and c (as many as it has), counted from 0."""
    if kind == EQUAL:
        return a == b
    if kind == NOT_EQUAL:
        return a != b
    if kind == NEXT_TO:
        return abs(a - b) == 1
    if kind == ENDS:
        return a in (0, n - 1)
    if kind == IMMEDIATELY_LEFT:
        return a + 1 == b
    if kind == LEFT_OF:
        return a < b
    return a < b < c


@compiled
def _left_of(a: int, b: int) -> tuple[int, int]:
    """Narrows the houses of two entities of which the first is left of the second."""
    if b == 0:
        return 0, 0
    last = b
    while last & (last - 1):
        last &= last - 1
    a &= last - 1
    b &= ~(((a & -a) << 1) - 1)
    return a, b


@compiled
def _narrow(kind: int, a: int, b: int, c: int, n: int) -> tuple[int, int, int]:
    """Narrows the houses a, b and c of a clue's entities to those that are consistent with the clue."""
    if kind == EQUAL:
        return a & b, a & b, c
    if kind == NOT_EQUAL:
        return (a & ~b if b & (b - 1) == 0 else a), (b & ~a if a & (a - 1) == 0 else b), c
    if kind == NEXT_TO:
        return a & (b << 1 | b >> 1), b & (a << 1 | a >> 1), c
    if kind == ENDS:
        return a & (1 | 1 << (n - 1)), b, c
    if kind == IMMEDIATELY_LEFT:
        return a & b >> 1, b & a << 1, c
    if kind == LEFT_OF:
        a, b = _left_of(a, b)
        return a, b, c
    a, b = _left_of(a, b)
    b, c = _left_of(b, c)
    a, b = _left_of(a, b)
    return a, b, c


@compiled
def _tells(kind: int, a: int, b: int, c: int, n: int) -> bool:
    """True if a clue adds information: it fails for some of the houses that a, b and c allow."""
    for x in range(n):
        for y in range(n):
            for z in range(n):
                if a >> x & 1 and b >> y & 1 and c >> z & 1 and not holds(kind, x, y, z, n):
                    return True
    return False


@compiled
def _houses(masks: np.ndarray, clue: np.ndarray, i: int) -> int:
    """The houses where entity i of a clue may be; the first house if the clue has no such entity."""
    row: int = clue[1 + 2 * i]
    value: int = clue[2 + 2 * i]
    return masks[row, value] if row >= 0 else 1


# --- deduction -------------------------------------------------------------------------------------------------------


@compiled
def _begin(masks: np.ndarray, n: int) -> None:
    """Only the house numbers are known."""
    masks[:] = (1 << n) - 1
    for house in range(n):
        masks[0, house] = 1 << house


@compiled
def _apply_attribute(old: np.ndarray, new: np.ndarray, row: int, n: int) -> bool:
    """Each value of an attribute is in a different house: writes what follows from `old` to `new`. True: it changed."""
    changed = False
    once, twice, fixed = 0, 0, 0
    for value in range(n):
        twice |= once & old[row, value]
        once |= old[row, value]
        if old[row, value] & (old[row, value] - 1) == 0:
            fixed |= old[row, value]
    once &= ~twice
    for value in range(n):
        mask = old[row, value]
        if mask & (mask - 1) == 0:
            continue
        mask &= ~fixed
        if mask & once:
            mask &= once
        if new[row, value] & ~mask:
            new[row, value] &= mask
            changed = True
    return changed


@compiled
def _apply_clue(old: np.ndarray, new: np.ndarray, clue: np.ndarray, n: int) -> bool:
    """Writes what follows from a clue and `old` to `new`. True: it changed."""
    left = _narrow(clue[0], _houses(old, clue, 0), _houses(old, clue, 1), _houses(old, clue, 2), n)
    changed = False
    for i in range(3):
        row, value = clue[1 + 2 * i], clue[2 + 2 * i]
        if row >= 0 and new[row, value] & ~left[i]:
            new[row, value] &= left[i]
            changed = True
    return changed


@compiled
def _deduce(masks: np.ndarray, clues: np.ndarray, used: np.ndarray, n: int, m: int) -> bool:
    """Draws all conclusions, in place, and marks the clues that led to one. True if every entity's house is known."""
    changed = True
    while changed:
        changed = False
        for row in range(1, m + 1):
            while _apply_attribute(masks, masks, row, n):
                changed = True
        for i in range(len(clues)):
            if _apply_clue(masks, masks, clues[i], n):
                used[i] = changed = True
    for row in range(1, m + 1):
        for value in range(n):
            if masks[row, value] & (masks[row, value] - 1):
                return False
    return True


@compiled
def explain(table: np.ndarray, clues: np.ndarray, n: int, m: int, order: np.ndarray, rounds: np.ndarray) -> int:
    """Writes the order in which deduction fills the table, easiest first; returns how many cells it filled.

    Each fill starts from the clues and the cells filled before. A round draws every conclusion that follows from a
    single clue or a single attribute. The next cell is the first, in reading order, of those known after the fewest
    rounds.

    table (m + 1, n): the value in each house -> order (m n,): row * n + house; rounds (m n,): rounds per cell.
    """
    old, new = np.empty((LARGEST + 1, LARGEST), dtype=np.int64), np.empty((LARGEST + 1, LARGEST), dtype=np.int64)
    filled = np.zeros((m + 1, n), dtype=np.bool_)
    for step in range(m * n):
        _begin(old, n)
        for row in range(1, m + 1):
            for house in range(n):
                if filled[row, house]:
                    old[row, table[row, house]] = 1 << house
        found, count = -1, 0
        while found < 0:
            new[:] = old
            changed = False
            for row in range(1, m + 1):
                changed |= _apply_attribute(old, new, row, n)
            for i in range(len(clues)):
                changed |= _apply_clue(old, new, clues[i], n)
            if not changed:
                return step
            count += 1
            old[:] = new
            for row in range(1, m + 1):
                for house in range(n):
                    if not filled[row, house] and old[row, table[row, house]] == 1 << house and found < 0:
                        found = row * n + house
        order[step], rounds[step] = found, count
        filled[found // n, found % n] = True
    return m * n


# --- generation ------------------------------------------------------------------------------------------------------


@compiled
def _draw_clue(state: np.ndarray, table: np.ndarray, n: int, m: int, clue: np.ndarray) -> None:
    """Draws a random clue that is true for the table: first the houses of its entities, then the entities."""
    pick, kind = draw(state, WEIGHTS.sum()), 0
    while pick >= WEIGHTS[kind]:
        pick -= WEIGHTS[kind]
        kind += 1
    houses = np.empty(3, dtype=np.int64)
    while True:
        for i in range(3):
            houses[i] = draw(state, n)
        if holds(kind, houses[0], houses[1], houses[2], n):
            break
    while True:
        clue[:] = -1
        clue[0] = kind
        numbers = 0
        for i in range(ENTITIES[kind]):
            row = draw(state, m + 1)
            numbers += row == 0
            clue[1 + 2 * i], clue[2 + 2 * i] = row, table[row, houses[i]]
        # Two house numbers say nothing about the table, nor does a house number at an end. That two values of one
        # attribute are in different houses, or that a value is where it is, is known anyway.
        about = kind in (EQUAL, NOT_EQUAL) and clue[1] == clue[3]
        if not about and numbers <= (0 if kind == ENDS else 1):
            return


@compiled
def _listed(clues: np.ndarray, clue: np.ndarray) -> bool:
    for i in range(len(clues)):
        same = True
        for j in range(7):
            same &= clues[i, j] == clue[j]
        if same:
            return True
    return False


@compiled
def _make(state: np.ndarray, n: int, m: int, table: np.ndarray, clues: np.ndarray) -> None:
    """Makes a puzzle: fills table (m + 1, n) and the first rows of clues (MOST_CLUES, 7); the others become -1.

    Adds true clues that say something new until deduction fills the table, then drops the clues that deduction does not
    use. Because deduction fills the table, there is no other solution.
    """
    masks = np.empty((LARGEST + 1, LARGEST), dtype=np.int64)
    used = np.empty(MOST_CLUES, dtype=np.bool_)
    while True:
        for row in range(m + 1):
            values = np.arange(n)
            if row:
                shuffle(state, values)
            table[row] = values
        _begin(masks, n)
        count, solved = 0, False
        while count < MOST_CLUES and not solved:
            clue = clues[count]
            _draw_clue(state, table, n, m, clue)
            a, b, c = _houses(masks, clue, 0), _houses(masks, clue, 1), _houses(masks, clue, 2)
            if _tells(clue[0], a, b, c, n) and not _listed(clues[:count], clue):
                count += 1
                solved = _deduce(masks, clues[:count], used, n, m)
        if solved:
            break
    for i in range(count - 1, 0, -1):
        j = draw(state, i + 1)
        for k in range(7):
            clues[i, k], clues[j, k] = clues[j, k], clues[i, k]
    used[:] = False
    _begin(masks, n)
    _deduce(masks, clues[:count], used, n, m)
    kept = 0
    for i in range(count):
        if used[i]:
            clues[kept] = clues[i]
            kept += 1
    clues[kept:] = -1


@compiled
def make_puzzles(
    seeds: np.ndarray, houses: tuple[int, int], attributes: tuple[int, int], tables: np.ndarray, clues: np.ndarray
) -> None:
    """Puzzles, each a function of its seed alone; `houses` and `attributes` are (least, most).

    seeds (R,) uint64 -> tables (R, A + 1, H), -1 outside the puzzle; clues (R, MOST_CLUES, 7), -1 after the last.
    """
    state = np.empty(1, dtype=np.uint64)
    tables[:] = -1
    for i in range(len(seeds)):
        state[0] = seeds[i]
        n = houses[0] + draw(state, houses[1] - houses[0] + 1)
        m = attributes[0] + draw(state, attributes[1] - attributes[0] + 1)
        _make(state, n, m, tables[i, : m + 1, :n], clues[i])


@compiled
def _size(table: np.ndarray, clues: np.ndarray) -> tuple[int, int, int]:
    """The number of houses, attributes and clues of a puzzle."""
    return (table[0] >= 0).sum(), (table[1:, 0] >= 0).sum(), (clues[:, 0] >= 0).sum()


@compiled
def insert_hints(seeds: np.ndarray, wanted: np.ndarray, tables: np.ndarray, clues: np.ndarray) -> None:
    """Inserts the houses of random cells as further clues, each at a random place among the clues of its puzzle.

    A cell whose house a clue names already is not chosen, so a puzzle may get fewer than `wanted` (R,).
    """
    state = np.empty(1, dtype=np.uint64)
    for i in range(len(seeds)):
        state[0] = seeds[i]
        n, m, count = _size(tables[i], clues[i])
        cells = np.arange(n * m)
        shuffle(state, cells)
        end = count + wanted[i]
        for cell in cells:
            row, house = 1 + cell // n, cell % n
            value = tables[i, row, house]
            hint = np.array([EQUAL, row, value, 0, house, -1, -1], dtype=np.int8)
            swapped = np.array([EQUAL, 0, house, row, value, -1, -1], dtype=np.int8)
            if count == end or _listed(clues[i, :count], hint) or _listed(clues[i, :count], swapped):
                continue
            place = draw(state, count + 1)
            for j in range(count, place, -1):
                clues[i, j] = clues[i, j - 1]
            clues[i, place] = hint
            count += 1


@compiled
def explain_puzzles(tables: np.ndarray, clues: np.ndarray, orders: np.ndarray, rounds: np.ndarray) -> None:
    """The order of deduction of each puzzle.

    tables (R, A + 1, H), clues (R, most, 7) -> orders (R, (A + 1) H): the cells of the table in the order in which they
    are filled, those that need no deduction first; rounds (R, (A + 1) H), 0 for those.
    """
    high, wide = tables.shape[1:]
    order = np.empty(LARGEST * LARGEST, dtype=np.int64)
    took = np.empty(LARGEST * LARGEST, dtype=np.int64)
    rounds[:] = 0
    for i in range(len(tables)):
        n, m, count = _size(tables[i], clues[i])
        if explain(tables[i, : m + 1, :n], clues[i, :count], n, m, order, took) < m * n:
            raise AssertionError("the clues that deduction used do not fill the table")
        step = 0
        for row in range(high):
            for house in range(wide):
                if row == 0 or row > m or house >= n:
                    orders[i, step] = row * wide + house
                    step += 1
        for k in range(m * n):
            orders[i, step + k] = order[k] // n * wide + order[k] % n
            rounds[i, step + k] = took[k]
