"""What a session may do in the artifact store: its own, and what it starts from."""

from jobs.payload.store.manifest import Component, Manifest
from scheduler.core.run import Lane, Reserved, Run
from scheduler.service.launch.launch import grant

MANIFEST = Manifest(
    job="ufm",
    step=400,
    attempt=6,
    run="uff-ufm-0006",
    lane=0,
    parent=None,
    created_at=1,
    trained_seconds=1,
    metrics={},
    components=(Component("weights.npz", "a" * 64, 3),),
)
RUN = Run(
    key="uff-ufm-0007",
    pool="aws",
    lanes=(Lane(0, "ufm", 7, (0,), 400), Lane(1, "ucm", 3, (1,), None)),
    planned_start=0,
    deadline=3_600,
    held_until=3_900,
    state=Reserved(0),
)


def test_a_session_writes_its_own_and_reads_what_it_starts_from() -> None:
    made = grant(RUN, [MANIFEST], ["corpus/v1/mixtures/ufm/", "corpus/v1/mixtures/ufm", ""], 60.4)
    assert (made.run, made.jobs) == ("uff-ufm-0007", ("ucm", "ufm"))
    assert made.folders == ("corpus/v1/mixtures/ufm",)
    assert set(made.reads) == {
        MANIFEST.key,
        f"jobs/ufm/blobs/{'a' * 64}",
        "runs/uff-ufm-0007/stop",
        *(f"runs/uff-ufm-0007/lane-{lane}/{name}.json" for lane in (0, 1) for name in ("heartbeat", "result", "next")),
    }


def test_rights_outlast_the_session_by_a_quarter_of_an_hour_and_never_begin_expired() -> None:
    assert grant(RUN, [], [], 60.4).lasts_seconds == 960
    assert grant(RUN, [], [], -100).lasts_seconds == 900
