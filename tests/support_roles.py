"""A file of tokens for tests: each token is its name with a tail, so that it is long enough."""

import os
from hashlib import sha256

__all__ = ["TAIL", "entry", "token_of", "write_tokens"]

TAIL = "-token-of-a-test"


def token_of(name):
    return f"{name}{TAIL}"


def entry(name, *roles, **limits):
    """A ``[[token]]``."""
    lines = ["[[token]]", f'name = "{name}"']
    lines.append(f'sha256 = "{sha256(token_of(name).encode()).hexdigest()}"')
    lines.append(f"roles = {list(roles)}")
    lines += [f"{limit} = {list(given)}" for limit, given in limits.items()]
    return "\n".join([*lines, ""])


def write_tokens(path, *entries, mode=0o600):
    """Write the file, or put another in its place."""
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(entries))
    fresh.chmod(mode)
    os.replace(fresh, path)
    return path
