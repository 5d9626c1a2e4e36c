"""Words of any script are found: BM25 and LSA read what their users write."""

import json
import os
import subprocess
import sys
import time
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crossknn as ck
from crossknn.errors import IndexFormatError, InputError
from crossknn.retrievers.lexical import BM25, LSA
from crossknn.retrievers.words import folded, words
from crossknn.types import Queries

HINDI = ["कुत्ता बिल्ली बकरी", "मेज पर एक किताब", "नदी में पानी बहता है", "वह पुस्तकालय में पढ़ती है"]
JAPANESE = [
    *("国際標準化に関する動向", "東京都の天気予報", "猫が縁側で寝ている", "新幹線で大阪へ行く"),
    *("寿司とラーメンの店", "コンピュータの歴史", "犬と公園を散歩する"),
]
CHINESE = [
    *("北京是中国的首都", "我有一只猫和两条狗", "机器学习是人工智能的分支", "上海的地铁很方便"),
    "他在图书馆看书",
]
KOREAN = ["한국어를 공부하고 있다", "서울의 날씨가 춥다", "책을 읽는 아이", "고양이와 강아지"]
ARABIC = ["كِتَابٌ عَلَى الطَّاوِلَةِ", "القطة تنام في البيت", "أحمد يدرس في الجامعة", "مدينة بغداد القديمة"]
THAI = ["แมวนอนอยู่บนโต๊ะ", "หนังสือภาษาไทยเล่มใหม่", "รถไฟไปเชียงใหม่", "น้ำตกสวยมาก"]
KHMER = ["ខ្ញុំរៀនភាសាខ្មែរ", "ឆ្មាដេកលើតុ", "ទីក្រុងភ្នំពេញ"]
LAO = ["ຂ້ອຍຮຽນພາສາລາວ", "ແມວນອນຢູ່ເທິງໂຕະ", "ນະຄອນຫຼວງວຽງຈັນ"]
BURMESE = ["ကျွန်တော် မြန်မာစာ လေ့လာသည်", "ကြောင်သည် စားပွဲပေါ်တွင်ရှိသည်", "ရန်ကုန်မြို့"]


def scores(query, texts, kind=BM25):
    return kind.fit(texts).scores(Queries([query]))[0]


RANKED_FIRST = [
    (HINDI, {"किताब": 1, "कुत्ता": 0, "पानी": 2}),
    (JAPANESE, {"国際標準化": 0, "東京": 1, "ラーメン": 4, "ﾗｰﾒﾝ": 4, "コンピュータ": 5, "猫": 2}),
    (CHINESE, {"人工智能": 2, "图书馆": 4, "猫": 1}),
    (KOREAN, {"한국어": 0, "서울": 1, "고양이": 3, "책": 2}),
    (ARABIC, {"كتاب": 0, "الطاولة": 0, "احمد": 2, "بغداد": 3}),
    (THAI, {"หนังสือ": 1, "น้ำตก": 3}),
    (KHMER, {"ភាសាខ្មែរ": 0}),
    (LAO, {"ພາສາລາວ": 0}),
    (BURMESE, {"မြန်မာ": 0}),
]


@pytest.mark.parametrize(("texts", "items"), RANKED_FIRST)
def test_a_word_of_a_corpus_finds_its_item_first(texts, items):
    for query, right in items.items():
        found = scores(query, texts)
        assert found.argmax() == right
        assert found[right] > 0
        if len(query) == 1:
            assert np.flatnonzero(found).tolist() == [right]


SAME = [
    *[("cafe\u0301", "café"), ("cafe", "café"), ("İSTANBUL", "istanbul"), ("ISPARTA", "ısparta")],
    *[
        ("ıspanak", "ISPANAK"),
        ("STRASSE", "Straße"),
        ("ＡＢＣ１２３", "abc123"),
        ("ﬁnance", "finance"),
    ],
    *[("ΑΘΗΝΑ", "Αθήνα"), ("ΟΔΟΣ", "οδός"), ("елка", "Ёлка"), ("Lodz", "Łódź")],
    *[("Da Nang", "Đà Nẵng"), ("كتاب", "كـــتاب"), ("کتاب", "كتاب"), ("می\u200cخواهم", "میخواهم")],
    *[("שלום", "שָׁלוֹם"), ("ガギグ", "ｶﾞｷﾞｸﾞ"), ("か\u3099っこう", "がっこう"), ("क\u093cलम", "क़लम")],
    *[("한글", unicodedata.normalize("NFD", "한글")), ("٣٤", "34"), ("३४", "34"), ("5㎏", "5kg")],
    *[("co\u00adoperate", "cooperate"), ("m²", "m2"), ("Acme", "Acme™"), ("l'été", "ETE")],
    *[("cat", "the cat’s whiskers"), *(("don't", f"don{mark}t") for mark in "ʼ’＇")],
    *[("🍕", "we ate 🍕🍕 there"), ("👍", "👍🏽"), ("❤", "I ❤\ufe0f NY"), ("🇩🇪", "🇫🇷🇩🇪")],
    *[("👩", "👩\u200d🚀"), ("iPhone", "新しいiPhoneの値段"), ("値段", "新しいiPhoneの値段")],
    *[("2024年", "今年は2024年です"), ("ascii", "한글ascii中文"), ("word", "\ufeffword")],
    ("word", "\u200bword\u200bfor\u200bword"),
]
OTHER = [("कि", "का"), ("🇩🇪", "🇫🇷"), ("は", "ば"), ("ภา", "ษา"), ("가", "각"), ("ss", "s"), ("🍕", "🍔"), ("東京", "京都の寺"), ("किताब", HINDI[0])]  # fmt: skip


