"""One member of etcd: a channel, the calls made on it, and what its refusals mean.

The stubs are bare: gRPC repeats nothing, because a repeated transaction is only safe where the
caller has thought of it. Who repeats is ``endpoints``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from ...errors import UsageError
from . import rpc_pb2 as pb
from .address import EtcdAddress

__all__ = ["Member", "Refusal", "Rpc", "Tls", "classify", "read_file", "read_tls"]

ANSWER_BYTES_MAX: Final = 64 << 20
_OPTIONS: Final = (
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.max_send_message_length", ANSWER_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # how long one attempt to connect takes at most
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd refuses less than 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
)


class Rpc(enum.Enum):
    """Calls with one request and one answer: path, and the answer's type."""

    TXN = ("/etcdserverpb.KV/Txn", pb.TxnResponse)
    COMPACT = ("/etcdserverpb.KV/Compact", pb.CompactionResponse)
    LEASE_GRANT = ("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse)
    LEASE_REVOKE = ("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse)
    STATUS = ("/etcdserverpb.Maintenance/Status", pb.StatusResponse)
    ALARM = ("/etcdserverpb.Maintenance/Alarm", pb.AlarmResponse)
    DEFRAGMENT = ("/etcdserverpb.Maintenance/Defragment", pb.DefragmentResponse)
    AUTHENTICATE = ("/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse)


class Refusal(enum.Enum):
    """What a failed call means."""

    NEXT = "no answer, or none yet: another member may give one"
    TOKEN = "the token is no longer good"
    DENIED = "not allowed"
    LEASE_GONE = "the lease has ended"
    LEASE_EXISTS = "an earlier try has made the lease"
    COMPACTED = "revisions that old are gone"
    NO_SPACE = "etcd's quota is used up"
    TOO_LARGE = "etcd takes no request of that size"
    FOREIGN = "no etcd of version 3 is there"


_BY_TEXT: Final = (
    ("invalid auth token", Refusal.TOKEN),
    ("auth store is old", Refusal.TOKEN),
    ("user name is empty", Refusal.TOKEN),
    ("authentication failed", Refusal.DENIED),
    ("authentication is not enabled", Refusal.DENIED),
    ("permission denied", Refusal.DENIED),
    ("requested lease not found", Refusal.LEASE_GONE),
    ("lease already exists", Refusal.LEASE_EXISTS),
    ("required revision has been compacted", Refusal.COMPACTED),
    ("database space exceeded", Refusal.NO_SPACE),
    ("request is too large", Refusal.TOO_LARGE),
    ("larger than max", Refusal.TOO_LARGE),
)
_BY_CODE: Final = {
    grpc.StatusCode.UNAUTHENTICATED: Refusal.TOKEN,
    grpc.StatusCode.PERMISSION_DENIED: Refusal.DENIED,
    grpc.StatusCode.UNIMPLEMENTED: Refusal.FOREIGN,
}


def classify(error: grpc.RpcError) -> Refusal:
    """What a failed call means for who made it."""
    text = (error.details() or "").lower()
    for part, refusal in _BY_TEXT:
        if part in text:
            return refusal
    return _BY_CODE.get(error.code(), Refusal.NEXT)


class Tls(NamedTuple):
    """What the files of an address hold."""

    ca: bytes
    cert: bytes | None
    key: bytes | None


def read_file(path: Any, option: str) -> bytes:
    """A file that an address names; ``UsageError`` if it cannot be read or is empty."""
    try:
        found: bytes = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{option}={path} cannot be read: {error.strerror}") from error
    if not found.strip():
        raise UsageError(f"{option}={path} is empty")
    return found


def read_tls(address: EtcdAddress) -> Tls | None:
    """The certificates of an address, if it has any.

    Raises:
        UsageError: a file cannot be read.
    """
    if address.ca is None:
        return None
    ca = read_file(address.ca, "ca")
    if address.cert is None:
        return Tls(ca, None, None)
    return Tls(ca, read_file(address.cert, "cert"), read_file(address.key, "key"))


class Member:
    """One member of etcd as a client sees it. Made on an event loop of asyncio."""

    def __init__(self, endpoint: str, tls: Tls | None) -> None:
        self.endpoint = endpoint
        if tls is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        else:
            secrets = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
            self._channel = grpc.aio.secure_channel(endpoint, secrets, options=_OPTIONS)
        self._calls = {rpc: self._unary(*rpc.value) for rpc in Rpc}
        self._keepalive = self._stream(
            "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse
        )
        self._watch = self._stream("/etcdserverpb.Watch/Watch", pb.WatchResponse)

    def _unary(self, path: str, answer: Any) -> Callable[..., Any]:
        call: Callable[..., Any] = self._channel.unary_unary(path, _to_bytes, answer.FromString)
        return call

    def _stream(self, path: str, answer: Any) -> Callable[..., Any]:
        call: Callable[..., Any] = self._channel.stream_stream(path, _to_bytes, answer.FromString)
        return call

    async def call(self, rpc: Rpc, request: Any, timeout_s: float, metadata: Metadata) -> Any:
        """One call, made once.

        Args:
            rpc: which.
            request: its message.
            timeout_s: how long to wait for the answer, in seconds.
            metadata: what goes with it: the token.
        """
        return await self._calls[rpc](request, timeout=timeout_s, metadata=metadata)

    def keepalive(self, timeout_s: float, metadata: Metadata) -> Any:
        """A stream of renewals of leases."""
        return self._keepalive(timeout=timeout_s, metadata=metadata)

    def watch(self, metadata: Metadata) -> Any:
        """A stream of changes; it ends when this member has lost etcd's leader."""
        return self._watch(metadata=(*metadata, ("hasleader", "true")))

    async def close(self) -> None:
        """Cancel all calls."""
        await self._channel.close(grace=None)


Metadata = Sequence[tuple[str, str]]


def _to_bytes(message: Any) -> bytes:
    raw: bytes = message.SerializeToString()
    return raw
