"""The adviser against what was measured: published peaks, and set-ups measured on a card of one's own.

    python3 benchmarks/bench_advice.py                            # published peaks, and what was measured on an H100
    python3 benchmarks/bench_advice.py OUT.json                   # what was measured elsewhere
    python3 benchmarks/bench_advice.py --measure OUT.json         # measure 30 set-ups here: one GPU, 8 minutes at most
    python3 benchmarks/bench_advice.py --measure OUT.json --cpu   # tiny shapes on the processor, to see that it runs

``--measure`` needs torch, transformers, peft and accelerate, and nothing of this repository's own environment: start it
with the Python that has them. It writes OUT.json after each set-up. What needs bitsandbytes is left out without it.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a script

HERE = Path(__file__).resolve().parent
SECONDS = 440.0  # no set-up is begun later; with the last one it stays below eight minutes


def main() -> int:
    """Compare or measure; 1 if a figure misses its aim."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("measured", type=Path, nargs="?", help="what --measure wrote")
    parser.add_argument("--measure", type=Path, metavar="OUT.json", help="measure set-ups on this machine's card")
    parser.add_argument("--cpu", action="store_true", help="tiny shapes on the processor")
    parser.add_argument("--only", default="", metavar="WORD", help="set-ups with this word in their name")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no set-up is begun later")
    options = parser.parse_args()
    if options.measure:
        return measure(options.measure, options.only, options.seconds, tiny=options.cpu)
    from tests.lab.predictions import measured, published

    reached = True if options.measured else published(HERE / "advice_peaks.toml")
    return int(not (measured(options.measured or HERE / "advice_h100.json") and reached))


def measure(out: Path, only: str, seconds: float, *, tiny: bool) -> int:
    """Measure the set-ups, one process each."""
    from jobs.payload.trainers.calibrate import measure_all

    setups = [small(setup) for setup in SETUPS] if tiny else list(SETUPS)
    if importlib.util.find_spec("bitsandbytes") is None:
        setups = [setup for setup in setups if setup["method"] != "qlora" and setup.get("optimizer") != "adamw8bit"]
    found = measure_all([setup for setup in setups if only in setup["name"]], out, seconds)
    good = [row for row in found["setups"] if row["points"]]
    points = sum(len(row["points"]) for row in good)
    print(f"{len(good)} of {len(found['setups'])} set-ups, {points} points, {found['seconds']:.0f} s: {out}")
    return int(not good)


def llama(hidden: int, layers: int, heads: int, between: int, words: int, shared: int = 0) -> dict[str, Any]:
    """Return a shape of Llama's kind; ``shared`` heads of keys and values, as many as heads if zero."""
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared or heads,
        "intermediate_size": between,
        "vocab_size": words,
        "max_position_embeddings": 32_768,
    }


def qwen(hidden: int, layers: int, heads: int, shared: int, between: int, *, tied: bool, words: int) -> dict[str, Any]:
    """Return a shape of Qwen2.5."""
    given = llama(hidden, layers, heads, between, words, shared)
    return {**given, "model_type": "qwen2", "tie_word_embeddings": tied}


DEEPSEEK_1B = llama(2048, 24, 16, 5504, 32_256)
DEEPSEEK_7B = llama(4096, 32, 32, 11_008, 32_256)
LLAMA_8B = llama(4096, 32, 32, 14_336, 128_256, 8)
QWEN_HALF = qwen(896, 24, 14, 2, 4864, tied=True, words=151_936)
QWEN_1B = qwen(1536, 28, 12, 2, 8960, tied=True, words=151_936)
QWEN_7B = qwen(3584, 28, 28, 4, 18_944, tied=False, words=152_064)
QWEN_14B = qwen(5120, 48, 40, 8, 13_824, tied=False, words=152_064)
QWEN_VL_2B = {
    "model_type": "qwen2_vl",
    "text_config": {**QWEN_1B, "model_type": "qwen2_vl_text"},
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "mlp_ratio": 4},
    "tie_word_embeddings": True,
}


def setup(name: str, shape: dict[str, Any], points: list[tuple[int, int]], **more: Any) -> dict[str, Any]:
    """Return a set-up, LoRA on a 16 bit base under Trainer's arithmetic unless it says something else."""
    return {"name": name, "shape": shape, "points": points, "trainer": "transformers", "method": "lora", **more}


_LORA = [(1, 512), (1, 2048), (4, 2048), (1, 8192), (1, 16_384)]
_KEPT = [(1, 512), (1, 1024), (1, 2048), (2, 2048), (1, 4096)]
_SMALL = [(1, 512), (2, 1024), (8, 1024), (4, 4096)]
_FULL = [(1, 512), (1, 2048), (4, 2048), (1, 8192)]
_OWN = {"trainer": "finetune"}
_CHECKPOINTING = {"checkpointing": True}
_ALL = {"method": "full", "autocast": False}
_AMP = {"method": "full", "weights": "fp32"}

