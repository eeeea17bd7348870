"""Requirement files: what is read of them, what is refused, and what a lock must be."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jobs.environment import tool
from jobs.environment.tool import (
    Demands,
    NoWheel,
    PackageTools,
    PythonTarget,
    RequirementsError,
    find_tools,
    here,
    make_lock,
    parse_target,
    read_demands,
    resolve,
    sizes,
)
from jobs.nouns.pool import Pool
from jobs.payload.store.lock import BadLock, Lock, Pin, encode_lock, parse_lock, parse_wheels
from jobs.spec import JobSpec, Requirements
from platforms.base import Misconfigured
from platforms.image import has_lock, image_of, options_for
from scheduler.cli.commands.queue_show import lock_line
from scheduler.service.requests.stored import lock_packages
from tests.lab.packages import digest_of, use_index, write_wheel

DIGEST = "a" * 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where requirements are written."""
    return tmp_path / "requirements.txt"


def test_a_requirement_file_is_read_with_those_it_names_in_its_folder(file: Path) -> None:
    (file.parent / "more.txt").write_text("numpy\n")
    (file.parent / "bounds.txt").write_text("six<2\n")
    file.write_text(
        "\ufeff# what we train with\n"
        'peft[extra] >=0.10,<1 ; python_version >= "3.9"  # bounds\n'
        f"tqdm==4.1 \\\n  --hash=sha256:{DIGEST} \\\n  --hash=sha256:{'b' * 64}\n"
        "-r more.txt\n--constraint=bounds.txt\n",
        encoding="utf-8",
    )
    assert read_demands(file) == Demands(
        ('peft[extra] >=0.10,<1 ; python_version >= "3.9"', "tqdm==4.1", "numpy"),
        ("six<2",),
        {"tqdm": frozenset({DIGEST, "b" * 64})},
    )


@pytest.mark.parametrize(
    "line",
    [
        "-e .",
        "--editable=git+https://example.org/x",
        "./local",
        "/srv/wheels/x.whl",
        "x.whl",
        "x @ file:///srv/x.tar.gz",
        "x @ git+https://example.org/x",
        "https://example.org/x-1.0-py3-none-any.whl",
        "--index-url https://example.org/simple",
        "--extra-index-url=https://example.org/simple",
        "-f /srv/wheels",
        "--trusted-host example.org",
        "--no-binary :all:",
        "-r /etc/passwd",
        "-r ../outside.txt",
        "-c link.txt",
        "x==${HOME}",
        "x==1 --hash=md5:abc",
        "x; os_name == `id`",
        "x\x00y",
    ],
)
def test_what_leads_elsewhere_is_refused_with_its_line(file: Path, line: str) -> None:
    (file.parent.parent / "outside.txt").write_text("six\n")
    (file.parent / "link.txt").symlink_to("/etc/passwd")
    file.write_text(f"numpy\n{line}\n")
    with pytest.raises(RequirementsError, match="line 2"):
        read_demands(file)


