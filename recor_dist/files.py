"""Files in a folder that may be anywhere pyarrow can reach: this disk, s3://, gs://."""

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyarrow import fs

from recor_dist.config import Mistake

log = logging.getLogger(__name__)


def join(uri: str, *parts: str) -> str:
    return "/".join([uri.rstrip("/"), *parts])


def open_folder(uri: str, *, create: bool = False) -> fs.SubTreeFileSystem:
    """A file system whose root is this folder."""
    try:
        if "://" in uri:
            filesystem, path = fs.FileSystem.from_uri(uri)
        else:
            filesystem, path = fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(uri))
        if filesystem.get_file_info(path).type == fs.FileType.File:
            raise Mistake(f"{uri}: is a file, and a folder is wanted")
        if create:
            filesystem.create_dir(path, recursive=True)
    except Mistake:
        raise
    except (OSError, ValueError) as error:
        raise Mistake(f"{uri}: cannot be used as a folder ({str(error).splitlines()[0]})") from None
    return fs.SubTreeFileSystem(path, filesystem)


def write_atomically(folder: fs.SubTreeFileSystem, name: str, content: bytes) -> None:
    """Writes a file so that its name only ever stands for complete content."""
    local = isinstance(folder.base_fs, fs.LocalFileSystem)
    # Object stores show a file when its upload is complete; on a disk the rename does that.
    written = f"{name}.partial" if local else name
    with folder.open_output_stream(written) as stream:
        stream.write(content)
    if local:
        _to_disk(folder, written)
        folder.move(written, name)
        _to_disk(folder, os.path.dirname(name))


def _to_disk(folder: fs.SubTreeFileSystem, name: str) -> None:
    """Asks the operating system to keep a file, or a folder's list of names, through a power cut."""
    descriptor = os.open(os.path.join(folder.base_path, name), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(folder: fs.SubTreeFileSystem, name: str, content: Any) -> None:
    write_atomically(folder, name, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def read_bytes(folder: fs.SubTreeFileSystem, name: str) -> bytes:
    with folder.open_input_file(name) as stream:
        return stream.read()


def read_json(folder: fs.SubTreeFileSystem, name: str) -> Any:
    return json.loads(read_bytes(folder, name))


def exists(folder: fs.SubTreeFileSystem, name: str) -> bool:
    return folder.get_file_info(name).type != fs.FileType.NotFound


@contextmanager
def exclusive(folder: fs.SubTreeFileSystem, doing: str, *, wait: bool = False) -> Iterator[None]:
    """Keeps a second process of this machine out of a local folder; a killed process lets go by itself."""
    if not isinstance(folder.base_fs, fs.LocalFileSystem):
        yield
        return
    with open(os.path.join(folder.base_path, ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            place = folder.base_path.rstrip("/")
            if not wait:
                raise Mistake(f"{place}: another process is {doing} there; wait for it, or stop it") from None
            log.info("waiting: another process is %s in %s", doing, place)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
