#!/usr/bin/env python3
"""Serve one workload with transformers, and write how fast that was.

    transformers_bench.py '{"config": "config.json", "requests": 256, "prompt": 256, "answer": 128,
                            "out": "figure.json", "device": "cuda"}'

The model is made of its config with random bf16 weights; prompts are random tokens. One request is
answered by generate(), several by generate_batch(), the continuous batching of transformers (5.x; 4.56
and later have it too). Everything is done twice, and the second time counts.

Ends with 2 and one line on stderr where torch or transformers is missing or has not what is needed.
"""

import inspect
import json
import os
import sys
import tempfile
import time
import traceback


def give_up(why):
    print(f"transformers_bench: {why}", file=sys.stderr)
    sys.exit(2)


try:
    import torch
except ImportError as e:
    give_up(f"torch cannot be imported ({e}): STRATA_PYTHON names a Python that has it")
try:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
except ImportError as e:
    give_up(f"transformers cannot be imported ({e}): STRATA_PYTHON names a Python that has it")


def accepted(function, **options):
    """Those of the options that a function has parameters for."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}


def build(path, device):
    """A model of this config with random weights."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    # A directory, so that transformers reads it as it reads a checkpoint's, old spellings included.
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            file.write(text)
        config = AutoConfig.from_pretrained(folder)
    # No token ends an answer: all are as long as was asked for.
    config.eos_token_id = None
    torch.manual_seed(1)
    with torch.device(device):
        try:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        except TypeError:
            model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)
    model = model.to(device=device, dtype=torch.bfloat16).eval()
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


def greedy(answer, **more):
    return GenerationConfig(
        max_new_tokens=answer, min_new_tokens=answer, do_sample=False, pad_token_id=0, **more
    )


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def prompts_of(requests, prompt, vocab, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (requests, prompt), generator=generator).tolist()


def one_by_generate(model, work, device):
    """Tokens and seconds of generate() on a batch of all requests: of one, here."""
    took = None
    for run in (1, 2):
        prompts = prompts_of(work["requests"], work["prompt"], model.config.vocab_size, run)
        ids = torch.tensor(prompts, device=device)
        synchronize(device)
        started = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=greedy(work["answer"])
            )
        synchronize(device)
        took = time.perf_counter() - started
        tokens = int((out.shape[1] - ids.shape[1]) * out.shape[0])
    kind = getattr(model.config, "_attn_implementation", "its default attention")
    return tokens, took, f"generate(), {kind}"


def generated(results):
    """Tokens of all answers, which have been told in more than one form."""
    outputs = results.values() if isinstance(results, dict) else results
    tokens = 0
    for output in outputs:
        error = getattr(output, "error", None)
        if error:
            raise RuntimeError(f"a request failed: {error}")
        tokens += len(getattr(output, "generated_tokens", output))
    return tokens


def many_by_continuous_batching(model, work):
    """Tokens and seconds of generate_batch() with the first attention that works here."""
    if not hasattr(model, "generate_batch"):
        give_up(f"transformers {transformers.__version__} has no generate_batch()")
    # Flash attention where it is installed. Later versions make of a plain name the paged one
    # themselves, earlier ones want it spelled; which spelling depends on the version.
    candidates = ["flash_attention_2", "sdpa", "paged|sdpa", "sdpa_paged", "paged|eager", "eager_paged"]
    refused = []
    for name in candidates:
        try:
            model.set_attn_implementation(name)
            # Few first: what does not work shows at once.
            few = dict(work, requests=2, answer=4)
            batch(model, few, 0)
            tokens, took = None, None
            for run in (1, 2):
                tokens, took = batch(model, work, run)
            return tokens, took, f"generate_batch(), {name}"
        except Exception as e:  # noqa: BLE001: whatever it is, the next one is tried
            refused.append(f"{name}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
            traceback.print_exc()
    give_up("no attention works with generate_batch(): " + "; ".join(refused))


def batch(model, work, run):
    vocab = model.config.vocab_size
    prompts = prompts_of(work["requests"], work["prompt"], vocab, 10 + run)
    # There, a request without end tokens has -1 for one.
    config = greedy(work["answer"], eos_token_id=-1)
    config.min_new_tokens = None
    # Graphs are captured in the first run and kept for the second, where the version can keep them.
    options = accepted(model.generate_batch, progress_bar=False, persistent_manager=True, warmup=True)
    torch.cuda.synchronize() if torch.cuda.is_available() else None
    started = time.perf_counter()
    results = model.generate_batch(inputs=prompts, generation_config=config, **options)
    took = time.perf_counter() - started
    tokens = generated(results)
    due = work["requests"] * work["answer"]
    if tokens < due // 2:
        raise RuntimeError(f"{tokens} tokens came, {due} were due")
    return tokens, took


def main():
    try:
        work = json.loads(sys.argv[1])
    except (IndexError, ValueError) as e:
        give_up(f"one argument is wanted, a JSON object ({e})")
    device = work.get("device", "cuda")
    if device == "cuda" and not torch.cuda.is_available():
        give_up("torch sees no CUDA device")
    model = build(work["config"], device)
    if work["requests"] == 1:
        tokens, took, how = one_by_generate(model, work, device)
    else:
        tokens, took, how = many_by_continuous_batching(model, work)
    due = work["requests"] * work["answer"]
    if tokens != due:
        how += f"; {tokens} tokens came where {due} were due"
    answer = {
        "machine": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        },
        "how": how,
        "tokens": tokens,
        "seconds": took,
        "tokens_per_second": tokens / took,
    }
    with open(work["out"], "w", encoding="utf-8") as file:
        json.dump(answer, file, indent=2)
    print(f"transformers_bench: {tokens / took:.1f} tokens/s ({how})", file=sys.stderr)


if __name__ == "__main__":
    main()
    # Threads of the continuous batching may outlive it; nothing is left to be done.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
