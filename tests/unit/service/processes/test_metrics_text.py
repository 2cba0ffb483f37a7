from prometheus_client.parser import text_string_to_metric_families

from lodeq.service.processes.metrics_text import joined
from lodeq.service.processes.supervisor import ProcessStatus

ONE = """# HELP lodeq_up 1 while it answers
# TYPE lodeq_up gauge
lodeq_up 1.0
# HELP lodeq_tasks Tasks
# TYPE lodeq_tasks gauge
lodeq_tasks{queue="a } b",state="ready"} 3.0
# HELP lodeq_wait_seconds Waits
# TYPE lodeq_wait_seconds histogram
lodeq_wait_seconds_bucket{le="+Inf"} 2.0
lodeq_wait_seconds_count 2.0
lodeq_wait_seconds_sum 0.5
"""
TWO = ONE.replace(" 3.0", " 4.0")


def status(number, state="serving", restarts=0):
    return ProcessStatus(number, f"unix:///s.{number}", (number,), 1, state, restarts, "")


def test_pages_become_one_whose_samples_say_their_process():
    page = joined({1: TWO, 0: ONE}, [status(0), status(1), status(2, "down", 3)])
    found = {family.name: family for family in text_string_to_metric_families(page)}
    assert {name: len(one.samples) for name, one in found.items()} == {
        "lodeq_up": 2,
        "lodeq_tasks": 2,
        "lodeq_wait_seconds": 6,
        "lodeq_process_up": 3,
        "lodeq_process_restarts": 3,
    }
    tasks = {one.labels["process"]: (one.labels["queue"], one.value) for one in
             found["lodeq_tasks"].samples}  # fmt: skip
    assert tasks == {"0": ("a } b", 3.0), "1": ("a } b", 4.0)}
    assert [one.value for one in found["lodeq_process_up"].samples] == [1.0, 1.0, 0.0]
    assert [one.value for one in found["lodeq_process_restarts"].samples] == [0.0, 0.0, 3.0]
    assert found["lodeq_wait_seconds"].type == "histogram"


def test_without_any_page_it_says_who_is_down():
    page = joined({}, [status(0, "starting")])
    assert 'lodeq_process_up{process="0"} 0' in page
