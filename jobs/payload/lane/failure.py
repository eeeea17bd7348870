"""Why a command failed: its error class, by which the daemon decides about the next attempt.

A table maps the last lines of a failed command to classes; each pattern cites its source. The first match wins, so
exact patterns come first. A line that both the platform and the job can cause counts against the platform: a job that
fails everywhere is stopped by its number of failures anyway.
"""

# ruff: noqa: E501 - a table: one pattern is one line

import re
import signal
from collections.abc import Sequence
from typing import Literal, NamedTuple

ErrorClass = Literal[
    "oom", "data", "code", "environment", "store", "device", "wrong_device", "network", "killed", "stalled",
    "no_checkpoint", "diverged", "parent", "secret",
]  # fmt: skip


class Pattern(NamedTuple):
    """The error class of a line. ``follows``: another process probably failed first, so the pattern counts last."""

    error_class: ErrorClass
    words: re.Pattern[str]
    source: str
    follows: bool = False


def _pattern(error_class: ErrorClass, words: str, source: str, weight: Literal["", "follows"] = "") -> Pattern:
    return Pattern(error_class, re.compile(words, re.IGNORECASE), source, weight == "follows")


# Lines of the kernel or the driver: a match in any line is proof. The application causes Xid 13, 31, 43 and 45.
HARDWARE = (
    _pattern("device", r"\bxid(?: \([^)]*\))?:? (?!(?:13|31|43|45)\b)\d{1,3}\b", "docs.nvidia.com/deploy/xid-errors"),
    _pattern("device", r"fallen off the bus", "NVIDIA/open-gpu-kernel-modules#507"),
    _pattern("device", r"gpu is lost", "JosephKJ/OWOD#81"),
    _pattern("device", r"unable to determine the device handle", "rwth-i6/returnn#1486"),
    _pattern("device", r"uncorrectable[ _]ecc|ecc[ _]uncorrectable|double[- ]bit ecc", "vllm-project/vllm#5222"),
    _pattern("oom", r"oom[-_ ]kill", "nextflow-io/nextflow#5932"),
)

