"""Clues of Zebra puzzles: as tokens, in two formats, and in words.

    public     = LHS c 0 2 RHS n 0 1 CLUE_END     the 19 tokens of Shah et al. (arXiv 2409.10502), 6 to 13 per clue
    compact    = a2 h2 -                          always four: the kind and three entities, `-` for those it lacks

Both say that value 2 of the first attribute is in the second house. In the compact format an entity is one token, named
as in the table that people see: a0 to f5 for the values of six attributes, h1 to h6 for the houses.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data.vocab import PAD, Vocabulary
from data.zebra_rules import ENTITIES, KINDS, LARGEST

Clue = tuple[int, list[tuple[int, int]]]  # its kind, and its entities (row, value)

# Ids. Answers use 0-5 and PADDING, which are the same in both formats.
FIRST_KIND = 6
LHS, RHS, ATTRIBUTE, NUMBER, CLUE_END, ANSWER, PADDING, ABSENT = range(13, 21)
FIRST_ENTITY = ABSENT + 1  # of entity (row, value): FIRST_ENTITY + row * LARGEST + value

TOKENS = (*"012345", *KINDS, "LHS", "RHS", "c", "n", "CLUE_END", "ANSWER")  # the 19 of the public set
HOUSES = tuple(f"h{house + 1}" for house in range(LARGEST))
VALUES = tuple(f"{letter}{value}" for letter in "abcdef" for value in range(LARGEST))
ENTITY_OF = {token: divmod(i, LARGEST) for i, token in enumerate((*HOUSES, *VALUES))}


@dataclass(frozen=True)
class Format:
    vocabulary: Vocabulary
    sizes: np.ndarray  # tokens per clue of each kind
    words: Callable[[np.ndarray], np.ndarray]  # clues (R, C, 7) -> ids (R, C, most per clue), -1 where there is none
    parse: Callable[[list[str]], list[Clue]]  # raises ValueError for what is not a clue
    signs: frozenset[str]  # tokens that only this format has

    def lengths(self, clues: np.ndarray) -> np.ndarray:
        """(R,): the tokens of clues (R, C, 7)."""
        kinds = _present(clues)[:, :, 0]
        return np.where(kinds >= 0, self.sizes[kinds], 0).sum(axis=1)

    def write(self, clues: np.ndarray, N: int) -> np.ndarray:
        """Prompts (R, N) of clues (R, C, 7), which must fit, padded on the right."""
        words = self.words(_present(clues))
        written = words >= 0
        prompts = np.full((len(clues), N), PADDING, dtype=np.uint8)
        prompts[np.arange(N) < written.sum(axis=(1, 2))[:, None]] = words[written]  # row by row, without the gaps
        return prompts


def _present(clues: np.ndarray) -> np.ndarray:
    """Clues (R, C, 7) without the columns in which no row has one."""
    return clues[:, (clues[:, :, 0] >= 0).any(axis=0)]


# --- the public format -----------------------------------------------------------------------------------------------


def _public_words(clues: np.ndarray) -> np.ndarray:
    """kind LHS entity RHS entity entity CLUE_END; an entity is three words."""
    kind = clues[:, :, 0]
    words = np.empty((*clues.shape[:2], 13), dtype=np.int16)
    words[:, :, 0], words[:, :, 1], words[:, :, 12] = FIRST_KIND + kind, LHS, CLUE_END
    words[:, :, 5] = np.where(ENTITIES[kind] > 1, RHS, -1)
    for entity, at in enumerate((2, 6, 9)):
        row, value = clues[:, :, 1 + 2 * entity], clues[:, :, 2 + 2 * entity]
        named = np.stack([np.where(row > 0, ATTRIBUTE, NUMBER), np.maximum(row - 1, 0), value], axis=2)
        words[:, :, at : at + 3] = np.where(row[:, :, None] >= 0, named, -1)
    return np.where(kind[:, :, None] >= 0, words, -1)


def _parse_public(tokens: list[str]) -> list[Clue]:
    clues = []
    while tokens:
        if "CLUE_END" not in tokens:
            raise ValueError("the last clue has no CLUE_END")
        end = tokens.index("CLUE_END")
        clue, tokens = tokens[:end], tokens[end + 1 :]
        text = " ".join(clue)
        if len(clue) < 2 or clue[0] not in KINDS or clue[1] != "LHS":
            raise ValueError(f"`{text}` does not begin with the kind of a clue and LHS")
        kind = KINDS.index(clue[0])
        right = clue.index("RHS") if "RHS" in clue else len(clue)
        left_side, right_side = clue[2:right], clue[right + 1 :]
        if (len(left_side), len(right_side)) != (3, 3 * (int(ENTITIES[kind]) - 1)):
            raise ValueError(f"`{text}` does not have the entities of a clue `{clue[0]}`")
        words = left_side + right_side
        entities = []
        for letter, attribute, value in zip(words[::3], words[1::3], words[2::3], strict=True):
            known = letter == "c" or (letter, attribute) == ("n", "0")
            if not known or not attribute.isdecimal() or not value.isdecimal():
                raise ValueError(f"`{letter} {attribute} {value}` is not an entity")
            entities.append((0 if letter == "n" else int(attribute) + 1, int(value)))
        clues.append((kind, entities))
    return clues


# --- the compact format ----------------------------------------------------------------------------------------------


def _compact_words(clues: np.ndarray) -> np.ndarray:
    kind, rows, values = clues[:, :, :1], clues[:, :, 1::2].astype(np.int16), clues[:, :, 2::2]
    entities = np.where(rows >= 0, FIRST_ENTITY + rows * LARGEST + values, ABSENT)
    return np.where(kind >= 0, np.concatenate([FIRST_KIND + kind, entities], axis=2), -1)


def _parse_compact(tokens: list[str]) -> list[Clue]:
    clues = []
    for start in range(0, len(tokens), 4):
        word, *entities = clue = tokens[start : start + 4]
        text = " ".join(clue)
        if word not in KINDS:
            raise ValueError(f"`{text}` does not begin with the kind of a clue")
        kind = KINDS.index(word)
        count = int(ENTITIES[kind])
        named, rest = entities[:count], entities[count:]
        if len(clue) < 4 or rest != ["-"] * len(rest) or not all(token in ENTITY_OF for token in named):
            example = ("a0", "b1", "c2")[:count] + ("-",) * (3 - count)
            raise ValueError(f"`{text}` is not a clue of four tokens like `{word} {' '.join(example)}`")
        clues.append((kind, [ENTITY_OF[token] for token in named]))
    return clues


FORMATS = {
    "public": Format(
        Vocabulary((*TOKENS, PAD)),
        sizes=3 + 3 * ENTITIES + (ENTITIES > 1),
        words=_public_words,
        parse=_parse_public,
        signs=frozenset(("LHS", "RHS", "c", "n", "CLUE_END")),
    ),
    "compact": Format(
        Vocabulary((*TOKENS, PAD, "-", *HOUSES, *VALUES)),
        sizes=np.full_like(ENTITIES, 4),
        words=_compact_words,
        parse=_parse_compact,
        signs=frozenset(("-", *HOUSES, *VALUES)),
    ),
}
for _format in FORMATS.values():
    assert (_format.vocabulary.ids["ANSWER"], _format.vocabulary.ids[PAD]) == (ANSWER, PADDING)
assert FORMATS["compact"].vocabulary.ids["h1"] == FIRST_ENTITY


def as_array(clues: list[Clue]) -> np.ndarray:
    """(1, C, 7), as the rules have them: kind and entities, -1 for those a clue lacks."""
    rows = [[kind, *(number for entity in entities for number in entity)] for kind, entities in clues]
    return np.array([[[*row, *[-1] * (7 - len(row))] for row in rows]], dtype=np.int8).reshape(1, len(rows), 7)


def convert(tokens: list[str], to: str) -> list[str]:
    """Clues that are clearly in the other format, in the format `to`; any other tokens as they are.

    Raises ValueError for tokens of the other format that are not clues.
    """
    source, target = (FORMATS[name] for name in sorted(FORMATS, key=lambda name: name == to))
    words = set(tokens)
    if not words & source.signs or words & target.signs or not words <= source.vocabulary.ids.keys():
        return tokens
    clues = as_array(source.parse([token for token in tokens if token != PAD]))
    return target.vocabulary.decode(target.write(clues, int(target.lengths(clues)[0]))[0])


# --- in words --------------------------------------------------------------------------------------------------------

SENTENCES = {
    "=": "{} and {} are in the same house",
    "!=": "{} and {} are in different houses",
    "nbr": "{} and {} are neighbours",
    "ends": "{} is in the first or the last house",
    "immediate-left": "{} is immediately left of {}",
    "left-of": "{} is somewhere left of {}",
    "inbetween": "{}, {} and {} are in this order from left to right",
}


def sentences(clues: list[Clue]) -> list[str]:
    """Clues in words. The values of attribute A are a0, a1, ..., those of B b0, b1, ...; houses count from 1."""
    return [SENTENCES[KINDS[kind]].format(*(name(row, value) for row, value in entities)) for kind, entities in clues]


def name(row: int, value: int) -> str:
    """The display name of an entity."""
    return f"house {value + 1}" if row == 0 else f"{letter(row).lower()}{value}"


def letter(row: int) -> str:
    """The name of the attribute in a row of the table."""
    return "ABCDEF"[row - 1]
