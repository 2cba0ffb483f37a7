"""The machine of limits of keys over rocksdict: reopened, killed, restored from a checkpoint."""

from model.keys import KeyModel
from model.stored import StoredModel


class StoredKeyModel(KeyModel, StoredModel):
    """Over a store in a temporary folder."""
