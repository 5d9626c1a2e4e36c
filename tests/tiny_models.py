"""A BERT of two narrow layers with random weights, its WordPieces, and small labelled data.

Nothing here imports torch until a model is asked for.
"""

import json
from pathlib import Path

import numpy as np

from crossknn.data.items import read_items
from crossknn.data.queries import QuerySet
from crossknn.types import Pairs

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNUSED = ["[unused0]", "[unused1]", "[unused2]"]
WORDS = """
oak elm fir ash yew pine larch cedar birch maple crab seal whale shark squid otter heron gull tern swan red blue
green black white tall small old young dark river lake hill stone cave sand snow wind rain storm ran sat swam flew
##s ##er the a in on of
""".split()  # noqa: SIM905
CONTENT = [word for word in WORDS[:44] if not word.startswith("##")]
TEXTS = ["the red oak", "seals swam in a lake near the old hill", "elm", "a tall white gull flew"]
MARKED = (
    [f"the {text} near [Ms] {c} [Me] in a hill" for text, c in zip(TEXTS, "abcd", strict=True)],
    [f"{text} [ENT] the old {text}" for text in TEXTS],
)
"""Queries and items."""


def tokenizer(added=(), unused=True, words=()):
    """WordPieces of about sixty words and `words`; `added` are tokens of their own, as marks are."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

    names = [*SPECIAL, *(UNUSED if unused else ()), *WORDS, *words]
    made = Tokenizer(models.WordPiece({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.add_special_tokens([AddedToken(t, special=True) for t in (*SPECIAL, *added)])
    return made


def save_bert(folder, *, hidden=16, dropout=0.0, seed=0, positions=64, unused=True, std=0.3):
    """A Hugging Face folder of an encoder; returns it."""
    import torch
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    made = tokenizer(unused=unused)
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    widths = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "initializer_range": std}
    sizes = {"vocab_size": made.get_vocab_size(), "max_position_embeddings": positions}
    config = BertConfig(**SIZES | widths | sizes | dropouts)
    torch.manual_seed(seed)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    names = {f"{t.strip('[]').lower()}_token": t for t in SPECIAL}
    PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)
    return Path(folder)


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
CAUSAL = {"num_key_value_heads": 1, "head_dim": 16, "use_cache": False}
CHAT = (
    "{% for message in messages if message['role'] == 'system' %}"
    "{{ 'the ' + message['content'] + ' ' }}{% endfor %}"
    "{{ 'red ' + (messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first) + "
    "' oak ' + (messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first)"
    " + ' of the' }}"
)
"""The template of a reranker: a system's text, the query, the document."""
LOCAL = {"local_attention": 8, "global_attn_every_n_layers": 2}


def save_hf(
    folder, kind, *, made=None, chat_template=None, padding_side="right", seed=0, **settings
):
    """A Hugging Face folder of a model of the class `kind`, with random weights; returns it. A
    setting that is None is one of `SIZES` that the class does not know."""
    import torch
    import transformers

    made = made or tokenizer()
    model_class = getattr(transformers, kind)
    given = {**SIZES, "vocab_size": made.get_vocab_size(), "pad_token_id": 0, **settings}
    config = model_class.config_class(**{k: v for k, v in given.items() if v is not None})
    torch.manual_seed(seed)
    model = model_class(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or "score" in name or "classifier" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    names = {f"{t.strip('[]').lower()}_token": t for t in SPECIAL}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=SIZES["max_position_embeddings"],
        padding_side=padding_side,
        model_input_names=["input_ids", "attention_mask"],
        **names,
    )
    fast.chat_template = chat_template
    fast.save_pretrained(folder)
    return Path(folder)


def ending():
    """The tokenizer of a causal model: nothing before a text, and one token after it."""
    from tokenizers import processors

    made = tokenizer(words=("yes", "no", *"01234"))
    made.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", pair="$A $B [SEP]", special_tokens=[("[SEP]", 3)]
    )
    return made


def save_bi_encoder(folder, kind, pooling, *modules, prompts=None, include_prompt=True, **settings):
    """A sentence-transformers folder: a transformer of the class `kind`, pooling and `modules`."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    bare = save_hf(folder / "bare", kind, **settings)
    size = settings.get("hidden_size", SIZES["hidden_size"])
    layers = [Transformer(str(bare)), Pooling(size, pooling, include_prompt)]
    model = SentenceTransformer(modules=[*layers, *modules], device="cpu", prompts=prompts)
    model.save(str(folder / "model"))
    return folder / "model"


def corpus(n_queries=10, n_items=10, name="woods", start=0):
    """Query q names the two words with which item q's text begins."""
    pairs = [(a, b) for a in CONTENT for b in CONTENT if a < b]
    chosen = [pairs[(start + 37 * i) % len(pairs)] for i in range(max(n_items, n_queries))]
    texts = [f"{a} {b} {CONTENT[i % 40]} of the hill" for i, (a, b) in enumerate(chosen)]
    queries = [" ".join(chosen[q % n_items]) for q in range(n_queries)]
    positives = [[q % n_items] for q in range(n_queries)]
    ids = [f"q{start + q}" for q in range(n_queries)]
    return labelled(texts[:n_items], queries, positives, name, ids)


