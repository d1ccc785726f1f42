"""The clues of Zebra puzzles, from their definitions, as a reference for the compiled deduction.

A clue is (kind, entities), its kind by name. An entity is (row, value); row 0 holds the house numbers.
"""

from itertools import combinations, permutations, product

import z3

Clue = tuple[str, list[tuple[int, int]]]
Cell = tuple[int, int]  # row, house
Possible = dict[tuple[int, int], set[int]]  # entity -> houses

RELATIONS = {
    "=": lambda n, a, b: a == b,
    "!=": lambda n, a, b: a != b,
    "nbr": lambda n, a, b: b in (a - 1, a + 1),
    "ends": lambda n, a: a in (0, n - 1),
    "immediate-left": lambda n, a, b: b - a == 1,
    "left-of": lambda n, a, b: a < b,
    "inbetween": lambda n, left, middle, right: left < middle and middle < right,
}


def satisfied(clue: Clue, table: list[list[int]]) -> bool:
    kind, entities = clue
    return RELATIONS[kind](len(table[0]), *(table[row].index(value) for row, value in entities))


def all_solutions(clues: list[Clue], n: int, m: int) -> list[list[list[int]]]:
    """All solutions, by trying every table; feasible for three houses and three attributes."""
    tables = ([list(range(n)), *map(list, rows)] for rows in product(permutations(range(n)), repeat=m))
    return [table for table in tables if all(satisfied(clue, table) for clue in clues)]


def supported(clue: Clue, n: int, possible: list[set[int]]) -> list[set[int]]:
    """The houses of each entity for which some choice of houses for the others satisfies the clue."""
    good = [houses for houses in product(*possible) if RELATIONS[clue[0]](n, *houses)]
    return [{houses[i] for houses in good} for i in range(len(possible))]


def one_round(possible: Possible, clues: list[Clue], n: int, m: int) -> Possible:
    """Every conclusion that follows from a single clue or a single attribute."""
    new = {entity: set(houses) for entity, houses in possible.items()}
    for clue in clues:
        left = supported(clue, n, [possible[entity] for entity in clue[1]])
        for entity, houses in zip(clue[1], left, strict=True):
            new[entity] &= houses
    for row in range(1, m + 1):
        for value, other in permutations(range(n), 2):
            if len(possible[row, other]) == 1:
                new[row, value] -= possible[row, other]
        for house in range(n):
            where = [value for value in range(n) if house in possible[row, value]]
            if len(where) == 1:
                new[row, where[0]] &= {house}
    return new


def next_fill(
    clues: list[Clue], filled: dict[tuple[int, int], int], n: int, m: int
) -> tuple[int, tuple[int, int], int]:
    """Rounds, (row, house) and value of the easiest cell, given (row, house) -> value of the filled cells."""
    possible: Possible = {(row, value): set(range(n)) for row in range(1, m + 1) for value in range(n)}
    possible |= {(0, house): {house} for house in range(n)}
    possible |= {(row, value): {house} for (row, house), value in filled.items()}
    rounds = 0
    while True:
        possible, rounds = one_round(possible, clues, n, m), rounds + 1
        known = {(row, min(houses)): value for (row, value), houses in possible.items() if row and len(houses) == 1}
        if new := sorted(known.keys() - filled.keys()):
            return rounds, new[0], known[new[0]]
        assert rounds < 1000, "deduction makes no progress"


class Solver:
    """z3 on the rules of n houses and m attributes, with one boolean per entity and house."""

    def __init__(self, n: int, m: int) -> None:
        self.n, self.m = n, m
        self.at = {
            (row, value, house): z3.Bool(f"{row} {value} {house}")
            for row in range(m + 1)
            for value in range(n)
            for house in range(n)
        }
        self.solver = z3.Solver()
        for row, i in product(range(m + 1), range(n)):
            self._exactly_one([self.at[row, i, house] for house in range(n)])
            self._exactly_one([self.at[row, value, i] for value in range(n)])
        self.solver.add([self.at[0, house, house] for house in range(n)])

    def _exactly_one(self, choices: list[z3.BoolRef]) -> None:
        self.solver.add(z3.Or(choices))
        for a, b in combinations(choices, 2):
            self.solver.add(z3.Or(z3.Not(a), z3.Not(b)))

    def is_unique(self, clues: list[Clue], table: list[list[int]]) -> bool:
        """True if no table other than this one fits the clues."""
        self.solver.push()
        for kind, entities in clues:
            *others, last = entities
            for houses in product(range(self.n), repeat=len(others)):
                elsewhere = [z3.Not(self.at[row, value, h]) for (row, value), h in zip(others, houses, strict=True)]
                allowed = [self.at[(*last, h)] for h in range(self.n) if RELATIONS[kind](self.n, *houses, h)]
                self.solver.add(z3.Or(elsewhere + allowed))
        cells = [self.at[row, table[row][h], h] for row in range(self.m + 1) for h in range(self.n)]
        self.solver.add(z3.Or([z3.Not(cell) for cell in cells]))
        answer = self.solver.check()
        self.solver.pop()
        return answer == z3.unsat
