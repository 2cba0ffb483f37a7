"""``lodeq worker``: what it refuses. What it does is in test_deploy.py."""

import logging
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support_behaviour import StillClock, in_memory, until

import lodeq as lodeq_api
from lodeq import UsageError
from lodeq.service.cli.app import lodeq
from lodeq.service.cli.commands.worker import load_app
from lodeq.service.cli.reload import Sources
from lodeq.worker import App


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_app.py").write_text(
        "from lodeq.worker import App\nclass Box: app = App()\nempty = App('store')\nnumber = 5\n"
    )
    (tmp_path / "my_broken.py").write_text("import no_such_thing\n")
    (tmp_path / "my_script.py").write_text("import sys\nsys.exit()\n")
    (tmp_path / "my_lazy.py").write_text("def __getattr__(name):\n    raise KeyError(name)\n")
    yield tmp_path
    for name in ("my_app", "my_broken", "my_script", "my_lazy"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("my_app", "package.module:app"),
        (":app", "package.module:app"),
        ("nowhere_to_be:app", "no module"),
        ("my_app:nothing", "my_app has no 'nothing': the app there is my_app:empty"),
        ("my_app:Box.none", "my_app.Box has no 'none': the app there is my_app.Box:app"),
        ("my_broken:app", "my_broken cannot be imported: ModuleNotFoundError: No module named"),
        ("my_app:number", "int"),
        ("my_app:number.app", "my_app.number has no 'app', and no lodeq.worker.App at all"),
        ("my_script:app", "my_script cannot be imported: SystemExit"),
        ("my_lazy:app", "my_lazy.app cannot be imported: KeyError: 'app'"),
        ("my_app:empty", "no task functions"),
        ("my_app:Box.app", "this app has no store"),
    ],
)
def test_it_says_what_is_wrong(here, target, told):
    result = CliRunner().invoke(lodeq, ["worker", target])
    assert result.exit_code == 2
    assert told in result.stderr
    assert "Traceback" not in result.output


def test_it_asks_for_the_files_that_it_may_have(here, monkeypatch):
    asked = []
    monkeypatch.setattr("lodeq.service.cli.commands.worker.allow_files", lambda: asked.append(True))
    CliRunner().invoke(lodeq, ["worker", "my_app:empty"])
    assert asked == [True]


def test_a_worker_takes_the_token_that_commands_take(here, monkeypatch):
    own = App("unix://x", token="its own")
    for app, token in ((App("unix://x"), "given"), (own, "its own"), (App("x"), None)):
        app.use_token("given")
        assert app._open_options.get("token") == token
    (here / "my_work.py").write_text(
        "from lodeq.worker import App\napp = App()\n@app.task('mail')\nasync def f(): ...\n"
    )
    serve = lodeq_api.Serve(token="right-token-of-16")
    with lodeq_api.sync.open("store", serve=serve):
        for token, told in (("", "give the server's token"), ("wrong", "is not the server's")):
            monkeypatch.setenv("LODEQ_TOKEN", token)
            command = ["worker", "my_work:app", "--store", "unix://store.sock"]
            result = CliRunner().invoke(lodeq, command)
            assert result.exit_code == 2
            assert told in result.stderr
            assert "takes it from LODEQ_TOKEN" in result.stderr


def test_an_app_is_found_where_it_says(here):
    assert isinstance(load_app("my_app:Box.app"), App)
    with pytest.raises(UsageError, match=r"no_such_thing.*my_broken\.py, line 1"):
        load_app("my_broken:app")
    with pytest.raises(UsageError):
        load_app("my_app.sub:app")


def test_the_banner_names_queues_functions_and_cron():
    app = App()

    @app.task("mail", rate="3/s")
    async def send(): ...

    @app.task("mail")
    async def audit(): ...

    @app.batch("index", size=50)
    async def index(items): ...

    @app.cron("0 4 * * *", tz="Europe/Berlin")
    async def sweep(): ...

    assert app.banner() == [
        "queue 'cron', 16 at once: sweep",
        "queue 'index', 16 at once: index (batches of 50)",
        "queue 'mail', 16 at once, 3/s: audit, send",
        "cron 'sweep': 0 4 * * * Europe/Berlin",
    ]
    assert app.banner(["mail", "unknown"])[0].startswith("queue 'mail'")


@pytest.mark.anyio
async def test_verbose_shows_the_end_of_each_run(caplog):
    app = App()

    @app.task("mail")
    async def send(): ...

    for level, shown in ((logging.INFO, 0), (logging.DEBUG, 1)):
        caplog.clear()
        with caplog.at_level(level, "lodeq.worker"):
            async with in_memory(StillClock()) as engine, app.use(engine), app.work() as worker:
                await send.enqueue()
                await until(lambda: worker.outcomes["completed"])
        ends = [r.getMessage() for r in caplog.records if r.event == "run_ended"]
        assert len(ends) == shown
    assert "('send', attempt 1): completed in 0.000 s" in ends[0]


def test_sources_that_change_are_seen(tmp_path):
    for name in ("a.py", "b.txt", ".hidden/c.py", "venv/d.py", "sub/e.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    sources = Sources(tmp_path)
    assert sources.changed() is None
    for name in ("b.txt", ".hidden/c.py", "venv/d.py"):
        (tmp_path / name).write_text("longer")
        assert sources.changed() is None
    (tmp_path / "sub" / "e.py").write_text("longer")
    assert sources.changed() == str(tmp_path / "sub" / "e.py")
    assert sources.changed() is None
    (tmp_path / "a.py").unlink()
    assert sources.changed() == str(tmp_path / "a.py")
    (tmp_path / "new.py").write_text("")
    assert sources.changed() == str(tmp_path / "new.py")


PAGE = """
from lodeq.worker import App
app = App("jobs")

@app.task("mail")
async def {name}() -> None: ...
"""


@pytest.mark.slow
def test_reload_starts_again_when_a_source_changes(tmp_path):
    page = tmp_path / "my_page.py"
    page.write_text(PAGE.format(name="send"))
    main = "from lodeq.service.cli.entry import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", main, "worker", "my_page:app", "--reload"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )

    def until_line(text):
        for line in child.stderr:
            if text in line:
                return
        raise AssertionError(f"no line with {text!r}")

    try:
        until_line("16 at once: send")
        page.write_text(PAGE.format(name="send_more"))
        until_line("my_page.py has changed")
        until_line("16 at once: send_more")
        page.write_text("this is no Python")
        until_line("the worker ended with status")
        page.write_text(PAGE.format(name="again"))
        until_line("16 at once: again")
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        child.stderr.close()
