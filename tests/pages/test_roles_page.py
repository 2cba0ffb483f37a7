"""docs/roles.md: its table of operations is what they declare, its file of tokens is one."""

import re
import tomllib
from pathlib import Path

from lodeq.service.http.access.roles import ROLES, scopes_text
from lodeq.service.http.access.tokens_file import TokensFile
from lodeq.service.http.app import OPERATIONS
from lodeq.service.http.named_queues import WHOLE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "roles.md").read_text()


def test_the_table_is_what_operations_declare():
    said = {}
    for line in PAGE.partition("## Each operation")[2].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 2 and "`operationId`" not in line:
            for name, star in re.findall(r"`([a-z_]+)`(\*?)", cells[1]):
                assert name not in said, name
                said[name] = cells[0].removesuffix(" role"), bool(star)
    assert said == {one.name: (scopes_text(one.needs), one.names is WHOLE) for one in OPERATIONS}


def test_the_example_is_a_file_of_tokens(tmp_path):
    text = re.search(r"```toml\n(\[\[token\]\].*?)```", PAGE, re.DOTALL)[1]
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(0o600)
    assert len(TokensFile(path)._now.known) == len(tomllib.loads(text)["token"]) == 2


def test_every_role_has_its_line():
    lines = PAGE.partition("## Roles")[2].partition("## ")[0]
    assert re.findall(r"^\| `([a-z]+)` \| ", lines, re.MULTILINE) == [*ROLES]
