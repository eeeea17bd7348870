"""The documents are right: every link leads somewhere, and every command that they show can be parsed."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from typing import TYPE_CHECKING

import pytest

from config.load import load
from jobs.catalogue import read_catalogue
from scheduler.cli.root import tree
from scheduler.cli.shell.context import Cli, GlobalOptions

if TYPE_CHECKING:
    from pathlib import Path

LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(schedctl [^`\n]+)`")


def documents(repository: Path) -> list[Path]:
    """Every page for people: those at the root, in docs and beside the examples."""
    folders = (*repository.glob("*.md"), *(repository / "docs").rglob("*.md"), *(repository / "examples").rglob("*.md"))
    return sorted(folders)


def anchors(page: Path) -> set[str]:
    """What a link may name of the page: its headings in lower case, without signs, hyphens for blanks."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_file_and_to_a_heading_of_it(repository: Path) -> None:
    broken = []
    for document in documents(repository):
        for target, anchor in LINK.findall(document.read_text(encoding="utf-8")):
            page = document.parent / target if target else document
            if "://" not in target and (not page.exists() or (anchor and anchor not in anchors(page))):
                broken.append(f"{document.name}: {target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize(
    ("folder", "index"),
    [
        ("docs", "README.md"),
        ("docs/inside", "docs/inside/README.md"),
        ("docs/reference", "docs/reference/README.md"),
    ],
)
def test_every_document_is_named_in_the_list_of_its_folder(repository: Path, folder: str, index: str) -> None:
    page = repository / index
    named = {(page.parent / target).resolve() for target, _ in LINK.findall(page.read_text(encoding="utf-8")) if target}
    assert {path.name for path in (repository / folder).glob("*.md") if path.resolve() not in named | {page}} == set()


