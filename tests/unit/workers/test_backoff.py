from tfs_lite.workers.supervisor import Backoff


def test_pauses_double_up_to_a_bound():
    backoff = Backoff(first=0.1, most=1.0, well=60.0)
    assert [round(backoff.next(5.0), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_very_many_failures_are_no_problem():
    backoff = Backoff(failures=100_000)
    assert backoff.next(0.0) == 30.0


def test_process_that_ran_well_for_a_while_starts_afresh():
    backoff = Backoff(well=60.0)
    for _ in range(8):
        backoff.next(0.0)
    assert backoff.next(59.9) > 20
    assert backoff.next(60.0) == 0.1
    assert backoff.next(0.0) == 0.2
