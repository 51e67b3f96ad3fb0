"""Facts from the text of a plan, as Spark 4.3 explains it on a Connect server."""

import pytest

from statelog.extensions.connect.recorded_steps import facts_in
from statelog.spark.query.input_plan import InputPlan

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
