"""``lodeq worker``: what it refuses. What it does is in test_deploy.py."""

import sys

import pytest
from click.testing import CliRunner

from lodeq import UsageError
from lodeq.service.cli.app import lodeq
from lodeq.service.cli.commands.worker import load_app
from lodeq.worker import App


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_app.py").write_text(
        "from lodeq.worker import App\nclass Box: app = App()\nempty = App('store')\nnumber = 5\n"
    )
    (tmp_path / "my_broken.py").write_text("import no_such_thing\n")
    yield tmp_path
    for name in ("my_app", "my_broken"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("my_app", "package.module:app"),
        (":app", "package.module:app"),
        ("nowhere_to_be:app", "no module"),
        ("my_app:nothing", "NoneType"),
        ("my_app:number", "int"),
        ("my_app:empty", "no task functions"),
        ("my_app:Box.app", "this app has no store"),
    ],
)
def test_it_says_what_is_wrong(here, target, told):
    result = CliRunner().invoke(lodeq, ["worker", target])
    assert result.exit_code == 2
    assert told in result.stderr
    assert "Traceback" not in result.output


def test_an_app_is_found_where_it_says(here):
    assert isinstance(load_app("my_app:Box.app"), App)
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        load_app("my_broken:app")
    with pytest.raises(UsageError):
        load_app("my_app.sub:app")