PATTERNS = (
    # Errors of the job, although the text reads like one of a device or a network.
    _pattern("code", r"device-side assert triggered", "pytorch/pytorch#1204"),
    _pattern("code", r"\b(400|401|403|404|410|416|422) client error|http error 4(?!08|29)\d\d\b", "ml-explore/mlx-examples#759"),
    _pattern("code", r"gated repo|repositorynotfounderror|revisionnotfounderror|entrynotfounderror: 404", "zhaoxlpku/DASC7606-A3#1"),
    # The session's disk and shared memory.
    _pattern("store", r"shared memory|insufficient shm|\(shm\)", "pytorch/pytorch#5040"),
    _pattern("store", r"worker \(pid.*bus error", "PaddlePaddle/Paddle#24708"),
    _pattern("store", r"no space left on device|storagefull|\berrno 28\b", "hiyouga/LlamaFactory#5155"),
    _pattern("store", r"quota exceeded|\berrno 122\b", "open-mmlab/mmdetection#12069"),
    _pattern("store", r"streamwriter failed writing|file write failed", "hiyouga/LlamaFactory#1223"),
    _pattern("store", r"input/output error|remote i/o error|\berrno 5\b", "whwu95/Text4Vis#6"),
    _pattern("store", r"stale (nfs )?file handle|\berrno 116\b", "hiyouga/LlamaFactory#3388"),
    _pattern("store", r"read-only file system", "man7.org/linux/man-pages/man3/errno.3.html"),
    _pattern("store", r"transport endpoint is not connected", "man7.org/linux/man-pages/man3/errno.3.html"),
    # Memory.
    _pattern("oom", r"out ?of ?memory", "karpathy/nanoGPT#208"),
    _pattern("oom", r"\bmemoryerror\b", "docs.python.org/3/library/exceptions.html"),
    _pattern("oom", r"(cannot|can't|not enough memory.*|unable to) allocate", "man7.org/linux/man-pages/man3/errno.3.html"),
    _pattern("oom", r"status_alloc_failed|bad_alloc|resource_?exhausted", "docs.nvidia.com/cuda/cublas"),
    _pattern("oom", r"worker \(pid.*killed by signal: killed", "ArjunaCluster/ArjunaUsers#52"),
    # The device.
    _pattern("device", r"busy or unavailable", "pytorch/pytorch#2704"),
    _pattern("device", r"cuda unknown error|cuda_?error_?unknown|cuda.*(error|\(30\)|\(999\)).{0,4}unknown error", "pytorch/pytorch#49327"),
    _pattern("device", r"unspecified launch failure|launch timed out", "ostris/ai-toolkit#617"),
    _pattern("device", r"illegal memory access|illegal instruction was|illegal address", "hpcaitech/Open-Sora#694"),
    _pattern("device", r"system not yet initialized|system_?not_?ready", "huggingface/huggingface_hub#4134"),
    _pattern("device", r"no kernel image is available", "pytorch/pytorch#31285"),
    _pattern("device", r"no (cuda-capable|hip-capable|nvidia) (device|driver|gpu)|no (cuda|hip) gpus|found no nvidia", "pytorch/pytorch#49327"),
    _pattern("device", r"driver version is insufficient|driver/library version mismatch|failed to initialize nvml", "NVIDIA/nvidia-docker#1730"),
    _pattern("device", r"(cublas|cudnn|cusolver|cufft)_?status_(not_initialized|internal_error|execution_failed|mapping_error)", "docs.nvidia.com/cuda/cublas"),
    _pattern("device", r"invalid device ordinal", "docs.nvidia.com/cuda/cuda-runtime-api"),
    _pattern("device", r"failed call to cuinit|cuda initialization|unexpected error from cuda", "microsoft/lisa#2823"),
    _pattern("device", r"device or resource busy|tpu.*(initialization failed|already in use)", "man7.org/linux/man-pages/man3/errno.3.html"),
    _pattern("device", r"this device cannot be used", "jobs/payload/trainers/finetune.py"),
    _pattern("device", r"cannot open shared object file|glibc\w*_[\d.]+'? not found", "jade-hpc-gpu/jade-hpc-gpu.github.io#91"),
    _pattern("device", r"llvm error: cannot select", "unslothai/unsloth#11465"),
    # The network and remote services.
    _pattern("network", r"name resolution|name or service not known|(could not|failed to|cannot|can't) resolve|getaddrinfo|\bgaierror\b|nodename nor servname", "huggingface/huggingface_hub#1689"),
    _pattern("network", r"network is unreachable|no route to host|network is down|host is down", "AUTOMATIC1111/stable-diffusion-webui#17165"),
    _pattern("network", r"\b(408|429) client error|\b5\d\d server error|http error (408|429|5\d\d)\b|\b(408|429|5\d\d) (too many|internal server|bad gateway|service unavailable|gateway time)", "huggingface/huggingface_hub#1516"),
    _pattern("network", r"too many requests|bad gateway|gateway time-?out|service (temporarily )?unavailable|serviceunavailable|slowdown|reduce your request rate", "huggingface/datasets#7506"),
    _pattern("network", r"max retries exceeded|failed to establish a new connection|(couldn't|could not|unable to|can't|cannot|failed to) (connect|reach)", "huggingface/huggingface.js#731"),
    _pattern("network", r"(read|connect\w*|request|socket|handshake|heartbeat) ?(operation )?time(d )?-?out|timeout was reached", "run-llama/llama_index#12552"),
    _pattern("network", r"incomplete ?read|incompletebody|connection broken|peer closed|(server|remote end|remotely) (disconnected|closed)|remote ?disconnected|closed connection", "huggingface/huggingface_hub#4349"),
    _pattern("network", r"eof occurred in violation|unexpected_eof|certificate_?verify_?failed|\bssl(eof|zeroreturn)?error\b|tls.{0,20}(closed|terminated)", "docling-project/docling#2157"),
    _pattern("network", r"\bcurl: ?\((5|6|7|18|28|35|52|55|56|92)\)|unable to access 'http|rpc failed", "duoan/TorchCode#8"),
    _pattern("network", r"commerror|communicat\w+ with (the )?(wandb|backend)|run initialization has timed out", "wandb/wandb#7671"),
    _pattern("network", r"\b(?-i:UNAVAILABLE|DEADLINE_EXCEEDED)\b|error code: ?5\d\d|\b(5\d\d|429)\)? when calling", "grpc.github.io/grpc/core/md_doc_statuscodes.html"),
    _pattern("network", r"urlopen error", "tensorflow/hub#120"),
    # Secondary errors: other processes of the command report them after the first process has died.
    _pattern("device", r"\bnccl|disterror|distbackenderror|collective operation timeout|process group watchdog", "pytorch/pytorch#118369", "follows"),
    _pattern("device", r"ownerdiederror|actordiederror|rayactorerror|nodediederror|node has died", "ray-project/ray#43751", "follows"),
    _pattern("network", r"diststoreerror|distnetworkerror|rendezvous\w*error|c10d|gloo|clients joined|socket has timed out", "OpenRLHF/OpenRLHF#1040", "follows"),
    _pattern("network", r"connection (was )?(forcibly )?(reset|refused|aborted|closed|lost|error)|connection(reset|refused|aborted)?error|broken ?pipe", "huggingface/huggingface_hub#2822", "follows"),
)  # fmt: skip

# Exceptions that the parent of the failed process raises; they do not contain the cause.
WRAPPERS = re.compile(
    r"childfailederror|calledprocesserror|processraisedexception|processexitedexception|exited unexpectedly|systemexit"
    r"|nonzeroexit|subprocess\w*error|raytaskerror",
    re.IGNORECASE,
)

