"""Importing public files: good rows arrive unchanged, bad ones are refused by row, hostile pickles execute nothing."""

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import sudoku, zebra, zebra_files
from data.import_public import ImportConfig, import_files
from data.plain_pickle import RefusedPickle, load, plain
from data.prepare import open_data
from data.shards import Dataset, NotedRows, read_notes
from data.splits import SPLITS
from data.sudoku import SudokuConfig
from data.tasks import task_of
from data.zebra import ZebraConfig
from data.zebra_clues import FORMATS, PADDING, TOKENS, convert
from recor_dist.core.command import read_settings
from recor_dist.core.config import Config
from recor_dist.core.rng import rng
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train

Configure = Callable[..., Config]
Importing = Callable[..., Dataset]
# Norvig's: seconds of search find no solution.
IMPOSSIBLE = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."


@pytest.fixture(scope="module")
def boards() -> NotedRows:
    return sudoku.shard(SudokuConfig(), "train", rng(1, "test", 0), 300)


@pytest.fixture(scope="module")
def houses() -> NotedRows:
    return zebra.shard(ZebraConfig(), "train", rng(1, "test", 0), 300)


@pytest.fixture
def imported(tmp_path: Path) -> Importing:
    """Imports files of the test's folder: imported("sudoku", "train.npy", "test.npy", task_val_rows=20)."""

    def make(task: str, file: str, test: str | None = None, **settings: int | str) -> Dataset:
        paths = {"file": str(tmp_path / file), "test": str(tmp_path / test) if test else None}
        small: dict[str, Any] = {"data_shard_rows": 250, "task_val_rows": 32, **settings}
        return import_files(ImportConfig(task=task, **paths, data_dir=f"{tmp_path}/shards", **small))[0]

    return make


