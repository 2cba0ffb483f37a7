"""The threads of stores: their end at exit, and what is asked for behind it."""

import threading
from queue import SimpleQueue

from lodeq.engine.store.io_thread import start_thread


def test_what_was_asked_for_behind_the_end_is_done():
    jobs, may_end, done = SimpleQueue(), threading.Event(), []
    jobs.put((lambda: may_end.wait(30), done.append))
    thread = start_thread("lodeq-test", jobs)
    jobs.put(None)
    jobs.put((lambda: None, done.append))
    may_end.set()
    thread.join(30)
    assert not thread.is_alive()
    assert done == [None, None]
