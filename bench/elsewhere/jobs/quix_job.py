"""
Quix Streams: `apply` with state in RocksDB and a change topic, a result for each event.

`quix_job.py produce` writes the events to a topic of two partitions; `quix_job.py run` processes them, in two
processes, until no event has come for some seconds.  The broker is at `ELSEWHERE_BROKER`.
"""

import multiprocessing
import os
import sys
import time

DATA = os.environ["ELSEWHERE_DATA"]
QUERY = os.environ["ELSEWHERE_QUERY"]
ANSWERS = os.environ.get("ELSEWHERE_ANSWERS")
BROKER = os.environ["ELSEWHERE_BROKER"]
TOPIC = os.environ["ELSEWHERE_TOPIC"]
EVERY = 5_000
IDLE_S = 10.0
PARTITIONS = 2
RETENTION = {"retention.ms": "604800000", "retention.bytes": "-1", "cleanup.policy": "delete"}


def produce():
    """Write the events of each file to the partition of its number."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = NewTopic(TOPIC, PARTITIONS, 1, config=RETENTION)
    admin = AdminClient({"bootstrap.servers": BROKER})  # it ends its request when it is dropped
    admin.create_topics([topic])[TOPIC].result(30)
    buffered = {"queue.buffering.max.messages": 500_000, "batch.num.messages": 10_000}
    producer = Producer({"bootstrap.servers": BROKER, "linger.ms": 50, **buffered})
    failed = []

    def delivered(error, message):
        if error is not None:
            failed.append(error)

    for partition in range(PARTITIONS):
        with open(f"{DATA}/csv/{partition}.csv", encoding="ascii") as file:
            for number, line in enumerate(file):
                key, value = line.rstrip().split(",")
                text = f'{{"key":{key},"value":{value}}}'
                while True:
                    try:
                        producer.produce(
                            TOPIC, key=key, value=text, partition=partition, on_delivery=delivered
                        )
                        break
                    except BufferError:
                        producer.poll(0.1)
                if number % EVERY == 0:
                    producer.poll(0)
    if producer.flush(120) or failed:
        sys.exit(f"events were not delivered: {failed[:1]}")


class Processor:
    """The function of a process, and what it counts."""

    def __init__(self):
        self.seen = 0
        self.last = {}
        path = f"{os.environ['ELSEWHERE_MARKS']}/{os.getpid()}"
        self.file = open(path, "a", encoding="ascii")

    def __call__(self, event, state):
        self.seen += 1
        if self.seen % EVERY == 1:
            print(time.time(), self.seen, file=self.file, flush=True)
        if QUERY == "totals":
            n, amount = state.get("numbers") or (0, 0.0)
            new = [n + 1, amount + event["value"]]
        else:
            new = [*(state.get("numbers") or ()), event["value"]][-10:]
        state.set("numbers", new)
        if ANSWERS:
            self.last[event["key"]] = new
        return new


def run():
    """Process the events."""
    from quixstreams import Application

    application = Application(
        broker_address=BROKER,
        consumer_group=f"{TOPIC}-readers",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=10.0,
        state_dir=f"{os.environ['ELSEWHERE_STATE']}/{os.getpid()}",
        topic_create_timeout=30,
    )
    processor = Processor()
    topic = application.topic(TOPIC, value_deserializer="json", key_deserializer="str")
    application.dataframe(topic).apply(processor, stateful=True)
    application.run(timeout=IDLE_S)
    print(time.time(), processor.seen, file=processor.file, flush=True)
    if ANSWERS:
        with open(f"{ANSWERS}/{os.getpid()}", "w", encoding="ascii") as file:
            for key, numbers in processor.last.items():
                print(key, *numbers, file=file)


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        produce()
    else:
        processes = [multiprocessing.get_context("spawn").Process(target=run) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        sys.exit(max(process.exitcode or 0 for process in processes))
