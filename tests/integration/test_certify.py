"""`schedctl certify`: twelve faults of a resume are found and named, and a script without any is certified."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.certify.certificate import (
    Certificate,
    certify,
    devices_here,
    folder_digest,
    lacks_certificate,
    write_certificate,
)
from jobs.certify.curves import compare, uninterrupted
from jobs.certify.script_run import ScriptRun, ScriptUnderTest
from jobs.certify.strikes import STRIKES
from jobs.problem import Refusal

KINDS = {
    "ignored SIGTERM": {"ignored_sigterm"},
    "wrong step": {"wrong_step"},
    "data order not restored": {"repeated_data"},
    "optimiser not restored": {"other_update"},
    "learning rate restarted": {"other_update"},
    "random state lost": {"other_state"},
    "save not atomic": {"damaged_save"},
    "background writer lost at exit": {"unfinished_save"},
    "saved only at the end": {"not_saved_at_sigterm", "never_saved"},
    "wrong rank saves": {"other_state"},
    "scaler state lost": {"other_update"},
    "best instead of last restored": {"other_state"},
}


# In which each of the faults shows; the script without any gets all.
SOME = ("SIGTERM in the middle", "SIGKILL in the middle", "SIGKILL during a save", "full disk")
EXAMPLES = {"plain": (sys.executable, "train.py"), "shell": ("bash", "train.sh")}


@pytest.fixture
def certified(tmp_path: Path, repository: Path) -> Callable[..., Certificate]:
    """Certifies a script in a copy of its folder."""

    def run(
        folder: str,
        words: tuple[str, ...],
        steps: int,
        *names: str,
        devices: tuple[str, ...] = ("0",),
        **environment: str,
    ) -> Certificate:
        shutil.copytree(repository / folder, tmp_path / "code")
        script = ScriptUnderTest(tmp_path / "code", words, environment, tmp_path, steps, 5.0, devices=devices)
        strikes = tuple(strike for strike in STRIKES if not names or strike.name in names)
        return certify(script, print, adapt=False, strikes=strikes)

    return run


@pytest.mark.parametrize("fault", KINDS)
def test_every_planted_fault_is_found_and_named(certified: Callable[..., Certificate], fault: str) -> None:
    found = certified("tests/lab/certify", (sys.executable, "train.py"), 600, *SOME, FAULT=fault)
    assert {finding.kind for result in found.results for finding in result.findings} == KINDS[fault]
    assert found.level in {"E2", "failed"}


def test_a_script_without_a_fault_is_certified(certified: Callable[..., Certificate]) -> None:
    found = certified("tests/lab/certify", (sys.executable, "train.py"), 600)
    assert (found.level, found.deterministic) == ("E0", True)
    assert [result.findings for result in found.results] == [()] * 12
    by_name = {result.strike.name: result.resumed_from or 0 for result in found.results}
    assert by_name["SIGKILL during import"] == 0
    assert by_name["SIGTERM in the middle"] >= 200
    assert by_name["SIGKILL at an evaluation"] > 200


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_certified(certified: Callable[..., Certificate], example: str) -> None:
    assert certified(f"examples/{example}", EXAMPLES[example], 5_000, *SOME).level == "E0"


def test_a_strike_that_a_script_did_not_notice_shows_nothing(certified: Callable[..., Certificate]) -> None:
    words = ("sh", "-c", f"trap '' TERM; exec {sys.executable} train.py")
    with pytest.raises(Refusal, match="it never had to resume on its way to step 200"):
        certified("tests/lab/certify", words, 200, "SIGTERM during import")


def test_a_script_that_cannot_use_two_devices_is_found(certified: Callable[..., Certificate]) -> None:
    words = ("sh", "-c", f'case "$CUDA_VISIBLE_DEVICES" in *,*) exit 3; esac; exec {sys.executable} train.py')
    found = certified("tests/lab/certify", words, 200, "from 2 to 1 devices", devices=("0", "1"))
    assert [finding.message for finding in found.results[0].findings] == [
        "on 2 devices it ended with status 3 at step None"
    ]
    assert found.level == "failed"


def test_a_run_has_as_many_devices_as_its_strike_says_whatever_the_user_may_use(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.sh").write_text("echo devices $CUDA_VISIBLE_DEVICES >&2")
    words = ("sh", "train.sh")
    mine = {"CUDA_VISIBLE_DEVICES": "2,3"}
    script = ScriptUnderTest(tmp_path / "code", words, mine, tmp_path, 1, devices=devices_here(mine))
    for count, shown in ((1, "devices 2"), (2, "devices 2,3")):
        run = ScriptRun(script, devices=count)
        run.end()
        assert run.log_line == shown
        run.close()


def test_a_script_that_reports_nothing_is_refused(certified: Callable[..., Certificate]) -> None:
    with pytest.raises(Refusal, match="without any interruption it ended with status 0, at step None"):
        certified("examples/whole", (sys.executable, "train.py"), 50)


def test_a_certificate_holds_for_the_folder_that_it_was_made_of(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    assert lacks_certificate(script, tmp_path) == "has no certificate that it resumes"
    passed = Certificate("E1", 60, deterministic=True, results=(), skipped=())
    write_certificate(passed.document("train.py", ("python",), folder_digest(tmp_path), 1_800_000_000), script, None)
    assert lacks_certificate(script, tmp_path) == ""
    assert "resume: E1" in (tmp_path / "train.py.certificate.svg").read_text()
    (tmp_path / "model.py").write_text("x = 1")
    assert lacks_certificate(script, tmp_path) == "has changed since it was certified, or a file beside it"


def test_what_is_no_more_than_the_noise_of_two_runs_is_the_same_state() -> None:
    """And what is more than three standard deviations of the loss is a jump."""
    losses = {step: {"loss": 1 + step % 7 / 10} for step in range(100)}
    other = {step: {"loss": values["loss"] + 1e-3} for step, values in losses.items()}
    straight = uninterrupted(losses, other, {"model": "a"}, {"model": "b"})
    assert not straight.deterministic
    assert compare(other, {"model": "c"}, 50, straight) == ("E1", [])
    jumped = {step: {"loss": values["loss"] + 9.0} for step, values in losses.items()}
    level, findings = compare(jumped, {"model": "c"}, 50, straight)
    assert (level, [finding.kind for finding in findings]) == ("failed", ["loss_jump"])
    assert "loss is 10.2 at step 51 and 1.2 without the interruption" in findings[0].message


def test_files_that_differ_count_by_what_else_can_be_seen() -> None:
    """A framework counts resumes in its own file; where nothing but steps is reported the files are all there is."""
    for values, level, kind in (
        ({"step": 1.0, "loss": 1.0}, "E1", "other_files"),
        ({"step": 1.0}, "E2", "other_state"),
    ):
        curve = dict.fromkeys(range(10), values)
        straight = uninterrupted(curve, curve, {"state": "a"}, {"state": "a"})
        found, findings = compare(curve, {"state": "b"}, 5, straight)
        assert (found, [finding.kind for finding in findings]) == (level, [kind])
        assert compare(curve, {"state": "a"}, 5, straight) == ("E0", [])


def test_a_mean_over_fewer_steps_is_not_another_training() -> None:
    """Frameworks that log a mean of ten steps begin a new mean when they resume."""
    curve = {step: {"loss": 5 - step / 100 + step % 7 / 10} if step % 10 == 0 else {"step": 1.0} for step in range(61)}
    straight = uninterrupted(curve, curve, {"state": "a"}, {"state": "a"})
    for since, unlike, is_mean in (
        (14, (20,), True),
        (14, (20, 30), False),
        (54, (60,), False),  # nothing follows that would show that the state is right
        (19, (20,), False),  # a mean over one step: that of the batch itself
    ):
        resumed = {**curve, **{step: {"loss": curve[step]["loss"] - 0.004} for step in unlike}}
        level, findings = compare(resumed, {"state": "b"}, since, straight)
        assert (level, findings[0].kind == "first_mean") == ("E1" if is_mean else "E2", is_mean)
