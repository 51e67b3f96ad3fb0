"""What travels between client and worker, without a server."""

import pickle
from pathlib import Path

import pytest

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import UsageError
from statelog.extensions.connect import worker
from statelog.extensions.connect.client import refuse_relative
from statelog.extensions.connect.recorded_steps import facts_in
from statelog.spark import idempotent
from statelog.spark.driver.failures import reported_in
from statelog.spark.query.input_plan import InputPlan
from statelog.spark.query.settings import QuerySettings


def test_another_version_in_the_server_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(worker.ConnectEngine(b"never read"))
    monkeypatch.setattr(worker, "__version__", "0.0.1")
    with pytest.raises(UsageError, match=r"but the server runs 0\.0\.1") as rejected:
        pickle.loads(data)
    reported = reported_in(f"Traceback ...\nstatelog.errors.UsageError: {rejected.value}")
    assert reported is not None
    assert "install the same version" in reported.message


def test_figures_of_old_batches_are_replaced() -> None:
    first = worker.figures_key("q", 3)
    assert first == worker.figures_key("q", 3 + worker.KEPT_BATCHES)
    assert first != worker.figures_key("q", 4)
    assert first.startswith(worker.figures_key("q"))


@pytest.mark.parametrize("location", ["state", "./state", "some/where", "checkpoint/of/state"])
def test_a_relative_path_is_rejected(location: str) -> None:
    for checkpoint_location, settings in (
        (location, QuerySettings()),
        ("/absolute", QuerySettings(state_location=location)),
        ("/absolute", QuerySettings(base_location=location)),
    ):
        with pytest.raises(UsageError, match="absolute path"):
            refuse_relative(checkpoint_location, settings)


def test_urls_absolute_paths_and_the_word_for_the_checkpoint_location_are_not_rejected() -> None:
    refuse_relative("/a", QuerySettings(state_location="s3a://b/c", base_location="file:/d"))
    refuse_relative("checkpoint:", QuerySettings())
    refuse_relative("/a", QuerySettings(state_location="checkpoint"))
    refuse_relative("/a", QuerySettings(base_location="checkpoint"))
    with pytest.raises(UsageError, match="absolute path"):
        refuse_relative("checkpoint", QuerySettings())  # there it is a relative path


def _sink(frame: object, batch_id: int) -> None:
    raise AssertionError("never called")


def test_an_idempotent_function_can_be_pickled(tmp_path: Path) -> None:
    function = idempotent(_sink, str(tmp_path), storage_options={})
    copy = pickle.loads(pickle.dumps(function))
    assert copy._records._location == str(tmp_path)
    batch = DeliveredBatch("aa", 0, 4, "bb")
    copy._records.add("writer", copy._records.next_number("writer", batch), batch)
    assert function._records.next_number("writer", batch) is None  # type: ignore[attr-defined]


FILES = (
    "~StreamingRelation DataSource(org.apache.spark.sql.classic.SparkSession@1,parquet), [key#0L]"
)
RATE = "~StreamingRelationV2 org.apache.spark.sql.execution.streaming.sources.RateStreamProvider@5e"

VIEW = f"""\
~Project [pmod(xxhash64(k#3L, 42), 128) AS __key_group#9, k#3L]
+- ~Filter (k#3L > cast(1 as bigint))
   +- ~SubqueryAlias v
      +- View (`v`, [value#2L, timestamp#1-T5000ms, k#3L])
         +- ~Project [value#2L, timestamp#1-T5000ms, value#2L AS k#3L]
            +- ~EventTimeWatermark cf8b94d2, timestamp#1: timestamp, 5 seconds
               +- {RATE}, rate, [timestamp#1, value#2L], name=<Unassigned>"""

WITH_A_BATCH_FRAME = f"""\
~Union false, false
:- ~Join Inner, (k#3L = id#6L)
:  :- {FILES}
:  +- Aggregate [id#6L], [id#6L, count(1) AS count#7L]
:     +- Range (0, 5, step=1, splits=Some(2))
+- ~Project [cast(null as bigint) AS value#12L]
   +- ~Filter false
      +- {RATE}, rate, [rowsPerSecond=1]"""

OF_TWO_STREAMS = f"""\
~Join Inner, (k#3L = id#6L)
:- {FILES}
+- {FILES}"""

AGGREGATED = f"""\
~Aggregate [key#0L], [key#0L, count(1) AS count#7L]
+- {FILES}"""

UNKNOWN = f"""\
~MapInArrow f(key#0L), [key#1L], false
+- {FILES}"""


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        (VIEW, InputPlan(has_watermark=True, is_stateless=True, sources=1)),
        (WITH_A_BATCH_FRAME, InputPlan(is_stateless=True, sources=2)),
        (OF_TWO_STREAMS, InputPlan(is_stateless=False, sources=2)),
        (AGGREGATED, InputPlan(is_stateless=False, sources=1)),
        (UNKNOWN, InputPlan(is_stateless=False, sources=1)),
    ],
    ids=["view", "batch frame", "two streams", "aggregate", "unknown"],
)
def test_the_facts_are_those_of_the_plan(text: str, plan: InputPlan) -> None:
    assert facts_in(text) == plan
