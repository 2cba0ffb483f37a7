"""``lodeq serve --replicate`` and ``lodeq cluster status`` on a real etcd."""

import json
import os
import re

import pytest
from click.testing import CliRunner
from support_cli import RUN, process, run
from support_etcd import shared_servers

from lodeq.service.cli.app import lodeq

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url():
    return shared_servers().url("clinodes")


@pytest.fixture(scope="module")
def node(url, tmp_path_factory):
    """A node of three shards, the first of its cluster; its address."""
    folder = tmp_path_factory.mktemp("n")
    args = ("serve", folder / "n1", "--replicate", url, "--node", "n1", "--shards", 3)
    with process(*RUN, *args, stdout=-1) as child:
        for line in child.stdout:
            if line.startswith(b"serving "):
                break
        yield f"unix://{folder}/n1.sock"
        child.terminate()
        assert child.wait(20) == 0


def test_a_cluster_that_there_is_not(url):
    told = run("cluster", "status", url.replace("clinodes", "nothere"), code=2).output
    assert "there is no cluster 'nothere' in this etcd: its first node makes it" in told


def test_the_log_and_the_node_say_the_same(url, node):
    for _ in range(100):  # each look takes some round trips
        if CliRunner().invoke(lodeq, ["cluster", "status", url]).exit_code == 0:
            break
    told = run("cluster", "status", url).output
    assert "cluster clinodes: 3 shards" in told
    assert re.search(r"^node n1 +lodeq .*n1\.sock$", told, re.MULTILINE)
    assert told.count("led by n1") == 3
    document = json.loads(run("cluster", "status", url, "--json").output)
    assert [one["leader"] for one in document["shards"]] == ["n1"] * 3
    seen = json.loads(run("cluster", "status", node, "--json").output)
    assert [one["leader"] for one in seen["shards"]] == ["n1"] * 3


def test_another_number_of_shards_is_refused_and_nothing_is_made(url, node, tmp_path):
    args = ("serve", tmp_path / "n2", "--replicate", url, "--node", "n2", "--shards", 2)
    told = run(*args, code=2).output
    assert "has 3 shards, not 2: leave out --shards" in told
    assert os.listdir(tmp_path) == []


def test_a_second_node_has_the_clusters_number_of_shards(url, node, tmp_path):
    args = ("serve", tmp_path / "n2", "--replicate", url, "--node", "n2")
    with process(*RUN, *args, stdout=-1) as child:
        for line in child.stdout:
            if line.startswith(b"serving "):
                break
        # Whether it has a session yet, and so its exit code, is another matter.
        words = ["cluster", "status", f"unix://{tmp_path}/n2.sock", "--json"]
        assert len(json.loads(CliRunner().invoke(lodeq, words).stdout)["shards"]) == 3
        child.terminate()
        assert child.wait(20) == 0
