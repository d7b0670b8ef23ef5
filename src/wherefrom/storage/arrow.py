"""Parquet tables, and files on any file system of pyarrow: local, s3://, gs://, hdfs://.

The only file that imports pyarrow. A local folder does not need it.
"""

from __future__ import annotations

import io
import posixpath
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from wherefrom.errors import FileError, MissingExtra
from wherefrom.storage.writing import reason, replacing

# an object appears when its upload is complete; elsewhere, files are written and then renamed
_ATOMIC_UPLOADS = ("s3", "gcs", "abfs")
_GLOB = "*?["
_BATCH = 1024  # rows of a Parquet file that are decoded at a time


def _pyarrow(purpose: str) -> Any:
    try:
        import pyarrow
        import pyarrow.fs
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", purpose) from error
    return pyarrow


# Tables


def parquet_bytes(
    columns: Mapping[str, Sequence[Any]], types: Mapping[str, str] | None = None
) -> bytes:
    """Columns of equal length as a Parquet file; lone surrogates are escaped.

    `types` maps columns to types: string, int, float, double, bool, or a list such as `list<int>`.
    pyarrow infers the type of the other columns.
    """
    pyarrow = _pyarrow("writing Parquet")
    arrays = {}
    for name, values in columns.items():
        kind = (types or {}).get(name)
        may_be_text = kind is None or "string" in kind
        arrays[name] = pyarrow.array(
            [_valid(value) for value in values] if may_be_text else values,
            None if kind is None else _arrow_type(pyarrow, kind),
        )
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays), file)
    return file.getvalue()


def columns_of(content: bytes) -> dict[str, list[Any]]:
    """The columns of a Parquet file."""
    pyarrow = _pyarrow("reading Parquet")
    columns: dict[str, list[Any]] = pyarrow.parquet.read_table(io.BytesIO(content)).to_pydict()
    return columns


def binary_table(name: str, values: Sequence[bytes]) -> Any:
    """A table of one column of bytes."""
    pyarrow = _pyarrow("this engine")
    return pyarrow.table({name: pyarrow.array(values, pyarrow.binary())})


