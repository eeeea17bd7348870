"""How a model lies in memory: what is frozen in as few bits as it may, what is trained in 32."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import torch

from jobs.payload.trainers.tuning.devices.card import find_card
from jobs.payload.trainers.tuning.model import CausalLM, make_model
from jobs.payload.trainers.tuning.optimizer import make_adamw
from jobs.payload.trainers.tuning.options import read_options
from tests.lab.families import family_config, family_model

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")


@pytest.mark.parametrize(
    ("words", "frozen"),
    [
        (("--lora", "4", "--precision", "bf16"), {torch.bfloat16}),
        (("--use-4bit", "--lora", "4", "--precision", "bf16"), {torch.bfloat16, torch.uint8}),
        (("--precision", "bf16"), set()),
    ],
    ids=["lora", "qlora", "full"],
)
def test_a_frozen_base_has_16_bits_or_4_and_what_is_trained_has_32(
    words: tuple[str, ...], frozen: set[torch.dtype], model: Path
) -> None:
    if "--use-4bit" in words:
        pytest.importorskip("bitsandbytes")
    options = read_options(["--model", str(model), "--compile", "off", *words])
    made = make_model(options, str(model), None, None, find_card(0, options.precision))
    parts = list(made.whole.parameters())
    assert {part.dtype for part in parts if not part.requires_grad} == frozen
    assert {part.dtype for part in made.trained} == {torch.float32}
    if options.bits == 4:
        products = [part for part in parts if part.dtype == torch.uint8]
        assert len(products) == 2 * 7, "all products of both layers, and neither embedding nor head"


def test_the_optimizer_is_fused_on_an_accelerator_and_keeps_8_bits_where_it_is_told(model: Path) -> None:
    options = read_options(["--model", str(model)])
    large = [torch.nn.Parameter(torch.ones(64, 128)), torch.nn.Parameter(torch.ones(8))]
    plain = make_adamw(options, large, fused=True)
    assert plain.defaults["fused"]
    assert [group["weight_decay"] for group in plain.param_groups] == [0.0, 0.0]
    pytest.importorskip("bitsandbytes")
    options = read_options(["--model", str(model), "--optimizer", "adamw8bit", "--decay", "0.1"])
    eight = make_adamw(options, large, fused=False)
    large[0].grad, large[1].grad = torch.ones(64, 128), torch.ones(8)
    eight.step()
    assert eight.state[large[0]]["state1"].dtype == torch.uint8
    assert [group["weight_decay"] for group in eight.param_groups] == [0.1, 0.0], "decay spares vectors"


def test_an_adapter_on_4_bits_gets_its_gradient_through_every_layer_on_a_processor_too(model: Path) -> None:
    """Processors with AVX-512 for bf16 lay weights out for inference at the first forward pass without gradients."""
    pytest.importorskip("bitsandbytes")
    options = read_options(["--model", str(model), "--compile", "off", "--use-4bit", "--lora", "4"])
    torch.manual_seed(1)
    made = make_model(options, str(model), None, None, find_card(0))
    tokens = torch.arange(1, 9)[None].to(find_card(0).device)
    for name, part in made.named:  # that of nothing is nothing
        if "lora_B" in name:
            torch.nn.init.constant_(part, 0.1)
    before = [part.grad for part in _backward(made, tokens)]
    made.whole.eval()
    with torch.no_grad():
        made.summed_loss(tokens, tokens, None, None)
    made.whole.train()
    after = [part.grad for part in _backward(made, tokens)]
    assert all(grad is not None and bool(grad.any()) for grad in before)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other)


def _backward(made: CausalLM, tokens: torch.Tensor) -> list[torch.nn.Parameter]:
    for part in made.trained:
        part.grad = None
    made.summed_loss(tokens, tokens, None, None).backward()
    return made.trained


def test_experts_are_balanced_where_the_configuration_asks_for_it() -> None:
    """As the library's own loss does (trl#6085)."""
    tokens = torch.randint(5, 90, (2, 16), generator=torch.Generator().manual_seed(3))
    targets = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
    whole = family_model(family_config("mixtral", output_router_logits=True, router_aux_loss_coef=0.5)).train()
    wanted = whole(input_ids=tokens, labels=tokens, use_cache=False).loss
    model = CausalLM(whole, adapter=False)
    given = (tokens, targets, torch.arange(16).expand(2, 16), None)
    assert float(model.summed_loss(*given).detach() / 30) == pytest.approx(float(wanted.detach()), rel=1e-5)
    whole.eval()
    assert float(model.summed_loss(*given).detach() / 30) < float(wanted.detach()) - 0.4, (
        "what is held out is the loss of tokens alone"
    )


def test_weights_that_an_adapter_does_not_reach_are_named(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Experts that are one tensor are no linear layers (peft#3009, unsloth#6936)."""
    experts = tmp_path / "experts"
    family_model(family_config("granitemoe")).save_pretrained(experts)
    for source, wanted in ((model, False), (experts, True)):
        options = read_options(["--model", str(source), "--lora", "4", "--compile", "off"])
        make_model(options, str(source), None, None, find_card(0))
        out = capsys.readouterr().out
        assert ("does not reach" in out) == wanted
        assert ("model.layers.*.block_sparse_moe.experts" in out) == wanted
