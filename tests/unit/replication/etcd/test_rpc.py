"""The calls of etcd: generated code, what a refusal means, and a process without gRPC."""

import re
import subprocess
import sys

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from support_sources import ROOT, text_of

from lodeq.replication.etcd import rpc_pb2 as pb
from lodeq.replication.etcd.rpc import Refusal, classify

FOLDER = ROOT / "replication" / "etcd"
TYPES = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def declared() -> set[tuple[str, str, int, str]]:
    """Message, field, number and type of each field in the sources; of an enum, each value."""
    found, blocks = set(), []
    for line in text_of(FOLDER / "rpc.proto").splitlines():
        code = line.partition("//")[0].strip()
        if opened := re.fullmatch(r"(message|enum|oneof) (\w+) \{(\})?", code):
            if not opened[3]:
                blocks.append(opened[2] if opened[1] != "oneof" else "")
        elif code == "}":
            blocks.pop()
        elif field := re.fullmatch(r"(?:repeated )?(\w+) (\w+) = (\d+);", code):
            found.add((next(filter(None, reversed(blocks))), field[2], int(field[3]), field[1]))
        elif value := re.fullmatch(r"(\w+) = (\d+);", code):
            found.add((blocks[-1], value[1], int(value[2]), ""))
    assert not blocks
    return found


def generated() -> set[tuple[str, str, int, str]]:
    enums = list(pb.DESCRIPTOR.enum_types_by_name.values())
    found = set()
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        enums += message.enum_types
        for field in message.fields:
            named = field.message_type or field.enum_type
            kind = named.name if named is not None else TYPES[field.type]
            found.add((message.name, field.name, field.number, kind))
    return found | {(enum.name, one.name, one.number, "") for enum in enums for one in enum.values}


def test_the_generated_code_is_that_of_its_source():
    assert declared() == generated()
    assert len(declared()) > 100


def test_generating_it_anew_gives_the_same(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc")
    out = tmp_path / "set"
    name = "replication/etcd/rpc.proto"
    assert protoc.main(["", f"-I{ROOT}", f"--descriptor_set_out={out}", name]) == 0
    made = FileDescriptorSet.FromString(out.read_bytes()).file[0]
    for message in made.message_type:
        for field in message.field:
            field.ClearField("json_name")  # for this output alone
    assert made == FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)


class Failed(grpc.RpcError):
    def __init__(self, code, details):
        self.code, self.details = (lambda: code), (lambda: details)


@pytest.mark.parametrize(
    ("code", "details", "refusal"),
    [
        ("UNAVAILABLE", "etcdserver: leader changed", Refusal.NEXT),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Refusal.NEXT),
        ("UNKNOWN", None, Refusal.NEXT),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Refusal.NEXT),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Refusal.NO_SPACE),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", Refusal.TOO_LARGE),
        ("NOT_FOUND", "etcdserver: requested lease not found", Refusal.LEASE_GONE),
        ("FAILED_PRECONDITION", "etcdserver: lease already exists", Refusal.LEASE_EXISTS),
        (
            "OUT_OF_RANGE",
            "etcdserver: mvcc: required revision has been compacted",
            Refusal.COMPACTED,
        ),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", Refusal.TOKEN),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", Refusal.TOKEN),
        ("PERMISSION_DENIED", "etcdserver: permission denied", Refusal.DENIED),
        ("UNIMPLEMENTED", "unknown service etcdserverpb.KV", Refusal.FOREIGN),
    ],
)
def test_what_a_refusal_means(code, details, refusal):
    assert classify(Failed(grpc.StatusCode[code], details)) is refusal


WITHOUT = """
import sys
sys.modules["grpc"] = sys.modules["google"] = None
import lodeq, lodeq.replication.port
from lodeq.replication.etcd.address import parse_address
assert parse_address("etcd://a/x").endpoints == ("a:2379",)
try:
    import lodeq.replication.etcd.log
except lodeq.UsageError as error:
    print(error)
"""


def test_without_the_extra_everything_else_is_there_and_the_adapter_says_what_to_do():
    got = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, timeout=60
    )
    assert got.stdout == 'etcd needs an extra: pip install "lodeq[etcd]"\n'
