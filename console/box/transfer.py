"""Files to and from the box: whole or not at all, checked after writing."""

from __future__ import annotations

import hashlib
import io
import posixpath
import secrets
import tarfile
from collections.abc import Mapping

import asyncssh

from console.box.errors import LinkLost, NoSuchFile, NotAllowed, TransferError

SESSION_ENDED = (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost)


async def put_file(sftp: asyncssh.SFTPClient, data: bytes, path: str, mode: int) -> None:
    """Write `data` to `path` with `mode`, atomically: a reader sees the old file or the new one.

    A temporary file beside it, flushed to disk, read back and compared, then renamed over the old one. Plain SFTP
    rename refuses to replace a file; OpenSSH's posix-rename does it in one step.
    """
    part = part_name(path)
    try:
        async with sftp.open(part, "xb", asyncssh.SFTPAttrs(permissions=mode)) as file:
            await file.write(data)
            await file.fsync()
        await sftp.chmod(part, mode)  # whatever the umask there took away
        if await read_file(sftp, part, 0, None) != data:
            raise TransferError("what was written is not what was sent", where=path, mend="is the disk full?")
        await sftp.posix_rename(part, path)
    except BaseException:
        await _remove_quietly(sftp, part)
        raise


async def read_file(sftp: asyncssh.SFTPClient, path: str, offset: int, limit: int | None) -> bytes:
    """At most `limit` bytes of `path` from `offset` on; fewer, or none, where the file ends."""
    async with sftp.open(path, "rb") as file:
        found: bytes = await file.read(-1 if limit is None else limit, offset)
        return found


async def _remove_quietly(sftp: asyncssh.SFTPClient, path: str) -> None:
    try:
        await sftp.remove(path)
    except (asyncssh.Error, OSError):
        return  # never made, or the link is gone; the error that led here is the one to report


def part_name(path: str) -> str:
    """A name beside `path` for what is not finished yet."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name}.{secrets.token_hex(6)}.part")


def pack(files: Mapping[str, bytes], mode: int, executable: frozenset[str]) -> bytes:
    """An uncompressed tar of `files` (relative path -> contents), folders 0700, `executable` ones with x for the owner.

    Raises TransferError for a path that would leave the folder or that `sha256sum` would have to escape.
    """
    folders: dict[str, None] = {}
    for name in files:
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts) or any(char in name for char in "\\\n\r\0"):
            raise TransferError("not a plain relative path", where=repr(name))
        for depth in range(1, len(parts)):
            folders.setdefault("/".join(parts[:depth]))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o700
            archive.addfile(entry)
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(files[name]), mode | (0o100 if name in executable else 0)
            archive.addfile(entry, io.BytesIO(files[name]))
    return buffer.getvalue()


def checksums(files: Mapping[str, bytes]) -> bytes:
    """What `sha256sum --check` reads: one line a file."""
    return b"".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n".encode() for name in sorted(files))


def transfer_error(error: Exception, path: str) -> TransferError | LinkLost:
    """What an SFTP failure means to the operator."""
    if isinstance(error, asyncssh.SFTPNoSuchFile | asyncssh.SFTPNoSuchPath):
        return NoSuchFile("no such file or folder on the box", where=path)
    if isinstance(error, asyncssh.SFTPPermissionDenied):
        return NotAllowed("permission denied on the box", where=path)
    if isinstance(error, SESSION_ENDED):
        return LinkLost("the SFTP session ended during a file transfer", where=path)
    return TransferError(
        str(error) or "the box gives no reason", where=path, mend="is the disk full, or the path a folder?"
    )


async def move_tree(sftp: asyncssh.SFTPClient, part: str, folder: str, files: Mapping[str, bytes]) -> None:
    """Put the finished tree `part` in the place of `folder`: as a whole if that is new, else file by file."""
    if not await sftp.exists(folder):
        await sftp.posix_rename(part, folder)
        return
    for parent in sorted({posixpath.dirname(name) for name in files} - {""}):
        await sftp.makedirs(posixpath.join(folder, parent), asyncssh.SFTPAttrs(permissions=0o700), exist_ok=True)
    for name in sorted(files):
        await sftp.posix_rename(posixpath.join(part, name), posixpath.join(folder, name))