# The exit status by which a command reports unreadable data (EX_DATAERR of sysexits.h).
EXIT_DATA = 65
_SHELL_SIGNAL_BASE = 128

_DIVERGED = "finetune: the loss diverged"
_STALLED = "finetune: the training stalled"
# Signals of native code that point to a faulty device, a full shared memory, or a processor without some instruction.
_PLATFORM_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL})
_MEMORY = tuple(pattern for pattern in PATTERNS if pattern.error_class == "oom")
_LAST_LINES = 40  # lines to search if the command prints no traceback
_PREFIX = re.compile(r"^(\[rank\d+\]: ?|\(\w+ pid=\d+[^)]*\) ?|\[\d+\] ?|\d+: )")
_EXCEPTION = re.compile(
    r"([a-z_]\w*\.)*[A-Z]\w*(Error|Exception|Timeout|Interrupt|Exit|Read|Disconnected|Full|Expired)\b"
)
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_SENTENCES: dict[ErrorClass, str] = {
    "oom": "the command ran out of memory",
    "store": "the session's disk or shared memory is full, or cannot be read",
    "device": "the session could not run the command: its device, driver or libraries failed",
    "network": "the command could not use the network, or a service that it needs gave no answer",
}


class Failure(Exception):
    """A lane cannot continue. ``why`` is for people; the daemon decides about the next attempt by ``error_class``."""

    def __init__(self, error_class: ErrorClass, why: str) -> None:
        super().__init__(why)
        self.error_class: ErrorClass = error_class
        self.why = why


class FailureVerdict(NamedTuple):
    """An error class, and a sentence about it for people."""

    error_class: ErrorClass
    why: str


def classify(exit_code: int, errors: str) -> FailureVerdict:
    """Return why a command failed, by messages of the kernel, else its exceptions, last lines, or the signal."""
    killed_by = -exit_code if exit_code < 0 else exit_code - _SHELL_SIGNAL_BASE
    if exit_code == EXIT_DATA:
        return FailureVerdict("data", "the command could not read its data")
    lines = [_PREFIX.sub("", line) for line in errors.splitlines()]
    proof = _match(lines, HARDWARE)
    if proof is None and killed_by == signal.SIGKILL and _match(lines, _MEMORY) is None:
        return FailureVerdict("killed", "the command was killed by SIGKILL, not by us: most often for lack of memory")
    if proof is None and _DIVERGED in errors.lower():
        return FailureVerdict("diverged", "the command reports that its loss diverged")
    if proof is None and _STALLED in errors.lower():
        return FailureVerdict("stalled", "the command reports that its training stalled")
    error_class = proof.error_class if proof else _by_exceptions(lines)
    if error_class is None and killed_by in _PLATFORM_SIGNALS:
        error_class = "device"
    if error_class in _SENTENCES:
        how = f"died of {_name(killed_by)}" if exit_code < 0 else f"exit status {exit_code}"
        return FailureVerdict(error_class, f"{_SENTENCES[error_class]} ({how})")
    if exit_code < 0:
        return FailureVerdict("code", f"the command died of {_name(killed_by)}")
    return FailureVerdict("code", f"the command failed with exit status {exit_code}")


def _by_exceptions(lines: Sequence[str]) -> ErrorClass | None:
    """Return the class of the newest primary error, else of the oldest secondary one, else of the last lines."""
    secondary: ErrorClass | None = None
    has_cause = False
    for group in reversed(_groups(lines)):
        causes = [line for line in group if not WRAPPERS.search(line)]
        if not causes:
            continue
        has_cause = True
        match = _match(causes, PATTERNS)
        if match is None or match.error_class == "code":
            return "code"
        if not match.follows:
            return match.error_class
        secondary = match.error_class
    if has_cause:
        return secondary
    match = _match(lines[-_LAST_LINES:], PATTERNS)
    return match.error_class if match else None


def _groups(lines: Sequence[str]) -> list[list[str]]:
    """Return the exceptions of each traceback with their causes, oldest first; `rich` prints them without one."""
    groups: list[list[str]] = []
    chained = inside = False
    for line in lines:
        if line.startswith(_TRACEBACK):
            if not chained or not groups:
                groups.append([])
            chained, inside = False, True
        elif line.startswith(_CHAINED):
            chained = True
        elif line.strip() and inside and not line[0].isspace():
            groups[-1].append(line)
            inside = False
        elif not inside and (_EXCEPTION.match(line) or "what():" in line):
            groups.append([line])
    return [group for group in groups if group]


def _match(lines: Sequence[str], patterns: Sequence[Pattern]) -> Pattern | None:
    """Return the first pattern that matches any of the lines."""
    return next((each for each in patterns if any(each.words.search(line) for line in lines)), None)


def _name(number: int) -> str:
    """Return the name of a signal; real-time signals have a number instead of a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        real = signal.SIGRTMIN <= number <= signal.SIGRTMAX
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if real else f"signal {number}"
