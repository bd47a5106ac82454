"""The table of transitions, checked against the design's own rows."""

from __future__ import annotations

import itertools

import pytest

from queuekit.errors import IllegalTransition
from queuekit.lifecycle import TRANSITIONS, State, Verb, target

DESIGN = """
    LATER promote NEW
    NEW claim CUR
    CUR complete DONE
    CUR release NEW
    CUR defer LATER
    CUR reclaim NEW
    NEW cancel DONE
    LATER cancel DONE
    LATER release NEW
    DONE retry NEW
    DONE prune gone
"""
ROWS = [tuple(line.split()) for line in DESIGN.strip().splitlines()]
LEGAL = {(start, verb) for start, verb, _ in ROWS}
ILLEGAL = [(state, verb) for state, verb in itertools.product(State, Verb) if (state.name, verb.value) not in LEGAL]


@pytest.mark.parametrize(("start", "verb", "end"), ROWS)
def test_a_legal_verb_leads_where_the_design_says(start: str, verb: str, end: str) -> None:
    reached = target(State[start], Verb(verb))
    assert (reached.name if reached else "gone") == end


@pytest.mark.parametrize(("state", "verb"), ILLEGAL)
def test_any_other_verb_raises_with_its_facts(state: State, verb: Verb) -> None:
    before = dict(TRANSITIONS)
    with pytest.raises(IllegalTransition) as caught:
        target(state, verb, "j1")
    assert (caught.value.verb, caught.value.state, caught.value.id) == (verb, state, "j1")
    assert before == TRANSITIONS


def test_every_state_can_be_reached_and_left() -> None:
    assert {end for end in TRANSITIONS.values() if end} == set(State)
    assert {start for start, _ in TRANSITIONS} == set(State)
