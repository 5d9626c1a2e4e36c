"""`transformers serve` as the server of a language model: a tiny one whose answer is always 7."""

import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
from tiny_models import collect, grid

import crossknn as ck
from crossknn.errors import CrossknnError

pytestmark = [pytest.mark.slow, pytest.mark.torch]
WORDS = ["<end>", "7", "<unknown>", *"abcdefghijklmnopqrstuvwxyz"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose layers change nothing, so that the last token alone chooses the next one."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("always-seven")
    vocabulary = {word: place for place, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>", pad_token="<end>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    fast.save_pretrained(folder)
    n = len(WORDS)
    config = transformers.LlamaConfig(
        vocab_size=n, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    tiny = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in tiny.parameters():
            parameter.zero_()
        tiny.model.norm.weight.fill_(1.0)
        tiny.model.embed_tokens.weight[:, :n] = torch.eye(n)
        tiny.lm_head.weight[1, :n] = 1.0  # any token is followed by 7 ...
        tiny.lm_head.weight[1, 1], tiny.lm_head.weight[0, 1] = 0.0, 1.0  # ... and 7 by the end
    tiny.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(model):
    pytest.importorskip("accelerate")
    utils = pytest.importorskip("transformers.utils.import_utils")
    if not getattr(utils, "is_serve_available", bool)():
        pytest.skip("transformers[serving] is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", start, "serve", str(model), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            assert process.poll() is None, "the server ended"
            try:
                urllib.request.urlopen(f"http://localhost:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        yield f"http://localhost:{port}/v1"
    finally:
        process.kill()
        process.wait()


def test_a_graded_answer_of_a_real_server_is_the_score(server, model):
    scorer = ck.LLMScorer(server, str(model), prompt="grade", price=(1.0, 2.0))
    scores = collect(scorer, grid(1, 4), ["a b"], ["a", "b c", "d", "e"])
    np.testing.assert_array_equal(np.ravel(scores), 7.0)
    assert scorer.tokens_written.total >= 4
    assert scorer.spent == (scorer.tokens_read.total + 2 * scorer.tokens_written.total) / 1e6


def test_a_real_server_without_log_probabilities_is_named(server, model):
    scorer = ck.LLMScorer(server, str(model))
    with pytest.raises(CrossknnError, match=r"gives no log-probabilities: use the prompt .grade."):
        collect(scorer, grid(1, 1), ["a"], ["b"])
