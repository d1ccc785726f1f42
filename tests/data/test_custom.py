"""The user's own rows: what is read from them, and how a bad row is reported."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.custom import CustomConfig, read_source
from data.prepare import open_data
from data.shards import Dataset
from data.splits import SPLITS
from data.tasks import task_of
from data.vocab import PAD
from recor_dist.core.config import Config
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train

Configure = Callable[..., Config]
ROWS = [{"prompt": f"{i:03d}"[: 1 + i % 3], "response": f"{i % 7}{i % 5}"[: 1 + i % 2]} for i in range(200)]


def opened(config: Config) -> Dataset:
    return open_data(config, task_of(config))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def decoded(data: Dataset) -> set[tuple[str, str]]:
    """All rows of all splits as text, without padding."""

    def text(ids: np.ndarray) -> str:
        return "".join(data.vocabulary.decode(ids)).replace(PAD, "")

    pairs = set()
    for split in SPLITS:
        rows = data.read_split(split, 0, data.rows_of(split))
        pairs |= {(text(p), text(r)) for p, r in zip(rows.prompts, rows.responses, strict=True)}
    return pairs


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_vocabulary_lengths_and_padding_come_from_the_source(name: str, tmp_path: Path, config_in: Configure) -> None:
    source = write(tmp_path / name, ROWS)
    data = opened(config_in("task=custom", f"data.source={source}"))
    assert data.vocabulary.tokens == (*"0123456789", PAD)
    assert (data.shape.N, data.shape.M) == (3, 2)
    assert sum(data.rows_of(split) for split in SPLITS) == len(ROWS)
    assert decoded(data) == {(row["prompt"], row["response"]) for row in ROWS}
    short = next(r for r in data.read_split("train", 0, 50).prompts if data.vocabulary.ids[PAD] in r)
    assert short[-1] == data.vocabulary.ids[PAD], "padding goes on the right"


def test_lists_are_tokens_and_rows_of_one_length_need_no_pad(tmp_path: Path, config_in: Configure) -> None:
    rows = [{"prompt": ["red", i % 40], "response": [f"t{i % 3}"]} for i in range(120)]
    data = opened(config_in("task=custom", f"data.source={write(tmp_path / 'rows.jsonl', rows)}"))
    assert PAD not in data.vocabulary.tokens
    assert {"red", "39", "t0", "t1", "t2"} <= set(data.vocabulary.tokens)
    assert data.shape.M == 1


def test_a_folder_has_its_own_splits(tmp_path: Path, config_in: Configure, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    write(folder / "train.jsonl", ROWS[:150])
    write(folder / "test.parquet", ROWS[140:])
    data = opened(config_in("task=custom", f"data.source={folder}"))
    assert data.rows_of("test") == 60
    assert data.rows_of("train") + data.rows_of("val") == 150, "validation is held out of train"
    assert "prompts of test are in train as well" in caplog.text


def test_a_recorded_order_comes_with_its_rows_pads_first(tmp_path: Path, config_in: Configure) -> None:
    rows = [
        {"prompt": str(i), "response": "ab" if i % 2 else "abc", "order": [1, 0] if i % 2 else [2, 0, 1]}
        for i in range(100)
    ]
    data = opened(config_in("task=custom", f"data.source={write(tmp_path / 'rows.parquet', rows)}"))
    assert data.manifest.order == "recorded"
    read = data.read_split("train", 0, data.rows_of("train"))
    for response, order in zip(read.responses, read.orders, strict=True):
        padded = response[2] == data.vocabulary.ids[PAD]
        assert order.tolist() == ([2, 1, 0] if padded else [2, 0, 1])


def test_identity_is_the_content_not_the_path(tmp_path: Path, config_in: Configure) -> None:
    a = opened(config_in("task=custom", f"data.source={write(tmp_path / 'a.jsonl', ROWS)}"))
    b = opened(config_in("task=custom", f"data.source={write(tmp_path / 'b.parquet', ROWS)}"))
    c = opened(config_in("task=custom", f"data.source={write(tmp_path / 'c.jsonl', ROWS[:-1])}"))
    assert a.uri == b.uri
    assert a.uri != c.uri


BAD_ROWS = [
    ({"prompt": None, "response": "1"}, "the prompt in row 4 of rows"),
    ({"prompt": "1", "response": None}, "the response in row 4 of rows"),
    ({"prompt": "x" * 30, "response": "1"}, r"prompt in row 4 of rows\S* has 30 tokens, over task.max_length=20"),
    ({"prompt": "1", "response": "x" * 30}, r"response in row 4 of rows\S* has 30 tokens, over task.max_length=20"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_ROWS)
@pytest.mark.parametrize("ending", [".parquet", ".jsonl"])
def test_a_bad_row_is_refused_with_its_number(bad: dict, message: str, ending: str, tmp_path: Path) -> None:
    rows = [dict(row) for row in ROWS]
    rows[3] = bad
    path = write(tmp_path / f"rows{ending}", rows)
    with pytest.raises(Mistake, match=message):
        read_source(CustomConfig(max_length=20), str(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "row 3 of rows.jsonl is not JSON"),
        ("[" * 100_000, "row 3 of rows.jsonl is not JSON"),
        ("[1]", "row 3 of rows.jsonl is not an object"),
        ('{"prompt": "1"}', "row 3 of rows.jsonl has no `response`; it has prompt"),
        ('{"prompt": 5, "response": "1"}', "prompt in row 3 of rows.jsonl is neither a string nor a list"),
        ('{"prompt": [1.5], "response": "1"}', "neither a string nor a list"),
        ('{"prompt": "1", "response": "12", "order": [0, 0]}', "order in row 3 of rows.jsonl does not name each"),
        ('{"prompt": "1", "response": "12", "order": 1}', "order in row 3 of rows.jsonl does not name each"),
        ('{"prompt": "1", "response": "12", "order": [0, 1, 1]}', "order in row 3 of rows.jsonl does not name each"),
        ('{"prompt": ["<pad>"], "response": "12"}', "<pad> .* is reserved"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_with_its_number(line: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    lines = path.read_text().splitlines()
    lines[2] = line
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(Mistake, match=message):
        read_source(CustomConfig(), str(path))


def test_files_that_cannot_be_a_source_are_refused(tmp_path: Path) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(Mistake, match=message):
            read_source(CustomConfig(), str(path))

    refused(tmp_path / "missing.parquet", "does not exist")
    refused(write(tmp_path / "empty.jsonl", []), "empty.jsonl has no rows")
    pq.write_table(
        pa.table({"prompt": pa.array([], pa.string()), "response": pa.array([], pa.string())}), tmp_path / "e.parquet"
    )
    refused(tmp_path / "e.parquet", "e.parquet has no rows")
    refused(
        write(tmp_path / "columns.parquet", [{"prompt": "1", "answer": "2"}]),
        "no column `response`; it has prompt, answer",
    )
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    refused(tmp_path / "broken.parquet", "broken.parquet is not a Parquet file")
    refused(write(tmp_path / "rows.csv", ROWS), "must end in .parquet or .jsonl")
    refused(write(tmp_path / "few.jsonl", ROWS[:3]), "too few different prompts for a")
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "needs a train.parquet or train.jsonl")
    write(tmp_path / "folder" / "train.jsonl", ROWS)
    write(tmp_path / "folder" / "train.parquet", ROWS)
    refused(tmp_path / "folder", "holds both train.parquet and train.jsonl")
    refused(
        write(tmp_path / "blank.jsonl", [{"prompt": str(i), "response": ""} for i in range(99)]),
        "every response .* is empty",
    )


def test_blank_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "", "  ", *lines[1:], "", "nonsense"]) + "\n")
    with pytest.raises(Mistake, match=r"row 204 of rows\.jsonl is not JSON"):
        read_source(CustomConfig(), str(path))
    path.write_text("\n".join([lines[0], "", *lines[1:], "", ""]))
    assert sum(map(len, read_source(CustomConfig(), str(path)).examples.values())) == 200


def test_odd_text_is_text_and_bytes_are_refused(tmp_path: Path) -> None:
    rows = [{"prompt": f"é{i}\ud800", "response": "☃"} for i in range(100)]
    source = read_source(CustomConfig(), str(write(tmp_path / "rows.jsonl", rows)))
    assert {"é", "\ud800", "☃"} <= set(source.vocabulary.tokens)
    path = write(tmp_path / "bytes.parquet", [{"prompt": b"1", "response": b"2"}] * 50)
    with pytest.raises(Mistake, match=r"prompt in row 1 of bytes\.parquet is neither a string nor a list"):
        read_source(CustomConfig(), str(path))


def test_fixed_lengths_are_kept_and_named_when_too_short(tmp_path: Path) -> None:
    path = str(write(tmp_path / "rows.jsonl", ROWS))
    assert (
        read_source(CustomConfig(prompt_length=9), path).N,
        read_source(CustomConfig(response_length=4), path).M,
    ) == (9, 4)
    with pytest.raises(Mistake, match=r"over task\.prompt_length=2"):
        read_source(CustomConfig(prompt_length=2), path)


def test_more_queries_than_slots_are_refused_once_the_slots_are_known(tmp_path: Path, config_in: Configure) -> None:
    source = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(Mistake, match=r"method\.token_queries=3: a response has M=2 slots"):
        opened(config_in("task=custom", f"data.source={source}", "method.token_queries=3"))


def test_a_custom_task_trains(tmp_path: Path, config_in: Configure) -> None:
    source = write(tmp_path / "rows.jsonl", ROWS)
    result = train(config_in("task=custom", f"data.source={source}"))
    assert result["steps"] > 5
    assert "kendall_tau" not in result["test"]
    assert len(result["test"]["mean_step"]) == 2


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_flipped_bits_in_a_parquet_file_are_refused_or_harmless(
    checksums: bool, compression: str, tmp_path: Path
) -> None:
    """Without page checksums, changed values cannot be told from others; but nothing else than a Mistake comes up."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, compression=compression, write_page_checksum=checksums)
    content, right = path.read_bytes(), read_source(CustomConfig(), str(path)).checksum
    chance = random.Random(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            found = read_source(CustomConfig(), str(path)).checksum
        except Mistake as mistake:
            refused += 1
            assert "\n" not in str(mistake)
        else:
            assert found == right or not checksums
    assert 0 < refused < 60
