"""The examples do what they say, as their reader would run them."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from support_http import serving, socket_path
from support_loop import on_loop

import lodeq.testing

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
BIN = Path(sys.executable).parent
NAMED_ELSEWHERE = {
    "demo": "crash/test_demo.py",
    "demo_spark": "pipeline/test_main_run.py",
    "newsletter": "service/worker/test_example.py",
}


def run(name: str, *args: object) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_tenants(tmp_path):
    told, ready, counts = run("tenants", tmp_path / "store").splitlines()
    assert "pending_max is 1000" in told
    assert ready.startswith("hooli-0.pdf was ready after ")
    assert counts == "{'globex': 300, 'hooli': 1, 'initech': 30}"


@pytest.mark.slow
def test_processes():
    assert run("processes") == "150 numbers, each done by one of two workers\n"


@pytest.mark.slow
def test_a_script_goes_on_where_it_was(tmp_path):
    folder, store = tmp_path / "files", tmp_path / "store"
    folder.mkdir()
    for n in range(5):
        (folder / f"{n}").write_text(str(n))
    assert run("script", folder, store) == "5 files, 5 of them new: 5 read, 0 unreadable\n"
    (folder / "5").write_text("5")
    assert run("script", folder, store) == "6 files, 1 of them new: 1 read, 0 unreadable\n"


@pytest.mark.slow
def test_webservice(tmp_path):
    with socket_path() as path:
        server = subprocess.Popen(
            [BIN / "uvicorn", "webservice:web", "--uds", str(path)],
            cwd=EXAMPLES,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "TEXTS_STORE": str(tmp_path / "store"), "PYTHONWARNINGS": "error"},
        )
        try:
            assert server.stderr is not None
            log = ""
            while "running on" not in log:
                line = server.stderr.readline()
                assert line, log
                log += line
            transport = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(transport=transport, base_url="http://web", timeout=60) as web:
                sent = web.post("/texts?name=a", content=b"to be or not to be")
                assert (sent.status_code, sent.json()["duplicate"]) == (202, False)
                found = web.get(f"/texts/{sent.json()['task']}?wait=30").json()
                assert found["value"] == {
                    "name": "a",
                    "words": 6,
                    "most": [["to", 2], ["be", 2], ["or", 1]],
                }
                assert web.post("/texts?name=a", content=b"again").json()["duplicate"]
                bad = web.post("/texts?name=b", content=b"\xff").json()["task"]
                assert web.get(f"/texts/{bad}?wait=30").json()["status"] == "dead"
                assert web.get("/texts/nothing").status_code == 422
                unknown = web.get(f"/texts/{lodeq.TaskId(bytes(16))}")
                assert (unknown.status_code, unknown.json()["detail"]) == (404, "no such text")
                assert web.get("/health").json() == {"ok": True}
        finally:
            server.terminate()
            _, rest = server.communicate(timeout=60)
        assert "Traceback" not in log + rest


@pytest.fixture
def webservice(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "webservice", raising=False)
    import webservice

    yield webservice
    sys.modules.pop("webservice")


@on_loop
async def test_the_webservice_asks_to_come_again_while_its_server_is_down(webservice):
    with socket_path() as path:
        async with lodeq.testing.open() as engine, serving(engine, path=path) as url:
            remote = await lodeq.connect(url)
        web = httpx.AsyncClient(
            transport=httpx.ASGITransport(webservice.web), base_url="http://web"
        )
        async with remote, webservice.jobs.use(remote), web:
            answers = [
                await web.post("/texts?name=a", content=b"to be"),
                await web.get(f"/texts/{lodeq.TaskId(bytes(16))}"),
                await web.get("/health"),
            ]
            assert [one.status_code for one in answers] == [503] * 3, answers
            assert [one.headers["retry-after"] for one in answers] == ["1"] * 3

            async def lost(*arguments, **options):
                raise lodeq.CommitUnknownError("the answer was lost")

            webservice.count_words.options = lambda **options: SimpleNamespace(enqueue=lost)
            unknown = await web.post("/texts?name=a", content=b"to be")
            assert (unknown.status_code, unknown.headers["retry-after"]) == (503, "1")


class TestNightly:
    @pytest.fixture
    def nightly(self, tmp_path, monkeypatch):
        monkeypatch.setenv("NIGHTLY_FOLDER", str(tmp_path))
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.delitem(sys.modules, "nightly", raising=False)
        import nightly

        yield nightly
        sys.modules.pop("nightly")

    @pytest.mark.slow
    @pytest.mark.anyio
    async def test_a_day(self, nightly, tmp_path, capsys):
        for n in range(5):
            (tmp_path / f"{n}.log").touch()
            os.utime(tmp_path / f"{n}.log", (n, n))
        async with lodeq.testing.worker(nightly.app) as bench:
            await nightly.app.drain()
            assert len(list(tmp_path.iterdir())) == 5
            for _ in range(4 * 7):
                bench.clock.advance(6 * 3600)
                await nightly.app.drain()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["2.log", "3.log", "4.log"]
        assert "nothing is left undone" in capsys.readouterr().out

    @pytest.mark.slow
    def test_the_process(self, tmp_path):
        worker = subprocess.Popen(
            [BIN / "lodeq", "worker", "nightly:app"],
            cwd=EXAMPLES,
            text=True,
            stderr=subprocess.PIPE,
            env={**os.environ, "NIGHTLY_STORE": str(tmp_path / "store")},
        )
        try:
            assert worker.stderr is not None
            log = ""
            while "opened" not in log:
                line = worker.stderr.readline()
                assert line, log
                log += line
        finally:
            worker.terminate()
            _, rest = worker.communicate(timeout=60)
        assert worker.returncode == 0, log + rest


def test_every_example_has_a_test():
    tests = Path(__file__).read_text("utf-8")
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert {name for name in found if name not in NAMED_ELSEWHERE and name not in tests} == set()
    for name, where in NAMED_ELSEWHERE.items():
        assert name in found
        assert name in (EXAMPLES.parent / "tests" / where).read_text("utf-8")
