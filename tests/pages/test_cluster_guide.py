"""docs/cluster-guide.md and examples/cluster/: what a reader types, and the files it names."""

import ast
import configparser
import os
import re
from pathlib import Path

import click
import pytest
import yaml
from support_etcd import free_ports, program
from support_pages import Session, blocks, installed_in_vain
from support_sources import ROOT, none_of, text_of

from lodeq.replication.etcd.address import parse_address
from lodeq.service.cli.app import lodeq as command_line

PAGE = text_of(ROOT / "docs" / "cluster-guide.md")
FOLDER = ROOT / "examples" / "cluster"
COMPOSE = yaml.safe_load(text_of(FOLDER / "compose.yaml"))
TRIED = PAGE.partition("## Try it on one machine")[2].partition("\n## ")[0]


def fault_of(args: list[str]) -> str | None:
    """Why our command line does not take this, if it does not; ``--replicate`` is parsed, too."""
    name, *rest = args
    command = command_line.get_command(click.Context(command_line), name)
    if command is None:
        return f"there is no {name}"
    context = command.make_context(name, rest)
    if context.params.get("replicate"):
        parse_address(context.params["replicate"])
    return None


def unit(name: str) -> configparser.SectionProxy:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text_of(FOLDER / name))
    return parsed["Service"]


def settings() -> dict[str, str]:
    """Of both files of settings that the page shows."""
    lines = [line for block in blocks(PAGE) if block.kind == "ini" for line in block.text.split()]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.slow
def test_what_the_page_tries_on_one_machine_is_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(program()).parent}{os.pathsep}{os.environ['PATH']}")
    client, peer = free_ports(2)
    peers = f"--listen-peer-urls http://127.0.0.1:{peer}"
    own = f"--initial-advertise-peer-urls http://127.0.0.1:{peer}"
    told = TRIED.replace(":2379", f":{client}").replace(
        "etcd --data-dir",
        f"etcd {peers} {own} --initial-cluster default=http://127.0.0.1:{peer} --data-dir",
    )
    assert told.count("--data-dir") == 1
    with Session(tmp_path, {}) as session:
        session.type(told)


def test_the_node_s_unit_starts_a_command_that_there_is_with_the_page_s_settings() -> None:
    service, given = unit("lodeq-node.service"), settings()
    program, *args = service["ExecStart"].split()
    assert program.endswith("/bin/lodeq")
    filled = [re.sub(r"\$\{(\w+)\}", lambda found: given[found[1]], arg) for arg in args]
    assert fault_of(filled) is None
    for shown in ("--token-file /etc/lodeq/token", "--shards 12", "/var/lib/lodeq/store"):
        assert shown in service["ExecStart"]
        assert shown in PAGE
    assert service["EnvironmentFile"] in PAGE


def test_etcd_is_told_the_same_by_the_page_and_by_the_containers() -> None:
    assert unit("lodeq-etcd.service")["EnvironmentFile"] in PAGE
    flags = {
        part.split("=")[0].removeprefix("--").upper().replace("-", "_")
        for part in COMPOSE["services"]["m1"]["command"][1:]
    }
    shown = {name.removeprefix("ETCD_") for name in settings() if name.startswith("ETCD_")}
    assert flags == shown
    quota = parse_address(settings()["LOG"]).quota_bytes
    assert int(settings()["ETCD_QUOTA_BACKEND_BYTES"]) == quota


def test_the_containers_start_commands_and_mount_volumes_that_there_are() -> None:
    nodes = [each for name, each in COMPOSE["services"].items() if name.startswith("n")]
    assert len(nodes) == 3
    for each in (*nodes, COMPOSE["services"]["worker"]):
        assert each["command"][0] == "lodeq"
        assert fault_of(each["command"][1:]) is None
    mounted = {
        mount.split(":")[0]
        for each in COMPOSE["services"].values()
        for mount in each["volumes"]
        if not mount.startswith(".")
    }
    assert mounted == set(COMPOSE["volumes"])
    assert "lodeq[" in text_of(FOLDER / "Dockerfile")
    assert not installed_in_vain(text_of(FOLDER / "Dockerfile"))
    ast.parse(text_of(FOLDER / "jobs.py"))


def test_the_files_it_names_are_there() -> None:
    named = set(re.findall(r"examples/cluster/([\w.-]+\w)", PAGE))
    assert named == {"lodeq-etcd.service", "lodeq-node.service", "compose.yaml"}
    none_of(name for name in named if not (FOLDER / name).is_file())
