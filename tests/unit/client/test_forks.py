"""A blocking client in a forked child: it and its parent go on, each on a connection of its own."""

import subprocess
import sys

from support_http import socket_path
from support_worker import processes

SENDS = """
import os, sys
import lodeq
engine = lodeq.sync.connect(sys.argv[1])
mail = engine.queue("mail")
mail.enqueue("before")
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
for _ in range(2):
    mail.enqueue("parent" if child else "child")
if not child:
    os._exit(0)
print(*sorted(task.payload for task in mail.peek(limit=9)))
"""


def test_a_client_goes_on_in_a_forked_child_and_in_its_parent(tmp_path):
    with socket_path() as path, processes(tmp_path, f"unix://{path}") as crew:
        server = crew.start("server", "serve", tmp_path / "store", "--uds", path)
        assert "serving" in server.line()
        ran = subprocess.run(
            [sys.executable, "-c", SENDS, crew.store],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.split() == ["before", "child", "child", "parent", "parent"]