def labelled(texts, queries, positives, name="woods", ids=None):
    """A corpus of given texts, and the positions of each query's right items."""
    items = read_items([{"id": f"i{place}", "text": text} for place, text in enumerate(texts)])
    asked = QuerySet(tuple(ids or (f"{name}{q}" for q in range(len(queries)))), tuple(queries))
    right = zip(asked.ids, positives, strict=True)
    qrels = {query: {f"i{place}": 1 for place in places} for query, places in right}
    from crossknn_train.reading import Dataset

    return Dataset(name=name, items=items, queries=asked, qrels=qrels)


def make_task(
    kind,
    encoder,
    *,
    seed=0,
    train=None,
    negatives=None,
    teacher=None,
    weight=1.0,
    learned=None,
    **config,
):
    """A task of 12 train and 4 dev queries for a "cross" or a "dual" encoder; `learned` are further
    settings of a cross-encoder."""
    import torch

    from crossknn_train.labelled import CrossEncoderTask, DualEncoderTask
    from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel
    from crossknn_train.models.dual_encoder import DualEncoderConfig, DualEncoderModel
    from crossknn_train.settings import CrossEncoderSettings, DualEncoderSettings

    torch.manual_seed(seed)
    about = {"encoder": "", "data": {"folder": "."}, "training": {"seed": seed}}
    data = train or [corpus(12, 12)], [corpus(4, 8, name="dev", start=30)]
    if kind == "cross":
        model = CrossEncoderModel.new(encoder, CrossEncoderConfig(**{"max_length": 32} | config))
        wrong = {"kind": "random", "count": 3, "depth": 6, "dev_candidates": 6} | (negatives or {})
        settings = CrossEncoderSettings(negatives=wrong, **about, **(learned or {}))
        return CrossEncoderTask(model, *data, settings, teacher)
    lengths = {"query_length": 16, "item_length": 16}
    dual = DualEncoderModel.new(encoder, DualEncoderConfig(**lengths | config))
    about |= {"negatives": {"count": 1, "depth": 4} | (negatives or {}), "teacher_weight": weight}
    return DualEncoderTask(dual, *data, DualEncoderSettings(**about), teacher)


def grid(m, n):
    """All pairs of m queries and n items."""
    return Pairs(np.repeat(np.arange(m), n), np.tile(np.arange(n), m))


def collect(scorer, pairs, queries, items):
    """Scores (p,), NaN where a pair was left out; every pair at most once."""
    scores = np.full(len(pairs), np.nan)
    for positions, values in scorer.score(pairs, queries, items):
        assert values.dtype == np.float32
        assert len(positions) == len(values)
        assert np.isnan(scores[positions]).all()
        scores[positions] = values
    return scores


def scores_of(scorer, queries, items):
    """Every query with every item: (m * n,)."""
    return collect(scorer, grid(len(queries), len(items)), queries, items)


def products(model, queries, items):
    """Inner products of a dual encoder's vectors: (m, n)."""
    import torch

    with torch.inference_mode():
        encoding = model.eval().encoding
        left = model.encode(encoding.texts(queries, queries=True), queries=True)
        right = model.encode(encoding.texts(items, queries=False), queries=False)
        return (left @ right.T).numpy()


def jsonl(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def save_beir(folder, items, queries, **splits):
    """A BEIR folder of texts by id, and of judgements of each split."""
    for name, texts in (("corpus", items), ("queries", queries)):
        jsonl(folder / f"{name}.jsonl", ({"_id": i, "text": text} for i, text in texts.items()))
    (folder / "qrels").mkdir()
    for split, qrels in splits.items():
        rows = (f"{q}\t{i}\t{grade}" for q, row in qrels.items() for i, grade in row.items())
        lines = ("query-id\tcorpus-id\tscore", *rows, "")
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines))
    return folder


def write_beir(folder, n=12):
    """A BEIR folder whose queries are those of `corpus`: two thirds for train, the rest dev."""
    part = corpus(n, n)
    items, queries = (dict(zip(of.ids, of.texts, strict=True)) for of in (part.items, part.queries))
    judged = [
        {f"q{row}": {f"i{row}": 1} for row in range(*ends)}
        for ends in ((2 * n // 3,), (2 * n // 3, n))
    ]
    return save_beir(folder, items, queries, train=judged[0], dev=judged[1])


def write_zeshel(folder, n=8):
    """The preprocessed layout: the train domain `forest`, the valid domain `sea`."""
    for split, domain, start in (("train", "forest", 0), ("valid", "sea", 11)):
        part = corpus(n, n, start=start)
        documents = [
            {"document_id": f"{domain}{i}", "title": text.split()[0], "text": text}
            for i, text in enumerate(part.items.texts)
        ]
        jsonl(folder / "documents" / f"{domain}.json", documents)
        context = {"context_left": "the old", "context_right": "in the rain"}
        mentions = [
            {"mention_id": f"{domain}-{q}", "mention": text, "label_id": q, **context}
            for q, text in enumerate(part.queries.texts)
        ]
        jsonl(folder / "processed" / f"{split}_worlds" / f"{domain}_mentions.jsonl", mentions)
    return folder


def save_sparse(folder, *, seed=0):
    """A sentence-transformers folder of a SPLADE model."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sentence_transformer.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    bare = save_hf(folder / "bare", "BertForMaskedLM", seed=seed)
    layers = [Transformer(str(bare), transformer_task="fill-mask"), SpladePooling("max")]
    model = SparseEncoder(modules=layers, device="cpu")
    model.save(str(folder / "model"))
    return folder / "model"
