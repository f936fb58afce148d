import numpy as np
import pytest

from servetune.errors import InputError
from servetune.workload.model_tokenizer import load_model_tokenizer
from servetune.workload.words import (
    Stock,
    content_row,
    distinct_rows,
    ids_stock,
    stock_of,
    unchecked_stock,
)


def texts_of(stock, lengths, seed=1):
    return [
        " ".join(stock.words[i] for i in row.tolist())
        for row in distinct_rows(stock, lengths, seed)
    ]


@pytest.mark.parametrize("kind", ["byte_level", "sentence_piece"])
def test_a_text_of_n_words_has_n_tokens(model_folder, kind):
    model = load_model_tokenizer(model_folder(kind))
    stock = stock_of(model)
    assert stock.additive
    assert len(stock.words) > 100
    lengths = [1, 2, 3, 50, 700] * 40
    counts = model.counts(texts_of(stock, lengths))
    assert counts == [length + stock.text_specials for length in lengths]
    assert stock.text_specials == (kind == "sentence_piece")


@pytest.mark.parametrize("kind", ["across_words", "letters"])
def test_a_vocabulary_that_cannot_promise_it_says_so(model_folder, kind):
    assert not stock_of(load_model_tokenizer(model_folder(kind))).additive


def test_rows_differ_from_the_first_entry_and_then_from_the_second():
    stock = Stock(words=tuple("abcdef"), starters=3)
    rows = [tuple(row.tolist()) for row in distinct_rows(stock, [4] * 18, seed=2)]
    assert {row[0] for row in rows[:3]} == {0, 1, 2}
    assert len({row[:2] for row in rows}) == 18
    assert rows == [tuple(row.tolist()) for row in distinct_rows(stock, [4] * 18, seed=2)]
    assert rows != [tuple(row.tolist()) for row in distinct_rows(stock, [4] * 18, seed=3)]
    assert [len(row) for row in distinct_rows(stock, [0, 1, 2], 1)] == [0, 1, 2]


def test_a_shorter_piece_of_a_content_is_the_beginning_of_a_longer_one():
    for stock in (unchecked_stock(), ids_stock(150_000), Stock(words=tuple("abc"), starters=1)):
        long = content_row(stock, 7, 1000, seed=1)
        for tokens in (1, 2, 3, 500):
            assert np.array_equal(content_row(stock, 7, tokens, seed=1), long[:tokens])
        assert long[0] < stock.first_kinds
        assert not np.array_equal(content_row(stock, 8, 1000, seed=1), long)
        assert not np.array_equal(content_row(stock, 7, 1000, seed=2), long)


def test_a_vocabulary_too_small_to_draw_from_is_refused():
    with pytest.raises(InputError, match="vocabulary of 1 tokens"):
        ids_stock(1)
