"""Training text: sources to a deduplicated, tagged, content-versioned corpus, and mixtures of it per job."""

from jobs.corpus.build.build import Progress, build
from jobs.corpus.errors import (
    BadParameter,
    CorpusDamaged,
    CorpusError,
    NoSuchVersion,
    NothingToTrainOn,
    RuleFailed,
    SourceMissing,
)
from jobs.corpus.findings import Finding, Kind
from jobs.corpus.manifest import CorpusManifest, Shard, open_corpus
from jobs.corpus.mixture import Mixture, mixture, open_mixture
from jobs.corpus.options import Options, Rule
from jobs.corpus.read.sources import Files, Source, Stdlib, parse_source

__all__ = [
    "BadParameter",
    "CorpusDamaged",
    "CorpusError",
    "CorpusManifest",
    "Files",
    "Finding",
    "Kind",
    "Mixture",
    "NoSuchVersion",
    "NothingToTrainOn",
    "Options",
    "Progress",
    "Rule",
    "RuleFailed",
    "Shard",
    "Source",
    "SourceMissing",
    "Stdlib",
    "build",
    "mixture",
    "open_corpus",
    "open_mixture",
    "parse_source",
]
