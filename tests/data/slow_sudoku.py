"""The rules of Sudoku with plain sets, from their definitions, as a reference for the compiled techniques.

Cells are (row, column). Every function gets a board (or its candidates) and no solver state.
"""

from itertools import combinations

import z3

Cell = tuple[int, int]
Board = dict[Cell, int]  # 0 for blank
Candidates = dict[Cell, set[int]]
BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def units_of(n: int) -> list[list[Cell]]:
    high, wide = BOXES[n]
    rows = [[(r, c) for c in range(n)] for r in range(n)]
    columns = [[(r, c) for r in range(n)] for c in range(n)]
    boxes = [
        [(top + r, left + c) for r in range(high) for c in range(wide)]
        for top in range(0, n, high)
        for left in range(0, n, wide)
    ]
    return rows + columns + boxes


class Rules:
    def __init__(self, n: int) -> None:
        self.n, self.units = n, units_of(n)
        cells = [(r, c) for r in range(n) for c in range(n)]
        self.peers = {x: {y for unit in self.units if x in unit for y in unit if y != x} for x in cells}

    def board(self, cells: list[int]) -> Board:
        return {(i // self.n, i % self.n): value for i, value in enumerate(cells)}

    def is_solution(self, board: Board) -> bool:
        return all(sorted(board[cell] for cell in unit) == list(range(1, self.n + 1)) for unit in self.units)

    def candidates(self, board: Board) -> Candidates:
        everything = set(range(1, self.n + 1))
        return {
            cell: everything - {board[peer] for peer in self.peers[cell]} for cell, value in board.items() if value == 0
        }

    def lone_singles(self, left: Candidates) -> set[tuple[Cell, int]]:
        return {(cell, next(iter(digits))) for cell, digits in left.items() if len(digits) == 1}

    def hidden_singles(self, left: Candidates) -> set[tuple[Cell, int]]:
        found = set()
        for unit in self.units:
            for digit in range(1, self.n + 1):
                places = [cell for cell in unit if digit in left.get(cell, ())]
                if len(places) == 1:
                    found.add((places[0], digit))
        return found

    def naked(self, left: Candidates, size: int) -> set[tuple[Cell, int]]:
        """What is ruled out by `size` cells of a unit with `size` digits between them."""
        out = set()
        for unit in self.units:
            blank = [cell for cell in unit if cell in left]
            for group in combinations([cell for cell in blank if len(left[cell]) <= size], size):
                digits = set().union(*(left[cell] for cell in group))
                if len(digits) == size:
                    out |= {(cell, d) for cell in blank if cell not in group for d in digits & left[cell]}
        return out

    def locked(self, left: Candidates) -> set[tuple[Cell, int]]:
        out = set()
        for one in self.units:
            for digit in range(1, self.n + 1):
                places = {cell for cell in one if digit in left.get(cell, ())}
                for other in self.units:
                    if places and other != one and places <= set(other):
                        out |= {(cell, digit) for cell in set(other) - places if digit in left.get(cell, ())}
        return out

    def xy_wing(self, left: Candidates) -> set[tuple[Cell, int]]:
        out = set()
        twos = [cell for cell in left if len(left[cell]) == 2]
        for pivot in twos:
            wings = [cell for cell in twos if cell in self.peers[pivot]]
            for a, b in combinations(wings, 2):
                x_or_y, common = left[pivot], left[a] & left[b]
                if len(common) == 1 and not common & x_or_y and left[a] | left[b] == x_or_y | common:
                    seen = self.peers[a] & self.peers[b]
                    out |= {(cell, d) for d in common for cell in seen if d in left.get(cell, ())}
        return out

    def unique_rectangle(self, left: Candidates) -> set[tuple[Cell, int]]:
        out = set()
        high, wide = BOXES[self.n]
        for (r1, r2), (c1, c2) in (
            (rows, columns) for rows in combinations(range(self.n), 2) for columns in combinations(range(self.n), 2)
        ):
            corners = [(r1, c1), (r1, c2), (r2, c1), (r2, c2)]
            if len({(r // high, c // wide) for r, c in corners}) != 2 or not all(cell in left for cell in corners):
                continue
            for fourth in corners:
                pairs = [left[cell] for cell in corners if cell != fourth]
                if pairs[0] == pairs[1] == pairs[2] and len(pairs[0]) == 2 and left[fourth] - pairs[0]:
                    out |= {(fourth, d) for d in pairs[0] & left[fourth]}
        return out

    def ruled_out(self, left: Candidates, technique: int) -> set[tuple[Cell, int]]:
        by_id = {
            4: lambda: self.naked(left, 2),
            5: lambda: self.naked(left, 3),
            6: lambda: self.locked(left),
            7: lambda: self.xy_wing(left),
            8: lambda: self.unique_rectangle(left),
        }
        return by_id[technique]()

    def singles_with(self, board: Board, hardest: int) -> set[tuple[Cell, int]]:
        """All fills that techniques up to `hardest` justify on this board."""
        left = self.candidates(board)
        while True:
            found = self.lone_singles(left)
            if hardest >= 3:
                found |= self.hidden_singles(left)
            # Apply the simplest technique that rules anything out.
            out = next(
                (out for technique in range(4, min(hardest, 8) + 1) if (out := self.ruled_out(left, technique))), None
            )
            if not out:
                return found
            for cell, digit in out:
                left[cell].discard(digit)


class Solver:
    """z3 on the rules of a board, with one boolean per cell and digit."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.holds = [[z3.Bool(f"{cell}={digit}") for digit in range(1, n + 1)] for cell in range(n * n)]
        self.solver = z3.Solver()
        for cell in self.holds:
            self._exactly_one(cell)
        for unit in units_of(n):
            for digit in range(n):
                self._exactly_one([self.holds[r * n + c][digit] for r, c in unit])

    def _exactly_one(self, choices: list[z3.BoolRef]) -> None:
        self.solver.add(z3.Or(choices))
        for a, b in combinations(choices, 2):
            self.solver.add(z3.Or(z3.Not(a), z3.Not(b)))

    def is_unique(self, puzzle: list[int], solution: list[int]) -> bool:
        """True if no board other than `solution` fits the puzzle."""
        givens = [self.holds[cell][value - 1] for cell, value in enumerate(puzzle) if value]
        self.solver.push()
        self.solver.add(z3.Or([z3.Not(self.holds[cell][value - 1]) for cell, value in enumerate(solution)]))
        answer = self.solver.check(givens)
        self.solver.pop()
        return answer == z3.unsat
