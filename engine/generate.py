"""POST /generate: from its JSON to requests, and from requests to its JSON; names and refusals as in SGLang 0.5.23.

An unknown sampling parameter is refused, and so is one that this engine knows but does not compute, unless it has the
value that changes nothing. Unknown fields beside them are ignored, as SGLang does.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, replace
from typing import Any

from engine.requests import Request, Returned, SamplingParams
from engine.text import StopStrings, Text

MASK_LIMIT = 4096  # SGLang's default of --sampling-mask-max-tokens
MAX_ANSWERS = 4096
DEFAULT_NEW_TOKENS = 128

# Sampling parameters of SGLang that change nothing at these values, and are not computed here at others.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stop_regex": (None, [], ""),
    "min_p": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "beam_width": (None, 1),
    "json_schema": (None, ""),
    "regex": (None, ""),
    "ebnf": (None, ""),
    "structural_tag": (None, ""),
    "spaces_between_special_tokens": (None, True),
    "logit_bias": (None, {}),
    "custom_params": (None, {}),
    "watermark": (None,),
    "choice": (None,),
}
# Fields beside the sampling parameters that would change the answer's content or meaning.
UNSUPPORTED_FIELDS = (
    "input_embeds", "image_data", "video_data", "audio_data", "lora_path", "custom_logit_processor",
    "return_hidden_states", "return_routed_experts", "session_params", "top_logprobs_num", "token_ids_logprob",
)  # fmt: skip


class BadRequest(ValueError):
    """A request that is refused with 400; the text is the one-line reason."""


class WrongSchema(BadRequest):
    """An unknown name or a wrong type. SGLang answers these with a bare string where others have an object."""


@dataclass(frozen=True)
class Limits:
    """What requests are checked against."""

    context_length: int
    vocab: int
    text: Text | None


@dataclass(frozen=True)
class Batch:
    """The requests of one call; `single` answers with an object, else with a list."""

    requests: list[Request]
    single: bool
    stream: bool


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(given: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if not _is_int(value):
        raise WrongSchema(f"{name} must be an integer, got {value!r}.")
    if not low <= value <= high:
        raise BadRequest(f"{name} must be an integer in [{low}, {high}], got {value!r}.")
    return int(value)


def _number(given: dict[str, Any], name: str, default: float) -> float:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongSchema(f"{name} must be a number, got {value!r}.")
    return float(value)


def _flag(given: dict[str, Any], name: str, default: bool = False) -> bool:
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise WrongSchema(f"{name} must be true or false, got {value!r}.")
    return value


def _strings(given: dict[str, Any], name: str) -> tuple[str, ...]:
    value = given.get(name)
    listed = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(v, str) for v in listed):
        raise WrongSchema(f"{name} must be a string or a list of strings.")
    return tuple(v for v in listed if v)


KNOWN = {
    "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "sampling_seed", "stop", "stop_token_ids",
    "ignore_eos", "no_stop_trim", "skip_special_tokens", "stream_interval", "n",
}  # fmt: skip


@dataclass(frozen=True)
class Parsed:
    """One `sampling_params` object; `bounded`: it says itself how many tokens it wants."""

    params: SamplingParams
    n: int
    bounded: bool


def parse_sampling(given: Any) -> Parsed:
    """`sampling_params`, checked as far as it can be without the prompt."""
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise WrongSchema("sampling_params must be an object.")
    for name, value in given.items():
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                raise BadRequest(f"sampling parameter {name} is not supported by this engine.")
        elif name not in KNOWN:
            raise WrongSchema(f"Unexpected keyword argument '{name}' in sampling_params.")
    temperature = _number(given, "temperature", 1.0)
    if not 0 <= temperature < float("inf"):
        raise BadRequest(f"temperature must be a non-negative finite number, got {temperature}.")
    top_p = _number(given, "top_p", 1.0)
    if not 0 < top_p <= 1:
        raise BadRequest(f"top_p must be in (0, 1], got {top_p}.")
    top_k = _integer(given, "top_k", -1, -1, 2**31)
    if top_k == 0:
        raise BadRequest("top_k must be -1 (disable) or at least 1, got 0.")
    ids = given.get("stop_token_ids") or []
    if not isinstance(ids, list) or not all(_is_int(i) for i in ids):
        raise WrongSchema("stop_token_ids must be a list of integers.")
    seed = given.get("sampling_seed")
    if seed is not None and (not _is_int(seed) or not -(2**63) <= seed < 2**63):
        raise BadRequest(f"sampling_seed must be an integer in [-2**63, 2**63 - 1], got {seed!r}.")
    most = _integer(given, "max_new_tokens", DEFAULT_NEW_TOKENS, 0, 2**31)
    least = _integer(given, "min_new_tokens", 0, 0, 2**31)
    if least > most:
        raise BadRequest(f"min_new_tokens must be in [0, max_new_tokens({most})], got {least}.")
    params = SamplingParams(
        max_new_tokens=most,
        min_new_tokens=least,
        temperature=0.0 if temperature < 1e-6 or top_k == 1 else temperature,
        top_p=top_p,
        top_k=top_k,
        seed=int.from_bytes(os.urandom(7), "little") if seed is None else seed,
        stop_ids=frozenset(ids),
        stop_strings=_strings(given, "stop"),
        ignore_eos=_flag(given, "ignore_eos"),
        no_stop_trim=_flag(given, "no_stop_trim"),
        skip_special_tokens=_flag(given, "skip_special_tokens", True),
        stream_interval=_integer(given, "stream_interval", 1, 1, 2**31),
    )
    n = _integer(given, "n", 1, 1, MAX_ANSWERS)
    return Parsed(params, n, bounded=given.get("max_new_tokens") is not None)


def parse_generate(body: Any, limits: Limits) -> Batch:
    """The requests that a /generate body asks for, checked. Raises `BadRequest`."""
    if not isinstance(body, dict):
        raise WrongSchema("the body must be a JSON object.")
    for name in UNSUPPORTED_FIELDS:
        if body.get(name):
            raise BadRequest(f"{name} is not supported by this engine.")
    prompts, single = _prompts(body, limits)
    sampling = _spread(body.get("sampling_params"), len(prompts), "sampling_params")
    parsed = [parse_sampling(one) for one in sampling]
    copies = {one.n for one in parsed}
    if len(copies) > 1:
        raise BadRequest("n must be the same for all prompts of a batch.")
    n = copies.pop() if copies else 1
    if len(prompts) * n > MAX_ANSWERS:
        raise BadRequest(f"a call may ask for {MAX_ANSWERS} answers at most, this one asks for {len(prompts) * n}.")
    rids = _rids(body.get("rid"), len(prompts), n, single=single)
    columns = {
        name: _spread(body.get(name), len(prompts), name)
        for name in ("return_logprob", "logprob_start_len", "return_sampling_mask")
    }
    stream, prompt_ids = _flag(body, "stream"), _flag(body, "return_prompt_token_ids")
    requests = []
    for copy in range(n):
        for i, (ids, one) in enumerate(zip(prompts, parsed, strict=True)):
            row = {name: values[i] for name, values in columns.items()}
            # Copies of one prompt under one seed would be the same answer n times.
            params = replace(one.params, seed=one.params.seed + copy)
            if not one.bounded:
                room = min(params.max_new_tokens, max(0, limits.context_length - len(ids)))
                params = replace(params, max_new_tokens=room, min_new_tokens=min(params.min_new_tokens, room))
            returned = _returned(row, len(ids), prompt_ids=prompt_ids)
            requests.append(_request(rids[copy * len(prompts) + i], ids, params, returned, limits, stream))
    return Batch(requests, single and n == 1, stream)


def _returned(row: dict[str, Any], prompt_tokens: int, *, prompt_ids: bool) -> Returned:
    logprobs = _flag(row, "return_logprob")
    start = _integer(row, "logprob_start_len", -1, -1, prompt_tokens) if logprobs else -1
    return Returned(logprobs, start, prompt_ids, _flag(row, "return_sampling_mask"))


def _request(
    rid: str, ids: list[int], params: SamplingParams, returned: Returned, limits: Limits, stream: bool
) -> Request:
    if not ids:
        raise BadRequest("input_ids must not be empty.")
    if not all(_is_int(i) and 0 <= i < limits.vocab for i in ids):
        raise BadRequest(f"input_ids must be integers in [0, {limits.vocab - 1}].")
    if len(ids) >= limits.context_length:
        raise BadRequest(
            f"The input ({len(ids)} tokens) is longer than the model's context length ({limits.context_length} tokens)."
        )
    if len(ids) + params.max_new_tokens > limits.context_length:
        raise BadRequest(
            f"Requested token count exceeds the model's maximum context length of {limits.context_length} tokens: "
            f"{len(ids)} of input and {params.max_new_tokens} new ones."
        )
    if returned.kept_ids and params.temperature > 0 and not 1 <= params.top_k <= MASK_LIMIT:
        raise BadRequest(
            "return_sampling_mask requires top_k=1 for greedy sampling or finite "
            f"1 < top_k <= {MASK_LIMIT}; got top_k={params.top_k}."
        )
    if params.stop_strings and limits.text is None:
        raise BadRequest("stop needs a tokenizer, and the model folder has none; use stop_token_ids.")
    stops = None
    if params.stop_strings and limits.text is not None:
        stops = StopStrings(limits.text, params.stop_strings, skip_special=params.skip_special_tokens)
    return Request(rid, ids, params, returned, stream, stops)


def _prompts(body: dict[str, Any], limits: Limits) -> tuple[list[list[int]], bool]:
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise BadRequest("Either text or input_ids must be given, and not both.")
    if text is not None:
        if limits.text is None:
            raise BadRequest("text needs a tokenizer, and the model folder has none; send input_ids.")
        single = isinstance(text, str)
        texts = [text] if single else text
        if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
            raise BadRequest("text must be a string or a list of strings.")
        return [limits.text.encode(t) for t in texts], single
    if not isinstance(ids, list) or not ids:
        raise BadRequest("input_ids must be a list of integers, or a list of such lists, and not empty.")
    if isinstance(ids[0], list):
        if not all(isinstance(row, list) for row in ids):
            raise BadRequest("input_ids must be a list of lists for batch processing.")
        return ids, False
    return [ids], True


def _spread(value: Any, count: int, name: str) -> list[Any]:
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise BadRequest(f"{name} lists {len(value)} values for {count} prompts.")
    return value


def _rids(given: Any, count: int, n: int, *, single: bool) -> list[str]:
    total = count * n
    if given is None:
        return [uuid.uuid4().hex for _ in range(total)]
    if isinstance(given, str) and given:
        return [given] if single and n == 1 else [f"{given}_{i}" for i in range(total)]
    if isinstance(given, list) and len(given) == count and all(isinstance(r, str) and r for r in given):
        return given if n == 1 else [f"{r}_{copy}" for copy in range(n) for r in given]
    raise BadRequest("rid must be a string, or a list of one string for each prompt.")


def answer(request: Request, count: int, text: Text | None, index: int | None = None) -> dict[str, Any]:
    """The JSON object for a request's first `count` tokens."""
    done = request.finish is not None and count == len(request.output_ids)
    ids = request.output_ids[:count]
    spans = request.version_spans(count)
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": request.finish if done else None,
        "prompt_tokens": len(request.prompt_ids),
        "completion_tokens": count,
        "cached_tokens": request.cached_tokens,
        "reasoning_tokens": 0,
        "num_retractions": request.retractions,
        "weight_version": spans[-1]["version"],
        "weight_versions": spans,
        "dp_rank": 0,
    }
    if done:
        meta["e2e_latency"] = request.finished - request.created
    if request.returned.logprobs:
        pairs = zip(request.raw[:count], ids, strict=True)
        meta["output_token_logprobs"] = [(logprob, token, None) for logprob, token in pairs]
        meta["output_token_logprobs_length"] = count
        meta["input_token_logprobs"] = _prompt_logprobs(request)
    if request.returned.kept_ids:
        meta["output_token_sampling_mask"] = request.kept[:count]
        meta["output_token_sampling_logprobs"] = request.behaviour[:count]
        meta["output_token_sampling_mask_length"] = count
    found: dict[str, Any] = {"output_ids": ids, "meta_info": meta}
    if text is not None:
        found["text"] = _text(request, ids, text, done=done)
    if request.returned.prompt_ids:
        found["prompt_token_ids"] = request.prompt_ids
    if index is not None:
        found["index"] = index
    return found


def _prompt_logprobs(request: Request) -> list[tuple[float | None, int, None]]:
    """From `logprob_start_len` on; the first token's is unknown, since nothing comes before it."""
    start = request.returned.prompt_logprobs_from
    if start < 0 or not (request.prompt_logprobs or len(request.prompt_ids) == 1):
        return []
    scores: list[float | None] = [None, *request.prompt_logprobs]
    return [(scores[i], request.prompt_ids[i], None) for i in range(start, len(request.prompt_ids))]


def _text(request: Request, ids: list[int], text: Text, *, done: bool) -> str:
    finish = request.finish if done else None
    trim = finish is not None and finish["type"] == "stop" and not request.params.no_stop_trim
    if trim and finish is not None and isinstance(finish["matched"], int):
        ids = ids[:-1]
    decoded = text.decode(ids, skip_special=request.params.skip_special_tokens)
    return request.stop_strings.trim(decoded) if trim and request.stop_strings is not None else decoded
