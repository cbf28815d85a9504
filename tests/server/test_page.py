"""The files of the page: what is served, how long a browser keeps it, and that the libraries are those on record."""

import hashlib
import json
import re
from pathlib import Path
from time import perf_counter

import pytest
from tests.server.running import served

from antiphon.server._answers import CONTENT_POLICY

PAGE = Path(__file__).parent.parent.parent / "src" / "antiphon" / "server" / "page"
OWN = sorted(PAGE.glob("*.js"))


@pytest.mark.slow
async def test_the_page_needs_no_token_and_its_files_are_kept_for_ever(tmp_path: Path) -> None:
    """The page itself is asked for each time, by its hash; everything that it imports has the hash in its address."""
    async with served(tmp_path) as server:
        del server.client.headers["authorization"]
        page = await server.client.get("/")
        assert page.status_code == 200
        assert page.headers["content-security-policy"] == CONTENT_POLICY
        assert page.headers["cache-control"] == "no-cache"
        again = await server.client.get("/", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.text) == (304, "")

        addresses = re.findall(r'(?:href|src)="([^"]+)"', page.text)
        assert addresses
        for address in addresses:
            file = await server.client.get(address)
            assert file.status_code == 200, address
            assert "immutable" in file.headers["cache-control"]
            assert file.headers["x-content-type-options"] == "nosniff"
        script = next(each for each in addresses if each.endswith("/app.js"))
        for wrong in ("/app.js", "/index.html", "/../_static.py", "/%2e%2e/_static.py", "/vendor/vendor.json"):
            assert (await server.client.get(script.replace("/app.js", "") + wrong + ".x")).status_code == 401
        assert (await server.client.get(script.replace("app.js", "index.html"))).status_code == 401


@pytest.mark.slow
async def test_the_body_of_an_answer_does_not_wait_until_its_headers_are_confirmed(tmp_path: Path) -> None:
    """Without TCP_NODELAY, nearly every answer on a connection that is used again took 40 ms more."""
    async with served(tmp_path) as server:
        times: list[float] = []
        for _ in range(30):
            began = perf_counter()
            assert (await server.client.get("/")).status_code == 200
            times.append(perf_counter() - began)

    assert min(times[-15:]) < 0.03  # the first ones are quick in any case


def test_the_libraries_of_the_page_are_those_on_record() -> None:
    """`tools/vendor.py --check` compares them with the packages too."""
    listed = json.loads((PAGE / "vendor" / "vendor.json").read_text())
    hashes = {name: about["sha256"] for package in listed.values() for name, about in package["files"].items()}

    assert {name: hashlib.sha256((PAGE / "vendor" / name).read_bytes()).hexdigest() for name in hashes} == hashes
    scripts = {path.name for path in (PAGE / "vendor").glob("*.js")}
    assert scripts == {name for name in hashes if name.endswith(".js")}
    assert sum((PAGE / "vendor" / name).stat().st_size for name in scripts) < 30_000


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_a_module_of_the_page_imports_only_files_of_the_page(path: Path) -> None:
    """So it works offline, and the content security policy holds."""
    found = re.findall(r'(?:from|import)\s*\(?\s*"([^"]+)"', path.read_text())

    assert [each for each in found if not (PAGE / each).is_file()] == []
    assert "http://" not in path.read_text()
    assert "https://" not in path.read_text()


@pytest.mark.slow
async def test_a_link_of_another_site_leads_to_the_page_and_to_nothing_else(tmp_path: Path) -> None:
    """A person may follow a link from a chat; another site may not frame the page, load its files, or read anything."""
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    async with served(tmp_path) as server:
        assert (await server.client.get("/", headers=link)).status_code == 200
        others = [
            ("/", {"sec-fetch-dest": "iframe"}),
            ("/", {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}),
            ("/", {"origin": "http://elsewhere.example"}),
            ("/?x=1", {}),
            ("/api/threads", {}),
        ]
        for path, more in others:
            assert (await server.client.get(path, headers=link | more)).status_code == 403, (path, more)
        assert (await server.client.post("/", headers=link, json={})).status_code == 403