def test_files_that_are_none_are_refused(file: Path) -> None:
    for text, why in (("# nothing\n", "asks for nothing"), ("-r requirements.txt\n", "out of the folder")):
        file.write_text(text)
        with pytest.raises(RequirementsError, match=why):
            read_demands(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(RequirementsError, match="UTF-8"):
        read_demands(file)
    file.write_bytes(b"#" * (5 << 20))
    with pytest.raises(RequirementsError, match="larger"):
        read_demands(file)
    with pytest.raises(RequirementsError, match="no such file"):
        read_demands(file.with_name("absent.txt"))
    (file.parent / "empty").mkdir()
    with pytest.raises(RequirementsError, match="no requirements"):
        read_demands(file.parent / "empty")


def test_a_project_a_folder_and_a_script_tell_theirs(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\ndependencies = ["peft>=0.1"]\nrequires-python = ">=3.10,<3.13"\n')
    found = read_demands(tmp_path)
    assert (found.lines, found.exact) == (("peft>=0.1",), False)
    assert [version for version in range(8, 15) if found.runs_on(f"3.{version}")] == [10, 11, 12]
    script = tmp_path / "train.py"
    script.write_text('import x\n# /// script\n# dependencies = [\n#   "six",\n# ]\n# ///\n')
    assert read_demands(script).lines == ("six",)
    script.write_text("import six\n")
    with pytest.raises(RequirementsError, match="PEP 723"):
        read_demands(script)
    project.write_text('[project]\ndynamic = ["dependencies"]\n')
    with pytest.raises(RequirementsError, match="dynamic"):
        read_demands(project)


def test_a_lock_of_uv_bounds_versions_and_digests(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["Some.Thing"]\n')
    lock = tmp_path / "uv.lock"
    wheel = f'wheels = [{{ url = "https://example.org/x.whl", hash = "sha256:{DIGEST}" }}]\n'
    index = 'source = { registry = "https://example.org" }\n'
    lock.write_text(
        f'[[package]]\nname = "some-thing"\nversion = "1.0"\n{index}{wheel}'
        '[[package]]\nname = "fork"\nversion = "2"\nresolution-markers = ["python_full_version < \'3.12\'"]\n' + index
    )
    assert read_demands(lock) == Demands(
        ("Some.Thing",),
        ("some-thing==1.0", "fork==2 ; (python_full_version < '3.12')"),
        {"some-thing": frozenset({DIGEST})},
        exact=True,
    )
    lock.write_text('[[package]]\nname = "own"\nversion = "1"\nsource = { git = "https://example.org/own" }\n')
    with pytest.raises(RequirementsError, match="own comes from git"):
        read_demands(tmp_path)


@pytest.mark.parametrize("name", ["uv", "pip"])
def test_a_tool_locks_with_digests_for_another_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tools = find_tools() if name == "uv" else PackageTools("", pip=True)
    index = tmp_path / "index"
    use_index(index, monkeypatch)
    light = write_wheel(index, "light", "0.1", requires=["heavy>=1"])
    heavy = write_wheel(index, "heavy", "1.5", tag="cp312-abi3-manylinux_2_17_x86_64")
    write_wheel(index, "heavy", "2.0", tag="cp313-cp313-manylinux_2_17_x86_64")
    target = parse_target("3.12", "x86_64-manylinux_2_28")
    pins = resolve(tools, Demands(("light",)), target, {})
    assert pins == (Pin("heavy", "1.5", (digest_of(heavy),)), Pin("light", "0.1", (digest_of(light),)))
    with pytest.raises(NoWheel, match="heavy"):
        resolve(tools, Demands(("heavy>=2",)), target, {})
    with pytest.raises(NoWheel, match=r"no file of light 0\.1 has a digest"):
        resolve(tools, Demands(("light",), digests={"light": frozenset({DIGEST})}), target, {})
    if tools.pip:
        fetched = tmp_path / "fetched"
        fetched.mkdir()
        assert tool.download(pins, target, fetched, {}) == [fetched / heavy.name, fetched / light.name]


def test_uv_tells_how_many_bytes_a_session_would_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an index that tells sizes; one that does not leaves them untold."""
    tools = find_tools()
    wheels = {name: write_wheel(tmp_path, name, "1.0") for name in ("light", "torch")}
    target = parse_target("3.12", "x86_64-manylinux_2_28")
    pins = [Pin(name, "1.0", (digest_of(wheel),)) for name, wheel in wheels.items()]
    use_index(tmp_path, monkeypatch)
    assert sizes(tools, pins, target, {}) == {"light": 0, "torch": 0}
    with serving({f"{name}/{wheel.name}": wheel for name, wheel in wheels.items()}) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        real = {name: wheel.stat().st_size for name, wheel in wheels.items()}
        assert sizes(tools, pins, target, {}) == real
        (tmp_path / "requirements.txt").write_text("light\ntorch\n")
        spec = JobSpec("lm", "main", ("x",), 100, 1.0, requirements=Requirements(str(tmp_path / "requirements.txt")))
        pools = {
            "kaggle": Pool("kaggle", "kaggle", "T4"),
            "bare": Pool("bare", "kaggle", "T4", options={"image_packages": ""}),
        }
        assert spec.requirements is not None
        both, _ = lock_packages(spec, spec.requirements, pools)
        assert (both.fetched_bytes, both.image_bytes, both.image_largest) == (sum(real.values()), 0, "")
        del pools["bare"]
        found, _ = lock_packages(spec, spec.requirements, pools)
        assert (found.fetched_bytes, found.image_bytes, found.image_largest) == (real["light"], real["torch"], "torch")
        assert found == both, "sizes are no part of what a lock is"
        told = lock_line(found)
        assert ("at most" in told, "more if the image's own, such as torch, do not satisfy it" in told) == (True, True)
    assert sizes(tools, pins, target, {}) == {}, "nobody answers"


@contextmanager
def serving(files: dict[str, Path]) -> Iterator[str]:
    """Serve an index of one wheel for each package, with sizes, as PyPI does; yield its address."""

    class Index(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

        def do_GET(self) -> None:
            path = self.path.strip("/")
            kind, data = "application/octet-stream", files[path].read_bytes() if path in files else b""
            if not data:
                kind = "application/vnd.pypi.simple.v1+json"
                listed = [
                    {
                        "filename": wheel.name,
                        "url": f"/{key}",
                        "hashes": {"sha256": digest_of(wheel)},
                        "size": wheel.stat().st_size,
                    }
                    for key, wheel in files.items()
                    if key.startswith(f"{path}/")
                ]
                data = json.dumps({"meta": {"api-version": "1.1"}, "name": path, "files": listed}).encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815 - the library's name

    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


def test_pip_does_not_overlook_what_another_python_would_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads markers by the Python that runs it."""
    use_index(tmp_path, monkeypatch)
    write_wheel(tmp_path, "light", "0.1", requires=["backport; python_version < '3.11'"])
    old = PythonTarget("3.9", "x86_64-manylinux_2_28")
    with pytest.raises(NoWheel, match=r"backport.*Python 3\.9.*uv does"):
        resolve(PackageTools("", pip=True), Demands(("light",)), old, {})


def test_a_python_that_a_project_does_not_want_is_told(tmp_path: Path) -> None:
    demands = Demands(("light",), python=">=3.13")
    with pytest.raises(RequirementsError, match=r"want Python >=3.13.*kaggle \(Python 3.12"):
        make_lock(tmp_path, demands, {PythonTarget("3.12", "x86_64-manylinux_2_28"): ["kaggle"]}, {})


def test_without_any_tool_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(tool, "find_spec", lambda _: None)
    with pytest.raises(RequirementsError, match=r"neither uv nor pip.*uff-scheduler\[uv\]"):
        find_tools()


def test_a_lock_is_what_it_says_or_is_not_read() -> None:
    lock = Lock(("six",), exact=False, targets={"3.12-x86_64-manylinux_2_28": (Pin("six", "1.0", (DIGEST,)),)})
    data = encode_lock(lock)
    assert parse_lock(data, hashlib.sha256(data).hexdigest()) == lock
    with pytest.raises(BadLock, match="digest it is named by"):
        parse_lock(data, DIGEST)
    document = json.loads(data)
    hostile = ["six @ file:///x", "-e", "six\n--index-url", "../x"]
    for name in hostile:
        document["targets"] = {"3.12-x86_64-manylinux_2_28": [[name, "1.0", [DIGEST]]]}
        with pytest.raises(BadLock):
            parse_lock(json.dumps(document).encode())
    for pin in (["six", "1.0 --x", [DIGEST]], ["six", "1.0", []], ["six", "1.0", ["short"]], ["six"]):
        document["targets"] = {"3.12-x86_64-manylinux_2_28": [pin]}
        with pytest.raises(BadLock):
            parse_lock(json.dumps(document).encode())
    impossible: list[object] = [{"../x.whl": DIGEST}, {"x.whl": "y"}, []]
    for wheels in impossible:
        with pytest.raises(BadLock):
            parse_wheels(json.dumps({"format": 1, "wheels": wheels}).encode())


def test_a_jobs_own_image_has_a_python_of_its_own_where_images_can_be_chosen() -> None:
    def spec(**own: str) -> JobSpec:
        return JobSpec("lm", "main", ("x",), 100, 1.0, **own)  # type: ignore[arg-type]

    pool = {"image": "pool:1", "image_python": "3.12", "image_packages": "torch", "internet": "off"}
    assert options_for(spec(), "sagemaker", pool) == options_for(spec(image="pool:1"), "sagemaker", pool) == pool
    assert options_for(spec(image="mine:1"), "kaggle", pool) == pool, "Kaggle has one image for all"
    named = image_of("sagemaker", options_for(spec(image="mine:1-py311"), "sagemaker", pool))
    assert (named.target, named.internet) == (PythonTarget("3.11", "x86_64-manylinux_2_28"), False)
    assert not named.has("torch"), "what the pool's image has nobody knows of this one"
    assert image_of("sagemaker", options_for(spec(image="mine:1"), "sagemaker", pool)).target is None
    told = image_of("sagemaker", options_for(spec(image="mine:1", image_python="3.13"), "sagemaker", pool))
    assert told.target == PythonTarget("3.13", "x86_64-manylinux_2_28")


def test_images_are_known_by_platform_or_by_options() -> None:
    assert image_of("local", {}).target == here()
    kaggle = image_of("kaggle", {})
    assert (str(kaggle.target), kaggle.internet) == ("Python 3.12 on x86_64-manylinux_2_28", True)
    assert (kaggle.has("Torch"), kaggle.has("nvidia_cublas-cu12"), kaggle.has("peft")) == (True, True, False)
    assert image_of("kaggle", {"emulator": "http://localhost:1"}).target == here()
    aws = image_of("sagemaker", {"image": "1234.dkr.ecr.eu.amazonaws.com/pytorch-training:2.6-gpu-py310-cu126"})
    assert aws.target == PythonTarget("3.10", "x86_64-manylinux_2_28")
    assert image_of("sagemaker", {"image": "mine"}).target is None
    assert not has_lock("sagemaker", {"image": "mine"}, ["3.12-x86_64-manylinux_2_28"])
    named = {"image_python": "3.9", "image_platform": "aarch64-manylinux_2_17", "internet": "off"}
    assert image_of("manual", named)[::2] == (PythonTarget("3.9", "aarch64-manylinux_2_17"), False)
    for wrong in ({"image_python": "three"}, {"image_platform": "windows"}, {"internet": "maybe"}):
        with pytest.raises(Misconfigured):
            image_of("local", wrong)
        assert not has_lock("local", wrong, [here().name])


def test_a_lock_has_one_form_whatever_the_order_of_its_targets() -> None:
    names = ("3.11-x86_64-manylinux_2_28", "3.12-x86_64-manylinux_2_28")
    one, other = ({name: (Pin("six", "1.0", (DIGEST,)),) for name in order} for order in (names, names[::-1]))
    assert encode_lock(Lock((), exact=True, targets=one)) == encode_lock(Lock((), exact=True, targets=other))
    assert encode_lock(Lock(("six",), exact=True, targets={})) == (
        b'{"demands":["six"],"exact":true,"format":1,"targets":{}}'
    ), "what is in stores is read for ever"


def test_a_wheel_of_a_folder_has_a_digest_also_where_pip_reports_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip 23.0 of Debian 12, by which a bare machine locks what a rehearsal needs."""
    wheel = write_wheel(tmp_path / "a folder", "alpha", "1.0")

    def report_of(source: dict[str, Any]) -> list[Pin]:
        install = [{"metadata": {"name": "alpha", "version": "1.0"}, "download_info": source}]
        monkeypatch.setattr(
            tool, "_run", lambda *_: (tmp_path / "report.json").write_text(json.dumps({"install": install}))
        )
        return tool._by_pip(("alpha.txt",), Demands((), (), {}), here(), tmp_path, {})

    assert report_of({"url": wheel.as_uri(), "archive_info": {}}) == [Pin("alpha", "1.0", (digest_of(wheel),))]
    with pytest.raises(NoWheel, match="no sha256 of alpha"):
        report_of({"url": "https://example.org/alpha.whl", "archive_info": {}})
