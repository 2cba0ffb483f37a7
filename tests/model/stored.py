"""The same machine over rocksdict, with the ends a process may come to.

``crash`` copies the folder as it is while the engine runs, which is what a killed process leaves
behind (the kernel has every byte that was written), and goes on with the copy.
"""

import shutil
import tempfile
from copy import deepcopy
from pathlib import Path

from hypothesis.stateful import precondition, rule
from model.machine import Model
from support_live import copy_live

import lodeq
from lodeq.repository.api.open import open_engine

SHM = Path("/dev/shm")


class StoredModel(Model):
    """Over a store in a temporary folder; in memory where there is such a file system."""

    def __init__(self):
        super().__init__()
        self.folder = Path(
            tempfile.mkdtemp(prefix="lodeq-model-", dir=SHM if SHM.is_dir() else None)
        )
        self.path = self.folder / "store0"
        self.saved = None  # (path, reference, ids, epochs) of a checkpoint

    def opening(self, options):
        return open_engine(self.path, block_cache_bytes=8 << 20, **options)

    def next_path(self, what):
        return self.folder / f"{what}{self.opens}-{self.n}-{len(list(self.folder.iterdir()))}"

    def teardown(self):
        try:
            super().teardown()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def forget_leases(self, *, is_closed=False):
        """Their engine is gone; so is whoever worked under them."""
        self.leases.clear()
        self.ref.reopen(is_closed=is_closed)
        self.run(self.open())
        self.touched |= set(self.ids)

    @rule()
    def reopen(self):
        self.run(self.engine.close())
        for lease, _, _ in self.leases[-1:]:
            assert self.run(self.engines(lease.complete()))[1] == "ClosedError"
        self.forget_leases(is_closed=True)

    @rule()
    def crash(self):
        image = self.next_path("image")
        copy_live(self.path, image, symlinks=True)
        image.chmod(0o700)
        self.run(self.engine.close())
        shutil.rmtree(self.path)
        self.path = image
        self.forget_leases()

    @rule()
    def checkpoint(self):
        path = self.next_path("checkpoint")
        self.run(self.engine.checkpoint(path))
        self.saved = path, deepcopy(self.ref), dict(self.ids), dict(self.epochs)

    @precondition(lambda self: self.saved)
    @rule()
    def restore(self):
        path, ref, ids, epochs = self.saved
        self.run(self.engine.close())
        shutil.rmtree(self.path)
        self.path = self.next_path("restored")
        lodeq.restore(path, self.path)
        ref = deepcopy(ref)
        ref.wall, ref.mono = self.ref.wall, self.ref.mono
        self.ref, self.ids, self.epochs = ref, dict(ids), dict(epochs)
        self.forget_leases()