def parquet_records(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a local Parquet file, each as its columns."""
    pyarrow = _pyarrow("reading Parquet")
    try:
        table = pyarrow.parquet.read_table(path)
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}.") from error
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {error}") from error
    yield from table.to_pylist()


def _arrow_type(pyarrow: Any, name: str) -> Any:
    if name.startswith("list<"):
        return pyarrow.list_(_arrow_type(pyarrow, name[5:-1]))
    plain = {"string": "string", "int": "int64", "float": "float32", "double": "float64"}
    return pyarrow.type_for_alias(plain.get(name, name))


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_valid(entry) for entry in value]
    return value


# Files on any file system


@dataclass(frozen=True)
class File:
    """A file to read: its path, its size in bytes, and the time of its last change."""

    filesystem: Any  # of pyarrow; None for a local file
    path: str
    size: int
    changed: int | None  # in nanoseconds; None if the file system does not know it

    def open(self) -> Any:
        """Opens the file for reading; the stream is seekable."""
        try:
            if self.filesystem is None:
                return Path(self.path).open("rb")
            return self.filesystem.open_input_file(self.path)
        except (OSError, ValueError) as error:
            raise FileError(f"cannot read {self.path}: {reason(error)}.") from error

    def check_unchanged(self) -> None:
        """Raises an error if the file was changed since it was found."""
        try:
            if self.filesystem is None:
                now = _local_file(Path(self.path))
            else:
                now = _file(self.filesystem, _information(self.filesystem, self.path))
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {reason(error)}.") from error
        if (now.size, now.changed) != (self.size, self.changed):
            raise FileError(
                f"{self.path} was changed while it was read: explain it again into another folder."
            )

    def parquet_batches(self) -> Iterator[tuple[list[dict[str, Any]], float]]:
        """The rows of a Parquet file in batches, each with the share of rows read so far."""
        pyarrow = _pyarrow("reading Parquet")
        read = 0
        try:
            with self.open() as stream:
                table = pyarrow.parquet.ParquetFile(stream)
                for batch in table.iter_batches(_BATCH):
                    read += batch.num_rows
                    yield batch.to_pylist(), read / table.metadata.num_rows
        except (OSError, ValueError) as error:
            raise FileError(f"cannot read {self.path}: {reason(error)}.") from error


def find_files(
    locations: Sequence[str | Path], suffixes: tuple[str, ...], filesystem: Any = None
) -> list[File]:
    """The files at these locations: files, folders, patterns with * ? [ ]; paths or URIs.

    A folder or pattern selects its files with one of the suffixes, in path order, without hidden
    files. With a pyarrow `filesystem` the locations are paths in it.
    """
    files: dict[str, File] = {}  # by path, so that no file is read twice
    for location in locations:
        matches = _files_at(str(location), suffixes, filesystem)
        if not matches:
            raise FileError(
                f"{location} has no file to read: names must end in {', '.join(suffixes)}."
            )
        files |= {file.path: file for file in matches}
    return list(files.values())


def _files_at(location: str, suffixes: tuple[str, ...], filesystem: Any) -> list[File]:
    if filesystem is None and "://" not in location:
        return _local_files(Path(location).expanduser().absolute(), suffixes)
    fs_module = _pyarrow("reading files").fs
    system, path = _resolved(location, filesystem)
    info, pattern = _information(system, path), ""
    if info.type == fs_module.FileType.File:
        return [_file(system, info)]
    if info.type != fs_module.FileType.Directory:
        path, pattern = _split_pattern(path)
        info = _information(system, path)
    if info.type != fs_module.FileType.Directory:
        raise FileError(f"there is no file {location}.")
    selector = fs_module.FileSelector(path, recursive=True)
    base = info.path.rstrip("/")
    entries = sorted(system.get_file_info(selector), key=lambda entry: str(entry.path))
    return [
        _file(system, entry)
        for entry in entries
        if entry.type == fs_module.FileType.File
        and _is_wanted(entry.path[len(base) :].lstrip("/"), pattern, suffixes)
    ]


def _local_files(path: Path, suffixes: tuple[str, ...]) -> list[File]:
    """The files at a path of this machine, without pyarrow."""
    if path.is_file():  # even if its name contains a wildcard
        return [_local_file(path)]
    # what exists is no pattern, even if its name contains a wildcard
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    rest = path.relative_to(folder).parts
    if rest and not any(mark in rest[0] for mark in _GLOB):
        raise FileError(f"there is no file {path}.")
    pattern = "/".join(rest)
    return [
        _local_file(entry)
        for entry in sorted(folder.rglob("*"))
        if entry.is_file() and _is_wanted(entry.relative_to(folder).as_posix(), pattern, suffixes)
    ]


def _local_file(path: Path) -> File:
    status = path.stat()
    return File(None, path.as_posix(), status.st_size, status.st_mtime_ns)


def _split_pattern(location: str) -> tuple[str, str]:
    """Splits a location before the first component with a wildcard.

    >>> _split_pattern("s3://bucket/2026/*/part-?.csv")
    ('s3://bucket/2026', '*/part-?.csv')
    """
    parts = location.split("/")
    for number, part in enumerate(parts):
        if any(mark in part for mark in _GLOB):
            folder = "/".join(parts[:number])
            return folder or ("/" if location.startswith("/") else "."), "/".join(parts[number:])
    return location, ""


def _is_wanted(path: str, pattern: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a path is not hidden and matches the pattern, in which * matches no slash."""
    parts, patterns = path.split("/"), pattern.split("/") if pattern else []
    if not path.lower().endswith(suffixes) or any(part.startswith((".", "_")) for part in parts):
        return False
    return not patterns or (len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns)))


