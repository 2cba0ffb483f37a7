"""A blocking client in a forked child: it and its parent go on, each on a connection of its own."""

import subprocess
import sys

import pytest
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

CLAIMS = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import lodeq
engine, other = lodeq.sync.connect(sys.argv[1]), lodeq.sync.connect(sys.argv[1])
mail = engine.queue("mail")
with ThreadPoolExecutor(1) as threads:
    claiming = threads.submit(mail.claim, wait=60)
    while not engine._claims._ids:
        pass
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.read(reader, 1)
        engine.close()
        os._exit(0)
    other.queue("mail").enqueue("x")
    (lease,) = claiming.result()
    os.write(writer, b"x")
    assert os.waitpid(child, 0)[1] == 0
    lease.heartbeat()
    lease.complete()
print("held")
"""


@pytest.mark.parametrize(
    ("script", "told"),
    [(SENDS, "before child child parent parent"), (CLAIMS, "held")],
    ids=["both send", "the child closes it while the parent claims"],
)
def test_a_client_goes_on_in_a_forked_child_and_in_its_parent(tmp_path, script, told):
    with socket_path() as path, processes(tmp_path, f"unix://{path}") as crew:
        server = crew.start("server", "serve", tmp_path / "store", "--uds", path)
        assert "serving" in server.line()
        ran = subprocess.run(
            [sys.executable, "-c", script, crew.store],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ran.stdout.strip(), ran.returncode) == (told, 0), ran.stderr
