"""Commands whose streams are not what they should be: closed, full, slow, no UTF-8, no JSON."""

import base64
import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from support_cli import RUN, SCRIPT, awaits_input, first, make, objects, process, run

from lodeq.service.cli.values import INPUT_BYTES_MAX

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "s")


def shell(line, store, code=0):
    """A line of a shell, in which ``lodeq`` and ``$S`` stand for what they should."""
    whole = f'lodeq() {{ "{sys.executable}" -c "{SCRIPT}" "$@"; }}; {line}'
    done = subprocess.run(
        ["bash", "-c", whole],
        env={**os.environ, "S": str(store)},
        text=True,
        timeout=60,
        capture_output=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def ready(store):
    return first("ls", store)["ready"]


class TestLines:
    def test_what_is_before_a_bad_line_is_in(self, store):
        many = "".join(f"{n}\n" for n in range(1500))
        result = run(
            "enqueue", store, "q", "--lines", "--parse", stdin=f"{many}not json\n1\n", code=1
        )
        assert result.stderr.startswith("error: line 1501: the payload is not JSON")
        assert result.stderr.endswith("; 1,500 tasks were enqueued\n")
        assert len(result.stdout.splitlines()) == ready(store) == 1500

    def test_a_bad_first_line_is_not_done(self, store):
        result = run("enqueue", store, "q", "--lines", "--parse", stdin=b"\xff\n1\n", code=2)
        assert "line 1: the payload is not JSON" in result.stderr
        assert objects("ls", store) == []

    def test_a_line_that_is_too_large(self, store):
        lines = b"a\n\n" + b"x" * (INPUT_BYTES_MAX + 1) + b"\nb\n"
        result = run("enqueue", store, "q", "--lines", stdin=lines, code=1)
        assert result.stderr.startswith("error: line 3: more than ")
        assert "; 1 tasks were enqueued" in result.stderr
        assert ready(store) == 1

    def test_a_line_above_three_mib(self, store):
        run("enqueue", store, "q", "--lines", stdin=b"a\n" + b"x" * (4 << 20) + b"\nb\n")
        assert ready(store) == 3

    def test_a_line_is_in_before_the_next_one_comes(self, store):
        with process(
            *RUN,
            "enqueue",
            store,
            "q",
            "--lines",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for text in (b"a", b"b"):
                child.stdin.write(text + b"\n")
                child.stdin.flush()
                assert len(child.stdout.readline()) == 37
            assert ready(store) == 2
            child.stdin.close()
            assert child.stdout.read() == b""
        assert child.returncode == 0

    def test_an_interrupt_ends_it_while_nothing_comes(self, store):
        with process(
            *RUN,
            "enqueue",
            store,
            "q",
            "--lines",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stderr is not None
            child.stdin.write(b"a\n")
            child.stdin.flush()
            child.stdout.readline()
            child.send_signal(signal.SIGINT)
            assert child.wait(30) == 130
            assert child.stderr.read() == b""


class TestBytes:
    def test_an_argument_is_kept_as_it_was_typed(self, store):
        shell("lodeq enqueue \"$S\" q $'\\xff\\xfe'", store)
        assert base64.b64decode(first("peek", store, "q")["payload_base64"]) == b"\xff\xfe"

    def test_what_has_to_be_text_is_refused(self, store):
        for option in ("--header a=", "--dedup-key ", "--tenant "):
            shell(f"lodeq enqueue \"$S\" q x {option}$'\\xff'", store, code=2)

    def test_a_payload_that_is_nested_too_deep(self, store):
        assert "not JSON" in run("enqueue", store, "q", "[" * 100_000, "--parse", code=2).stderr


class TestClosed:
    def test_stdin(self, store):
        for line in ("enqueue $S q", "enqueue $S q --lines", "purge $S q"):
            assert shell(f"lodeq {line} <&-", store, code=2).stderr.count("\n") == 1
        assert objects("ls", store) == []

    def test_all(self, store):
        shell("lodeq enqueue $S q x >&- 2>&- <&-", store)
        assert ready(store) == 1
        run("verify", store)


class TestFull:
    def test_a_task_that_is_in_is_told(self, store):
        done = shell("lodeq enqueue $S q x --json >/dev/full", store, code=1)
        assert "the task was enqueued" in done.stderr
        assert first("peek", store, "q")["id"] in done.stderr

    def test_lines(self, store):
        done = shell("seq 3 | lodeq enqueue $S q --lines >/dev/full", store, code=1)
        assert "3 tasks were enqueued" in done.stderr

    def test_what_was_done_is_not_called_undone(self, store):
        run("enqueue", store, "q", "x")  # of an empty queue, a note says so
        for option in ("", "--json"):
            done = shell(f"lodeq pause $S q {option} >/dev/full", store, code=1)
            assert done.stderr == (
                "error: stdout cannot be written, so the result is not shown: "
                "No space left on device\n"
            )

    def test_leases_that_nobody_saw_are_released(self, store):
        run("enqueue", store, "q", "--lines", stdin="a\nb\n")
        done = shell("lodeq claim $S q --limit 2 >/dev/full", store, code=1)
        assert done.stderr == "2 of 2 leases could not be printed and are released\n"
        assert [task["attempts"] for task in objects("ls", store, "q")] == [0, 0]
        assert ready(store) == 2

    def test_those_that_were_seen_are_kept(self, store):
        run("enqueue", store, "q", "--lines", stdin="".join(f"{n}\n" for n in range(2000)))
        line = 'lodeq claim $S q --limit 2000 --json | { read -r one; echo "$one"; exec <&-; }'
        done = shell(f"{line}; exit ${{PIPESTATUS[0]}}", store, code=141)
        lease = json.loads(done.stdout)["lease"]
        assert "are released" in done.stderr
        assert first("ls", store)["leased"] < 2000
        run("complete", store, lease)


class TestTop:
    def test_each_look_is_printed_whole(self, store):
        name = "a-queue-with-a-name-that-alone-would-nearly-fill-a-terminal"
        run("enqueue", store, name, "x", "--tenant", "a-tenant-with-a-name-as-long")
        out = run("top", store, "--count", 2, "--interval", "50ms").stdout
        assert out.count(name) == out.count("a-tenant-with-a-name-as-long") == 2
        assert out.count("lodeq top") == 2

    def test_a_look_is_there_before_the_next(self, store):
        with process(
            *RUN,
            "top",
            store,
            "--interval",
            "1h",
            "--json",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            told = json.loads(child.stdout.readline())
            assert (told["served"], told["queues"]) == (False, [])
            child.send_signal(signal.SIGINT)
            assert child.wait(30) == 0
            assert child.stderr.read() == b""

    def test_json_is_a_line_a_look(self, store):
        run("enqueue", store, "q", "x")
        found = objects("top", store, "--count", 2, "--interval", "50ms")
        assert [one["queues"][0]["ready"] for one in found] == [1, 1]


class TestTerm:
    def test_bench_cleans_up(self, tmp_path):
        with process(*RUN, "bench", tmp_path, "--seconds", "60", stderr=subprocess.PIPE) as child:
            while not list(tmp_path.glob("lodeq-bench-*/store/shard0/CURRENT")):
                assert child.poll() is None
            child.terminate()
            assert child.wait(30) == -signal.SIGTERM
            assert child.stderr is not None
            assert child.stderr.read() == b""
        assert list(tmp_path.iterdir()) == []

    def test_also_where_interrupts_are_ignored(self, tmp_path):
        ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {SCRIPT}"
        with process(sys.executable, "-c", ignoring, "bench", tmp_path, "--seconds", "60") as child:
            while not list(tmp_path.glob("lodeq-bench-*/store/shard0/CURRENT")):
                assert child.poll() is None
            child.terminate()
            assert child.wait(30) == -signal.SIGTERM
        assert list(tmp_path.iterdir()) == []


def test_an_interrupt_of_the_start_is_quiet():
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'lodeq.service.cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
    ) + SCRIPT.replace("; ", "\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


class TestAsking:
    """On a terminal, with nobody who says yes or no."""

    def asked(self, store, answer):
        run("enqueue", store, "q", "x")
        terminal, stdin = pty.openpty()
        try:
            with process(
                *RUN,
                "purge",
                store,
                "q",
                stdin=stdin,
                stderr=subprocess.PIPE,
                bufsize=0,
            ) as child:
                assert child.stderr is not None
                told = b""
                while not told.endswith(b"[y/N]: "):
                    told += child.stderr.read(1)
                    assert child.poll() is None, told
                awaits_input(child)
                answer(child, terminal)
                told = child.stderr.read()
            assert ready(store) == 1
            return child.returncode, told.decode().strip()
        finally:
            os.close(terminal)
            os.close(stdin)

    def test_an_interrupt(self, store):
        def answer(child, terminal):
            child.send_signal(signal.SIGINT)

        assert self.asked(store, answer) == (130, "")

    def test_the_end_of_input(self, store):
        def answer(child, terminal):
            os.write(terminal, b"\x04")

        assert self.asked(store, answer) == (2, "error: nothing was done")
