"""The machine of workflows over rocksdict: reopened, killed, restored from a checkpoint."""

from hypothesis.stateful import precondition, rule
from model.flows import FlowModel
from model.stored import StoredModel


class StoredFlowModel(FlowModel, StoredModel):
    """Over a store in a temporary folder."""

    def __init__(self):
        super().__init__()
        self.saved_flows = []

    def forget_leases(self, *, is_closed=False):
        self.handles.clear()
        super().forget_leases(is_closed=is_closed)

    @rule()
    def checkpoint(self):
        super().checkpoint()
        self.saved_flows = [(flow, list(flow.slices)) for flow in self.flows]

    @precondition(lambda self: self.saved)
    @rule()
    def restore(self):
        super().restore()
        self.flows = [flow for flow, _ in self.saved_flows]
        for flow, slices in self.saved_flows:
            flow.slices = list(slices)
