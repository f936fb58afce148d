"""The log of a server that writes too much, or to a full disk."""

from servetune.servers.drain import BoundedLog


def lines(log_path):
    return log_path.read_text().splitlines()


def test_a_short_log_is_what_was_written(tmp_path):
    log = BoundedLog(str(tmp_path / "log"), 1000)
    log.write(b"one\n")
    log.write(b"two, not ended")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo, not ended"


def test_an_earlier_log_of_the_name_is_replaced(tmp_path):
    (tmp_path / "log").write_text("old")
    BoundedLog(str(tmp_path / "log"), 1000).write(b"new")
    assert (tmp_path / "log").read_text() == "new"


def test_beginning_end_and_lines_of_note_stay(tmp_path):
    log = BoundedLog(str(tmp_path / "log"), 4000)
    for number in range(5000):
        log.write(b"line %d\n" % number)
        if number == 2500:
            log.write(b"GPU KV cache size: 1,234 tokens\n")
    kept = lines(tmp_path / "log")
    assert (tmp_path / "log").stat().st_size <= 4000 + 200
    assert kept[0] == "line 0"
    assert kept[-1] == "line 4999"
    assert kept.count("GPU KV cache size: 1,234 tokens") == 1
    assert all(line.startswith(("line ", "[", "GPU")) for line in kept), "whole lines only"
    numbers = [int(line.split()[1]) for line in kept if line.startswith("line ")]
    assert numbers == sorted(set(numbers)), "in order, none twice"


def test_what_was_left_out_is_counted(tmp_path):
    log = BoundedLog(str(tmp_path / "log"), 4000)
    written = b"".join(b"line %05d\n" % number for number in range(3000))
    for at in range(0, len(written), 77):
        log.write(written[at : at + 77])
    kept = (tmp_path / "log").read_bytes()
    notice = next(line for line in kept.splitlines() if line.startswith(b"[servetune left"))
    left_out = int(notice.split()[2])
    said = sum(len(line) + 1 for line in kept.splitlines() if line.startswith(b"["))
    assert left_out + len(kept) - said == len(written)


def test_a_fault_repeated_a_million_times_is_noted_once(tmp_path):
    log = BoundedLog(str(tmp_path / "log"), 4000)
    for number in range(3000):
        log.write(b"ERROR in request %d\n" % number)
    log.write(b"quiet\n" * 2000)
    kept = lines(tmp_path / "log")
    assert "ERROR in request 0" in kept
    assert kept.count("quiet") > 100
    middle = kept[kept.index(next(line for line in kept if line.startswith("[servetune"))) :]
    assert sum(line.startswith("ERROR") for line in middle) == 1
