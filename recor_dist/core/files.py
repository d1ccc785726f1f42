"""Files in a folder that may be on this disk, in s3:// or gs://, or anywhere else that pyarrow can reach."""

import errno
import json
import os
from typing import Any

from pyarrow import fs

from recor_dist.core.setting import Mistake


def join(uri: str, *parts: str) -> str:
    """The URI of something inside a folder. Options of the URI (`?endpoint_override=...`) stay at its end."""
    place, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return "/".join([place.rstrip("/"), *parts]) + mark + options


def split_name(uri: str) -> tuple[str, str]:
    """The parent folder of a file or folder, and its name in there."""
    place, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    parent, _, name = place.rstrip("/").rpartition("/")
    return (parent or ("/" if uri.startswith("/") else ".")) + mark + options, name


def is_relative(uri: str) -> bool:
    """True if the path depends on the working directory."""
    return "://" not in uri and not os.path.isabs(os.path.expanduser(uri))


def open_folder(uri: str, *, create: bool = False) -> fs.SubTreeFileSystem:
    """A file system whose root is this folder."""
    try:
        if "://" in uri:
            filesystem, path = fs.FileSystem.from_uri(uri)
        else:
            filesystem, path = fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(uri))
        if (file := _file_on_the_way(filesystem, path)) is not None:
            raise Mistake(f"{uri}: {'is' if file == path else file + ' is'} a file; give a folder")
        if create:
            filesystem.create_dir(path, recursive=True)
    except Mistake:
        raise
    except (OSError, ValueError) as error:
        raise Mistake(f"{uri}: cannot be used as a folder ({str(error).splitlines()[0]})") from None
    return fs.SubTreeFileSystem(path, filesystem)


def _file_on_the_way(filesystem: fs.FileSystem, path: str) -> str | None:
    """The path itself, or on a disk a folder above it, if that is a file."""
    while filesystem.get_file_info(path).type != fs.FileType.File:
        parent = os.path.dirname(path)
        if not isinstance(filesystem, fs.LocalFileSystem) or parent == path:
            return None
        path = parent
    return path


def is_local(folder: fs.SubTreeFileSystem) -> bool:
    """True if the folder is on a disk of this machine, or mounted like one."""
    return isinstance(folder.base_fs, fs.LocalFileSystem)


def write_atomically(folder: fs.SubTreeFileSystem, name: str, content: bytes, *, durable: bool = True) -> None:
    """Writes a file such that its name never refers to partial content. `durable`: also after a power failure."""
    local = is_local(folder)
    # An object store shows a file once its upload is complete; on a disk the rename does that.
    written = f"{name}.partial" if local else name
    try:
        with folder.open_output_stream(written) as stream:
            stream.write(content)
        if local:
            if durable:
                _to_disk(folder, written)
            folder.move(written, name)
            if durable:
                _to_disk(folder, os.path.dirname(name))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        place = folder.base_path.rstrip("/")
        raise Mistake(f"{place}: the disk is full; make room, then run the same command again") from None


def _to_disk(folder: fs.SubTreeFileSystem, name: str) -> None:
    """Flushes a file, or a directory's entries, so that they survive a power failure."""
    descriptor = os.open(os.path.join(folder.base_path, name), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(folder: fs.SubTreeFileSystem, name: str, content: Any, *, durable: bool = True) -> None:
    write_atomically(folder, name, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode(), durable=durable)


def read_bytes(folder: fs.SubTreeFileSystem, name: str) -> bytes:
    try:
        with folder.open_input_file(name) as stream:
            return stream.read()
    except OSError:
        if folder.get_file_info(name).type == fs.FileType.Directory:  # for which pyarrow has no error of its own
            place = os.path.join(folder.base_path, name)
            raise IsADirectoryError(errno.EISDIR, "a folder is in the place of a file", place) from None
        raise


def read_json(folder: fs.SubTreeFileSystem, name: str) -> Any:
    return json.loads(read_bytes(folder, name))


def exists(folder: fs.SubTreeFileSystem, name: str) -> bool:
    return folder.get_file_info(name).type != fs.FileType.NotFound
