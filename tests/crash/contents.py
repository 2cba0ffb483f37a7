"""What is in a store; at home in ``lodeq.testing``."""

from lodeq.testing import at_rest, contents

__all__ = ["at_rest", "contents"]
