import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerpool.config_lines import key_lines

TRICKY = (
    r'''# [comment]
top = 1 # [no]
text = """
[not.a.table]
key = 1
\"""" # four quotes
literal = '''
    + """'''
[nor.this]
''''
"""
    + r"""
[a . "b.c"] # header
d.e = [ { x = 1, "y z" = { k = "}" } },
  # hi ] = }
  { x = 2 }, "],", [1,
  2]]
after = 1
[[list]]
f = {}
[[list]]
g = 1979-05-27 07:32:00
"\u00e9\"" = 'q"'
"""
)


def test_each_key_of_a_tricky_text_is_found_on_its_line():
    rows = TRICKY.splitlines()
    lines = key_lines(TRICKY)

    def row(*path):
        return rows[lines[path] - 1]

    assert tomllib.loads(TRICKY)
    assert row("top").startswith("top")
    assert row("text").startswith("text")
    assert row("literal").startswith("literal")
    assert row("a").startswith("[a")
    assert row("a", "b.c").startswith("[a")
    assert row("a", "b.c", "d", "e", "y z", "k").startswith("d.e")
    assert row("a", "b.c", "after").startswith("after")
    assert row("list", "g").startswith("g")
    assert row("list", 'é"').startswith('"\\u00e9')
    assert ("not", "a", "table") not in lines
    assert ("nor", "this") not in lines


def test_the_first_place_of_a_table_counts():
    assert key_lines("[a.b]\nx=1\n[a]\ny=2\n[a.c]\n") == {
        ("a",): 1,
        ("a", "b"): 1,
        ("a", "b", "x"): 2,
        ("a", "y"): 4,
        ("a", "c"): 5,
    }


keys = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4)
scalars = st.one_of(
    st.integers(0, 9).map(str),
    st.booleans().map(lambda value: str(value).lower()),
    st.text(st.sampled_from("[]{}=,#.'\" a"), max_size=8).map(lambda text: '"' + text.replace('"', '\\"') + '"'),
    st.text(st.sampled_from('[]{}=,#." \na'), max_size=8).map(lambda text: f"'''{text}'''"),
)


def quoted(key):
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(
    st.dictionaries(
        keys, st.dictionaries(keys, st.one_of(scalars, st.lists(scalars).map(", \n".join).map("[{}]".format)))
    )
)
def test_every_key_of_a_generated_text_is_found_where_it_was_written(tables):
    text, expected = "", {}
    for table, entries in tables.items():
        expected[(table,)] = text.count("\n") + 1
        text += f"[{quoted(table)}] # [x]\n"
        for key, value in entries.items():
            expected[table, key] = text.count("\n") + 1
            text += f"{quoted(key)} = {value} # y = 1\n"
    assert tomllib.loads(text).keys() == tables.keys()
    assert key_lines(text) == expected


@given(st.text(st.sampled_from("[]{}=,#.'\"\\ \n\rab1"), max_size=60))
def test_no_text_is_too_broken_to_be_walked(text):
    assert all(1 <= line <= text.count("\n") + 1 for line in key_lines(text).values())


@pytest.mark.parametrize("text", ["a." * 20_000 + "a = 1", "a = " + "[" * 20_000, "a = {" * 20_000])
def test_depth_costs_neither_stack_nor_memory(text):
    assert key_lines(text)[("a",)] == 1
