"""Sudoku boards of every size, compiled: search, digging minimal puzzles, and solving with human techniques.

A board is a vector of n * n cells in reading order, 0 for blank. The digits that a cell may still hold are bits of a
mask, digit d at bit d - 1. Human techniques are tried simplest first, one step at a time, and after every fill they
start again from the board alone, so each recorded fill can be checked against the board before it.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from data.compiled import compiled, draw, shuffle

BOX = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # rows and columns of a box

# The ids of the public data set. SEARCH is our own, for a fill that none of the seven techniques explains.
GIVEN = 0
LONE_SINGLE, HIDDEN_SINGLE, NAKED_PAIR, NAKED_TRIPLET, LOCKED, XY_WING, RECTANGLE, SEARCH = range(2, 10)
GRID_NODES = 2_000  # search nodes after which a random grid is started over


class Geometry(NamedTuple):
    """Units and peers on a board of n x n cells."""

    units: np.ndarray  # (3n, n): cells of the rows, then of the columns, then of the boxes
    peers: np.ndarray  # (n n, P): the cells that share a unit with each cell
    sees: np.ndarray  # (n n, n n) bool: True if two different cells share a unit
    crossings: np.ndarray  # (X, 2): ordered pairs of a line and a box, either way, that share at least two cells
    member: np.ndarray  # (3n, n n) bool: True if the cell is in the unit
    box_of: np.ndarray  # (n n,)


@lru_cache
def geometry(n: int) -> Geometry:
    high, wide = BOX[n]
    cells = np.arange(n * n)
    row, column = cells // n, cells % n
    box = row // high * (n // wide) + column // wide
    member = np.concatenate([[where == i for i in range(n)] for where in (row, column, box)])
    units = np.array([np.flatnonzero(unit) for unit in member])
    sees = (member.T.astype(np.int64) @ member > 0) & ~np.eye(n * n, dtype=bool)
    peers = np.array([np.flatnonzero(seen) for seen in sees])
    lines, boxes = range(2 * n), range(2 * n, 3 * n)
    shared = [(line, box) for line in lines for box in boxes if (member[line] & member[box]).sum() >= 2]
    return Geometry(units, peers, sees, np.array(shared + [(b, a) for a, b in shared]), member, box)


@compiled
def _is_one(mask: int) -> bool:
    return mask != 0 and mask & (mask - 1) == 0


@compiled
def _size(mask: int) -> int:
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@compiled
def _digit(bit: int) -> int:
    digit = 0
    while bit:
        bit >>= 1
        digit += 1
    return digit


# --- search ----------------------------------------------------------------------------------------------------------


@compiled
def _place(board: Geometry, masks: np.ndarray, cell: int, bit: int, stack: np.ndarray) -> bool:
    """Places a digit in a cell, and in every cell that it leaves with a single digit. False: a contradiction."""
    masks[cell] = bit
    stack[0] = cell
    top = 1
    while top:
        top -= 1
        cell = stack[top]
        bit = masks[cell]
        for i in range(board.peers.shape[1]):
            peer = board.peers[cell, i]
            mask = masks[peer]
            if mask & bit:
                mask ^= bit
                if mask == 0:
                    return False
                masks[peer] = mask
                if mask & (mask - 1) == 0:
                    stack[top] = peer
                    top += 1
    return True


@compiled
def _place_hidden(board: Geometry, masks: np.ndarray, full: int, stack: np.ndarray) -> bool:
    """Places digits that have a single cell left in a unit, until there are none. False: a contradiction."""
    n = board.units.shape[1]
    again = True
    while again:
        again = False
        for u in range(board.units.shape[0]):
            once, twice, placed = 0, 0, 0
            for i in range(n):
                mask = masks[board.units[u, i]]
                twice |= once & mask
                once |= mask
                if mask & (mask - 1) == 0:
                    placed |= mask
            if once != full:
                return False
            once &= ~(twice | placed)
            if once == 0:
                continue
            for i in range(n):
                cell = board.units[u, i]
                hit = masks[cell] & once
                if hit:
                    if hit & (hit - 1) or not _place(board, masks, cell, hit, stack):
                        return False
                    again = True
    return True


@compiled
def _choose(masks: np.ndarray) -> int:
    """The cell with the fewest, but at least two, digits left; -1 if every cell has one."""
    best, fewest = -1, 99
    for cell in range(len(masks)):
        rest = masks[cell] & (masks[cell] - 1)  # all but one of its digits
        if rest:
            if rest & (rest - 1) == 0:
                return cell
            size = _size(rest)
            if size < fewest:
                best, fewest = cell, size
    return best


@compiled
def _search(
    board: Geometry, levels: np.ndarray, wanted: int, nodes: int, state: np.ndarray, random: bool, stack: np.ndarray
) -> int:
    """Counts solutions of levels[0], up to `wanted`; leaves the last one in levels[-1]. -1: out of nodes."""
    full = (1 << board.units.shape[1]) - 1
    found, depth = 0, 0
    chosen = np.empty(len(levels), dtype=np.int64)
    left = np.empty(len(levels), dtype=np.int64)
    if not _place_hidden(board, levels[0], full, stack):
        return 0
    chosen[0] = _choose(levels[0])
    if chosen[0] < 0:
        levels[-1] = levels[0]
        return 1
    left[0] = levels[0, chosen[0]]
    while depth >= 0:
        if left[depth] == 0:
            depth -= 1
            continue
        bit = left[depth] & -left[depth]
        if random:
            for _ in range(draw(state, _size(left[depth]))):
                bit = (left[depth] & ~((bit << 1) - 1)) & -(left[depth] & ~((bit << 1) - 1))
        left[depth] ^= bit
        nodes -= 1
        if nodes < 0:
            return -1
        masks = levels[depth + 1]
        masks[:] = levels[depth]
        if not _place(board, masks, chosen[depth], bit, stack) or not _place_hidden(board, masks, full, stack):
            continue
        cell = _choose(masks)
        if cell < 0:
            levels[-1] = masks
            found += 1
            if found == wanted:
                return found
            continue
        depth += 1
        chosen[depth] = cell
        left[depth] = masks[cell]
    return found


@compiled
def _room(board: Geometry) -> np.ndarray:
    """Space for the masks at every search depth, and for the solution."""
    cells = board.peers.shape[0]
    return np.empty((cells + 2, cells), dtype=np.int64)


@compiled
def solve(board: Geometry, puzzle: np.ndarray, solution: np.ndarray, nodes: int) -> int:
    """The number of solutions of a puzzle: 0, 1, or 2 for two or more; -1 if `nodes` search nodes do not decide.

    Writes the last solution found to `solution`.
    """
    levels, stack = _room(board), np.empty(len(puzzle), dtype=np.int64)
    levels[0] = (1 << board.units.shape[1]) - 1
    for cell in range(len(puzzle)):
        if puzzle[cell]:
            bit = 1 << (puzzle[cell] - 1)
            if not levels[0, cell] & bit or not _place(board, levels[0], cell, bit, stack):
                return 0
    found = _search(board, levels, 2, nodes, np.zeros(1, dtype=np.uint64), False, stack)
    if found > 0:
        for cell in range(len(puzzle)):
            solution[cell] = _digit(levels[-1, cell])
    return found


# --- generation ------------------------------------------------------------------------------------------------------


@compiled
def random_grids(board: Geometry, seeds: np.ndarray, grids: np.ndarray) -> None:
    """Full boards; grid i depends on seed i alone. seeds (R,) uint64 -> grids (R, n n)."""
    levels, stack = _room(board), np.empty(grids.shape[1], dtype=np.int64)
    n = board.units.shape[1]
    state = np.empty(1, dtype=np.uint64)
    for i in range(len(seeds)):
        state[0] = seeds[i]
        digits = np.arange(n)
        found = 0
        while found < 1:
            levels[0] = (1 << n) - 1
            shuffle(state, digits)
            row = draw(state, n)  # starting from one random row saves the slowest levels
            for j in range(n):
                _place(board, levels[0], board.units[row, j], 1 << digits[j], stack)
            found = _search(board, levels, 1, GRID_NODES, state, True, stack)
        for cell in range(grids.shape[1]):
            grids[i, cell] = _digit(levels[-1, cell])


@compiled
def dig(board: Geometry, seeds: np.ndarray, grids: np.ndarray, puzzles: np.ndarray) -> None:
    """Minimal puzzles: blanks cells in random order as long as the solution stays unique. puzzles (R, n n)."""
    cells = grids.shape[1]
    levels, stack = _room(board), np.empty(cells, dtype=np.int64)
    alone = np.empty(cells, dtype=np.int64)  # the digits that the other givens allow in each cell
    full = (1 << board.units.shape[1]) - 1
    state = np.empty(1, dtype=np.uint64)
    for i in range(len(seeds)):
        state[0] = seeds[i]
        puzzle = puzzles[i]
        puzzle[:] = grids[i]
        places = np.arange(cells)
        shuffle(state, places)
        for place in places:
            bit = 1 << (grids[i, place] - 1)
            puzzle[place] = 0
            seen = 0
            for peer in board.peers[place]:
                if puzzle[peer]:
                    seen |= 1 << (puzzle[peer] - 1)
            if seen | bit == full:
                continue
            alone[:] = full
            for cell in range(cells):
                if puzzle[cell] and alone[cell] & (alone[cell] - 1):
                    _place(board, alone, cell, 1 << (puzzle[cell] - 1), stack)
            _place_hidden(board, alone, full, stack)
            others = alone[place] & ~bit
            while others:
                other = others & -others
                others ^= other
                levels[0] = alone
                if _place(board, levels[0], place, other, stack) and _search(
                    board, levels, 1, 1 << 62, state, False, stack
                ):
                    puzzle[place] = grids[i, place]
                    break


# --- human techniques ------------------------------------------------------------------------------------------------


@compiled
def _lone_single(masks: np.ndarray) -> tuple[int, int]:
    for cell in range(len(masks)):
        if _is_one(masks[cell]):
            return cell, masks[cell]
    return -1, 0


@compiled
def _hidden_single(board: Geometry, masks: np.ndarray) -> tuple[int, int]:
    cell: int
    for u in range(board.units.shape[0]):
        once, twice = 0, 0
        for cell in board.units[u]:
            twice |= once & masks[cell]
            once |= masks[cell]
        once &= ~twice
        if once:
            for cell in board.units[u]:
                if masks[cell] & once:
                    return cell, masks[cell] & once & -(masks[cell] & once)
    return -1, 0


@compiled
def _naked_pair(board: Geometry, masks: np.ndarray) -> bool:
    """Two cells of a unit have the same two digits: no other cell of the unit can have them."""
    for u in range(board.units.shape[0]):
        unit = board.units[u]
        for i in range(len(unit)):
            pair = masks[unit[i]]
            if _size(pair) != 2:
                continue
            for j in range(i + 1, len(unit)):
                if masks[unit[j]] != pair:
                    continue
                changed = False
                for k in range(len(unit)):
                    if k not in (i, j) and masks[unit[k]] & pair:
                        masks[unit[k]] &= ~pair
                        changed = True
                if changed:
                    return True
    return False


@compiled
def _naked_triplet(board: Geometry, masks: np.ndarray) -> bool:
    """Three cells of a unit have three digits between them: no other cell of the unit can have them."""
    for u in range(board.units.shape[0]):
        unit = board.units[u]
        for i in range(len(unit)):
            if masks[unit[i]] == 0 or _size(masks[unit[i]]) > 3:
                continue
            for j in range(i + 1, len(unit)):
                two = masks[unit[i]] | masks[unit[j]]
                if masks[unit[j]] == 0 or _size(two) > 3:
                    continue
                for k in range(j + 1, len(unit)):
                    three = two | masks[unit[k]]
                    if masks[unit[k]] == 0 or _size(three) != 3:
                        continue
                    changed = False
                    for other in range(len(unit)):
                        if other not in (i, j, k) and masks[unit[other]] & three:
                            masks[unit[other]] &= ~three
                            changed = True
                    if changed:
                        return True
    return False


@compiled
def _locked(board: Geometry, masks: np.ndarray) -> bool:
    """All cells for a digit in one unit lie in another unit: the rest of that unit cannot have the digit."""
    for x in range(len(board.crossings)):
        one, other = board.crossings[x]
        inside, outside = 0, 0
        for cell in board.units[one]:
            if board.member[other, cell]:
                inside |= masks[cell]
            else:
                outside |= masks[cell]
        locked = inside & ~outside
        if not locked:
            continue
        changed = False
        for cell in board.units[other]:
            if masks[cell] & locked and not board.member[one, cell]:
                masks[cell] &= ~locked
                changed = True
        if changed:
            return True
    return False


@compiled
def _xy_wing(board: Geometry, masks: np.ndarray) -> bool:
    """A cell {x, y} sees cells {x, z} and {y, z}: one of the two is z, so no cell that sees both is z."""
    for pivot in range(len(masks)):
        if _size(masks[pivot]) != 2:
            continue
        for a in board.peers[pivot]:
            shared = masks[a] & masks[pivot]
            if _size(masks[a]) != 2 or not _is_one(shared):
                continue
            z = masks[a] & ~shared
            wanted = (masks[pivot] & ~shared) | z
            for b in board.peers[pivot]:
                if masks[b] != wanted:
                    continue
                changed = False
                for cell in board.peers[a]:
                    if board.sees[b, cell] and masks[cell] & z:
                        masks[cell] &= ~z
                        changed = True
                if changed:
                    return True
    return False


@compiled
def _unique_rectangle(board: Geometry, masks: np.ndarray) -> bool:
    """Three corners of a rectangle in two boxes have the same two digits: if the fourth had one of them too, the digits
    could be swapped and the solution would not be unique. So the fourth has neither."""
    n = board.units.shape[1]
    corners = np.empty(4, dtype=np.int64)
    for top in range(n):
        for bottom in range(top + 1, n):
            for left in range(n):
                for right in range(left + 1, n):
                    corners[0], corners[1] = top * n + left, top * n + right
                    corners[2], corners[3] = bottom * n + left, bottom * n + right
                    a, b, c = board.box_of[corners[0]], board.box_of[corners[1]], board.box_of[corners[2]]
                    if (a == b) == (a == c):  # one box, or four
                        continue
                    for fourth in range(4):
                        pair = masks[corners[3 - fourth]]
                        if _size(pair) != 2 or not masks[corners[fourth]] & pair or not masks[corners[fourth]] & ~pair:
                            continue
                        alike = 0
                        for corner in range(4):
                            if corner != fourth and masks[corners[corner]] == pair:
                                alike += 1
                        if alike == 3:
                            masks[corners[fourth]] &= ~pair
                            return True
    return False


@compiled
def _eliminate(board: Geometry, masks: np.ndarray) -> int:
    """One step of the simplest technique that rules out a digit in a cell; returns its id, or 0 if none does."""
    if _naked_pair(board, masks):
        return NAKED_PAIR
    if _naked_triplet(board, masks):
        return NAKED_TRIPLET
    if _locked(board, masks):
        return LOCKED
    if _xy_wing(board, masks):
        return XY_WING
    if _unique_rectangle(board, masks):
        return RECTANGLE
    return 0


@compiled
def explain(
    board: Geometry, puzzles: np.ndarray, solutions: np.ndarray, orders: np.ndarray, techniques: np.ndarray
) -> None:
    """Solves with human techniques: the cell filled at each step, givens first, and the hardest technique it needed.

    puzzles, solutions (R, n n) -> orders, techniques (R, n n), both by step. If all seven techniques fail, the cell
    with the fewest digits left is filled from the solution, as SEARCH.
    """
    cells = puzzles.shape[1]
    open_masks = np.empty(cells, dtype=np.int64)  # the digits that the board alone allows in each cell; 0 if filled
    masks = np.empty(cells, dtype=np.int64)
    for i in range(len(puzzles)):
        step = 0
        open_masks[:] = (1 << board.units.shape[1]) - 1
        for cell in range(cells):
            if puzzles[i, cell]:
                orders[i, step], techniques[i, step] = cell, GIVEN
                step += 1
                open_masks[cell] = 0
                for peer in board.peers[cell]:
                    open_masks[peer] &= ~(1 << (puzzles[i, cell] - 1))
        while step < cells:
            masks[:] = open_masks
            hardest = 0
            while True:
                technique = LONE_SINGLE
                cell, bit = _lone_single(masks)
                if cell < 0:
                    technique = HIDDEN_SINGLE
                    cell, bit = _hidden_single(board, masks)
                if cell >= 0:
                    break
                technique = _eliminate(board, masks)
                if technique == 0:
                    technique = SEARCH
                    cell = _choose(masks)
                    bit = 1 << (solutions[i, cell] - 1)
                    break
                hardest = max(hardest, technique)
            if bit != 1 << (solutions[i, cell] - 1):
                raise AssertionError("a technique filled in a wrong digit")
            orders[i, step], techniques[i, step] = cell, max(hardest, technique)
            step += 1
            open_masks[cell] = 0
            for peer in board.peers[cell]:
                open_masks[peer] &= ~bit
