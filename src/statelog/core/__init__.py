"""
Decisions without IO: `handle(event, now_ns) -> actions`. No clocks, threads or stores.

    change_log           the change sets of one writer
    upload_batcher       which uploads go together, and when
    upload_retry         one upload and its attempts
    retry_policy         the delay before an attempt
    checkpoint_ledger    the checkpoints of one owner
    snapshot_schedule    which snapshots a micro-batch writes
    task_count           the number of tasks of a micro-batch
    source_position      how far a query has read its sources
    delivered_batch      whether a target has a micro-batch already
"""
