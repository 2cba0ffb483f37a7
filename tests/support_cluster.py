"""A cluster on loopback: a standalone master and two workers, processes of their own."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from lodeq.pipeline.java import find_java, java_home

BOUND_S = 90


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[tuple[str, dict[str, str]]]:
    """The master's address, and the environment of whoever drives. Ends what it has begun."""
    environ = os.environ | {
        "JAVA_HOME": java_home(find_java(), folder),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_NO_DAEMONIZE": "1",
    }
    program = Path(environ["SPARK_HOME"], "bin", "spark-class")
    port = _free_port()
    address = f"spark://127.0.0.1:{port}"
    master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = ["--host", "127.0.0.1", "--cores", "1", "--memory", "512m", "--webui-port", "0"]
    with ExitStack() as stack:
        stack.enter_context(
            _process(
                [program, "org.apache.spark.deploy.master.Master", *master],
                environ,
                "I have been elected leader",
            )
        )
        for number in range(workers):
            own = ["--work-dir", str(folder / f"worker{number}"), address]
            stack.enter_context(
                _process(
                    [program, "org.apache.spark.deploy.worker.Worker", *worker, *own],
                    environ,
                    "Successfully registered with master",
                )
            )
        yield address, environ


@contextmanager
def _process(command: list, environ: dict[str, str], ready: str) -> Iterator[None]:
    """Started when it says so."""
    process = subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    said: list[str] = []
    is_ready = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if ready in line:
                is_ready.set()
        is_ready.set()  # it has ended

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        assert is_ready.wait(BOUND_S), "".join(said)
        assert process.poll() is None, "".join(said)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listener.join()
        if process.stdout is not None:
            process.stdout.close()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
