"""One job's table becomes a JobSpec; every wrong key is noted as a problem, not only the first."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import readers
from jobs.instant import parse_instant
from jobs.problem import Problem, did_you_mean, shown
from jobs.quality_gate import read_gates
from jobs.spec import (
    HELD_OUT,
    LONGEST_SECONDS,
    WITHIN_SECONDS,
    Code,
    Evaluation,
    Gate,
    Input,
    JobSpec,
    Mixture,
    Needs,
    Requirements,
    Share,
    Stall,
    StartFrom,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KEYS = (
    "checkpoint",
    "code",
    "command",
    "deadline",
    "device_speedup",
    "environment",
    "evaluation",
    "gate",
    "gates",
    "image",
    "image_python",
    "inputs",
    "mixture",
    "name",
    "needs",
    "not_before",
    "pools",
    "requirements",
    "role",
    "secrets",
    "seed",
    "setup",
    "share",
    "stall",
    "start_from",
    "steps_per_hour",
    "sweep",
    "target_step",
    "weight",
    "whole",
)
_DEFAULTS = {known.name: known.default for known in fields(JobSpec)}
_NOTHING = object()
_TRAINER = "trainers/finetune.py"  # whose command line the adviser reads


@dataclass(frozen=True, slots=True)
class Definition:
    """A reader of one job's table: ``label`` leads the keys it names, ``problems`` collects what is wrong."""

    file: str
    label: str
    problems: list[Problem]

    def job(self, table: Mapping[str, Any]) -> JobSpec | None:
        """Return the spec, or None when a problem was noted."""
        before = len(self.problems)
        self._refuse_unknown(table, _KEYS, "")
        table = self._advised(self._whole(table))
        values = {
            "name": self._read(table, "name", readers.name),
            "role": self._read(table, "role", readers.role),
            "command": self._read(table, "command", readers.words),
            "target_step": self._read(table, "target_step", readers.number("target_step")),
            "steps_per_hour": self._read(table, "steps_per_hour", readers.number("steps_per_hour")),
            "weight": self._read(table, "weight", readers.number("weight"), 1.0),
            "needs": self._needs(table),
            "mixture": self._mixture(table),
            "gate": self._gate(table),
            "start_from": self._start_from(table),
            "share": self._share(table),
            "pools": self._read(table, "pools", readers.strings, ()),
            "seed": self._read(table, "seed", readers.number("seed"), 0),
            "setup_seconds": self._read(table, "setup", readers.duration("setup"), _DEFAULTS["setup_seconds"]),
            "checkpoint_seconds": self._read(
                table, "checkpoint", readers.duration("checkpoint"), _DEFAULTS["checkpoint_seconds"]
            ),
            "device_speedup": self._read(table, "device_speedup", readers.speedup, (1.0,)),
            "environment": self._read(table, "environment", readers.environment, {}),
            "secrets": self._read(table, "secrets", readers.secrets, ()),
            "not_before": self._read(table, "not_before", parse_instant, None),
            "deadline": self._read(table, "deadline", parse_instant, None),
            "stall": self._stall(table),
            "code": self._code(table),
            "inputs": self._inputs(table),
            "requirements": self._requirements(table),
            "image": self._read(table, "image", readers.image, ""),
            "image_python": self._read(table, "image_python", readers.python, ""),
            "sweep": self._read(table, "sweep", readers.name, ""),
            "whole": "whole" in table,
            "evaluation": self._evaluation(table),
            "gates": self._read(table, "gates", read_gates, ()),
        }
        self._check_together(values, table)
        if values["start_from"] is not None:
            values["gate"] = values["start_from"].gate
        return JobSpec(**values) if len(self.problems) == before else None

    def _advised(self, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """Let the adviser say what is left out of a job of our own trainer: needs, speed, the gain of more devices."""
        command, inputs = table.get("command"), table.get("inputs", {})
        left_out = {"needs", "steps_per_hour"} - set(table)
        if not (left_out and isinstance(command, list) and isinstance(inputs, dict)):
            return table
        if not any(str(word).endswith(_TRAINER) for word in command):
            return table
        from jobs.advice.errors import Unknown
        from jobs.advice.job import advised

        try:
            found = advised([str(word) for word in command], {name: str(source) for name, source in inputs.items()})
        except Unknown as error:
            if "steps_per_hour" in left_out:
                self._note(
                    "steps_per_hour", None, readers.Wrong(f"is missing, and {error.what}: {error.why}", "add it")
                )
            return {"steps_per_hour": 1, **table}
        if found is None:
            return table
        told: dict[str, Any] = {"steps_per_hour": found.steps_per_hour} if "steps_per_hour" in left_out else {}
        if "needs" in left_out:
            needs = found.needs
            most = needs.devices_max
            told["needs"] = {
                "devices": [1, most] if most > 1 else 1, "vram_gib": needs.vram_gib, "dtype": needs.dtype
            }  # fmt: skip
            told["device_speedup"] = list(found.device_speedup)
        return {**told, **table}

    def _check_together(self, values: Mapping[str, Any], table: Mapping[str, Any]) -> None:
        deadline, not_before, gate = values["deadline"], values["not_before"], values["gate"]
        if isinstance(deadline, int) and isinstance(not_before, int) and deadline <= not_before:
            self._note("deadline", table["deadline"], readers.Wrong("is not after not_before", "correct one of them"))
        if gate is not None and gate.parent == values["name"]:
            self._note("gate.parent", gate.parent, readers.Wrong("a job cannot wait for itself", "name another job"))
        if values["image_python"] and not values["image"]:
            told = readers.Wrong("it is the Python of the job's own image", "name that too; a pool's is its own option")
            self._note("image_python", table["image_python"], told)
        if twice := sorted(set(values["secrets"]) & set(values["environment"])):
            told = readers.Wrong(f"{twice[0]} is in environment as well", "give it in one of them")
            self._note("secrets", table["secrets"], told)
        if bool(values["evaluation"]) != bool(values["gates"]):
            key, other = ("evaluation", "gates") if values["evaluation"] else ("gates", "evaluation")
            told = readers.Wrong(f"without {other} nothing comes of it", f"add {other}: docs/models.md shows both")
            self._note(key, None, told)
        if values["evaluation"] and values["evaluation"].test_set.source == HELD_OUT and not values["mixture"]:
            told = readers.Wrong("a job without a mixture has no corpus", "add mixture = {}, or name a file of items")
            self._note("evaluation.set", HELD_OUT, told)
        start = values["start_from"]
        if start is not None and gate is not None:
            self._note("gate", table["gate"], readers.Wrong("start_from waits for its job by itself", "remove gate"))
        if start is not None and start.parent == values["name"]:
            told = readers.Wrong("a job cannot start from itself", "name another; schedctl queue restart begins anew")
            self._note("start_from.job", start.parent, told)
        share = values["share"]
        if share is not None and share.partner == values["name"]:
            told = readers.Wrong("a job cannot share hours with itself", "name another job")
            self._note("share.with", share.partner, told)

    def _needs(self, table: Mapping[str, Any]) -> Needs:
        inner = self._table(table, "needs", ("devices", "vram_gib", "dtype"))
        least, most = self._read(inner, "devices", readers.device_range, (1, 1), "needs.")
        return Needs(
            devices_min=least,
            devices_max=most,
            vram_gib=self._read(inner, "vram_gib", readers.number("needs.vram_gib"), 0.0, "needs."),
            dtype=self._read(inner, "dtype", readers.dtype, "fp32", "needs."),
        )

    def _mixture(self, table: Mapping[str, Any]) -> Mixture | None:
        if table.get("mixture", "off") == "off":
            return None
        inner = self._table(table, "mixture", ("corpus", "domain", "extra_share", "renew"))
        common = {
            "corpus": self._read(inner, "corpus", readers.corpus_version, "", "mixture."),
            "renew": self._read(inner, "renew", readers.renew, "restart", "mixture."),
        }
        if not {"domain", "extra_share"} & set(inner):
            return Mixture(**common)
        return Mixture(
            domain=self._read(inner, "domain", readers.text, prefix="mixture."),
            extra_share=self._read(inner, "extra_share", readers.number("mixture.extra_share"), prefix="mixture."),
            **common,
        )

    def _whole(self, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """A whole job has one step, which takes as long as it says: no session that is shorter can hold it."""
        seconds = self._read(table, "whole", readers.whole, None)
        if "whole" not in table:
            return table
        for key in ("target_step", "steps_per_hour"):
            if key in table:
                why = "a job that is run whole has one step, which is all of it"
                self._note(key, table[key], readers.Wrong(why, "leave it out"))
        return {**table, "target_step": 1, "steps_per_hour": 3_600 / (seconds or 3_600)}

    def _gate(self, table: Mapping[str, Any]) -> Gate | None:
        inner = self._table(table, "gate", ("parent", "fraction"))
        if not inner:
            return None
        return Gate(
            parent=self._read(inner, "parent", readers.text, prefix="gate."),
            fraction=self._read(inner, "fraction", readers.number("gate.fraction"), prefix="gate."),
        )

    def _start_from(self, table: Mapping[str, Any]) -> StartFrom | None:
        inner = self._table(table, "start_from", ("job", "at"))
        if not inner:
            return None
        parent = self._read(inner, "job", readers.text, prefix="start_from.")
        at = self._read(inner, "at", readers.start_point, "newest", "start_from.")
        return None if parent is None or at is None else StartFrom(parent, at)

    def _share(self, table: Mapping[str, Any]) -> Share | None:
        inner = self._table(table, "share", ("with", "percent"))
        if not inner:
            return None
        partner = self._read(inner, "with", readers.name, prefix="share.")
        percent = self._read(inner, "percent", readers.number("share.percent"), prefix="share.")
        return None if partner is None or percent is None else Share(partner, percent)

    def _code(self, table: Mapping[str, Any]) -> Code | None:
        """A path is relative to the file that names it; on the command line, to the current folder."""
        if isinstance(table.get("code"), dict):
            inner = self._table(table, "code", ("repository", "commit"))
            source = self._read(inner, "repository", readers.text, prefix="code.")
            revision = self._read(inner, "commit", readers.text, prefix="code.")
        else:
            source, revision = self._read(table, "code", readers.folder, ""), ""
        return Code(self._path(source), revision) if source else None

    def _requirements(self, table: Mapping[str, Any]) -> Requirements | None:
        """A path is relative to the same as that of the code."""
        source = self._read(table, "requirements", readers.requirements, "")
        return Requirements(self._path(source)) if source else None

    def _path(self, text: str) -> str:
        return str(Path(self.file).parent.joinpath(Path(text).expanduser()).resolve())

    def _inputs(self, table: Mapping[str, Any]) -> tuple[Input, ...]:
        """A folder is relative to the file that names it, like the code."""
        sources: dict[str, str] = self._read(table, "inputs", readers.inputs, {})
        return tuple(self._input(name, source) for name, source in sorted(sources.items()))

    def _input(self, name: str, source: str) -> Input:
        return Input(name, source if readers.is_remote(source) else self._path(source))

    def _evaluation(self, table: Mapping[str, Any]) -> Evaluation | None:
        """Its test set is a path like the code's, or comes from elsewhere like an input."""
        keys = ("at", "command", "longest", "needs", "pools", "promote", "set", "usual", "votes", "within")
        inner = self._table(table, "evaluation", keys)
        if not inner:
            return None
        here = Definition(self.file, f"{self.label}.evaluation".lstrip("."), self.problems)
        source = here._read(inner, "set", readers.test_set)
        votes = here._read(inner, "votes", readers.votes, "")
        return Evaluation(
            command=here._read(inner, "command", readers.words),
            test_set=self._input("set", source or ""),
            longest_seconds=here._read(inner, "longest", readers.whole, LONGEST_SECONDS),
            within_seconds=here._read(inner, "within", readers.span_or_off, WITHIN_SECONDS) or None,
            needs=here._needs(inner),
            pools=here._read(inner, "pools", readers.strings, ()),
            promote=here._read(inner, "promote", readers.promote, "automatic"),
            at=here._read(inner, "at", readers.parts, (1.0,)),
            votes=self._path(votes) if votes else "",
            usual=here._read(inner, "usual", readers.usual, 0.5),
        )

    def _stall(self, table: Mapping[str, Any]) -> Stall:
        inner = self._table(table, "stall", ("first_progress", "no_progress", "checkpoint", "loss_nan", "same_error"))
        spans = ("first_progress", "no_progress", "checkpoint")
        counts = {"loss_nan": (1, 1_000_000), "same_error": (2, 1_000)}
        return Stall(
            **{f"{name}_seconds": self._read(inner, name, readers.span_or_off, None, "stall.") for name in spans},
            **{
                name: self._read(inner, name, readers.count_or_off(*bounds), getattr(Stall(), name), "stall.")
                for name, bounds in counts.items()
            },
        )

    def _table(self, table: Mapping[str, Any], key: str, known: tuple[str, ...]) -> Mapping[str, Any]:
        inner = table.get(key, {})
        if not isinstance(inner, dict):
            self._note(key, inner, readers.Wrong("this must be a table", f"known keys are {', '.join(known)}"))
            return {}
        self._refuse_unknown(inner, known, f"{key}.")
        return inner

    def _refuse_unknown(self, table: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
        for key in table:
            if key not in known:
                self._note(f"{prefix}{key}", None, readers.Wrong("there is no such key", did_you_mean(key, known)))

    def _read(
        self,
        table: Mapping[str, Any],
        key: str,
        parse: Callable[[Any], Any],
        default: Any = _NOTHING,
        prefix: str = "",
    ) -> Any:
        if key not in table:
            if default is _NOTHING:
                self._note(f"{prefix}{key}", None, readers.Wrong("is missing", "add it"))
                return None
            return default
        try:
            return parse(table[key])
        except ValueError as error:
            self._note(f"{prefix}{key}", table[key], error)
            return None if default is _NOTHING else default

    def _note(self, key: str, value: Any, error: ValueError) -> None:
        remedy = error.remedy if isinstance(error, readers.Wrong) else ""
        full = f"{self.label}.{key}" if self.label else key
        said = "" if key == "secrets" else shown(value)  # whoever wrote a value there must not find it in a log
        self.problems.append(Problem(self.file, full, said, str(error), remedy))
