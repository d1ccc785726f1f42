"""`python -m data.prepare task=arg ...`: makes a data set, or verifies one and rebuilds just its bad shards."""

import logging
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict

from data.shards import BadShard, Dataset, Manifest, ShardEntry, read_shard, shard_name, write_shard
from data.splits import SPLITS
from data.tasks import Task, task_of
from recor_dist.command import command
from recor_dist.config import Config, Mistake, digest
from recor_dist.files import exclusive, exists, join, open_folder, write_json
from recor_dist.progress import progress_bar, set_up_logging

log = logging.getLogger(__name__)


def open_data(config: Config, task: Task) -> Dataset:
    """The data set of a task, prepared on first use. Its shards are verified as they are read."""
    return Dataset.open(_uri(config, task), task.spec, _remedy(config)) or prepare(config, task)


def prepare(config: Config, task: Task) -> Dataset:
    """Makes every shard that is missing or bad, and the manifest. Goes on where an interrupted preparation stopped."""
    uri = _uri(config, task)
    folder = open_folder(uri, create=True)
    splits: dict[str, list[ShardEntry]] = {split: [] for split in SPLITS}
    total = sum(map(sum, task.sizes.values()))
    with exclusive(folder, "preparing data", wait=True), progress_bar(f"preparing {uri}", total) as advance:
        known = Dataset.open(uri, task.spec, _remedy(config))
        for split, index in _shards(task):
            listed = known.manifest.splits[split][index] if known else None
            try:
                _, entry = read_shard(folder, task.spec, split, index)
                if listed and entry != listed:
                    raise BadShard(f"shard {entry.file} does not have the checksum of the manifest")
            except BadShard as bad:
                if exists(folder, shard_name(split, index)):
                    log.warning("%s: building it again", bad)
                entry = write_shard(folder, task.spec, split, index, task.make_shard(split, index))
                if listed and entry != listed:
                    raise Mistake(
                        f"data.dir: shard {entry.file} of {uri} was built again and came out different: "
                        "numpy draws other numbers here; move the folder away to start a new data set"
                    ) from None
            splits[split].append(entry)
            advance(entry.rows)
        manifest = Manifest(task.spec, task.N, task.M, list(task.vocabulary.tokens), task.order, splits)
        write_json(folder, "manifest.json", asdict(manifest))
    return Dataset(uri, manifest, _remedy(config))


def _shards(task: Task) -> Iterator[tuple[str, int]]:
    for split in SPLITS:
        for index in range(len(task.sizes[split])):
            yield split, index


def _uri(config: Config, task: Task) -> str:
    return join(config.data.dir, f"{config.task.name}-{digest(task.spec)[:12]}")


def _remedy(config: Config) -> str:
    """The command that prepares the data of the command that is running."""
    words = [word for word in sys.argv[1:] if word.startswith(("task", "data."))]
    return shlex.join(["python", "-m", "data.prepare", f"scale={config.scale}", *words])


def main(config: Config) -> None:
    set_up_logging()
    task = task_of(config)
    data = prepare(config, task)
    counts = ", ".join(f"{data.rows_of(split):,} {split}" for split in SPLITS)
    print(f"{data.uri}: {counts} rows, N={task.N}, M={task.M}, V={len(task.vocabulary.tokens)}")
    print(f"manifest sha256 {data.manifest.checksum}")


if __name__ == "__main__":
    command(main)
