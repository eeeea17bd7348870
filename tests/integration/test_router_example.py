"""examples/router as a process of its own before two stand-ins: who answers, who takes over, how the table changes."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platforms.targets.base import DeployOutcome, TargetContext, open_target
from tests.lab.patience import PATIENCE_SECONDS
from tests.lab.releases import make_release
from tests.lab.vllm import BASE, vllm_server

if TYPE_CHECKING:
    from tests.lab.vllm import Vllm

KEY = "the key of the router"


@dataclass
class Router:
    """A running router, before two servers."""

    port: int
    admin_port: int
    servers: tuple[Vllm, Vllm]
    table: Path

    def ask(self, model: str) -> tuple[int, str]:
        """Return status and who answered."""
        status, _, served_by = self.call(self.port, "POST", "/v1/completions", {"model": model, "prompt": "p"})
        return status, served_by

    def admin(self, method: str, path: str, body: Any = None, key: str = KEY) -> tuple[int, Any]:
        """Return status and document of the other port."""
        status, document, _ = self.call(self.admin_port, method, path, body, key)
        return status, document

    def call(self, port: int, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any, str]:
        """Return status, document and who answered."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        try:
            headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.getheader("X-Served-By") or ""
        finally:
            connection.close()

    def load(self, *names: str) -> None:
        """Let both servers have these adapters."""
        for server in self.servers:
            server.loaded |= dict.fromkeys(names, "there")


@pytest.fixture
def router(tmp_path: Path, repository: Path) -> Iterator[Router]:
    with ExitStack() as stack:
        servers = stack.enter_context(vllm_server()), stack.enter_context(vllm_server())
        table = tmp_path / "table.json"
        models = {"ufm": {"serves": "ufm@7", "last_good": "ufm@6"}, "uff-main": {"serves": "uff-main@2"}}
        told = {"generation": 3, "main": "uff-main", "models": models}
        table.write_text(json.dumps({**told, "servers": [f"http://127.0.0.1:{one.port}" for one in servers]}))
        program = repository / "examples" / "router" / "router.py"
        process = subprocess.Popen(
            [sys.executable, program, "--table", table, "--port", "0", "--admin-port", "0"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ROUTER_KEY": KEY},
        )
        assert process.stdout is not None
        ports = re.findall(r":(\d+)", process.stdout.readline())
        yield Router(int(ports[0]), int(ports[1]), servers, table)
        process.kill()
        process.communicate()


def test_a_model_is_answered_by_the_version_of_the_table(router: Router) -> None:
    router.load("ufm@6", "ufm@7", "uff-main@2")
    assert router.ask("ufm") == (200, "ufm@7")
    assert router.ask("uff-main") == (200, "uff-main@2")
    assert router.ask("nobody")[0] == 404
    listed = router.call(router.port, "GET", "/v1/models")[1]["data"]
    assert [one["id"] for one in listed] == ["uff-main", "ufm"]


def test_main_answers_for_a_manager_that_fails_and_the_last_good_version_where_main_fails_too(router: Router) -> None:
    router.load("ufm@6", "uff-main@2")
    assert router.ask("ufm") == (200, "uff-main@2")
    for server in router.servers:
        del server.loaded["uff-main@2"]
    assert router.ask("ufm") == (200, "ufm@6")
    for server in router.servers:
        server.restart()
    assert router.ask("ufm")[0] == 503


def test_what_failed_a_few_times_is_left_alone_and_the_other_server_answers(router: Router) -> None:
    router.load("ufm@7", "uff-main@2")
    first, _ = router.servers
    del first.loaded["ufm@7"]
    assert {router.ask("ufm") for _ in range(8)} == {(200, "ufm@7")}
    failures = router.admin("GET", "/admin/table")[1]["health"]["failures"]
    assert failures == {f"ufm@7 at http://127.0.0.1:{first.port}": 3}  # and not asked again for a while


def test_the_table_changes_for_who_saw_it_as_it_is_and_outlives_the_process(router: Router) -> None:
    router.load("ufm@7", "ufm@8")
    order = {"model": "ufm", "to": "ufm@8", "expected_generation": 3}
    assert router.admin("POST", "/admin/point", order) == (200, {"generation": 4})
    assert router.ask("ufm") == (200, "ufm@8")
    assert router.admin("POST", "/admin/point", {**order, "to": "ufm@9"})[0] == 409
    told = json.loads(router.table.read_text())
    assert (told["generation"], told["models"]["ufm"]) == (4, {"serves": "ufm@8", "last_good": "ufm@7"})


@pytest.mark.parametrize("body", [None, {}, {"model": "ufm"}, {"model": "ufm", "to": 5, "expected_generation": 3}])
def test_an_order_that_is_none_changes_nothing(router: Router, body: Any) -> None:
    assert router.admin("POST", "/admin/point", body)[0] == 400
    assert router.admin("GET", "/admin/table")[1]["generation"] == 3


def test_nobody_changes_the_table_without_the_key_or_from_the_public_port(router: Router) -> None:
    order = {"model": "ufm", "to": "ufm@8", "expected_generation": 3}
    assert router.admin("POST", "/admin/point", order, key="another")[0] == 401
    assert router.call(router.port, "POST", "/admin/point", order)[0] == 400
    assert router.admin("GET", "/admin/table")[1]["generation"] == 3


def test_a_deployment_switches_the_router_after_the_probe_and_going_back_does_too(
    router: Router, tmp_path: Path
) -> None:
    server = router.servers[0]
    options = {
        "url": f"http://127.0.0.1:{server.port}",
        "base": BASE,
        "path": str(tmp_path / "adapters"),
        "router": f"http://127.0.0.1:{router.admin_port}",
        "router_key": "ROUTER_KEY",
    }
    target = open_target("griffith", "vllm", options, TargetContext(Path, lambda _name: KEY))
    for version in (8, 9):
        assert target.deploy(make_release(tmp_path, version)).outcome is DeployOutcome.SERVING
        assert router.ask("ufm") == (200, f"ufm@{version}")
    server.fits_no_module = True
    assert target.deploy(make_release(tmp_path, 10)).outcome is DeployOutcome.RETURNED
    assert router.ask("ufm") == (200, "ufm@9")
    server.fits_no_module = False
    assert target.go_back("ufm", 9).version == 8
    assert router.ask("ufm") == (200, "ufm@8")
