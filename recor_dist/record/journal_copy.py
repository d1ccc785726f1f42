"""A journal as the files of another tool, in the folder of the run.

The files are written anew by every sender, from the first line of the journal, and replace those of the sender before.
So they never have a point twice, lack one, or have one that the journal lost, and no state is kept between senders. A
journal is small: a thousand steps are about 200 kB.

In an object store, where files cannot grow, they are written on this disk and copied when the sender ends.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from pyarrow import fs

from recor_dist.core.files import write_atomically
from recor_dist.record.description import Description, describe
from recor_dist.record.journal import JournalReader
from recor_dist.record.run_folder import RunFolder


class Writer(Protocol):
    """Files that are being written."""

    def write(self, record: dict[str, Any]) -> None: ...

    def flush(self) -> None:
        """Makes what was written visible to readers."""
        ...

    def close(self, status: str) -> None:
        """`status` of the run: finished, running, stopped or failed."""
        ...


@dataclass(frozen=True)
class FileFormat:
    """A tool that reads files."""

    name: str
    files: str  # what `begin` creates in a folder, as a pattern: files, or folders of files
    shown_by: str  # the command that shows or sends them; {} is their folder
    begin: Callable[[str, Description, str, float], Writer]  # folder, run, experiment, time of the first record


class JournalCopy:
    """A `Destination` that writes files."""

    def __init__(self, form: FileFormat, out: str, *, journal_path: str | None, experiment: str) -> None:
        self.form, self.folder, self.experiment = form, RunFolder.open(out), experiment
        self.journal = JournalReader(self.folder, journal_path)
        self.waiting: list[dict[str, Any]] = []
        self.writer: Writer | None = None
        self.ready = False
        self.place = self.folder.files.base_path
        if not self.folder.is_local:
            self.place = tempfile.mkdtemp(prefix="recor_dist-")
            weakref.finalize(self, shutil.rmtree, self.place, ignore_errors=True)

    @property
    def store(self) -> str:
        return self.folder.place(os.path.dirname(self.form.files))

    def open(self) -> int:
        for path in self._made():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.journal.position = 0
        self.waiting, self.writer, self.ready = self.journal.read(), None, True
        return len(self.waiting)

    def send(self, advance: Callable[[int], None] = lambda count: None) -> None:
        try:
            if not self.ready:
                self.open()
            self.waiting += self.journal.read()
            for record in self.waiting:
                self.writer = self.writer or self._begin(record)
                self.writer.write(record)
            if self.writer and self.waiting:
                self.writer.flush()
                advance(len(self.waiting))
            self.waiting = []
        except BaseException:
            self._give_up()
            raise

    def _begin(self, first: dict[str, Any]) -> Writer:
        return self.form.begin(self.place, describe(self.folder), self.experiment, first.get("time", 0.0))

    def _give_up(self) -> None:
        """Closes the files, which lack something, so that the next call begins anew."""
        writer, self.writer, self.ready = self.writer, None, False
        with suppress(Exception):
            if writer:
                writer.close("failed")

    def finish(self, *, training: bool = False) -> None:
        if self.writer:
            self.writer.close(describe(self.folder).status)
        self.writer, self.ready = None, False
        if not self.folder.is_local:
            self._copy()

    def _copy(self) -> None:
        """Replaces the files in the object store."""
        remote = self.folder.files
        inside = fs.FileSelector(os.path.dirname(self.form.files), allow_not_found=True)
        for info in remote.get_file_info(inside):
            if fnmatchcase(info.path, self.form.files):
                remote.delete_dir(info.path) if info.type == fs.FileType.Directory else remote.delete_file(info.path)
        for path in self._made():
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                name = file.relative_to(self.place)
                if file.is_file():
                    remote.create_dir(name.parent.as_posix())
                    write_atomically(remote, name.as_posix(), file.read_bytes())

    def _made(self) -> Iterator[Path]:
        return Path(self.place).glob(self.form.files)

    def where(self) -> str:
        return f"{self.form.name}: {self.form.shown_by.format(self.store)}"
