"""Failure patterns: what the last lines of a failed command mean, as data; each names a thread or document of it.

The first pattern that matches wins, so the exact ones come first. A line that both a place and a job can cause blames
the place: a job that fails everywhere is stopped by its count of failures anyway. Standard library only.
"""

# ruff: noqa: E501 - a table: one pattern is one line

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from .failure import ErrorClass


class Pattern(NamedTuple):
    """What a line means. A ``follows`` line is often the echo of another process' failure and counts last."""

    error_class: ErrorClass
    words: re.Pattern[str]
    source: str
    follows: bool = False


def _pattern(error_class: ErrorClass, words: str, source: str, weight: Literal["", "follows"] = "") -> Pattern:
    return Pattern(error_class, re.compile(words, re.IGNORECASE), source, weight == "follows")


# Written by the kernel or the driver: proof wherever it stands. Xid 13, 31, 43 and 45 are the application's own.
HARDWARE = (
    _pattern("device", r"\bxid(?: \([^)]*\))?:? (?!(?:13|31|43|45)\b)\d{1,3}\b", "docs.nvidia.com/deploy/xid-errors"),
    _pattern("device", r"fallen off the bus", "NVIDIA/open-gpu-kernel-modules#507"),
    _pattern("device", r"gpu is lost", "JosephKJ/OWOD#81"),
    _pattern("device", r"unable to determine the device handle", "rwth-i6/returnn#1486"),
    _pattern("device", r"uncorrectable[ _]ecc|ecc[ _]uncorrectable|double[- ]bit ecc", "vllm-project/vllm#5222"),
    _pattern("oom", r"oom[-_ ]kill", "nextflow-io/nextflow#5932"),
)

PATTERNS = (
    # The job's own, though the words are those of a device or a network.
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
    # The network and what is behind it.
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
    # Echoes: what other processes of the command say when one has died. A store has no answer, a worker is gone.
    _pattern("device", r"\bnccl|disterror|distbackenderror|collective operation timeout|process group watchdog", "pytorch/pytorch#118369", "follows"),
    _pattern("device", r"ownerdiederror|actordiederror|rayactorerror|nodediederror|node has died", "ray-project/ray#43751", "follows"),
    _pattern("network", r"diststoreerror|distnetworkerror|rendezvous\w*error|c10d|gloo|clients joined|socket has timed out", "OpenRLHF/OpenRLHF#1040", "follows"),
    _pattern("network", r"connection (was )?(forcibly )?(reset|refused|aborted|closed|lost|error)|connection(reset|refused|aborted)?error|broken ?pipe", "huggingface/huggingface_hub#2822", "follows"),
)  # fmt: skip

# Raised by whoever started the process that failed; they say nothing of why.
WRAPPERS = re.compile(
    r"childfailederror|calledprocesserror|processraisedexception|processexitedexception|exited unexpectedly|systemexit"
    r"|nonzeroexit|subprocess\w*error|raytaskerror",
    re.IGNORECASE,
)