def as_npy(rows: NotedRows) -> np.ndarray:
    """Rows in the format of Shah et al."""
    values = np.take_along_axis(rows.responses, rows.orders.astype(np.int64), axis=1)
    cells = np.stack([rows.orders // 9, rows.orders % 9, values, rows.notes["technique"]], axis=2)
    return np.concatenate([rows.notes["givens"][:, None], cells.reshape(len(rows), -1)], axis=1).astype(np.int64)


def as_items(rows: NotedRows) -> list[list[Any]]:
    items = []
    for prompt, response, order in zip(rows.prompts, rows.responses, rows.orders, strict=True):
        square = response.reshape(7, 6)
        n, m = int((square[0] != PADDING).sum()), int((square[:, 0] != PADDING).sum()) - 1
        cells = [divmod(int(slot), 6) for slot in order]
        solved = [(row - 1, house, int(square[row, house])) for row, house in cells if 0 < row <= m and house < n]
        tokens = [TOKENS[t] for t in prompt if t != PADDING] + ["ANSWER"] + [str(x) for c in solved for x in c]
        items.append([tokens, square[: m + 1, :n].tolist(), np.array(solved, dtype=np.int16)[:, :2]])
    return items


def everything(data: Dataset) -> dict[bytes, tuple[bytes, bytes]]:
    parts = [data.read_split(split, 0, data.rows_of(split)) for split in SPLITS]
    return {
        prompt.tobytes(): (response.tobytes(), order.tobytes())
        for rows in parts
        for prompt, response, order in zip(rows.prompts, rows.responses, rows.orders, strict=True)
    }


def expected(rows: NotedRows) -> dict[bytes, tuple[bytes, bytes]]:
    columns = zip(rows.prompts, rows.responses, rows.orders.astype(np.int16), strict=True)
    return {prompt.tobytes(): (response.tobytes(), order.tobytes()) for prompt, response, order in columns}


# --- Sudoku ----------------------------------------------------------------------------------------------------------


def test_public_sudokus_are_imported_with_their_order(boards: NotedRows, tmp_path: Path, imported: Importing) -> None:
    test = sudoku.shard(SudokuConfig(), "test", rng(1, "test", 0), 30)
    np.save(tmp_path / "train.npy", as_npy(boards))
    np.save(tmp_path / "test.npy", as_npy(test).astype(np.int16))
    files = ("sudoku", "train.npy", "test.npy")
    with pytest.raises(Mistake, match="too few different puzzles for a val split"):
        imported(*files, data_shard_rows=100)  # all of these belong to train
    both = np.concatenate([as_npy(boards), as_npy(sudoku.shard(SudokuConfig(), "val", rng(1, "test", 0), 20))])
    np.save(tmp_path / "train.npy", both)
    data = imported(*files, data_shard_rows=100)
    assert [data.rows_of(split) for split in SPLITS] == [300, 20, 30]
    assert expected(boards).items() <= everything(data).items()
    assert expected(test).items() <= everything(data).items()
    notes, _ = read_notes(data.folder, "train", 0)
    assert np.array_equal(notes["technique"], boards.notes["technique"][:100])
    assert np.array_equal(notes["givens"], boards.notes["givens"][:100])


def test_a_run_trains_on_what_was_imported(
    boards: NotedRows, tmp_path: Path, config_in: Configure, imported: Importing
) -> None:
    parts = [sudoku.shard(SudokuConfig(size=4), split, rng(1, "test", 0), 60) for split in SPLITS]
    lines = ["".join(map(str, puzzle)) for part in parts for puzzle in part.prompts]
    (tmp_path / "puzzles.txt").write_text("\n".join(lines))
    made = imported("sudoku", "puzzles.txt")
    config = config_in("task=sudoku", f"data.source={made.uri}")
    assert train(config)["steps"] > 0
    assert open_data(config, task_of(config)).uri == made.uri
    for words, why in {
        ("task=sudoku", "task.size=6"): r"responses have 16 slots; set task\.size",
        ("task=zebra",): "was not imported for task=zebra",
    }.items():
        with pytest.raises(Mistake, match=why):
            task_of(config_in(*words, f"data.source={made.uri}"))
    with pytest.raises(Mistake, match=r"holds no data set; make one with python -m data\.import_public"):
        task_of(config_in("task=sudoku", f"data.source={tmp_path}"))


@dataclass(frozen=True)
class Damage:
    row: int
    column: int
    value: int
    why: str


DAMAGES = [
    Damage(4, 0, 82, "row 5 does not begin with a number of givens"),
    Damage(7, 1, 9, "row 8 has a cell outside 0 to 8"),
    Damage(2, 3, 0, "row 3 has a value outside 1 to 9"),
    Damage(2, 323, 10, "row 3 has a value outside 1 to 9"),
    Damage(9, 8, -1, "row 10 has a technique id out of range"),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.why)
def test_a_wrong_number_is_refused_with_its_row(
    damage: Damage, boards: NotedRows, tmp_path: Path, imported: Importing
) -> None:
    rows = as_npy(boards)
    rows[damage.row, damage.column] = damage.value
    np.save(tmp_path / "bad.npy", rows)
    with pytest.raises(Mistake, match=damage.why):
        imported("sudoku", "bad.npy")


def test_contradictory_or_incomplete_boards_are_refused_with_their_row(
    boards: NotedRows, tmp_path: Path, imported: Importing
) -> None:
    rows = as_npy(boards)
    rows[3, 3] = rows[3, 3] % 9 + 1  # another digit in one cell
    np.save(tmp_path / "bad.npy", rows)
    with pytest.raises(Mistake, match="row 4 has a solution with a digit twice"):
        imported("sudoku", "bad.npy")
    rows = as_npy(boards)
    rows[6, 5:7] = rows[6, 1:3]  # one cell twice
    np.save(tmp_path / "bad.npy", rows)
    with pytest.raises(Mistake, match="row 7 does not name every cell once"):
        imported("sudoku", "bad.npy")


def test_other_arrays_and_files_are_refused(boards: NotedRows, tmp_path: Path, imported: Importing) -> None:
    file = tmp_path / "bad.npy"
    np.save(file, as_npy(boards))
    whole = file.read_bytes()
    contents: dict[str, tuple[bytes | np.ndarray, str]] = {
        "truncated": (whole[:-1000], "is not a complete .npy file"),
        "header only": (whole[:100], "is not a complete .npy file"),
        "empty": (b"", "is not a complete .npy file"),
        "objects": (np.array([{"a": 1}, None], dtype=object), "is not a complete .npy file"),
        "text": (b"hello", "is not a complete .npy file"),
        "fractions": (np.zeros((3, 325)), "rows of 325 whole numbers; it holds float64"),
        "narrow": (np.zeros((3, 324), dtype=np.int64), r"holds int64 of shape \(3, 324\)"),
        "none": (np.zeros((0, 325), dtype=np.int64), "has no rows"),
    }
    for content, why in contents.values():
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            np.save(file, content, allow_pickle=True)
        with pytest.raises(Mistake, match=why):
            imported("sudoku", file.name)
    with pytest.raises(Mistake, match="No such file"):
        imported("sudoku", "none.npy")


def test_lists_of_puzzles_are_solved_and_those_without_one_solution_named(
    tmp_path: Path, imported: Importing, caplog: pytest.LogCaptureFixture
) -> None:
    parts = [sudoku.shard(SudokuConfig(), split, rng(2, "test", 0), 25) for split in SPLITS]
    hard = sudoku.shard(SudokuConfig(hard="all"), "train", rng(2, "test", 0), 5)
    lines = ["".join(map(str, puzzle)).replace("0", ".") for part in (*parts, hard) for puzzle in part.prompts]
    lines.insert(10, "." * 81)
    lines.insert(20, "11" + "0" * 79)
    lines.insert(30, "")
    lines.insert(40, IMPOSSIBLE)
    (tmp_path / "puzzles.txt").write_text("\n".join(lines) + "\n")
    data = imported("sudoku", "puzzles.txt")
    assert [data.rows_of(split) for split in SPLITS] == [30, 25, 25]
    for part in (*parts, hard):
        assert expected(part).items() <= everything(data).items()
    left_out = Path(data.uri, "left_out.txt").read_text().splitlines()
    assert [line.split(":")[1].strip() for line in left_out] == [
        "row 11 has several solutions",
        "row 21 has no solution",
        "row 41 needs more than 100,000 search nodes to check",
    ]
    assert "skipped 3 puzzles" in caplog.text


def renamed(rows: NotedRows) -> NotedRows:
    """The same boards with the digits renamed."""
    names = np.array([0, 5, 1, 9, 2, 8, 3, 7, 4, 6], dtype=np.uint8)
    return NotedRows(names[rows.prompts], names[rows.responses], rows.orders, rows.notes)


def test_no_puzzle_of_val_or_test_is_in_train_with_renamed_digits(
    boards: NotedRows, tmp_path: Path, imported: Importing, caplog: pytest.LogCaptureFixture
) -> None:
    val, test = (sudoku.shard(SudokuConfig(), split, rng(1, "test", 0), 20) for split in ("val", "test"))
    file, other = tmp_path / "train.npy", tmp_path / "test.npy"
    np.save(file, np.concatenate([as_npy(rows) for rows in (boards, val, test, renamed(val), renamed(test))]))
    alone = imported("sudoku", file.name, task_val_rows=15)
    assert [alone.rows_of(split) for split in SPLITS] == [310, 15, 40], "five rows of val were not needed there"
    assert f"{file}: dropped 15 rows from train: up to renaming digits" in caplog.text
    assert "they have the same solutions as rows of val" in caplog.text
    assert "rows of test" not in caplog.text

    caplog.clear()
    np.save(other, np.concatenate([as_npy(test), as_npy(renamed(boards))[:7], as_npy(val)[:3]]))
    both = imported("sudoku", file.name, other.name, task_val_rows=15)
    assert [both.rows_of(split) for split in SPLITS] == [293 + 4, 15, 30]
    assert f"{file}: dropped 53 rows from train" in caplog.text  # 40 of test, 7 of train, 2 x 3 of val
    for data in (alone, both):
        parts = {split: data.read_split(split, 0, data.rows_of(split)) for split in SPLITS}
        keys = {split: set(sudoku.keys(rows.prompts, rows.responses)) for split, rows in parts.items()}
        assert not keys["train"] & (keys["val"] | keys["test"])
        assert not keys["val"] & keys["test"]


BAD_LISTS = {
    "": "has no puzzles",
    "12345": r"row 1 has 5 characters; allowed: 16, 36, 81",
    "0" * 81 + "\n" + "0" * 80: "row 2 has 80 characters",
    "0" * 15 + "5": r"row 1 has the character '5'; allowed: 0 to 4",
    "0" * 80 + "x": "row 1 has the character 'x'",
    "é" * 81: "cannot be read as text",
    "11" + "0" * 79: "found no puzzle with exactly one solution among 1; row 1 has no solution",
    IMPOSSIBLE: "found no puzzle with exactly one solution among 1; row 1 needs more than 100,000 search nodes",
}


@pytest.mark.parametrize("content", BAD_LISTS)
def test_a_line_that_is_not_a_puzzle_is_refused(content: str, tmp_path: Path, imported: Importing) -> None:
    (tmp_path / "puzzles.txt").write_text(content)
    with pytest.raises(Mistake, match=BAD_LISTS[content]):
        imported("sudoku", "puzzles.txt")


# --- Zebra -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(6))
def test_public_zebras_are_imported_with_their_order(
    protocol: int, houses: NotedRows, tmp_path: Path, imported: Importing
) -> None:
    files = {}
    for name, rows in {"train": houses, "val": None, "test": None}.items():
        files[name] = as_items(rows or zebra.shard(ZebraConfig(), name, rng(2, "test", 0), 20))
    (tmp_path / "zebra.pkl").write_bytes(pickle.dumps([*files["train"], *files["val"], *files["test"]], protocol))
    data = imported("zebra", "zebra.pkl")
    assert [data.rows_of(split) for split in SPLITS] == [300, 20, 20]
    assert expected(houses).items() <= everything(data).items()
    assert data.vocabulary.tokens == zebra.vocabulary(ZebraConfig()).tokens
    notes, _ = read_notes(data.folder, "train", 0)
    assert np.array_equal(notes["houses"], houses.notes["houses"][:250])


def test_public_zebras_are_imported_in_compact_tokens_and_a_run_trains_on_them(
    houses: NotedRows, tmp_path: Path, config_in: Configure
) -> None:
    parts = [houses, *(zebra.shard(ZebraConfig(), split, rng(2, "test", 0), 20) for split in ("val", "test"))]
    (tmp_path / "zebra.pkl").write_bytes(pickle.dumps([item for rows in parts for item in as_items(rows)]))
    importing = ImportConfig(
        task="zebra", file=f"{tmp_path}/zebra.pkl", data_dir=f"{tmp_path}/shards", task_tokens="compact"
    )
    with pytest.raises(Mistake, match=r"^task\.prompt_length=455: must be a multiple of 4, .* nearest: 456$"):
        import_files(importing)
    importing.task_prompt_length = 20
    with pytest.raises(Mistake, match=r"row \d+ has clues of \d+ tokens; set task\.prompt_length=\d+ or more"):
        import_files(importing)
    importing.task_prompt_length = 240
    data, overrides = import_files(importing)
    assert overrides == ["task=zebra", "task.tokens=compact", "task.prompt_length=240", f"data.source={data.uri}"]
    form = FORMATS["compact"]
    assert data.vocabulary == form.vocabulary
    rows = data.read_split("train", 0, 300)
    np.testing.assert_array_equal(rows.responses, houses.responses)
    for compact, public in zip(rows.prompts, houses.prompts, strict=True):
        words = [TOKENS[t] for t in public if t != PADDING]
        assert form.vocabulary.decode(compact[compact != PADDING]) == convert(words, to="compact")
    sizes = ["task.houses=3-6", "task.attributes=3-6"]
    assert train(config_in(*overrides, *sizes, "epochs=0.2"))["steps"] > 0
    with pytest.raises(Mistake, match=r"has other tokens; add the settings that data\.import_public printed"):
        task_of(config_in("task=zebra", *sizes, f"data.source={data.uri}"))


def test_the_number_of_rows_checked_together_changes_nothing(
    houses: NotedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zebra.pkl").write_bytes(pickle.dumps(as_items(houses)))
    together = zebra_files.read(tmp_path / "zebra.pkl", ZebraConfig())
    monkeypatch.setattr(zebra_files, "AT_A_TIME", 7)
    apart = zebra_files.read(tmp_path / "zebra.pkl", ZebraConfig())
    assert expected(apart.rows) == expected(together.rows) == expected(houses)
    classes = together.classes
    assert np.array_equal(classes, apart.classes)
    assert not classes.split.any(), "all of these belong to train"
    assert len(set(classes.mark.tolist())) == len(houses)


def test_no_puzzle_of_val_or_test_is_in_train_with_reordered_clues(
    houses: NotedRows, tmp_path: Path, imported: Importing, caplog: pytest.LogCaptureFixture
) -> None:
    val = as_items(zebra.shard(ZebraConfig(), "val", rng(2, "test", 0), 20))
    moved = copy.deepcopy(val)
    for item in moved:
        end = first_clue(item) + 1
        last = item[0].index("ANSWER")
        item[0][:last] = item[0][end:last] + item[0][:end]  # move the first clue to the end
    test = as_items(houses)[:9]
    (tmp_path / "train.pkl").write_bytes(pickle.dumps([*as_items(houses), *val, *moved]))
    (tmp_path / "test.pkl").write_bytes(pickle.dumps(test))
    data = imported("zebra", "train.pkl", "test.pkl", task_val_rows=20)
    assert [data.rows_of(split) for split in SPLITS] == [291, 20, 9]
    assert "dropped 20 rows from train: they have the same clues as rows of val" in caplog.text
    assert "dropped 9 rows from train: they have the same clues as rows of test" in caplog.text


def first_clue(item: list[Any]) -> int:
    return item[0].index("CLUE_END")


def refuse_answer(item: list[Any]) -> None:
    item[0].remove("ANSWER")


def refuse_token(item: list[Any]) -> None:
    item[0][0] = "=="


def refuse_table(item: list[Any]) -> None:
    item[1][1][0] = item[1][1][1]


def refuse_numbers(item: list[Any]) -> None:
    item[1][0].reverse()


def refuse_short_answer(item: list[Any]) -> None:
    item[0].pop()


def refuse_contradiction(item: list[Any]) -> None:
    """Two values of an attribute change places in the table and in the answer, but not in the clues."""
    row = item[1][1]
    row[0], row[1] = row[1], row[0]
    start = item[0].index("ANSWER") + 1
    for i in range(start, len(item[0]), 3):
        if item[0][i] == "0" and item[0][i + 1] in ("0", "1"):
            item[0][i + 2] = str(row[int(item[0][i + 1])])


def refuse_twice(item: list[Any]) -> None:
    item[0][-3:] = item[0][-6:-3]


def refuse_clue(item: list[Any]) -> None:
    del item[0][1]


def refuse_length(item: list[Any]) -> None:
    item[0][:0] = item[0][: first_clue(item) + 1] * 60


def refuse_shape(item: list[Any]) -> None:
    item[:] = [item[0]]


def refuse_large_table(item: list[Any]) -> None:
    item[1] = [list(range(7)) for _ in range(4)]


def refuse_itself(item: list[Any]) -> None:
    item[1].append(item[1])


WRONG_ITEMS = {
    refuse_answer: "row 3 does not have exactly one ANSWER",
    refuse_token: "row 3 has the token '==', which is not one of the 19",
    refuse_table: "row 3 has a table whose rows do not hold",
    refuse_numbers: "row 3 has a table whose rows do not hold .* the house numbers first",
    refuse_short_answer: "row 3 does not list .* triples of attribute, house and value",
    refuse_contradiction: r"row 3 has a clue \(\d+\) that its table contradicts",
    refuse_twice: "row 3 answers a cell twice",
    refuse_clue: "row 3 .* does not begin with the kind of a clue and LHS",
    refuse_length: r"row 3 has clues of \d+ tokens; set task\.prompt_length=\d+ or more",
    refuse_shape: "row 3 is not a list of tokens, table and order",
    refuse_large_table: "row 3 has a table of 3 attributes and 7 houses; allowed: 3 to 6 and 3 to 6",
    refuse_itself: "row 3 nests lists more than 8 deep; does one contain itself",
}


@pytest.mark.parametrize("damage", WRONG_ITEMS, ids=lambda damage: damage.__name__)
def test_a_wrong_puzzle_is_refused_with_its_row(
    damage: Callable[[list[Any]], None], houses: NotedRows, tmp_path: Path, imported: Importing
) -> None:
    items = as_items(NotedRows(houses.prompts[:5], houses.responses[:5], houses.orders[:5]))
    damage(items[2])
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(items))
    with pytest.raises(Mistake, match=WRONG_ITEMS[damage]):
        imported("zebra", "bad.pkl")


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


def hostile(mark: Path) -> dict[str, bytes]:
    """Pickles that would leave a file behind, or exploit the trust of NumPy's own readers."""
    touch = f"open({str(mark)!r}, 'w').close()"
    array = np.array([[1, 2], [3, 4]])
    as_array = pickle.dumps(array, 2)
    return {
        "system": pickle.dumps(Call(os.system, f"touch {mark}")),
        "eval": pickle.dumps([Call(eval, f"__import__('pathlib').Path({str(mark)!r}).touch()")]),
        "exec in a table": pickle.dumps([[["ANSWER"], Call(exec, touch), []]]),
        "popen": pickle.dumps(Call(subprocess.Popen, ["touch", str(mark)])),
        "protocol 0": b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.",
        "getattr": pickle.dumps(Call(getattr, "x", "__class__")),
        "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
        "numpy's loader": pickle.dumps(Call(np.load, str(mark), None, True)),
        "objects in an array": pickle.dumps(np.array([Call(os.system, f"touch {mark}")], dtype=object)),
        "pointers in an array": as_array.replace(b"i8", b"O8"),
        "a longer array": as_array.replace(b"K\x02K\x02\x86", b"K\x7fK\x7f\x86"),
        "extension": b"\x82\x01.",
        "persistent": b"Ps\n.",
        "binary persistent": b"\x80\x04]Q.",
        "a huge index": b"\x80\x04]r\xff\xff\xff\x3f.",
        "build a class": b"cnumpy\nndarray\n}S'__init__'\nNsb.",
    }


@pytest.mark.parametrize("name", hostile(Path("unused")))
def test_a_hostile_pickle_executes_nothing(name: str, tmp_path: Path, imported: Importing) -> None:
    mark = tmp_path / "mark"
    content = hostile(mark)[name]
    if name in ("system", "eval", "protocol 0"):  # proves that the test can fail: an ordinary unpickler executes it
        pickle.loads(content)
        assert mark.exists()
        mark.unlink()
    (tmp_path / "bad.pkl").write_bytes(content)
    with pytest.raises(Mistake, match=r"bad\.pkl: was not unpickled: it [^\n]*$"):
        imported("zebra", "bad.pkl")
    assert not mark.exists()


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x02\0" + len(header).to_bytes(4, "little") + header


HEADER = "{'descr': '<i8', 'fortran_order': False, 'shape': (SHAPE, 325), }\n"


@pytest.mark.parametrize(
    "content",
    [
        npy(HEADER.replace("SHAPE", "-1").encode()),
        npy(HEADER.replace("SHAPE", str(2**70)).encode()),
        npy(HEADER.replace("SHAPE", str(2**60)).encode()),
        npy(b"(" * 9000),
        npy(b"-" * 9000),
        b"PK\x03\x04" + npy(HEADER.replace("SHAPE", "1").encode()),
        b"PK\x05\x06" + bytes(18),
        b"",
    ],
)
def test_a_hostile_array_is_refused_in_one_line(content: bytes, tmp_path: Path, imported: Importing) -> None:
    (tmp_path / "bad.npy").write_bytes(content)
    with pytest.raises(Mistake, match=r"bad\.npy: is not a complete \.npy file of numbers \([^\n]*$"):
        imported("sudoku", "bad.npy")


def test_truncated_and_foreign_pickles_are_refused(houses: NotedRows, tmp_path: Path, imported: Importing) -> None:
    whole = pickle.dumps(as_items(houses)[:3])
    for content in (whole[:-50], whole[: len(whole) // 2], b"", b"hello"):
        with pytest.raises(RefusedPickle, match="it is damaged or truncated"):
            load(content)
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps({"not": "a list"}))
    with pytest.raises(Mistake, match="must hold a list of puzzles"):
        imported("zebra", "bad.pkl")


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_and_numbers_of_numpy_are_read(protocol: int) -> None:
    held = [np.arange(6, dtype=">i2").reshape(2, 3), np.asfortranarray(np.eye(2, dtype=np.int64)), np.int32(7), "x", 1]
    content = pickle.dumps(held, protocol)
    assert plain(load(content)) == [[[0, 1, 2], [3, 4, 5]], [[1, 0], [0, 1]], 7, "x", 1]


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_how_to_train_or_what_is_wrong(tmp_path: Path) -> None:
    parts = [sudoku.shard(SudokuConfig(size=4), split, rng(1, "test", 0), 10) for split in SPLITS]
    lines = ["".join(map(str, puzzle)) for part in parts for puzzle in part.prompts]
    (tmp_path / "puzzles.txt").write_text("\n".join(lines))

    def run(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "data.import_public", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    done = run("sudoku", "puzzles.txt", "data.dir=mine")
    assert done.returncode == 0, done.stderr
    assert "train with: python -m recor_dist.run task=sudoku task.size=4 data.source=mine/sudoku-" in done.stdout
    refused = run("zebra", "puzzles.txt")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert refused.stderr.startswith("error: puzzles.txt: was not unpickled")


WRONG_WORDS = {
    "sudoku": "file: missing; write FILE",
    "chess puzzles.txt": "task=chess: allowed: sudoku, zebra",
    "sudoku test=puzzles.txt": "file: missing; write FILE",
    "sudoku puzzles.txt dir=x": "dir: no such setting; .* did you mean data.dir?",
}


@pytest.mark.parametrize("words", WRONG_WORDS)
def test_a_wrong_command_line_is_refused_with_the_remedy(words: str) -> None:
    with pytest.raises(Mistake) as refusal:
        read_settings(ImportConfig, words.split(), positional=("task", "file"))
    assert all(part in str(refusal.value) for part in WRONG_WORDS[words].split(" .* "))
