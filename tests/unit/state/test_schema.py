"""The schema of state lies next to the data and is read without the program that wrote it."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from statelog.errors import CheckpointError, CorruptionError, IncompatibleFormatError
from statelog.state.kinds import StateKind
from statelog.state.schema import (
    SCHEMA_VERSION,
    Aggregation,
    OperatorStateSchema,
    StateDescriptor,
    TtlChange,
    evolve,
    field_since,
    undeclared,
    with_since,
)

KEY = pa.schema([("k", pa.string())])
TOTAL = StateDescriptor("total", StateKind.VALUE, pa.schema([("sum", pa.float64())]))
SEEN = StateDescriptor(
    "seen", StateKind.MAP, pa.schema([("n", pa.int64())]), pa.schema([("id", pa.string())])
)
LATER = with_since(pa.field("at", pa.int64()), 3)
MOST = StateDescriptor(
    "most",
    StateKind.VALUE,
    pa.schema([pa.field("s", pa.struct([LATER]))]),
    ttl_ms=5,
    aggregation=Aggregation.REDUCING,
    since=2,
    dropped=True,
    ttl_changes=(TtlChange(4, True, 99),),
)
WHOLE = OperatorStateSchema("op", KEY, (TOTAL, SEEN, MOST), generation=4)


def test_the_json_form_comes_back():
    back = OperatorStateSchema.from_json(json.loads(json.dumps(WHOLE.to_json())))
    assert WHOLE == back
    assert 3 == field_since(back.states[2].value_schema.field("s").type.field(0))


def test_a_dropped_variable_has_no_id():
    assert 1 == WHOLE.state_id("seen")
    with pytest.raises(KeyError):
        WHOLE.state_id("most")


@pytest.mark.parametrize("version", [1, 99])
def test_a_schema_of_a_different_version_is_not_called_corrupt(version):
    with pytest.raises(
        IncompatibleFormatError, match=f"version {version}; this version of statelog reads"
    ):
        OperatorStateSchema.from_json({**WHOLE.to_json(), "version": version})


def test_a_schema_that_lacks_a_field_is_corrupt():
    with pytest.raises(CorruptionError):
        OperatorStateSchema.from_json({"version": SCHEMA_VERSION})


ID = pa.schema([("id", pa.string())])
STORED = OperatorStateSchema("op", KEY, (TOTAL, SEEN))
NOW = 1_000


def of(*states: StateDescriptor, deleted: tuple[str, ...] = ()) -> OperatorStateSchema:
    return OperatorStateSchema("op", KEY, states, deleted=frozenset(deleted))


def with_field(kind: pa.DataType, nullable: bool = True) -> OperatorStateSchema:
    return of(replace(TOTAL, value_schema=pa.schema([pa.field("f", kind, nullable)])))


def test_the_same_schema_stays_the_same_generation():
    assert evolve(STORED, STORED, now_ms=NOW) is STORED
    assert evolve(STORED, of(SEEN), now_ms=NOW) is STORED  # what is not asked for is kept


def test_variables_keep_their_ids_and_new_ones_are_added_at_the_end():
    extra = replace(TOTAL, name="extra")
    evolved = evolve(STORED, of(extra, SEEN), now_ms=NOW)
    assert ["total", "seen", "extra"] == [state.name for state in evolved.states]
    assert (1, 1) == (evolved.generation, evolved.states[2].since)


WIDENED = [
    (pa.int8(), pa.int16()),
    (pa.int8(), pa.float32()),
    (pa.int16(), pa.int64()),
    (pa.int32(), pa.int64()),
    (pa.int32(), pa.float64()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(5, 2), pa.decimal128(9, 2)),
    (pa.decimal128(5, 2), pa.decimal128(9, 4)),
    (pa.list_(pa.int32()), pa.list_(pa.int64())),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int32())),
    (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        pa.struct([("c", pa.date32()), ("a", pa.int64())]),
    ),
]
REFUSED = [
    (pa.int64(), pa.int32(), "int64 there, but int32 here"),
    (pa.int64(), pa.float64(), "int64 there, but double here"),
    (pa.int32(), pa.float32(), "int32 there, but float here"),
    (pa.float64(), pa.float32(), "double there, but float here"),
    (pa.decimal128(5, 2), pa.decimal128(4, 2), "decimal"),
    (pa.decimal128(5, 2), pa.decimal128(5, 3), "decimal"),
    (pa.int64(), pa.string(), "int64 there, but string here"),
    (pa.string(), pa.binary(), "string there, but binary here"),
    (pa.date32(), pa.timestamp("us"), "date32"),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), "timestamp"),
    (pa.int64(), pa.list_(pa.int64()), "list"),
    (pa.list_(pa.int64()), pa.list_(pa.int32()), r"'f'\[\]"),
    (pa.map_(pa.int32(), pa.int64()), pa.map_(pa.int64(), pa.int64()), "map"),
    (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.bool_())]), r"'f'\.'a' is int64"),
]


@pytest.mark.parametrize(("old", "new"), WIDENED, ids=str)
def test_a_type_may_be_widened(old, new):
    evolved = evolve(with_field(old), with_field(new), now_ms=NOW)
    assert new == evolved.states[0].value_schema.field("f").type
    with pytest.raises(CheckpointError, match="'f'"):
        evolve(evolved, with_field(old), now_ms=NOW)


@pytest.mark.parametrize(("old", "new", "reason"), REFUSED, ids=str)
def test_a_loss_of_digits_is_refused(old, new, reason):
    with pytest.raises(CheckpointError, match=reason) as caught:
        evolve(with_field(old), with_field(new), now_ms=NOW)
    assert "state 'total': field 'f'" in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (replace(STORED, operator_id="other"), "operator 'op'"),
        (replace(STORED, key_schema=pa.schema([("k", pa.int64())])), "key is"),
        (of(replace(TOTAL, kind=StateKind.LIST)), "'total' is a value state there, but a list"),
        (
            of(replace(TOTAL, aggregation=Aggregation.REDUCING)),
            "a value state there, but a reducing",
        ),
        (of(replace(SEEN, user_key_schema=pa.schema([("id", pa.int64())]))), "'seen' has the map"),
    ],
)
def test_what_does_not_fit_is_refused(wanted, reason):
    with pytest.raises(CheckpointError, match=reason):
        evolve(STORED, wanted, now_ms=NOW)


def test_a_field_may_become_not_null_and_nullable():
    nullable, required = with_field(pa.int64()), with_field(pa.int64(), nullable=False)
    for before, after in ((nullable, required), (required, nullable)):
        evolved = evolve(before, after, now_ms=NOW)
        assert after.states[0].value_schema == evolved.states[0].value_schema
    new = pa.schema([("sum", pa.float64()), pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(CheckpointError, match=r"'n' is new and NOT NULL.*: declare it nullable"):
        evolve(STORED, of(replace(TOTAL, value_schema=new)), now_ms=NOW)


def inside(nullable: bool) -> list[pa.DataType]:
    """Types that differ in nothing but in what may be null inside of them."""
    point = pa.struct([pa.field("x", pa.int64(), nullable)])
    return [point, pa.list_(pa.field("element", point, nullable)), pa.map_(point, pa.int64())]


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("stored", [True, False])
def test_nullability_is_no_part_of_a_key(at, stored):
    schemas = []
    for nullable in (stored, not stored):
        kind = inside(nullable)[at]
        user_key, value = pa.schema([("id", kind)]), pa.schema([("v", kind)])
        seen = replace(SEEN, user_key_schema=user_key, value_schema=value)
        schemas.append(OperatorStateSchema("op", pa.schema([("k", kind)]), (seen,)))
    evolved = evolve(schemas[0], schemas[1], now_ms=NOW)
    assert schemas[1].key_schema == evolved.key_schema
    assert schemas[1].states[0].user_key_schema == evolved.states[0].user_key_schema


def test_keys_may_be_renamed():
    wanted = replace(
        of(replace(SEEN, user_key_schema=pa.schema([("ident", pa.string())]))),
        key_schema=pa.schema([("customer", pa.string())]),
    )
    evolved = evolve(STORED, wanted, now_ms=NOW)
    assert ["customer"] == evolved.key_schema.names
    assert evolved.states[1].user_key_schema is not None
    assert ["ident"] == evolved.states[1].user_key_schema.names


@pytest.mark.parametrize("names", [("second", "first"), ("second", "third"), ("other", "first")])
def test_columns_of_a_key_do_not_change_places(names):
    """They are matched by their places: another order would exchange their values."""
    before = pa.schema([("first", pa.string()), ("second", pa.string())])
    after = pa.schema([(name, pa.string()) for name in names])
    stored, declared = replace(STORED, key_schema=before), replace(STORED, key_schema=after)
    with pytest.raises(CheckpointError, match=r"its key is .* is in a different position"):
        evolve(stored, declared, now_ms=NOW)
    stored = of(TOTAL, replace(SEEN, user_key_schema=before))
    declared = of(TOTAL, replace(SEEN, user_key_schema=after))
    with pytest.raises(CheckpointError, match=r"map key of state 'seen' is .* different position"):
        evolve(stored, declared, now_ms=NOW)


def test_what_a_processor_no_longer_declares_is_named_at_every_depth():
    def nested(*names: str) -> pa.DataType:
        return pa.struct([(name, pa.int64()) for name in names])

    def fields(*names: str) -> pa.Schema:
        inner = nested(*names)
        types = {
            "plain": pa.int64(),
            "part": pa.struct([("deep", inner)]),
            "items": pa.list_(inner),
            "by_name": pa.map_(pa.string(), pa.list_(inner)),
        }
        return pa.schema(list(types.items()))

    stored = of(replace(TOTAL, value_schema=fields("a", "b")), SEEN)
    assert [] == undeclared(stored, stored)
    moved = of(SEEN, replace(TOTAL, value_schema=fields("c", "b", "a")))
    assert [] == undeclared(stored, moved)
    fewer = of(replace(TOTAL, value_schema=fields("b")))
    paths = ["total.part.deep.a", "total.items.element.a", "total.by_name.value.element.a", "seen"]
    assert paths == undeclared(stored, fewer)
    plain = of(SEEN, replace(TOTAL, value_schema=pa.schema([("other", pa.int64())])))
    assert [f"total.{name}" for name in fields().names] == undeclared(stored, plain)


def test_deleted_and_dropped_fields_are_not_named():
    assert ["total"] == undeclared(STORED, of(SEEN))
    assert [] == undeclared(STORED, of(SEEN, deleted=("total",)))
    dropped = evolve(STORED, of(SEEN), now_ms=NOW, drop=["total", "total.n"])
    assert [True, False] == [state.dropped for state in dropped.states]
    assert [] == undeclared(dropped, of(SEEN))


def test_a_field_that_comes_back_is_another_field():
    both = replace(TOTAL, value_schema=pa.schema([("sum", pa.float64()), ("n", pa.string())]))
    again = replace(TOTAL, value_schema=pa.schema([("n", pa.int64()), ("sum", pa.float64())]))
    first = evolve(of(both), of(TOTAL), now_ms=NOW)
    second = evolve(first, of(again), now_ms=NOW)
    assert 2 == second.generation
    schema = second.states[0].value_schema
    assert {"n": 2, "sum": 0} == {field.name: field_since(field) for field in schema}


def test_a_deleted_variable_leaves_its_id_and_comes_back_as_another():
    deleted = evolve(STORED, of(SEEN, deleted=("total", "unknown")), now_ms=NOW)
    assert [True, False] == [state.dropped for state in deleted.states]
    assert deleted is evolve(deleted, of(SEEN, deleted=("total", "unknown")), now_ms=NOW)
    back = evolve(deleted, of(SEEN, replace(TOTAL, kind=StateKind.LIST)), now_ms=NOW)
    assert (2, 2) == (back.state_id("total"), back.states[2].since)


def test_a_variable_may_be_deleted_and_made_anew_at_once():
    anew = replace(TOTAL, kind=StateKind.LIST)
    evolved = evolve(STORED, of(anew, SEEN, deleted=("total",)), now_ms=NOW)
    assert [True, False, False] == [state.dropped for state in evolved.states]
    same = evolve(STORED, of(TOTAL, SEEN, deleted=("total",)), now_ms=NOW)
    assert same is STORED  # the tasks empty it


def test_a_time_to_live_may_be_added_changed_and_removed():
    lived = evolve(STORED, of(replace(TOTAL, ttl_ms=50)), now_ms=NOW)
    assert (TtlChange(1, True, NOW + 50),) == lived.states[0].ttl_changes
    longer = evolve(lived, of(replace(TOTAL, ttl_ms=70)), now_ms=NOW + 1)
    (state, _) = longer.states
    assert (70, lived.states[0].ttl_changes) == (state.ttl_ms, state.ttl_changes)
    gone = evolve(longer, of(TOTAL), now_ms=NOW + 2)
    assert gone.states[0].ttl_ms is None
    assert TtlChange(3, False, NOW + 2) == gone.states[0].ttl_changes[-1]
