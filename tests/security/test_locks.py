"""What CI installs is what was looked at: every version pinned, every file by its hash."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PINNED = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)(\[[^]]*\])?==(?P<version>\S+)", re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def name_of(text):
    return re.sub(r"[-_.]+", "-", text).lower()


def pinned(name):
    text = (ROOT / "requirements" / name).read_text("utf-8")
    return {name_of(m["name"]): Version(m["version"]) for m in PINNED.finditer(text)}


def required(*extras, also=()):
    texts = [*PROJECT["project"]["dependencies"], *also]
    for extra in extras:
        texts += PROJECT["project"]["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def listed(name):
    lines = (ROOT / "requirements" / name).read_text("utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_there_are_locks():
    assert [path.name for path in LOCKS] == ["ci.txt", "runtime.txt", "tools.txt"]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_line_is_a_version_with_hashes(path):
    """No line without a hash, and none that names an address or an option of pip."""
    text = re.sub(r" \\\n", " ", path.read_text("utf-8"))
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert lines
    for line in lines:
        assert PINNED.match(line), line[:80]
        hashes = re.findall(r"--hash=(\S+)", line)
        assert hashes, line[:80]
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes)
        assert "://" not in line


@pytest.mark.parametrize(
    ("lock", "requirements"),
    [
        ("ci.txt", required("dev", "zstd", also=PROJECT["build-system"]["requires"])),
        ("ci.txt", listed("build.in")),
        ("runtime.txt", required()),
        ("tools.txt", listed("tools.in")),
    ],
    ids=["ci", "build", "runtime", "tools"],
)
def test_a_lock_has_what_is_asked_for(lock, requirements):
    """Else ``make lock`` was forgotten."""
    versions = pinned(lock)
    assert len(requirements) > 0
    for requirement in requirements:
        version = versions.get(name_of(requirement.name))
        assert version is not None, requirement
        assert requirement.specifier.contains(version), requirement


def test_what_users_run_is_what_was_tested():
    ci, runtime = pinned("ci.txt"), pinned("runtime.txt")
    assert {name: version for name, version in runtime.items() if ci.get(name) != version} == {}


def test_there_are_few_dependencies():
    """Each one is code that runs with the store open."""
    assert {name_of(Requirement(text).name) for text in PROJECT["project"]["dependencies"]} == {
        "anyio",
        "msgpack",
        "rocksdict",
        "xxhash",
    }
