"""The error of a simulated world in which a rule is broken."""


class RuleBrokenError(AssertionError):
    """A rule is broken."""
