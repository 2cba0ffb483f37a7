"""A server of the link that means harm, or has bugs: calls of the blocking client end in time."""

import itertools
import socket
import threading

import pytest
from support_http import socket_path
from support_link import frame, pack

import lodeq
import lodeq.sync

WELCOME = frame(b"\x01" + pack([True, list(range(10))]))
FLOOD = frame(pack([[id, 0, b"x" * 100] for id in range(1000, 1100)]))
PARTS = frame(pack([[1, 1, b"x"]]))


class Server(threading.Thread):
    """Welcomes each client, and sends it ``answers``, whatever it asks."""

    def __init__(self, path, answers):
        super().__init__()
        self.answers = answers
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with client:
                try:
                    client.recv(4096)
                    client.sendall(WELCOME)
                    client.recv(4096)
                    for one in self.answers():
                        client.sendall(one)
                except OSError:
                    pass

    def __enter__(self):
        self.start()

    def __exit__(self, *error):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    "answers",
    [
        lambda: itertools.repeat(FLOOD),
        lambda: itertools.repeat(PARTS),
        lambda: [frame(pack([[1, 1, b"x"], [1, 0, None]]))],
        lambda: [frame(pack([[1, 0, 5]]))],
        lambda: [frame(pack([[1, 2, 5]]))],
        lambda: [frame(pack([[1, 3]]))],
        lambda: [frame(b"\x91" * 100_000)],
        lambda: [b"\x7f\xff\xff\xff"],
        lambda: [frame(pack([[0, 3, 0]]))],
        list,
    ],
    ids=[
        "flood",
        "endless answer",
        "a part that is none",
        "no document",
        "no problem",
        "short",
        "deep",
        "long",
        "goodbyes",
        "end",
    ],
)
def test_a_blocking_call_ends(answers):
    with socket_path() as path, Server(path, answers), pytest.raises(lodeq.LodeqError):
        lodeq.sync.connect(f"unix://{path}", timeout=0.3)
