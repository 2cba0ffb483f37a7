"""Releases of etcd and what they are good for."""

import pytest

from lodeq.replication.etcd.version import Fitness, fitness_of


@pytest.mark.parametrize(
    ("version", "fitness"),
    [
        ("3.3.27", Fitness.TRIAL),
        ("3.4.23", Fitness.TRIAL),
        ("3.4.31", Fitness.TRIAL),
        ("3.4.32", Fitness.FIT),
        ("3.4.40", Fitness.FIT),
        ("3.5.0", Fitness.CORRUPTS),
        ("3.5.1", Fitness.CORRUPTS),
        ("3.5.2", Fitness.CORRUPTS),
        ("3.5.0-rc.1", Fitness.CORRUPTS),
        ("3.5.3", Fitness.TRIAL),
        ("3.5.13", Fitness.TRIAL),
        ("3.5.14", Fitness.FIT),
        ("3.6.0", Fitness.FIT),
        ("4.0.0", Fitness.FIT),
        ("", Fitness.TRIAL),
        ("new", Fitness.TRIAL),
    ],
)
def test_each_release(version, fitness):
    assert fitness_of(version) is fitness