# The order is that of what would be missed most if the time were over.
SETUPS = (
    setup("6.7b lora checkpointing", DEEPSEEK_7B, _LORA, **_CHECKPOINTING),
    setup("1.3b full amp checkpointing", DEEPSEEK_1B, _FULL, **_AMP, **_CHECKPOINTING),
    setup("6.7b lora", DEEPSEEK_7B, _KEPT),
    setup("1.3b full bf16", DEEPSEEK_1B, _FULL, **_ALL),
    setup("6.7b lora checkpointing own", DEEPSEEK_7B, _LORA, **_OWN, **_CHECKPOINTING),
    setup("6.7b lora compile own", DEEPSEEK_7B, [*_KEPT[:3], (4, 2048)], **_OWN, compile=True),
    setup("1.3b lora checkpointing", DEEPSEEK_1B, [*_SMALL, (1, 16_384)], **_CHECKPOINTING),
    setup("1.3b lora", DEEPSEEK_1B, [*_SMALL[:3], (1, 4096), (1, 8192)]),
    setup("qwen 1.5b lora checkpointing", QWEN_1B, _SMALL, **_CHECKPOINTING),
    setup("qwen 7b lora checkpointing", QWEN_7B, _LORA[:4], **_CHECKPOINTING),
    setup("llama 8b lora", LLAMA_8B, _KEPT[:4]),
    setup("1.3b full bf16 checkpointing", DEEPSEEK_1B, _FULL, **_ALL, **_CHECKPOINTING),
    setup("1.3b full amp", DEEPSEEK_1B, [*_KEPT[:4]], **_AMP),
    setup("1.3b full own checkpointing", DEEPSEEK_1B, _FULL, **_AMP, **_OWN, **_CHECKPOINTING),
    setup("6.7b lora own", DEEPSEEK_7B, _KEPT, **_OWN),
    setup("qwen 0.5b full bf16 checkpointing", QWEN_HALF, _SMALL, **_ALL, **_CHECKPOINTING),
    setup(
        "1.3b full bf16 checkpointing foreach",
        DEEPSEEK_1B,
        _FULL[:3],
        **_ALL,
        **_CHECKPOINTING,
        optimizer="adamw-foreach",
    ),
    setup(
        "1.3b full bf16 checkpointing adafactor",
        DEEPSEEK_1B,
        _FULL[:3],
        **_ALL,
        **_CHECKPOINTING,
        optimizer="adafactor",
    ),
    setup("1.3b full bf16 checkpointing sgd", DEEPSEEK_1B, _FULL[:3], **_ALL, **_CHECKPOINTING, optimizer="sgd"),
    setup("6.7b qlora checkpointing", DEEPSEEK_7B, [(1, 512), (1, 2048), (4, 2048)], **_CHECKPOINTING, method="qlora"),
    setup("1.3b full bf16 checkpointing 8bit", DEEPSEEK_1B, _FULL[:3], **_ALL, **_CHECKPOINTING, optimizer="adamw8bit"),
    setup("6.7b qlora", DEEPSEEK_7B, _KEPT[:3], method="qlora"),
    setup("6.7b full bf16 checkpointing", DEEPSEEK_7B, _FULL[:3], **_ALL, **_CHECKPOINTING),
    setup("6.7b lora r64 q,v", DEEPSEEK_7B, _KEPT[:4], rank=64, targets=["q_proj", "v_proj"]),
    setup("6.7b lora dropout", DEEPSEEK_7B, _KEPT[:3], dropout=0.05),
    setup(
        "qwen2-vl 2b lora checkpointing",
        QWEN_VL_2B,
        [(1, 1024), (2, 1024), (4, 1024)],
        **_CHECKPOINTING,
        image=[36, 36],
    ),
    setup("qwen2-vl 2b lora", QWEN_VL_2B, [(1, 1024), (2, 1024)], image=[36, 36]),
    setup("qwen 14b lora checkpointing", QWEN_14B, [(1, 512), (1, 2048), (1, 8192)], **_CHECKPOINTING),
    setup("1.3b full compile own", DEEPSEEK_1B, _FULL, **_AMP, **_OWN, compile=True),
    setup("qwen 0.5b lora own", QWEN_HALF, _SMALL, **_OWN),
)


def small(given: dict[str, Any]) -> dict[str, Any]:
    """Return a set-up in a size that a processor trains in a moment."""
    tiny = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    tiny = {**tiny, "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 512}
    shape = given["shape"]
    if "text_config" in shape:
        ids = {"image_token_id": 8, "vision_start_token_id": 6, "vision_end_token_id": 7, "video_token_id": 9}
        text = {**shape["text_config"], **tiny, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
        vision = {**shape["vision_config"], "depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4}
        shape = {**shape, "text_config": text, "vision_config": vision, **ids}
        return {**given, "shape": shape, "image": [4, 4], "points": [(1, 32), (2, 32)]}
    return {**given, "shape": {**shape, **tiny}, "points": [(1, 32), (2, 32)], "compile": False}


if __name__ == "__main__":
    sys.exit(main())
