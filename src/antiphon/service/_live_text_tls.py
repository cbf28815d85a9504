"""The TLS endpoint at which a host serves live text deltas (*words*) to other machines.

All hosts and watchers of a ledger share a token. The address of the endpoint is in the host's row of the ledger. The token is
not, because a database is copied, exported and backed up: it comes from the environment, like the certificate of a host and
the certificate authority that watchers trust.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Final

from antiphon.errors import SetupError

TOKEN_VARIABLE: Final = "ANTIPHON_WORDS_TOKEN"  # noqa: S105 (its name)
CERTIFICATE_VARIABLE: Final = "ANTIPHON_WORDS_CERTIFICATE"
KEY_VARIABLE: Final = "ANTIPHON_WORDS_KEY"
CA_VARIABLE: Final = "ANTIPHON_WORDS_CA"
_LAST_PORT: Final = 65535
_SHORTEST: Final = 16
_CONNECT_SECONDS: Final = 5.0
_ANYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 (compared, not bound)


@dataclass(frozen=True, slots=True)
class TlsEndpoint:
    """Where a host listens for watchers on other machines."""

    host: str
    port: int
    token: str
    context: ssl.SSLContext

    @classmethod
    def at(cls, address: str) -> TlsEndpoint:
        """Return the endpoint at `HOST:PORT`, with the token and the certificate that the environment names.

        Raises:
            SetupError: the address is wrong, or the token or the certificate is missing or cannot be used.
        """
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or not 0 < int(port) <= _LAST_PORT:
            raise SetupError(f"--words takes HOST:PORT, such as 10.0.0.5:7801, not {address!r}")
        token = words_token()
        if token is None:
            raise SetupError(
                f"--words needs a token: set {TOKEN_VARIABLE} to a secret of at least {_SHORTEST} characters, "
                "the same for all hosts and servers of the ledger"
            )
        certificate, key = os.environ.get(CERTIFICATE_VARIABLE), os.environ.get(KEY_VARIABLE)
        if not certificate or not key:
            raise SetupError(f"--words needs TLS: set {CERTIFICATE_VARIABLE} and {KEY_VARIABLE} to PEM files")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as exc:
            raise SetupError(f"{certificate} and {key} are not a certificate and its key ({exc})") from exc
        return cls(host.strip("[]"), int(port), token, context)

    @property
    def advertised(self) -> str:
        """The address for watchers: `host:port`, with the name of the machine if it listens on all addresses."""
        return f"{socket.gethostname() if self.host in _ANYWHERE else self.host}:{self.port}"


def words_token() -> str | None:
    """Return the token that hosts and watchers share; None if the environment has none.

    Raises:
        SetupError: it is too short.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token and len(token) < _SHORTEST:
        raise SetupError(f"{TOKEN_VARIABLE} has fewer than {_SHORTEST} characters; use a longer secret")
    return token or None


async def connect_tls(address: str, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the endpoint of a host on another machine, and verify its certificate.

    Raises:
        OSError: it cannot be reached, or its certificate cannot be verified.
        TimeoutError: it does not answer.
    """
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=os.environ.get(CA_VARIABLE) or None)
    async with asyncio.timeout(_CONNECT_SECONDS):
        return await asyncio.open_connection(host, int(port), ssl=context, limit=limit)