def _resolved(location: str, filesystem: Any) -> tuple[Any, str]:
    if filesystem is not None:
        return filesystem, location
    try:
        system, path = _pyarrow("reading files").fs.FileSystem.from_uri(location)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot reach {location}: {reason(error)}.") from error
    return system, str(path)


def _information(system: Any, path: str) -> Any:
    try:
        return system.get_file_info(path)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot reach {path}: {reason(error)}.") from error


def _file(system: Any, info: Any) -> File:
    return File(system, info.path, info.size or 0, info.mtime_ns)


class Folder(ABC):
    """A folder to write to, in which files appear only when complete."""

    path: str

    @staticmethod
    def at(location: str | Path, filesystem: Any = None) -> Folder:
        """The folder at a path or URI; it need not exist yet."""
        if filesystem is None and "://" not in str(location):
            return LocalFolder(str(Path(location).expanduser().absolute()))
        filesystem, path = _resolved(str(location), filesystem)
        if filesystem.type_name == "local":
            return LocalFolder(path)
        return RemoteFolder(filesystem, path)

    @property
    @abstractmethod
    def local(self) -> Path | None:
        """The local path, if the folder is on this machine."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Writes a file; it replaces an earlier one."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file, if it exists."""

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]:
        """The names of the files in a folder and their sizes in bytes, without hidden ones."""


@dataclass(frozen=True)
class LocalFolder(Folder):
    """A folder on a disk of this machine, without pyarrow."""

    path: str

    @property
    def local(self) -> Path:
        return Path(self.path)

    def write(self, name: str, content: bytes) -> None:
        path = self.local / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise FileError(f"cannot write {path}: {reason(error)}.") from error
        with replacing(path) as file:
            file.write(content)

    def read(self, name: str) -> bytes | None:
        path = self.local / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileError(f"cannot read {path}: {reason(error)}.") from error

    def remove(self, name: str) -> None:
        path = self.local / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise FileError(f"cannot remove {path}: {reason(error)}.") from error

    def sizes(self, folder: str) -> dict[str, int]:
        files = sorted((self.local / folder).glob("[!.]*"))
        return {path.name: path.stat().st_size for path in files if path.is_file()}


@dataclass(frozen=True)
class RemoteFolder(Folder):
    """A folder on a pyarrow file system."""

    filesystem: Any
    path: str

    @property
    def local(self) -> None:
        return None

    def write(self, name: str, content: bytes) -> None:
        path = posixpath.join(self.path, name)
        folder, base = posixpath.split(path)
        in_one_step = self.filesystem.type_name in _ATOMIC_UPLOADS
        partial = path if in_one_step else f"{folder}/.{base}.{secrets.token_hex(8)}.partial"
        with self._errors("write", path):
            self.filesystem.create_dir(folder, recursive=True)
            with self.filesystem.open_output_stream(partial) as stream:
                stream.write(content)
            if not in_one_step:
                self.filesystem.move(partial, path)

    def read(self, name: str) -> bytes | None:
        path = posixpath.join(self.path, name)
        with self._errors("read", path):
            try:
                with self.filesystem.open_input_file(path) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        path = posixpath.join(self.path, name)
        with self._errors("remove", path), suppress(FileNotFoundError):
            self.filesystem.delete_file(path)

    def sizes(self, folder: str) -> dict[str, int]:
        fs_module = _pyarrow("reading files").fs
        selector = fs_module.FileSelector(posixpath.join(self.path, folder), allow_not_found=True)
        with self._errors("read", self.path):
            entries = self.filesystem.get_file_info(selector)
        return {
            entry.base_name: entry.size or 0
            for entry in entries
            if entry.type == fs_module.FileType.File and not entry.base_name.startswith(".")
        }

    @contextmanager
    def _errors(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileError:
            raise
        except (OSError, ValueError) as error:
            raise FileError(f"cannot {verb} {path}: {reason(error)}.") from error
