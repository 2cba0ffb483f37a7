"""Certificates of a throw-away authority, and a server with TLS in front of one without."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from support_etcd import lack

__all__ = ["make_certificates", "tls_front"]


def make_certificates(folder: Path, names: Sequence[str] = ("server", "node")) -> Path:
    """``ca.pem``, and for each name ``NAME.pem`` and ``NAME.key``, all good for 127.0.0.1."""
    if shutil.which("openssl") is None:
        lack("no openssl to make certificates with: apt-get install openssl")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    new = ["req", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    ca = ["-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", "ca.key"]
    openssl(*new, *ca, "-out", "ca.pem")
    for name in names:
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "csr.pem")
        sign = ["x509", "-req", "-in", "csr.pem", "-CA", "ca.pem", "-CAkey", "ca.key"]
        more = ["-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem"]
        openssl(*sign, *more)
    return folder


@contextlib.asynccontextmanager
async def tls_front(folder: Path, name: str, uds: str, port: int) -> AsyncIterator[None]:
    """Take TLS connections at a port of loopback, and pass them on to a unix socket.

    Args:
        folder: of ``make_certificates``.
        name: of the certificate.
        uds: the socket, which need not be there yet.
        port: where it listens.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    passing: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_unix_connection(uds)
        except OSError:
            writer.close()
            return
        for pair in ((reader, back), (there, writer)):
            task = asyncio.create_task(copy(*pair))
            passing.add(task)
            task.add_done_callback(passing.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=context)
    try:
        yield
    finally:
        server.close()
        for task in list(passing):
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
