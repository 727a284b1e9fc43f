import numpy as np
import pytest
import torch

from services.trainer.collate import collate
from services.trainer.examples import Example
from services.trainer.logprobs import Scorer
from services.trainer.packing import rows, token_weights

CPU = torch.device("cpu")


def examples() -> list[Example]:
    draw = np.random.default_rng(0)
    made = []
    for index in range(5):
        ids = np.concatenate([[9, 8, 7, 6], draw.integers(3, 40, 3 + index)]).astype(np.int32)
        made.append(Example(f"j/0/{index}", 0, ids, np.arange(len(ids)) >= 4, np.zeros(len(ids), dtype=np.float32)))
    return made


def scored(scorer: Scorer, share: bool) -> torch.Tensor:
    made = examples()
    packed = rows(made, np.ones(5), token_weights(made, "token", 8), budget=10**6, share_prompts=share)
    return scorer(collate(packed, pad_id=0, dtype=torch.float64, device=CPU))


def by_hand(model, temperature: float) -> torch.Tensor:
    values = []
    for e in examples():
        logs = torch.log_softmax(
            model(input_ids=torch.tensor(e.token_ids.astype(np.int64))[None]).logits[0] / temperature, -1
        )
        values += [logs[t - 1, e.token_ids[t]] for t in np.flatnonzero(e.mask)]
    return torch.stack(values)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("chunk_elements", [1, 40 * 7, 10**6])
@pytest.mark.parametrize("share", [True, False])
def test_log_probabilities_are_those_of_the_plain_model_whatever_the_chunks(
    tiny_llama, temperature, chunk_elements, share
):
    model = tiny_llama()
    found = scored(Scorer(model, temperature, chunk_elements=chunk_elements), share)
    torch.testing.assert_close(found, by_hand(model, temperature), rtol=0, atol=1e-7)


def test_chunks_give_the_same_gradient(tiny_llama):
    gradients = []
    for chunk_elements in (40 * 3, 10**6):
        model = tiny_llama()
        scored(Scorer(model, 1.0, chunk_elements=chunk_elements), True).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)


def test_half_precision_models_are_scored_in_float32(tiny_llama):
    assert scored(Scorer(tiny_llama(torch.bfloat16), 1.0), True).dtype == torch.float32


def test_a_model_that_caps_its_logits_is_taken_whole():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, sliding_window=4, final_logit_softcapping=0.5,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).double().eval()
    scorer = Scorer(model, 1.0)
    assert not scorer.cut and not scorer.can_share
    torch.testing.assert_close(scored(scorer, False), by_hand(model, 1.0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("architecture", ["Qwen2", "GPT2", "GPTNeoX", "Mistral", "Phi3"])
def test_other_architectures_are_scored_as_they_score_themselves(architecture):
    import transformers

    sizes = {"GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}}.get(
        architecture,
        {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 64,
        },
    )
    if architecture in ("Qwen2", "Mistral", "Phi3"):
        sizes["num_key_value_heads"] = 1
    if architecture == "Phi3":
        sizes["pad_token_id"] = 0
    config = getattr(transformers, f"{architecture}Config")(vocab_size=40, **sizes)
    name = f"{architecture}LMHeadModel" if architecture == "GPT2" else f"{architecture}ForCausalLM"
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).double().eval()
    scorer = Scorer(model, 0.8)
    for share in {False, scorer.can_share}:
        torch.testing.assert_close(scored(scorer, share), by_hand(model, 0.8), rtol=0, atol=1e-6)
