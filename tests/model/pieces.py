"""One piece of the model test: so many examples of a seed."""

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from model.flows import FlowModel
from model.keys import KeyModel
from model.machine import Model
from model.stored import StoredModel
from model.stored_flows import StoredFlowModel
from model.stored_keys import StoredKeyModel

__all__ = ["MACHINES", "PIECE", "play"]

MACHINES = {
    "model-memory": Model,
    "model-rocksdict": StoredModel,
    "model-workflows": FlowModel,
    "model-workflows-rocksdict": StoredFlowModel,
    "model-keys": KeyModel,
    "model-keys-rocksdict": StoredKeyModel,
}
PIECE = 50


def play(machine, number, examples, steps, *, is_shrunk=False):
    """Run one piece; raises what it finds."""
    phases = [Phase.generate, Phase.shrink] if is_shrunk else [Phase.generate]
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
        print_blob=False,
    )

    @seed(number)
    class Piece(machine):
        pass

    run_state_machine_as_test(Piece, settings=options)
