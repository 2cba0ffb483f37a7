"""How the command begins and ends: errors in one line, codes, pipes, and without its extra."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support_cli import RUN, process
from support_pages import blocks, commands, pattern

import lodeq as package
from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.service.cli.app import lodeq


def test_the_version() -> None:
    result = CliRunner().invoke(lodeq, ["--version"])
    build = "compiled" if package.COMPILED else "interpreted"
    assert result.output.strip() == f"lodeq, version {package.__version__} ({build})"


def _all_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _all_commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(_all_commands(lodeq)), ids=" ".join)
def test_help_begins_with_a_verb_and_leaves_out_what_is_for_callers(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(lodeq, [*path, "--help"])
    assert result.exit_code == 0
    text = result.output.split("\n\n")[1].strip()
    assert text
    assert text.split()[0] not in ("Of", "What", "How", "Is", "The", "All")
    assert "Args:" not in result.output


def run_without(module: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: what was imported before would be imported anew here."""
    code = f"import sys; sys.modules[{module!r}] = None; {RUN[-1]}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["click", "rich", "rich.console"])
def test_without_the_extra(missing: str) -> None:
    run = run_without(missing)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == 'the command line needs an extra: pip install "lodeq[cli]"\n'


@pytest.mark.slow
def test_another_import_error_is_no_missing_extra() -> None:
    run = run_without("lodeq.service.shared.build")
    assert run.returncode == 1
    assert "ModuleNotFoundError" in run.stderr


@pytest.mark.slow
def test_the_script_runs() -> None:
    run = subprocess.run([*RUN, "--version"], capture_output=True, text=True, check=True)
    assert package.__version__ in run.stdout


def test_errors_are_one_line(cli, tmp_path: Path) -> None:
    path = tmp_path / "what\x1b[31m.log"
    path.write_bytes(b"nothing that is known")
    result = cli("dump", path, code=2)
    assert re.fullmatch(r"error: .*--format\n", result.stderr)
    assert "\x1b" not in result.output


@pytest.mark.parametrize("args", [["dump", "nowhere"], ["dump"], ["verify", ".", "--format", "x"]])
def test_wrong_usage(args: list[str], cli) -> None:
    assert "Usage" in cli(*args, code=2).stderr


def test_what_cannot_be_read(cli, make, monkeypatch) -> None:
    place = make("body.sqs")

    def refuse(*args: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.pread", refuse)
    assert "Permission denied" in cli("verify", place.path, code=2).stderr


def test_an_interrupt(cli, make, monkeypatch) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lodeq.service.cli.maintenance.segments.items", interrupt)
    assert cli("dump", make("body.sqs").path, code=130).output == ""


@pytest.mark.slow
@pytest.mark.parametrize("option", [["--json"], []])
def test_a_closed_pipe_ends_quietly(option: list[str], tmp_path: Path) -> None:
    path = tmp_path / "1.sqs"
    records = (Sqs().encode(n.to_bytes(16, "big"), b"x" * 50) for n in range(5000))
    path.write_bytes(HEADER + b"".join(records))
    with process(
        *RUN,
        "segments",
        "dump",
        path,
        *option,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.readline()
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 141


@pytest.mark.slow
def test_the_example_of_the_page(tmp_path: Path, monkeypatch) -> None:
    """Each ``$`` line gives the lines below it. The day is that of the run."""
    whole = (Path(__file__).parents[4] / "docs" / "cli.md").read_text("utf-8")
    page = whole.partition("### An example\n")[2]
    script, shell = (
        re.search(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1]  # type: ignore[index]
        for kind in ("python", "console")
    )
    monkeypatch.chdir(tmp_path)
    Path("example.py").write_text(script, "utf-8")
    subprocess.run([sys.executable, "example.py"], check=True)
    steps = re.findall(r"^\$ lodeq (.*)\n((?:[^$].*\n)*)", shell, re.MULTILINE)
    assert len(steps) >= 5
    for command, expected in steps:
        output = CliRunner().invoke(lodeq, command.split()).output
        assert re.sub(r"\d{4}/\d\d/\d\d/", "2026/11/22/", output) == expected


PROOF = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::\d+:[0-9a-f]{32})?")


@pytest.mark.slow
def test_the_day_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with the ids and leases of this run where the page has its own."""
    whole = (Path(__file__).parents[4] / "docs" / "cli.md").read_text("utf-8")
    day = whole.partition("## A day with it\n")[2]
    ours: dict[str, str] = {}
    steps = list(commands(next(blocks(day)).text))
    assert len(steps) >= 6
    monkeypatch.chdir(tmp_path)
    for command, told in steps:
        args = shlex.split(PROOF.sub(lambda found: ours[found[0]], command))
        result = CliRunner().invoke(lodeq, args[1:])
        assert result.exit_code == 0, result.output
        given = PROOF.findall(result.output)
        ours.update(zip(PROOF.findall(told), given, strict=False))
        wanted = PROOF.sub(lambda found: ours[found[0]], told)
        wanted = re.sub(r"\d+\.\ds$", "…", wanted, flags=re.MULTILINE)  # an age
        assert not told or pattern(wanted).fullmatch(result.output), (command, result.output)
