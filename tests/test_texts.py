"""Texts: read, tokenized, batched, and used to train models of the library transformers."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace

import pytest
import torch

import as_json
import training
from launched import Launched
from parbench import models
from parbench.data import dataset, loader, source, text_input, text_source, tokens
from parbench.equivalence import certificate, certify, trials
from parbench.equivalence.certificate import EQUAL
from parbench.errors import ParbenchError
from require import require_package

GRAMMAR = {"kind": "grammar", "train_samples": 240, "test_samples": 60, "seed": 0}
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a fine film dull ##er hello news".split()
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *map(chr, range(33, 127)), "Ġ"]
VOCABULARIES = {
    "vocab.txt": "\n".join(WORDS),
    "vocab.json": json.dumps({each: at for at, each in enumerate(SYMBOLS)}),
    "merges.txt": "#version: 0.2\n",
}


@pytest.fixture(scope="module", autouse=True)
def _packages():
    require_package("text", "transformers")


@pytest.fixture(scope="module")
def grammar(tmp_path_factory):
    """Convert the grammar; return its folder, beside other datasets as in results/data."""
    folder = tmp_path_factory.mktemp("data") / "grammar"
    dataset.prepare("grammar", GRAMMAR, folder / "data.safetensors", folder / "digest.json")
    return folder


def pinned(path, content: bytes) -> dict:
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return {"path": str(path), "size": len(content), "sha256": digest}


@pytest.fixture
def vocabularies(tmp_path, monkeypatch):
    """Return a folder with small vocabularies that replace the published ones."""
    folder = tmp_path / "vocabularies"
    folder.mkdir()
    known = {
        name: text_source.File(**pinned(folder / name, content.encode()))
        for name, content in VOCABULARIES.items()
    }
    monkeypatch.setattr(text_source, "VOCABULARIES", known)
    return str(folder)


# ---------------------------------------------------------------- sources

TWEETS = [f"{n},3,0,0,3,{n % 3},a tweet {n}" for n in range(100)]
SOURCES = {
    "sst2": {
        "train": b'sentence\tlabel\na fine film \t1\na "dull film\t0\n',
        "test": b"sentence\tlabel\nduller\t0\n",
    },
    "trec": {
        "train": b"DESC:manner How is a film dull ?\nHUM:ind Who\xe9 ?\n",
        "test": b"LOC:city Where ?\n",
    },
    "ag-news": {"train": b'"3","Fine","a ""film"", dull"\n"1","b","c"\n', "test": b'"2","d","e"\n'},
    "davidson": {
        "table": "\n".join(
            [",count,hate_speech,offensive_language,neither,class,tweet", *TWEETS]
        ).encode()
    },
}
FIRST = {
    "sst2": (1, "a fine film "),
    "trec": (1, "How is a film dull ?"),
    "ag-news": (2, 'Fine a "film", dull'),
    "davidson": (0, "a tweet 0"),
}


def entry(kind, folder, vocabularies, **changed) -> dict:
    contents = SOURCES[kind] | changed
    parts = {part: pinned(folder / part, content) for part, content in contents.items()}
    return {"kind": kind, "vocabularies": vocabularies, **parts}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_is_read(kind, tmp_path, vocabularies):
    read = source.load(kind)(**entry(kind, tmp_path, vocabularies)).read()
    assert (read.train_labels[0], read.train_texts[0]) == FIRST[kind]
    assert len(read.test_texts) >= 1
    if kind == "davidson":
        assert sorted(read.train_texts + read.test_texts) == sorted(
            f"a tweet {n}" for n in range(100)
        )
        assert 3 <= len(read.test_texts) <= 20


OTHER_FORMS = {
    "a byte order mark and CRLF": ("sst2", "\ufeffsentence\tlabel\r\na fine film \t1\r\n".encode()),
    "an index and empty lines": ("sst2", b"\tlabel\tsentence\n\n0\t1\ta fine film \n\n"),
    "quotes and CRLF": ("ag-news", b'3,"Fine","a ""film"", dull"\r\n\r\n'),
    "UTF-8": ("trec", "\ufeffHUM:ind Who\u00e9 ?\r\n\r\n".encode()),
    "Latin-1": ("trec", b"HUM:ind Who\xe9 ?\n"),
    "a byte order mark": (
        "davidson",
        "\n".join(["\ufeffclass,tweet", *(f"0,a tweet {n}" for n in range(100))]).encode(),
    ),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_a_copy_in_another_form_is_read(form, tmp_path, vocabularies):
    kind, content = OTHER_FORMS[form]
    part = "table" if kind == "davidson" else "train"
    read = source.load(kind)(**entry(kind, tmp_path, vocabularies, **{part: content})).read()
    expected = FIRST[kind] if kind != "trec" else (3, "Who\u00e9 ?")
    assert (read.train_labels[0], read.train_texts[0]) == expected
    assert len(read.train_texts) == (1 if part == "train" else 100 - len(read.test_texts))


WRONG = [
    ("sst2", "train", b"text\tlabel\na\t1\n", "no column 'sentence'; its columns are"),
    ("sst2", "train", b"label\tsentence\tlabel\n1\ta\t0\n", "2 columns 'label'; its columns"),
    (
        "sst2",
        "train",
        b"sentence\tlabel\n\na\t1\t2\n",
        "line 3: 3 columns between tabs, 2 are expected",
    ),
    ("sst2", "test", b"sentence\tlabel\na\t7\n", "line 2: the label '7' is not one of 0, 1"),
    ("sst2", "test", b"sentence\tlabel\n\xff\t1\n", "line 2: byte 0xff is not UTF-8"),
    ("sst2", "test", b"sentence\tlabel\n", "it holds no text"),
    ("trec", "test", b"\n", "it holds no text"),
    ("trec", "test", b"MOON:x Where ?\n", "line 1: the label 'MOON' is not one of ABBR, "),
    ("ag-news", "test", b'"5","a","b"\n', "row 1, line 1: the label '5' is not one of 1, 2, 3, 4"),
    ("ag-news", "test", b'"1","a\nb","c"\n\n2;a;b\n', "row 2, line 4: 1 columns between commas, 3"),
    (
        "ag-news",
        "test",
        b'"1","a","b"\n"2","a\nb","c\n',
        "the row that begins in line 2: unexpected",
    ),
    ("davidson", "table", b",count,class\n0,3,1\n", "no column 'tweet'"),
]


@pytest.mark.parametrize(("kind", "part", "content", "said"), WRONG)
def test_what_is_no_dataset_is_refused_and_nothing_is_written(
    kind, part, content, said, tmp_path, vocabularies
):
    out = tmp_path / "out" / "data.safetensors"
    given = entry(kind, tmp_path, vocabularies, **{part: content})
    with pytest.raises(ParbenchError, match=f"{part}[:,] {said}"):
        dataset.prepare(kind, given, out, out.with_name("digest.json"))
    assert not out.parent.exists() or not list(out.parent.iterdir())


def test_a_member_of_a_downloaded_archive(tmp_path, vocabularies):
    content = SOURCES["sst2"]["train"]
    with zipfile.ZipFile(tmp_path / "sst2.zip", "w") as archive:
        archive.writestr("SST-2/train.tsv", content)
    whole = (tmp_path / "sst2.zip").read_bytes()
    part = {
        "urls": [(tmp_path / "sst2.zip").as_uri()],
        "archive_md5": hashlib.md5(whole).hexdigest(),
        "member": "SST-2/train.tsv",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert text_source.File(**part).content() == content
    with pytest.raises(ParbenchError, match="train.tsv has another SHA-256"):
        text_source.File(**{**part, "sha256": "0" * 64}).content()
    with pytest.raises(
        ParbenchError, match=r"train.csv cannot be read from it \(\"There is no item"
    ):
        text_source.File(**{**part, "member": "train.csv"}).content()
    with pytest.raises(ParbenchError, match=r"MD5 0000(.|\n)*it has the MD5"):
        text_source.File(**{**part, "archive_md5": "0" * 32}).content()


# ---------------------------------------------------------------- tokens and batches


def test_texts_become_the_tokens_of_the_models_own_tokenizers(tmp_path, vocabularies):
    """As in the transformers library: cut to max_length, with first and last special token."""
    import transformers

    given = entry("sst2", tmp_path, vocabularies)
    out = tmp_path / "out" / "data.safetensors"
    dataset.prepare("sst2", given, out, out.with_name("digest.json"))
    theirs = {
        "wordpiece": transformers.BertTokenizer(vocab=f"{vocabularies}/vocab.txt"),
        "bpe": transformers.RobertaTokenizer(
            vocab=f"{vocabularies}/vocab.json", merges=f"{vocabularies}/merges.txt"
        ),
    }
    for kind, tokenizer in theirs.items():
        for length in (8, 64):
            data = loader.load(out.parent, "cpu", vocabulary=kind, max_length=length)
            assert data.vocabulary.size == len(tokenizer)
            expected = tokenizer(
                ["a fine film ", 'a "dull film'],
                max_length=length,
                truncation=True,
                padding="max_length",
            )["input_ids"]
            assert data.train_images.tolist() == expected
            assert data.train_lengths.tolist() == [
                sum(each != tokenizer.pad_token_id for each in row) for row in expected
            ]


@pytest.mark.parametrize("padding", ["longest", "fixed"])
def test_batches_are_padded(grammar, padding):
    data = loader.load(grammar, "cpu", train_samples=30, vocabulary="wordpiece", max_length=64)
    given = text_input.TextInput(data, padding)
    chosen = data.train_lengths.argsort()[:5]
    batch, labels = given.train_batch(chosen, epoch=3)
    longest = int(data.train_lengths[chosen].max())
    assert batch.shape == (5, longest if padding == "longest" else 64)
    assert torch.equal(batch, data.train_images[chosen, : batch.shape[1]].long())
    assert torch.equal(labels, data.train_labels[chosen])
    assert given.train_batch(chosen[:0], epoch=0)[0].shape[0] == 0


def test_the_grammar_is_the_same_everywhere(grammar, tmp_path):
    again = tmp_path / "grammar"
    dataset.prepare("grammar", GRAMMAR, again / "data.safetensors", again / "digest.json")
    assert (again / "data.safetensors").read_bytes() == (grammar / "data.safetensors").read_bytes()


# ---------------------------------------------------------------- models

OF_TEXTS = [name for name in models.names() if models.vocabulary(name)]


@pytest.mark.parametrize("name", OF_TEXTS)
def test_a_model_computes_what_the_librarys_own_does(name):
    """The same seed gives the same weights in the same order, and the same logits."""
    module = models.load(name)
    options, words = models.options(name, module.SMALL), tokens.Vocabulary(50, 1, 0, 2)
    torch.manual_seed(7)
    blocks = module.build(3, words, options).eval()
    torch.manual_seed(7)
    theirs = module.network(3, words, options).eval()
    pairs = zip(blocks.parameters(), theirs.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    batch = torch.randint(3, 50, (4, 16))
    for at, length in enumerate((16, 9, 2, 1)):
        batch[at, length:] = words.pad
    with torch.no_grad():
        expected = theirs(input_ids=batch, attention_mask=(batch != words.pad).long()).logits
        assert torch.allclose(blocks(batch), expected, atol=1e-6)
    cut = module.cuts(3, options)
    assert cut == ["block_1", "block_3"]


def test_strategies_compute_what_eager_training_does():
    """BERT also with several processes; `make certificate` has all."""
    todo = []
    for name, strategy, devices, options in (
        ("bert", "ddp", 2, {}),
        ("bert", "pipeline", 2, {"chunks": 4}),
        *((name, "gpipe", 1, {"balance": [2], "chunks": 4}) for name in OF_TEXTS),
    ):
        cell = certificate.cell_of(name, strategy, devices, options)
        todo += trials.trials_of(cell, ("bf16",), False)
    rows = certify.certify(todo)
    print(certify.shown(rows))
    assert {row["verdict"] for row in rows} == {EQUAL}


def test_a_cell_learns_and_counts_its_tokens(grammar, tmp_path):
    cell = training.cell(
        *("ddp", 2, "distilbert"),
        optimizer="adamw",
        learning_rate=0.003,
        epochs=4,
        global_batch=16,
        max_length=64,
        train_samples=None,
        test_samples=None,
    )
    options = models.options("distilbert", {**models.load("distilbert").SMALL, "max_positions": 64})
    small = options | {"hidden_dim": 48, "depth": 1, "dropout": 0}
    it = Launched(replace(cell, model=replace(cell.model, options=small)), grammar, tmp_path)
    status, _, errors = it.run()
    assert status == 0, errors + it.log.read_text()
    found = as_json.read(it.out)
    data = loader.load(grammar, "cpu", vocabulary="wordpiece", max_length=64)
    assert found["tokens"]["number"] == 4 * int(data.train_lengths.sum())
    assert found["tokens"]["per_second"] == pytest.approx(
        found["tokens"]["number"] / found["train_seconds"]
    )
    assert 0 < found["tokens"]["padding"] < 0.6
    assert found["test_accuracy"] > 0.5  # of three classes
