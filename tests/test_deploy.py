"""The files in `deploy/`: valid by the schemas of Compose and Kubernetes, and their probes say whether a host has a lease."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from antiphon import open_ledger
from antiphon.ledger import Host

DEPLOY = Path(__file__).parent.parent / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "antiphon.yaml").read_text()))
SCHEMA = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor" / "compose-spec.json"


def test_the_compose_file_is_valid() -> None:
    schema = jsonschema_rs.validator_for(json.loads(SCHEMA.read_text()))
    assert list(schema.iter_errors(COMPOSE)) == []
    wrong = {**COMPOSE, "services": {**COMPOSE["services"], "host": {**COMPOSE["services"]["host"], "stop_grace": "60s"}}}
    assert list(schema.iter_errors(wrong)) != []  # it would notice


@pytest.mark.slow
def test_the_manifests_are_valid() -> None:
    version = kubernetes_validate.latest_version()
    for each in KUBERNETES:
        kubernetes_validate.validate(each, version, strict=True)
    wrong = {**KUBERNETES[0], "spec": {**KUBERNETES[0]["spec"], "replica": 3}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_an_update_and_a_drain_leave_hosts_that_run_threads() -> None:
    named = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in KUBERNETES}
    for name in ("antiphon-host", "antiphon-server"):
        spec, budget = named["Deployment", name], named["PodDisruptionBudget", name]
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        assert 1 <= budget["minAvailable"] < spec["replicas"]
        assert spec["selector"] == budget["selector"]
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 30
    assert COMPOSE["services"]["host"]["deploy"]["update_config"]["order"] == "start-first"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_a_host_is_ready_while_its_lease_lasts(where: str, tmp_path: Path) -> None:
    """The command of the probe, as it is in the file, beside a ledger whose host has this machine's name."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    if where == "compose":
        probe = COMPOSE["services"]["host"]["healthcheck"]["test"][1].replace("$$", "$")
        (tmp_path / "ledger-url").write_text(url)
        probe = probe.replace("/run/secrets/", f"{tmp_path}/")
    else:
        (container,) = KUBERNETES[0]["spec"]["template"]["spec"]["containers"]
        probe = container["readinessProbe"]["exec"]["command"][2]
    command = tmp_path / "antiphon"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m antiphon "$@"\n')
    command.chmod(0o755)

    def is_ready() -> bool:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ANTIPHON_LEDGER": url, "HOME": str(tmp_path)}
        return subprocess.run(["/bin/sh", "-c", probe], env=environment, timeout=60, check=False).returncode == 0

    async def beat(host: Host, *, leaves: bool = False) -> None:
        async with open_ledger(url) as ledger:
            await (ledger.leave(host) if leaves else ledger.beat(host))

    other, own = (Host(name, "1", lease=600.0, instance=f"{name}/1") for name in ("other-1-1", f"{socket.gethostname()}-1-1"))
    asyncio.run(beat(other))
    assert not is_ready()
    asyncio.run(beat(own))
    assert is_ready()
    asyncio.run(beat(own, leaves=True))
    assert not is_ready()