def test_the_readme_is_one_page(repository: Path) -> None:
    assert len((repository / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


def test_every_page_that_the_code_names_exists(repository: Path) -> None:
    """Errors, help and comments lead people to pages."""
    named = {
        name
        for folder in ("scheduler", "platforms", "jobs", "config", "systemd", "examples", "tests/conformance")
        for file in (repository / folder).rglob("*")
        if file.suffix in {".py", ".toml", ".sh", ".html"}
        for name in re.findall(r"docs/[\w/-]+\.(?:md|json)", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 8
    assert {name for name in named if not (repository / name).exists()} == set()


def test_the_version_is_the_same_in_every_file(repository: Path) -> None:
    version = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (repository / "CITATION.cff").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(.*)\] - ", (repository / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert releases[0] == version
    assert releases == sorted(releases, key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def shown_settings(repository: Path, table: str) -> list[tuple[str, str]]:
    """Every block of TOML that declares such a table."""
    return [
        (document.name, block)
        for document in documents(repository)
        for block in TOML.findall(document.read_text(encoding="utf-8"))
        if f"[[{table}]]" in block
    ]


def test_every_pool_that_a_document_shows_can_be_used(repository: Path, tmp_path: Path) -> None:
    """Whoever copies a block into a file gets settings that load."""
    shown = shown_settings(repository, "pools")
    assert len(shown) >= 4
    shutil.copy(repository / "config/models.toml", tmp_path)
    for number, (document, block) in enumerate(shown):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        assert load(file, {}).pools, document


def test_every_target_that_a_document_shows_can_be_used(repository: Path, tmp_path: Path) -> None:
    shown = shown_settings(repository, "targets")
    assert shown
    shutil.copy(repository / "config/models.toml", tmp_path)
    for number, (document, block) in enumerate(shown):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        assert load(file, {}).targets, document


def test_every_job_that_a_document_shows_can_be_read_beside_the_shipped_ones(repository: Path, tmp_path: Path) -> None:
    shown = shown_settings(repository, "jobs")
    assert len(shown) >= 3
    shipped = (repository / "config/models.toml").read_text(encoding="utf-8")
    for number, (document, block) in enumerate(shown):
        ours, theirs = tmp_path / f"{number}.toml", tmp_path / f"{number}-shipped.toml"
        ours.write_text(block)
        named = set(re.findall(r'^name = "(.*)"', block, re.MULTILINE))
        tables = [
            table for table in shipped.split("[[jobs]]")[1:] if re.findall(r'name = "(.*)"', table)[0] not in named
        ]
        theirs.write_text("[[jobs]]".join([shipped.partition("[[jobs]]")[0], *tables]))
        assert named <= {spec.name for spec in read_catalogue([ours, theirs]).jobs}, document


def shown_commands(repository: Path) -> list[tuple[str, list[str]]]:
    """Every call of schedctl in a code block or in the text; not those with shell syntax or something left out.

    The reference of commands shows placeholders; a test of its own compares it with the code.
    """
    found = []
    for document in documents(repository):
        if document.name == "commands.md":
            continue
        text = document.read_text(encoding="utf-8")
        for block in [*FENCE.findall(text), *INLINE.findall(FENCE.sub("", text))]:
            for line in block.replace("\\\n", " ").splitlines():
                words = line.split(" #")[0].strip().removeprefix("$ ").removeprefix("sudo ")
                if words.startswith("schedctl ") and not set(words) & set("$<>|&;[]…") and "..." not in words:
                    found.append((document.name, shlex.split(words)[1:]))
    return found


def test_the_documents_show_commands(repository: Path) -> None:
    assert len(shown_commands(repository)) > 20


def test_every_command_that_a_document_shows_can_be_parsed(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # an option such as --install-completion acts while it is parsed
    root = tree()
    wrong = []
    for document, words in shown_commands(repository):
        try:
            _parse(root, words)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the parser says is the finding
            # Prose names commands without their arguments; a group alone shows its help.
            named_only = type(error).__name__ in {"NoArgsIsHelpError", "MissingParameter"}
            elsewhere = str(error).endswith("does not exist.")  # a file of the reader's
            if not (named_only or elsewhere) and getattr(error, "code", getattr(error, "exit_code", None)) != 0:
                wrong.append(f"{document}: schedctl {' '.join(words)}: {type(error).__name__}: {error}")
    assert wrong == []


def typed(repository: Path, beginning: str) -> list[tuple[str, list[str]]]:
    """Every line of a code block, and every command in the text, that begins with this word."""
    found = []
    for document in documents(repository):
        text = document.read_text(encoding="utf-8")
        lines = "\n".join(FENCE.findall(text)).replace("\\\n", " ").splitlines()
        lines += re.findall(rf"`({beginning} [^`\n]+)`", FENCE.sub("", text))
        cut = (line.partition(" #")[0].strip() for line in lines)
        found += [(document.name, line.split()) for line in cut if line.startswith(f"{beginning} ")]
    return found


def test_every_target_of_make_that_a_document_names_exists(repository: Path) -> None:
    known = set(re.findall(r"^([a-z0-9./-]+):", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {words[1] for _, words in typed(repository, "make")}
    assert len(named) > 8
    assert named <= known


def test_every_program_that_a_document_starts_is_there_and_knows_the_options(repository: Path) -> None:
    wrong, seen = [], 0
    for document, words in [*typed(repository, "python"), *typed(repository, "python3")]:
        name = words[2].replace(".", "/") if words[1] == "-m" else words[1]
        if name in {"pytest", "venv"}:
            continue
        files = [repository / name, repository / f"{name}.py", *(repository / name).glob("*.py")]
        if (repository / name).is_dir():  # packages of a kind share a parser above them
            files += (repository / name).parent.glob("*.py")
        files += repository.glob(f"examples/*/{name}")  # typed in the folder of an example
        source = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
        missing = [word for word in words if word.startswith("--") and f'"{word}"' not in source]
        seen += 1
        if not source or missing:
            wrong.append(f"{document}: {' '.join(words)}: {missing or 'no such program'}")
    assert wrong == []
    assert seen >= 5


def _parse(command: object, words: list[str]) -> None:
    """Follow the words down the tree of commands as the program would, and run nothing."""
    context = command.make_context("schedctl", list(words), obj=Cli(GlobalOptions()), resilient_parsing=False)  # type: ignore[attr-defined]
    while hasattr(context.command, "resolve_command"):
        rest = [*context._protected_args, *context.args]  # where the parser leaves the sub-command
        if not rest:
            return  # a group that does something by itself
        name, found, rest = context.command.resolve_command(context, rest)
        context = found.make_context(name, rest, parent=context)
