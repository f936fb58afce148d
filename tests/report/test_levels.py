from servetune.report import as_text, levels_table
from servetune.store import Results, TrialConfig, TrialRecord


def level(users, *, full=16):
    """Run of a closed loop whose server is full with 16 users."""
    rate, latency_ms = min(users, full), 1000 * max(1, users / full)
    return TrialRecord(
        config=TrialConfig(client_args={"max_concurrency": users}),
        results=Results(
            output_throughput=10.0 * rate,
            request_throughput=float(rate),
            mean_e2e_latency_ms=latency_ms,
            failed=0,
            completed=100,
            wrong_length_rate=0.0,
        ),
    )


def conclusions(*users):
    return as_text(levels_table([level(each) for each in users], (), asked=len(users)))


def test_the_knees_of_levels_have_the_names_of_their_definitions():
    printed = conclusions(1, 4, 16, 64, 128)
    assert "knee: 16, the most throughput per latency" in printed
    assert "knees by half latency 32, by doubled latency 32, by curvature 16" in printed


def test_a_knee_that_levels_do_not_show_is_not_printed():
    assert "knees" not in conclusions(1, 4, 16)