@pytest.mark.parametrize(("query", "text"), SAME)
def test_two_ways_to_write_a_word_match(query, text):
    assert scores(query, [text, "something else"])[0] > 0
    assert scores(text, [query, "something else"])[0] > 0
    assert scores(query, [text, "something else"])[1] == 0


@pytest.mark.parametrize(("query", "text"), OTHER)
def test_what_is_another_word_does_not_match(query, text):
    assert scores(query, [text, "something else"])[0] == 0


def test_english_words():
    text = "The U.S. cats' 3.14 foo_bar isn't e-mail: C++ & 1,000"
    assert " ".join(words(text)) == "u s cats 3 14 foo_bar isn t e mail c 1 000"


def test_lsa_rerank_and_added_items_read_other_scripts():
    for texts, query, right in ((HINDI, "किताब", 1), (JAPANESE, "標準化", 0)):
        model, vectors = LSA.fit(texts)
        assert (vectors @ model.encode_queries([query])[0]).argmax() == right
    method = "rerank(retriever=bm25)"
    hit = ck.rerank("猫", JAPANESE, 1, method=method, scorer=lambda p: [1.0] * len(p))
    assert hit[0]["corpus_id"] == 2
    index = ck.ItemIndex.build(HINDI, lsa=0)
    index.add([{"id": "new", "text": "国際標準化に関する動向"}])
    found = index.retrievers["bm25"].scores(Queries(["標準"]))[0]
    assert np.flatnonzero(found).tolist() == [len(HINDI)]


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=30).filter(lambda text: not {*text} & {*"\u2122\u2120"}))
def test_the_form_of_a_text_does_not_matter(text):
    """Any text has the same words in all four normal forms, and once it is folded; but trade marks,
    whose compatibility forms are letters."""
    forms = (unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD"))
    assert all(words(form) == words(text) for form in forms)
    assert folded(folded(text)) == folded(text)


def initials(text):
    """A tokenizer of somebody: the first letter of each word."""
    return [word[0] for word in text.split()]


def test_a_tokenizer_of_ones_own(tmp_path):
    index = ck.ItemIndex.build(["red apple", "blue sky"], lsa=0, tokenizer=initials)
    assert np.flatnonzero(index.retrievers["bm25"].scores(Queries(["robot"]))[0]).tolist() == [0]
    index.save(tmp_path / "index")
    loaded = ck.ItemIndex.load(tmp_path / "index", tokenizer=initials)
    assert loaded.tokenizer == f"{__name__}:initials"
    loaded.add([{"id": "new", "text": "green robot"}])
    loaded.compact()
    assert np.flatnonzero(loaded.retrievers["bm25"].scores(Queries(["rat"]))[0]).tolist() == [0, 2]
    with pytest.raises(IndexFormatError, match="were built with the tokenizer"):
        ck.ItemIndex.load(tmp_path / "index", tokenizer="whitespace")


def no_words(text):
    return 7


def numbers(text):
    return [1, 2]


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        ("no.such.module:function", "there is no tokenizer"),
        ("os:no_function", "there is no tokenizer"),
        ("..os:sep", "there is no tokenizer"),
        ("os:sep", "is not a tokenizer"),
        (3, "there is no tokenizer"),
        (lambda text: [text], "can be imported as package.module:function"),
        (no_words, "failed on the text"),
        (numbers, "return a list of words"),
    ],
)
def test_what_is_no_tokenizer_is_refused(tokenizer, said):
    with pytest.raises(InputError, match=said):
        ck.ItemIndex.build(["a text"], lsa=0, tokenizer=tokenizer)


def test_a_letter_of_many_marks():
    """200,000 marks on a letter, which normalizing sorts for half a minute, take no time."""
    began = time.perf_counter()
    assert words("e" + "\u0316\u0301" * 100_000 + " " + "\u0e38\u0e48" * 100_000)[0] == "e"
    assert time.perf_counter() - began < 2


def test_the_command_line_takes_the_name_of_a_function(tmp_path):
    (tmp_path / "mine.py").write_text("def letters(text):\n    return list(text)\n")
    (tmp_path / "items.txt").write_text("xyz\nabc\n")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.pathsep.join(sys.path)}"}

    def command(*arguments, **more):
        line = [sys.executable, "-m", "crossknn", *arguments]
        return subprocess.run(line, cwd=tmp_path, env=env | more, capture_output=True, text=True)

    build = ("index", "build", "items.txt", "i.index", "--encoder", "none")
    built = command(*build, "--tokenizer", "mine:letters", "--json")
    assert json.loads(built.stdout)["tokenizer"] == "mine:letters"
    refused = command("index", "info", "i.index")
    assert refused.returncode == 6
    assert "CROSSKNN_TOKENIZER=mine:letters" in refused.stderr
    search = ("search", "i.index", "b", "--method", "retrieve(retriever=bm25)", "-k", "1", "--json")
    found = command(*search, CROSSKNN_TOKENIZER="mine:letters")
    assert json.loads(found.stdout)["results"][0]["hits"][0]["text"] == "abc"
