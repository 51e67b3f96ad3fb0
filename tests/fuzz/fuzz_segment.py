"""
Coverage-guided fuzzing of every reader of bytes, where atheris is installed.

`python tests/fuzz/fuzz_segment.py -max_total_time=180` fuzzes for three minutes; other arguments
are libFuzzer's. Golden files and a checkpoint are the first inputs. What breaks is written to
`crash-*`; `python tests/fuzz/fuzz_segment.py crash-...` shows it again.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def seeds(target_names: list[str]) -> list[bytes]:
    """Return first inputs: golden files for the readers of files and sets, records for theirs."""
    import statelog.format.checkpoint_record as record_format
    from statelog.format.checkpoint_record import ClaimRecord, encode_claim
    from statelog.format.segment import parse_segment
    from statelog.model import CompletedCheckpoint

    checkpoint = CompletedCheckpoint(
        checkpoint_id=4, parent_id=3, created_at_ms=1, epoch=1, owner_id="o", max_parallelism=8
    )
    body = record_format.encode_record(checkpoint)
    claim = ClaimRecord(
        number=5,
        owner_id="o",
        attempt="a",
        created_at_ms=1,
        newest=4,
        next_number=6,
        location_id="b",
    )
    trailer = parse_segment(encode_claim(claim)).trailer
    assert trailer is not None
    claim_body = bytes(trailer.sections[record_format.CHECKPOINT_TAG])
    claim_text = bytes(record_format.open_record(claim_body).raw)
    found = [
        bytes([target_names.index(name)]) + data
        for name, data in (
            ("checkpoint_record", body),
            ("entry_record", body),
            ("entry_record", claim_body),
            ("claim_text", claim_text),
        )
    ]
    for path in sorted((ROOT / "tests" / "golden").glob("*.dstl")):
        data = path.read_bytes()
        if len(data) < 4000:
            name = "framed_file" if data[0] else "plain_file"
            found.append(bytes([target_names.index(name)]) + data[1:])
            found.append(bytes([target_names.index("change_set")]) + data[1:])
    return found


def main(arguments: list[str]) -> int:
    """Fuzz; returns 2 where atheris is missing."""
    sys.path.insert(0, str(ROOT))
    try:
        import atheris
    except ImportError:
        sys.stderr.write("atheris is not installed; see CONTRIBUTING.md\n")
        return 2
    with atheris.instrument_imports(include=["statelog.format", "tests.fuzz"]):
        from tests.fuzz.targets import TARGETS, one_input
    corpus = tempfile.mkdtemp(prefix="statelog-corpus-")
    for number, data in enumerate(seeds([target.__name__ for target in TARGETS])):
        Path(corpus, str(number)).write_bytes(data)
    replay = [each for each in arguments if not each.startswith("-")]
    atheris.Setup([sys.argv[0], *arguments, *([] if replay else [corpus])], one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
