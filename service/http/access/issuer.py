"""JWTs of one issuer: signature, audience and time are checked, and its scopes become an access.

Each key of the set is for one algorithm, which follows from the key and never from the token: so a
token cannot ask for none, nor have a public key taken for a secret. PyJWT checks the signature,
issuer and audience; time is the engine's, so it is looked at here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from ....errors import UsageError
from .roles import ANY, PATTERN, ROLES, Access, Grant, Role

try:
    from msgspec import Meta, Struct
except ImportError as exc:
    raise UsageError('the HTTP service needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["Issuer", "JwtSettings"]

KEYS_MAX: Final = 64
SCOPES_MAX: Final = 256  # of one token; the rest is not looked at
RSA_BITS_MIN: Final = 2048
SECONDS_MAX: Final = 1 << 40  # of a time in a token
_SCOPE: Final = re.compile(
    rf"lodeq:({'|'.join(ROLES)})(?::({PATTERN})(?::((?:{PATTERN})?))?)?", re.ASCII
)
# The kind of a key and its curve, and the one algorithm that it is used with.
_ALGORITHMS: Final[Mapping[tuple[str, str], str]] = {
    ("RSA", ""): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}


class JwtSettings(Struct, forbid_unknown_fields=True, kw_only=True):
    """The ``[jwt]`` of a file of tokens."""

    issuer: Annotated[str, Meta(min_length=1, max_length=1024)]
    audience: Annotated[str, Meta(min_length=1, max_length=1024)]
    keys: Annotated[str, Meta(pattern=r"^[^\x00]+$")]  # a file; relative to that of the tokens
    scopes: Annotated[str, Meta(min_length=1, max_length=256)] = "scope"  # the claim that has them
    leeway: Annotated[float, Meta(ge=0, le=300)] = 30.0  # seconds that clocks may differ


class Issuer:
    """Checks the tokens of one issuer.

    Args:
        settings: of the file.
        keys: the JWKS document.
        where: what errors call it.

    Raises:
        UsageError: it holds no key that is used here, or the extra is missing.
    """

    def __init__(self, settings: JwtSettings, keys: bytes, where: str) -> None:
        self.settings = settings
        self._keys = _keys_of(keys, where)
        self._leeway_us = round(settings.leeway * 1e6)

    def access_of(self, token: bytes, now_us: int) -> Access | None:
        """The access that a token gives at this time; None: it is not good, or gives none."""
        claims = self._claims(token)
        if claims is None:
            return None
        until_us = _time_us(claims["exp"])
        from_us = _time_us(claims.get("nbf", 0))
        if until_us is None or from_us is None or now_us < from_us - self._leeway_us:
            return None
        until_us += self._leeway_us
        grants = _grants_of(claims.get(self.settings.scopes))
        if until_us <= now_us or not grants:
            return None
        return Access(f"jwt {claims['sub'][:200]}", grants, until_us)

    def _claims(self, token: bytes) -> Mapping[str, Any] | None:
        """The claims of a token with a good signature; None: it is none."""
        import jwt  # noqa: PLC0415 - an extra

        if token.count(b".") != 2:  # one of the file's, or nobody's
            return None
        try:
            header = jwt.get_unverified_header(token)
            if "crit" in header or "b64" in header:  # it asks for what is not done here
                return None
            algorithm, key = self._key_of(header.get("kid"))
            if header.get("alg") != algorithm:
                return None
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self.settings.audience,
                issuer=self.settings.issuer,
                options={
                    "require": ["exp", "iss", "aud", "sub"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
            claims["sub"].encode()  # text without half a surrogate pair, or it names nobody
        except (jwt.PyJWTError, KeyError, ValueError, TypeError, RecursionError, AttributeError):
            return None
        return claims

    def _key_of(self, kid: object) -> tuple[str, Any]:
        """The key that a token names, or the only one there is."""
        if kid is None and len(self._keys) == 1:
            (only,) = self._keys.values()
            return only
        return self._keys[kid]


def _time_us(given: object) -> int | None:
    """A time of a claim; None: it is none."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return round(given * 1e6) if 0 <= given <= SECONDS_MAX else None


def _grants_of(claim: object) -> list[Grant]:
    """The grants in the scopes of a token. Scopes of other services are passed over."""
    texts = claim.split() if isinstance(claim, str) else claim
    grants = []
    for text in texts[:SCOPES_MAX] if isinstance(texts, list) else ():
        found = _SCOPE.fullmatch(text) if isinstance(text, str) else None
        if found is not None:
            role, queue, tenant = found.groups()
            bits = ANY if ROLES[role] is Role.ADMIN else ROLES[role]
            queues = None if queue in (None, "*") else (queue,)
            grants.append(Grant(int(bits), queues, None if tenant is None else (tenant,)))
    return grants


def _keys_of(data: bytes, where: str) -> dict[object, tuple[str, Any]]:
    """The keys of a set, by their ids."""
    try:
        import jwt  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.asymmetric.rsa import (  # noqa: PLC0415 - an extra
            RSAPublicKey,
        )
    except ImportError as exc:
        raise UsageError('JWTs need an extra: pip install "lodeq[jwt]"') from exc
    try:
        given = json.loads(data)["keys"]
        if not isinstance(given, list) or not 0 < len(given) <= KEYS_MAX:
            raise UsageError(f"{where} has not 1 to {KEYS_MAX} keys")
        found: dict[object, tuple[str, Any]] = {}
        for one in given:
            algorithm = _ALGORITHMS.get((one["kty"], one.get("crv", "")))
            if algorithm is None or one.get("alg", algorithm) != algorithm or "d" in one:
                raise UsageError(
                    f"{where}: key {one.get('kid')!r:.80} is not a public one for RS256, ES256 or "
                    "EdDSA (Ed25519)"
                )
            key = jwt.PyJWK(one, algorithm).key
            if isinstance(key, RSAPublicKey) and key.key_size < RSA_BITS_MIN:
                raise UsageError(f"{where}: an RSA key has {RSA_BITS_MIN} bits or more")
            if one.get("kid") in found:
                raise UsageError(f"{where}: key {one.get('kid')!r:.80} is there twice")
            found[one.get("kid")] = algorithm, key
    except UsageError:
        raise
    except (jwt.PyJWTError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise UsageError(f"{where} is no key set (JWKS): {exc!r:.200}") from exc
    return found
